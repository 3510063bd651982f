//! AVX-512: the sixteen lanes are two registers of eight f64, even lanes and odd lanes.

use std::arch::x86_64::*;

use super::{BLOCK_COLUMNS, Tile};
use crate::kernels::contract::LANES;
use crate::kernels::mxfp4::{CODE_VALUES, scale_value};

/// Even and odd lanes of one sum.
type Sums = [__m512d; 2];

/// A row of codes and its scales.
pub type Mxfp4Row<'a> = (&'a [u8], &'a [u8]);

#[target_feature(enable = "avx512f")]
fn load(values: &[f64; 8]) -> __m512d {
    // SAFETY: eight f64 are 64 readable bytes; the load needs no alignment.
    unsafe { _mm512_loadu_pd(values.as_ptr()) }
}

#[target_feature(enable = "avx512f")]
fn store(sums: Sums) -> [f64; LANES] {
    let mut lanes = [0.0; LANES];
    let (even, odd) = lanes.split_at_mut(LANES / 2);
    // SAFETY: each half is eight f64, 64 writable bytes; the store needs no alignment.
    unsafe {
        _mm512_storeu_pd(even.as_mut_ptr(), sums[0]);
        _mm512_storeu_pd(odd.as_mut_ptr(), sums[1]);
    }
    lanes
}

/// Widens sixteen f32 to two registers of f64, lower half first.
#[target_feature(enable = "avx512f")]
fn widen(values: __m512) -> [__m512d; 2] {
    let upper = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(values));
    [_mm512_cvtps_pd(_mm512_castps512_ps256(values)), _mm512_cvtps_pd(_mm256_castpd_ps(upper))]
}

/// 32 BF16 as f64: even and odd elements of the first sixteen, then of the second.
#[target_feature(enable = "avx512f")]
fn bf16_block(weights: &[u16; BLOCK_COLUMNS]) -> [__m512d; 4] {
    // SAFETY: 32 u16 are 64 readable bytes; the load needs no alignment.
    let pairs = unsafe { _mm512_loadu_si512(weights.as_ptr().cast()) };
    let even = widen(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)));
    let mask = _mm512_set1_epi32(0xFFFF_0000_u32 as i32);
    let odd = widen(_mm512_castsi512_ps(_mm512_and_si512(pairs, mask)));
    [even[0], odd[0], even[1], odd[1]]
}

/// 32 MXFP4 values in the same order. The table of sixteen values is scaled, then looked up.
#[target_feature(enable = "avx512f")]
fn mxfp4_block(codes: &[u8; BLOCK_COLUMNS / 2], scale: u8) -> [__m512d; 4] {
    let (low, high) = CODE_VALUES.split_at(8);
    let scale = _mm512_set1_pd(scale_value(scale));
    let table = |half: &[f64]| {
        let mut values = [0.0; 8];
        values.copy_from_slice(half);
        _mm512_mul_pd(load(&values), scale)
    };
    let (low, high) = (table(low), table(high));
    // Lane j takes the nibbles of byte j; the look-up reads the low four bits of an index only.
    let even_shift = _mm512_setr_epi64(0, 8, 16, 24, 32, 40, 48, 56);
    let odd_shift = _mm512_setr_epi64(4, 12, 20, 28, 36, 44, 52, 60);
    let (first, second) = codes.split_at(8);
    let half = |bytes: &[u8]| {
        let mut eight = [0; 8];
        eight.copy_from_slice(bytes);
        let all = _mm512_set1_epi64(i64::from_le_bytes(eight));
        [
            _mm512_permutex2var_pd(low, _mm512_srlv_epi64(all, even_shift), high),
            _mm512_permutex2var_pd(low, _mm512_srlv_epi64(all, odd_shift), high),
        ]
    };
    let ([even_0, odd_0], [even_1, odd_1]) = (half(first), half(second));
    [even_0, odd_0, even_1, odd_1]
}

/// Adds 32 products of each token to the sums of one row.
#[target_feature(enable = "avx512f")]
#[inline]
fn add_block<const T: usize>(
    weights: [__m512d; 4],
    vectors: &[&[f64]; T],
    block: usize,
    sums: &mut [Sums; T],
) {
    for (sums, vector) in sums.iter_mut().zip(vectors) {
        let x = &vector[block * BLOCK_COLUMNS..(block + 1) * BLOCK_COLUMNS];
        let (x, _) = x.as_chunks::<8>();
        for part in 0..4 {
            let lanes = &mut sums[part % 2];
            *lanes = _mm512_fmadd_pd(weights[part], load(&x[part]), *lanes);
        }
    }
}

/// Lane sums of a BF16 tile, \[R\]\[T\], even lanes then odd lanes.
#[target_feature(enable = "avx512f")]
pub(super) fn bf16_tile<const R: usize, const T: usize>(
    tile: &Tile<'_, &[u16], R, T>,
) -> [[[f64; LANES]; T]; R] {
    let mut sums = [[[_mm512_setzero_pd(); 2]; T]; R];
    let columns = tile.rows[0].len();
    for block in 0..columns / BLOCK_COLUMNS {
        for (row, sums) in tile.rows.iter().zip(&mut sums) {
            let first = block * BLOCK_COLUMNS;
            let (weights, _) = row[first..first + BLOCK_COLUMNS].as_chunks::<BLOCK_COLUMNS>();
            add_block(bf16_block(&weights[0]), &tile.vectors, block, sums);
        }
    }
    let rest = columns / BLOCK_COLUMNS * BLOCK_COLUMNS;
    if rest < columns {
        for (row, sums) in tile.rows.iter().zip(&mut sums) {
            let mut padded = [0; BLOCK_COLUMNS];
            padded[..columns - rest].copy_from_slice(&row[rest..]);
            add_block(bf16_block(&padded), &tile.vectors, columns / BLOCK_COLUMNS, sums);
        }
    }
    stored(sums)
}

/// Lane sums of an MXFP4 tile, \[R\]\[T\], even lanes then odd lanes.
#[target_feature(enable = "avx512f")]
pub(super) fn mxfp4_tile<const R: usize, const T: usize>(
    tile: &Tile<'_, Mxfp4Row<'_>, R, T>,
) -> [[[f64; LANES]; T]; R] {
    let mut sums = [[[_mm512_setzero_pd(); 2]; T]; R];
    let blocks = tile.rows[0].1.len();
    for block in 0..blocks {
        for ((packed, scales), sums) in tile.rows.iter().zip(&mut sums) {
            let first = block * BLOCK_COLUMNS / 2;
            let codes = &packed[first..first + BLOCK_COLUMNS / 2];
            let (codes, _) = codes.as_chunks::<{ BLOCK_COLUMNS / 2 }>();
            add_block(mxfp4_block(&codes[0], scales[block]), &tile.vectors, block, sums);
        }
    }
    stored(sums)
}

#[target_feature(enable = "avx512f")]
fn stored<const R: usize, const T: usize>(sums: [[Sums; T]; R]) -> [[[f64; LANES]; T]; R] {
    let mut out = [[[0.0; LANES]; T]; R];
    for (sums, out) in sums.iter().zip(&mut out) {
        for (sums, out) in sums.iter().zip(out) {
            *out = store(*sums);
        }
    }
    out
}
