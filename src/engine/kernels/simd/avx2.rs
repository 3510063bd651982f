//! AVX2 with FMA: the sixteen lanes are four registers of four f64.

use std::arch::x86_64::*;
use std::ops::Range;

use super::walk::*;
use super::{Aligned, BLOCK_COLUMNS, Prepared, SCALED_CODES, prefetch};
use crate::kernels::contract::{LANES, fold_lanes};
use crate::kernels::matrix::{MatrixRef, Values};
use crate::kernels::products::Emit;

/// Some lanes of a sum, or the weights that meet them.
type Register = __m256d;

/// Lanes in a register.
const WIDTH: usize = 4;

/// Registers of a block of columns.
const PARTS: usize = BLOCK_COLUMNS / WIDTH;

/// Rows of BF16 and of MXFP4 that one token alone is taken with.
const BF16_ROWS: usize = 2;
const MXFP4_ROWS: usize = 2;

/// Rows of a tile: with four tokens, as many sums as there are registers for.
const TILE_ROWS: usize = 3;

#[target_feature(enable = "avx2,fma")]
fn zero() -> Register {
    _mm256_setzero_pd()
}

#[target_feature(enable = "avx2,fma")]
fn load(values: &[f64; WIDTH]) -> Register {
    // SAFETY: four f64 are 32 readable bytes; the load needs no alignment.
    unsafe { _mm256_loadu_pd(values.as_ptr()) }
}

#[target_feature(enable = "avx2,fma")]
fn store(register: Register, values: &mut [f64; WIDTH]) {
    // SAFETY: four f64 are 32 writable bytes; the store needs no alignment.
    unsafe { _mm256_storeu_pd(values.as_mut_ptr(), register) }
}

/// sum + weights · x.
#[target_feature(enable = "avx2,fma")]
fn multiply_add(weights: Register, x: Register, sum: Register) -> Register {
    _mm256_fmadd_pd(weights, x, sum)
}

/// Makes 32 BF16 to f64: each is moved into the upper half of an f32, which is then widened.
#[target_feature(enable = "avx2,fma")]
fn bf16() -> impl Fn(&[u16; BLOCK_COLUMNS]) -> [Register; PARTS] {
    let half = |weights: &[u16; 16]| {
        // SAFETY: 16 u16 are 32 readable bytes; the load needs no alignment.
        let all = unsafe { _mm256_loadu_si256(weights.as_ptr().cast()) };
        // Columns 0 to 3 and 8 to 11, then 4 to 7 and 12 to 15: the unpacking works by halves.
        let low = _mm256_castsi256_ps(_mm256_unpacklo_epi16(_mm256_setzero_si256(), all));
        let high = _mm256_castsi256_ps(_mm256_unpackhi_epi16(_mm256_setzero_si256(), all));
        [
            _mm256_cvtps_pd(_mm256_castps256_ps128(low)),
            _mm256_cvtps_pd(_mm256_castps256_ps128(high)),
            _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(low)),
            _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(high)),
        ]
    };
    move |weights| {
        let (halves, _) = weights.as_chunks::<16>();
        let ([a, b, c, d], [e, f, g, h]) = (half(&halves[0]), half(&halves[1]));
        [a, b, c, d, e, f, g, h]
    }
}

/// 32 MXFP4 values. A look-up of 32-bit entries reads the low three bits of each index: the codes
/// of four bytes, shifted apart, are eight indices at once. The sign, bit 3 of a code, is added
/// by itself.
#[target_feature(enable = "avx2,fma")]
fn mxfp4(codes: &[u8; BLOCK_COLUMNS / 2], scale: u8) -> [Register; PARTS] {
    // SAFETY: half a table is 32 readable bytes; the load needs no alignment.
    let table = unsafe { _mm256_loadu_si256(SCALED_CODES[usize::from(scale)].0.as_ptr().cast()) };
    // Columns 0 to 3, then 4 to 7, once they are unpacked by halves.
    let down = _mm256_setr_epi32(0, 4, 16, 20, 8, 12, 24, 28);
    let up = _mm256_sub_epi32(_mm256_set1_epi32(28), down);
    let sign = _mm256_set1_epi32(i32::MIN);
    let (fours, _) = codes.as_chunks::<4>();
    let eight = |bytes: [u8; 4]| {
        let all = _mm256_set1_epi32(i32::from_le_bytes(bytes));
        let values = _mm256_permutevar8x32_epi32(table, _mm256_srlv_epi32(all, down));
        let signs = _mm256_and_si256(_mm256_sllv_epi32(all, up), sign);
        let values = _mm256_or_si256(values, signs);
        let zero = _mm256_setzero_si256();
        [
            _mm256_castsi256_pd(_mm256_unpacklo_epi32(zero, values)),
            _mm256_castsi256_pd(_mm256_unpackhi_epi32(zero, values)),
        ]
    };
    let [a, b] = eight(fours[0]);
    let [c, d] = eight(fours[1]);
    let [e, f] = eight(fours[2]);
    let [g, h] = eight(fours[3]);
    [a, b, c, d, e, f, g, h]
}

walks!("avx2,fma");
