//! Walks a block of rows and all its tokens in tiles.
//!
//! One token alone is taken with several rows, to hide the latency of the sums. Several tokens
//! are taken four at a time, so that a row's weights are widened once for all of them; the rows
//! run inside, while the tokens' activations stay in the second-level cache.

use super::{Prepared, Tile, avx2, avx512, fold_even_odd};
use crate::kernels::matrix::{MatrixRef, Values};
use crate::kernels::products::Emit;

/// Emits the folded sums of a tile whose first row and token are at `place`.
fn emit_tile<const R: usize, const T: usize>(
    sums: &[[[f64; 16]; T]; R],
    place: (usize, usize),
    emit: &mut Emit<'_>,
) {
    for (row, sums) in sums.iter().enumerate() {
        for (token, sums) in sums.iter().enumerate() {
            emit(place.0 + row, place.1 + token, fold_even_odd(sums));
        }
    }
}

/// A walk for one instruction set: the tile function, what a row is, and the tile sizes.
macro_rules! walk {
    ($name:ident, $features:literal, $tile:path, $row:ty, $lone:literal, $rows:literal) => {
        #[target_feature(enable = $features)]
        fn $name<'a>(
            row: impl Fn(usize) -> $row,
            rows: usize,
            vectors: &'a Prepared,
            emit: &mut Emit<'_>,
        ) {
            let tokens = vectors.tokens();
            for token in (0..tokens / 4 * 4).step_by(4) {
                let vectors = [0, 1, 2, 3].map(|offset| vectors.row(token + offset));
                let whole = rows / $rows * $rows;
                for first in (0..whole).step_by($rows) {
                    let rows = std::array::from_fn::<_, $rows, _>(|offset| row(first + offset));
                    emit_tile(&$tile(&Tile { rows, vectors }), (first, token), emit);
                }
                for first in whole..rows {
                    let rows = [row(first)];
                    emit_tile(&$tile(&Tile { rows, vectors }), (first, token), emit);
                }
            }
            for token in tokens / 4 * 4..tokens {
                let vectors = [vectors.row(token)];
                let whole = rows / $lone * $lone;
                for first in (0..whole).step_by($lone) {
                    let rows = std::array::from_fn::<_, $lone, _>(|offset| row(first + offset));
                    emit_tile(&$tile(&Tile { rows, vectors }), (first, token), emit);
                }
                for first in whole..rows {
                    let rows = [row(first)];
                    emit_tile(&$tile(&Tile { rows, vectors }), (first, token), emit);
                }
            }
        }
    };
}

walk!(avx512_bf16, "avx512f", avx512::bf16_tile, &'a [u16], 4, 3);
walk!(avx512_mxfp4, "avx512f", avx512::mxfp4_tile, avx512::Mxfp4Row<'a>, 4, 3);
walk!(avx2_bf16, "avx2,fma", avx2::bf16_tile, &'a [u16], 2, 1);
walk!(avx2_mxfp4, "avx2,fma", avx2::mxfp4_tile, avx2::Mxfp4Row<'a>, 2, 1);

/// Row `row` of packed codes and scales.
fn mxfp4_row<'a>(
    packed: &'a [u8],
    scales: &'a [u8],
    columns: usize,
    row: usize,
) -> (&'a [u8], &'a [u8]) {
    let (bytes, groups) = (columns / 2, columns / 32);
    (&packed[row * bytes..(row + 1) * bytes], &scales[row * groups..(row + 1) * groups])
}

/// AVX-512 sums of BF16 or MXFP4 rows.
#[target_feature(enable = "avx512f")]
pub(in crate::kernels) fn avx512(matrix: &MatrixRef<'_>, vectors: &Prepared, emit: &mut Emit<'_>) {
    let (rows, columns) = (matrix.rows(), matrix.columns());
    match matrix.values {
        Values::Bf16(values) => {
            avx512_bf16(|row| &values[row * columns..(row + 1) * columns], rows, vectors, emit);
        }
        Values::Mxfp4 { packed, scales } => {
            avx512_mxfp4(|row| mxfp4_row(packed, scales, columns, row), rows, vectors, emit);
        }
        Values::F32(_) => unreachable!("F32 rows take the scalar path"),
    }
}

/// AVX2 sums of BF16 or MXFP4 rows.
#[target_feature(enable = "avx2,fma")]
pub(in crate::kernels) fn avx2(matrix: &MatrixRef<'_>, vectors: &Prepared, emit: &mut Emit<'_>) {
    let (rows, columns) = (matrix.rows(), matrix.columns());
    match matrix.values {
        Values::Bf16(values) => {
            avx2_bf16(|row| &values[row * columns..(row + 1) * columns], rows, vectors, emit);
        }
        Values::Mxfp4 { packed, scales } => {
            avx2_mxfp4(|row| mxfp4_row(packed, scales, columns, row), rows, vectors, emit);
        }
        Values::F32(_) => unreachable!("F32 rows take the scalar path"),
    }
}
