//! AVX-512: the sixteen lanes are two registers of eight f64.

use std::arch::x86_64::*;
use std::ops::Range;

use super::walk::*;
use super::{Aligned, BLOCK_COLUMNS, Prepared, SCALED_CODES, prefetch};
use crate::kernels::contract::{LANES, fold_lanes};
use crate::kernels::matrix::{MatrixRef, Values};
use crate::kernels::products::Emit;

/// Some lanes of a sum, or the weights that meet them.
type Register = __m512d;

/// Lanes in a register.
const WIDTH: usize = 8;

/// Registers of a block of columns.
const PARTS: usize = BLOCK_COLUMNS / WIDTH;

/// Rows of BF16 and of MXFP4 that one token alone is taken with.
const BF16_ROWS: usize = 4;
const MXFP4_ROWS: usize = 8;

/// Rows of a tile: with four tokens, as many sums as there are registers for.
const TILE_ROWS: usize = 6;

#[target_feature(enable = "avx512f,avx512bw")]
fn zero() -> Register {
    _mm512_setzero_pd()
}

#[target_feature(enable = "avx512f,avx512bw")]
fn load(values: &[f64; WIDTH]) -> Register {
    // SAFETY: eight f64 are 64 readable bytes; the load needs no alignment.
    unsafe { _mm512_loadu_pd(values.as_ptr()) }
}

#[target_feature(enable = "avx512f,avx512bw")]
fn store(register: Register, values: &mut [f64; WIDTH]) {
    // SAFETY: eight f64 are 64 writable bytes; the store needs no alignment.
    unsafe { _mm512_storeu_pd(values.as_mut_ptr(), register) }
}

/// sum + weights · x.
#[target_feature(enable = "avx512f,avx512bw")]
fn multiply_add(weights: Register, x: Register, sum: Register) -> Register {
    _mm512_fmadd_pd(weights, x, sum)
}

/// The place of sixteen 16-bit words, from `first` on, in the upper halves of sixteen f32.
const fn upper_halves(first: u16) -> [u16; 32] {
    let mut places = [0; 32];
    let mut word = 0;
    while word < 16 {
        places[2 * word as usize + 1] = first + word;
        word += 1;
    }
    places
}

/// Makes 32 BF16 to f64: each is moved into the upper half of an f32, which is then widened.
#[target_feature(enable = "avx512f,avx512bw")]
fn bf16() -> impl Fn(&[u16; BLOCK_COLUMNS]) -> [Register; PARTS] {
    const PLACES: [[u16; 32]; 2] = [upper_halves(0), upper_halves(16)];
    // Hidden from the compiler, which splits a masked permutation in two if it knows the mask.
    let odd_words = std::hint::black_box(0xAAAA_AAAA);
    let words = |words: &[u16; 32]| {
        // SAFETY: 32 u16 are 64 readable bytes; the load needs no alignment.
        unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
    };
    let half = move |all, places| {
        let floats = _mm512_maskz_permutexvar_epi16(odd_words, words(places), all);
        let upper = _mm512_extractf64x4_pd::<1>(_mm512_castsi512_pd(floats));
        let lower = _mm512_castps512_ps256(_mm512_castsi512_ps(floats));
        [_mm512_cvtps_pd(lower), _mm512_cvtps_pd(_mm256_castpd_ps(upper))]
    };
    move |weights| {
        let all = words(weights);
        let ([a, b], [c, d]) = (half(all, &PLACES[0]), half(all, &PLACES[1]));
        [a, b, c, d]
    }
}

/// 32 MXFP4 values. A look-up of 32-bit entries reads the low four bits of each index: the codes
/// of eight bytes, shifted apart, are sixteen indices at once, of which the even ones are the
/// first eight columns.
#[target_feature(enable = "avx512f,avx512bw")]
fn mxfp4(codes: &[u8; BLOCK_COLUMNS / 2], scale: u8) -> [Register; PARTS] {
    // SAFETY: a table is 64 readable bytes; the load needs no alignment.
    let table = unsafe { _mm512_loadu_si512(SCALED_CODES[usize::from(scale)].0.as_ptr().cast()) };
    let shifts = _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28);
    let (eights, _) = codes.as_chunks::<8>();
    let half = |bytes: [u8; 8]| {
        let all = _mm512_set1_epi64(i64::from_le_bytes(bytes));
        let values = _mm512_permutexvar_epi32(_mm512_srlv_epi32(all, shifts), table);
        let odd = _mm512_and_si512(values, _mm512_set1_epi64(-1 << 32));
        [_mm512_castsi512_pd(_mm512_slli_epi64::<32>(values)), _mm512_castsi512_pd(odd)]
    };
    let ([a, b], [c, d]) = (half(eights[0]), half(eights[1]));
    [a, b, c, d]
}

walks!("avx512f,avx512bw");
