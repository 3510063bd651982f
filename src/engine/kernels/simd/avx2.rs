//! AVX2 with FMA: the sixteen lanes are four registers of four f64, even lanes and odd lanes.

use std::arch::x86_64::*;

use super::{BLOCK_COLUMNS, Tile};
use crate::kernels::contract::LANES;
use crate::kernels::mxfp4::scale_value;

/// Even lanes 0…6, even lanes 8…14, odd lanes 1…7, odd lanes 9…15 of one sum.
type Sums = [__m256d; 4];

/// A row of codes and its scales.
pub type Mxfp4Row<'a> = (&'a [u8], &'a [u8]);

/// Twice the value of each code, as signed bytes (−0 becomes 0: see the parent module).
const DOUBLED_CODES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

#[target_feature(enable = "avx2,fma")]
fn load(values: &[f64; 4]) -> __m256d {
    // SAFETY: four f64 are 32 readable bytes; the load needs no alignment.
    unsafe { _mm256_loadu_pd(values.as_ptr()) }
}

#[target_feature(enable = "avx2,fma")]
fn store(sums: Sums) -> [f64; LANES] {
    let mut lanes = [0.0; LANES];
    for (sum, lanes) in sums.iter().zip(lanes.chunks_exact_mut(4)) {
        // SAFETY: the chunk is four f64, 32 writable bytes; the store needs no alignment.
        unsafe { _mm256_storeu_pd(lanes.as_mut_ptr(), *sum) };
    }
    lanes
}

/// Widens eight f32 to two registers of f64, lower half first.
#[target_feature(enable = "avx2,fma")]
fn widen(values: __m256) -> [__m256d; 2] {
    [
        _mm256_cvtps_pd(_mm256_castps256_ps128(values)),
        _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(values)),
    ]
}

/// Sixteen BF16 as f64: even elements, then odd ones.
#[target_feature(enable = "avx2,fma")]
fn bf16_half(weights: &[u16; LANES]) -> [__m256d; 4] {
    // SAFETY: 16 u16 are 32 readable bytes; the load needs no alignment.
    let pairs = unsafe { _mm256_loadu_si256(weights.as_ptr().cast()) };
    let even = widen(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)));
    let mask = _mm256_set1_epi32(0xFFFF_0000_u32 as i32);
    let odd = widen(_mm256_castsi256_ps(_mm256_and_si256(pairs, mask)));
    [even[0], even[1], odd[0], odd[1]]
}

/// Four signed bytes from the low end of a register, as f64.
#[target_feature(enable = "avx2,fma")]
fn four_bytes(bytes: __m128i) -> __m256d {
    _mm256_cvtepi32_pd(_mm_cvtepi8_epi32(bytes))
}

/// 32 MXFP4 values as two halves of sixteen, each even elements, then odd ones.
#[target_feature(enable = "avx2,fma")]
fn mxfp4_block(codes: &[u8; BLOCK_COLUMNS / 2], scale: u8) -> [[__m256d; 4]; 2] {
    // SAFETY: both are 16 readable bytes; the loads need no alignment.
    let (codes, table) = unsafe {
        (_mm_loadu_si128(codes.as_ptr().cast()), _mm_loadu_si128(DOUBLED_CODES.as_ptr().cast()))
    };
    let low_bits = _mm_set1_epi8(0x0F);
    let even = _mm_shuffle_epi8(table, _mm_and_si128(codes, low_bits));
    let high = _mm_and_si128(_mm_srli_epi16::<4>(codes), low_bits);
    let odd = _mm_shuffle_epi8(table, high);
    let scale = _mm256_set1_pd(0.5 * scale_value(scale));
    let value = |bytes| _mm256_mul_pd(four_bytes(bytes), scale);
    [
        [
            value(even),
            value(_mm_srli_si128::<4>(even)),
            value(odd),
            value(_mm_srli_si128::<4>(odd)),
        ],
        [
            value(_mm_srli_si128::<8>(even)),
            value(_mm_srli_si128::<12>(even)),
            value(_mm_srli_si128::<8>(odd)),
            value(_mm_srli_si128::<12>(odd)),
        ],
    ]
}

/// Adds sixteen products of each token to the sums of one row; `half` counts sixteens.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn add_half<const T: usize>(
    weights: [__m256d; 4],
    vectors: &[&[f64]; T],
    half: usize,
    sums: &mut [Sums; T],
) {
    for (sums, vector) in sums.iter_mut().zip(vectors) {
        let (x, _) = vector[half * LANES..(half + 1) * LANES].as_chunks::<4>();
        for part in 0..4 {
            sums[part] = _mm256_fmadd_pd(weights[part], load(&x[part]), sums[part]);
        }
    }
}

/// Lane sums of a BF16 tile, \[R\]\[T\], even lanes then odd lanes.
#[target_feature(enable = "avx2,fma")]
pub(super) fn bf16_tile<const R: usize, const T: usize>(
    tile: &Tile<'_, &[u16], R, T>,
) -> [[[f64; LANES]; T]; R] {
    let mut sums = [[[_mm256_setzero_pd(); 4]; T]; R];
    let columns = tile.rows[0].len();
    for half in 0..columns / LANES {
        for (row, sums) in tile.rows.iter().zip(&mut sums) {
            let (weights, _) = row[half * LANES..(half + 1) * LANES].as_chunks::<LANES>();
            add_half(bf16_half(&weights[0]), &tile.vectors, half, sums);
        }
    }
    let rest = columns / LANES * LANES;
    if rest < columns {
        for (row, sums) in tile.rows.iter().zip(&mut sums) {
            let mut padded = [0; LANES];
            padded[..columns - rest].copy_from_slice(&row[rest..]);
            add_half(bf16_half(&padded), &tile.vectors, columns / LANES, sums);
        }
    }
    stored(sums)
}

/// Lane sums of an MXFP4 tile, \[R\]\[T\], even lanes then odd lanes.
#[target_feature(enable = "avx2,fma")]
pub(super) fn mxfp4_tile<const R: usize, const T: usize>(
    tile: &Tile<'_, Mxfp4Row<'_>, R, T>,
) -> [[[f64; LANES]; T]; R] {
    let mut sums = [[[_mm256_setzero_pd(); 4]; T]; R];
    let blocks = tile.rows[0].1.len();
    for block in 0..blocks {
        for ((packed, scales), sums) in tile.rows.iter().zip(&mut sums) {
            let first = block * BLOCK_COLUMNS / 2;
            let codes = &packed[first..first + BLOCK_COLUMNS / 2];
            let (codes, _) = codes.as_chunks::<{ BLOCK_COLUMNS / 2 }>();
            let [lower, upper] = mxfp4_block(&codes[0], scales[block]);
            add_half(lower, &tile.vectors, 2 * block, sums);
            add_half(upper, &tile.vectors, 2 * block + 1, sums);
        }
    }
    stored(sums)
}

#[target_feature(enable = "avx2,fma")]
fn stored<const R: usize, const T: usize>(sums: [[Sums; T]; R]) -> [[[f64; LANES]; T]; R] {
    let mut out = [[[0.0; LANES]; T]; R];
    for (sums, out) in sums.iter().zip(&mut out) {
        for (sums, out) in sums.iter().zip(out) {
            *out = store(*sums);
        }
    }
    out
}
