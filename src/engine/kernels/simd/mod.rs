//! Faster paths for x86-64: the same sums in the same order, several rows and tokens at a time.
//!
//! Activations are widened to f64 once per product, in their own order: element e of a block of
//! sixteen is lane e of the contract, and the sixteen lanes are two AVX-512 registers or four of
//! AVX2. Products are exact in f64, so the fused multiply-add used here has the bits of the
//! separate one (A12). Columns beyond the last whole block of 32 are added to the lanes one by one.

#[cfg(target_arch = "x86_64")]
#[macro_use]
mod walk;

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
pub mod compiled;

#[cfg(target_arch = "x86_64")]
use super::mxfp4::{CODE_VALUES, scale_value};

/// Columns that the kernels take at once.
pub const BLOCK_COLUMNS: usize = 32;

/// A cache line of f64.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([f64; 8]);

/// Numbers that start on a cache line, zero at first.
#[derive(Debug)]
struct Aligned(Vec<Line>);

impl Aligned {
    fn zeros(len: usize) -> Self {
        Self(vec![Line([0.0; 8]); len.div_ceil(8)])
    }
}

impl std::ops::Deref for Aligned {
    type Target = [f64];

    fn deref(&self) -> &[f64] {
        bytemuck::cast_slice(&self.0)
    }
}

impl std::ops::DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f64] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

/// Asks for the cache line of an address, which may be any; nothing where there is no such hint.
#[inline(always)]
pub(super) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint: it reads nothing that the program sees and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// T activation rows, widened.
#[derive(Debug)]
pub struct Prepared {
    columns: usize,
    tokens: usize,
    /// f64 from one row to the next: not a multiple of 4 KiB, so that the same columns of several
    /// tokens are not all in one set of the first-level cache.
    stride: usize,
    values: Aligned,
}

impl Prepared {
    /// Widens `vectors` \[T, columns\].
    #[must_use]
    pub fn new(vectors: &[f32], columns: usize) -> Self {
        let tokens = vectors.len() / columns;
        let stride = columns.next_multiple_of(512) + 64;
        let mut values = Aligned::zeros(tokens * stride);
        for (row, out) in vectors.chunks_exact(columns).zip(values.chunks_exact_mut(stride)) {
            for (value, out) in row.iter().zip(out) {
                *out = f64::from(*value);
            }
        }
        Self { columns, tokens, stride, values }
    }

    /// Number of rows.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// One row.
    #[must_use]
    pub fn row(&self, token: usize) -> &[f64] {
        &self.values[token * self.stride..][..self.columns]
    }
}

/// The values of all codes under one scale byte, as upper halves of f64: the lower are zero.
#[cfg(target_arch = "x86_64")]
#[repr(align(64))]
struct ScaledCodes([u32; 16]);

/// The values of all codes under every scale byte, NaN under 255: 16 KiB that are looked up
/// instead of a multiplication by the scale.
#[cfg(target_arch = "x86_64")]
static SCALED_CODES: [ScaledCodes; 256] = {
    let mut tables = [const { ScaledCodes([0; 16]) }; 256];
    let mut place = 0;
    while place < 256 * 16 {
        let (scale, code) = (place / 16, place % 16);
        let value = CODE_VALUES[code] * scale_value(scale as u8);
        tables[scale].0[code] = (value.to_bits() >> 32) as u32;
        place += 1;
    }
    tables
};
