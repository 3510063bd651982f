//! Faster paths for x86-64: the same sums in the same order, several rows and tokens at a time.
//!
//! Activations are widened to f64 once per product and stored in the order in which packed
//! weights come apart: of each sixteen, the even elements, then the odd ones. Both BF16 (shift
//! for one half of a 32-bit pair, mask for the other) and MXFP4 (low nibbles, high nibbles) then
//! meet their activations without a shuffle, and lane i mod 16 of the contract is register
//! element i/2 of the even or the odd accumulator. Products are exact in f64, so the fused
//! multiply-add used here has the bits of the separate one (A12).
//!
//! Columns are padded with zeros to a multiple of 32. A lane never holds −0 (it starts at +0 and
//! a sum rounded to nearest yields −0 only from two of them), so adding ±0 changes no bit.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod compiled;
#[cfg(target_arch = "x86_64")]
pub(super) mod walk;

use super::contract::{LANES, fold_lanes};

/// Columns that the kernels take at once.
pub const BLOCK_COLUMNS: usize = 32;

/// T activation rows, widened, permuted and padded.
#[derive(Debug)]
pub struct Prepared {
    /// f64 per row: columns rounded up to a multiple of 32.
    stride: usize,
    values: Vec<f64>,
}

impl Prepared {
    /// Widens and permutes `vectors` \[T, columns\].
    #[must_use]
    pub fn new(vectors: &[f32], columns: usize) -> Self {
        let stride = columns.next_multiple_of(BLOCK_COLUMNS);
        let mut values = vec![0.0; vectors.len() / columns * stride];
        for (row, out) in vectors.chunks_exact(columns).zip(values.chunks_exact_mut(stride)) {
            for (row, out) in row.chunks(LANES).zip(out.chunks_exact_mut(LANES)) {
                let (even, odd) = out.split_at_mut(LANES / 2);
                for (pair, (even, odd)) in row.chunks(2).zip(even.iter_mut().zip(odd)) {
                    *even = f64::from(pair[0]);
                    *odd = pair.get(1).copied().map_or(0.0, f64::from);
                }
            }
        }
        Self { stride, values }
    }

    /// Number of rows.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.values.len() / self.stride.max(1)
    }

    /// One row.
    #[must_use]
    pub fn row(&self, token: usize) -> &[f64] {
        &self.values[token * self.stride..(token + 1) * self.stride]
    }
}

/// Folds lanes that are kept as even ones, then odd ones (A3).
#[inline]
#[must_use]
pub fn fold_even_odd(sums: &[f64; LANES]) -> f64 {
    let mut lanes = [0.0; LANES];
    for lane in 0..LANES {
        lanes[lane] = sums[lane % 2 * (LANES / 2) + lane / 2];
    }
    fold_lanes(lanes)
}

/// A matrix tile: R rows of packed weights by T prepared activation rows.
#[derive(Debug, Clone, Copy)]
pub struct Tile<'a, W, const R: usize, const T: usize> {
    /// The rows.
    pub rows: [W; R],
    /// The activations.
    pub vectors: [&'a [f64]; T],
}
