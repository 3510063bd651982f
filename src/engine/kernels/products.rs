//! Products of weight matrices with activations: many row products at once (A2, A3, A11).
//!
//! Several products may be asked for together, so that one parallel region covers all projections
//! of the same input. Each output is one row product, computed by one thread; which instructions
//! compute it, and how many rows and tokens it shares registers with, changes no bit.

use super::contract::round_to_f32;
use super::matrix::{MatrixRef, Values};
use super::path::{KernelPath, Kind};
use super::rows::row_sum;
use super::simd::Prepared;
use super::table::Kernels;
use super::threads::Threads;

/// One product: `out` \[T, rows\] = `vectors` \[T, columns\] times the matrix.
#[derive(Debug)]
pub struct Product<'a> {
    /// The weights.
    pub matrix: MatrixRef<'a>,
    /// T activation rows.
    pub vectors: &'a [f32],
    /// T output rows.
    pub out: &'a mut [f32],
}

/// Some rows of one product: what a thread takes.
#[derive(Debug)]
pub struct RowBlock<'a> {
    /// Index of the product.
    pub product: usize,
    /// The rows' weights.
    pub matrix: MatrixRef<'a>,
    /// All T activation rows.
    pub vectors: &'a [f32],
    /// Per token, the outputs of these rows.
    pub out: Vec<&'a mut [f32]>,
}

/// Cuts products into blocks of rows, about four per thread and product.
#[must_use]
pub fn row_blocks<'a>(products: Vec<Product<'a>>, threads: &Threads) -> Vec<RowBlock<'a>> {
    let mut blocks = Vec::new();
    for (product, Product { matrix, vectors, out }) in products.into_iter().enumerate() {
        let rows = matrix.rows();
        let tokens = vectors.len() / matrix.columns();
        assert_eq!(vectors.len(), tokens * matrix.columns(), "inputs of a matrix product");
        assert_eq!(out.len(), tokens * rows, "outputs of a matrix product");
        let parts = if threads.count() == 1 { 1 } else { 4 * threads.count() };
        // Whole cache lines of output per block, so that threads do not write into one line.
        let block_rows = rows.div_ceil(parts).next_multiple_of(16);
        let mut rest: Vec<&mut [f32]> = out.chunks_exact_mut(rows.max(1)).collect();
        let mut first = 0;
        while first < rows {
            let last = rows.min(first + block_rows);
            let mut out = Vec::with_capacity(tokens);
            for rest in &mut rest {
                let (head, tail) = std::mem::take(rest).split_at_mut(last - first);
                out.push(head);
                *rest = tail;
            }
            let matrix = matrix.range(first..last);
            blocks.push(RowBlock { product, matrix, vectors, out });
            first = last;
        }
    }
    blocks
}

/// Computes all products; every output is one row product, rounded once.
pub fn products(kernels: &Kernels, threads: &Threads, products: Vec<Product<'_>>) {
    let path = kernels.path;
    // Projections of the same input share its widened form.
    let mut inputs: Vec<(&[f32], usize)> = Vec::new();
    let mut input_of = Vec::with_capacity(products.len());
    if path != KernelPath::SCALAR {
        for product in &products {
            let input = (product.vectors, product.matrix.columns());
            let same =
                |known: &(&[f32], usize)| std::ptr::eq(known.0, input.0) && known.1 == input.1;
            input_of.push(inputs.iter().position(same).unwrap_or(inputs.len()));
            if input_of.last() == Some(&inputs.len()) {
                inputs.push(input);
            }
        }
    }
    let mut prepared = Vec::new();
    prepared.resize_with(inputs.len(), || None);
    threads.for_each(inputs.iter().zip(&mut prepared).collect(), &|((vectors, columns), out)| {
        *out = Some(Prepared::new(vectors, *columns));
    });
    let blocks = row_blocks(products, threads);
    threads.for_each(blocks, &|block| {
        let RowBlock { product, matrix, vectors, mut out } = block;
        let prepared = input_of.get(product).and_then(|&index| prepared[index].as_ref());
        let mut emit = |row: usize, token: usize, sum| out[token][row] = round_to_f32(sum);
        block_sums(path, &matrix, (vectors, prepared), &mut emit);
    });
}

/// Every sum of a product BEFORE its rounding, \[T, rows\]: what tells two paths apart.
#[must_use]
pub fn sums_before_rounding(path: KernelPath, matrix: MatrixRef<'_>, vectors: &[f32]) -> Vec<f64> {
    let (columns, rows) = (matrix.columns(), matrix.rows());
    let mut sums = vec![0.0; vectors.len() / columns * rows];
    let prepared = Prepared::new(vectors, columns);
    let mut emit = |row: usize, token: usize, sum| sums[token * rows + row] = sum;
    block_sums(path, &matrix, (vectors, Some(&prepared)), &mut emit);
    sums
}

/// Takes the sum of a row and a token.
pub(super) type Emit<'a> = dyn FnMut(usize, usize, f64) + 'a;

/// The sums of a block on a path. F32 weights are rare and go through the scalar definition.
fn block_sums(
    path: KernelPath,
    matrix: &MatrixRef<'_>,
    vectors: (&[f32], Option<&Prepared>),
    emit: &mut Emit<'_>,
) {
    #[cfg(target_arch = "x86_64")]
    if let Some(prepared) = vectors.1 {
        use super::simd::{avx2, avx512};
        match (path.kind(), matrix.values) {
            (Kind::Avx2, Values::Bf16(_) | Values::Mxfp4 { .. }) => {
                // SAFETY: a path of this kind is only made after the processor was asked.
                return unsafe { avx2::row_sums(matrix, prepared, emit) };
            }
            (Kind::Avx512, Values::Bf16(_) | Values::Mxfp4 { .. }) => {
                // SAFETY: as above.
                return unsafe { avx512::row_sums(matrix, prepared, emit) };
            }
            _ => {}
        }
    }
    for row in 0..matrix.rows() {
        let weights = matrix.row(row);
        for (token, x) in vectors.0.chunks_exact(matrix.columns()).enumerate() {
            emit(row, token, row_sum(weights, x));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::matrix::{Matrix, SharedBytes};

    /// Wide exponents and random signs, so that sums depend on their order.
    fn wide(n: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            (state >> 32) as u32
        };
        let value = |r: u32| f32::from_bits((r & 0x807F_FFFF) | (87 + (r >> 23) % 80) << 23);
        (0..n).map(|_| value(next())).collect()
    }

    fn bf16(rows: usize, columns: usize) -> Matrix {
        let bits = wide(rows * columns, 3).into_iter();
        let bytes: Vec<u8> =
            bits.flat_map(|w| ((w.to_bits() >> 16) as u16).to_le_bytes()).collect();
        Matrix::bf16(rows, columns, SharedBytes::copy_of(&bytes)).unwrap()
    }

    fn mxfp4(rows: usize, columns: usize, scales: impl Fn(usize) -> u8) -> Matrix {
        let codes: Vec<u8> = (0..rows * columns / 2).map(|i| (i * 37 + i / 9) as u8).collect();
        let scales: Vec<u8> = (0..rows * columns / 32).map(scales).collect();
        let (codes, scales) = (SharedBytes::copy_of(&codes), SharedBytes::copy_of(&scales));
        Matrix::mxfp4(rows, columns, codes, scales).unwrap()
    }

    /// Every path against the scalar definition, before rounding. All NaN count as one.
    fn check(matrix: &Matrix, x: &[f32]) {
        let bits = |path| -> Vec<u64> {
            let sums = sums_before_rounding(path, matrix.view(), x);
            let bits = |sum: f64| {
                if sum.is_nan() { u64::MAX } else { sum.to_bits() }
            };
            sums.into_iter().map(bits).collect()
        };
        let expected = bits(KernelPath::SCALAR);
        for path in KernelPath::available() {
            let shape = (matrix.rows(), matrix.columns(), x.len() / matrix.columns());
            assert!(bits(path) == expected, "{} differs on {shape:?}", path.name());
        }
    }

    /// B01: matrices and batches around every tile and panel size; tails of columns for BF16,
    /// whose rows then start at any even address.
    #[test]
    fn b01_every_path_has_the_scalar_bits_before_rounding() {
        for rows in [1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 17, 50] {
            for tokens in [0, 1, 2, 3, 4, 5, 6, 9] {
                for columns in [1, 15, 16, 17, 31, 32, 33, 47, 48, 95, 200, 256, 299, 545] {
                    check(&bf16(rows, columns), &wide(tokens * columns, 17));
                }
                for groups in [1, 2, 3, 8, 9, 17] {
                    let matrix = mxfp4(rows, 32 * groups, |i| 100 + (i * 7 % 50) as u8);
                    check(&matrix, &wide(tokens * 32 * groups, 17));
                }
            }
        }
        // More tokens than leave room for the sums of several panels.
        check(&bf16(27, 65), &wide(300 * 65, 17));
    }

    /// Every BF16 weight, and every MXFP4 code under every scale byte, on its own and in a sum,
    /// with one token and with several.
    #[test]
    fn every_weight_is_widened_alike() {
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let bf16 = Matrix::bf16(2048, 32, SharedBytes::copy_of(&bytes)).unwrap();
        let pair = |i: usize| (2 * i % 16 + (2 * i + 1) % 16 * 16) as u8;
        let codes: Vec<u8> = (0..256 * 16).map(pair).collect();
        let (codes, scales) = (SharedBytes::copy_of(&codes), Vec::from_iter(0..=255));
        let mxfp4 = Matrix::mxfp4(256, 32, codes, SharedBytes::copy_of(&scales)).unwrap();
        let mut alone = vec![0.0; 32 * 32];
        alone.iter_mut().step_by(33).for_each(|x| *x = 1.0);
        for matrix in [&bf16, &mxfp4] {
            check(matrix, &alone);
            alone.chunks_exact(32).for_each(|x| check(matrix, x));
            check(matrix, &wide(32, 5));
            check(matrix, &wide(4 * 32, 5));
        }
    }

    /// NaN, infinite, negative zero and subnormal activations, in whole blocks and in a tail.
    #[test]
    fn every_path_agrees_on_extreme_activations() {
        for special in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -0.0, f32::MAX] {
            for (tokens, place) in [(1, 33), (1, 69), (3, 70 + 33), (5, 4 * 70 + 69)] {
                let mut x = vec![f32::from_bits(3); tokens * 70];
                x[place] = special;
                check(&bf16(5, 70), &x);
                check(&mxfp4(7, 64, |i| [0, 254, 253, 1, 127][i % 5]), &x[..tokens * 64]);
            }
        }
    }

    /// B01: whole products on several threads equal single row products, though they share their
    /// input, and though another reads it as rows of another width.
    #[test]
    fn b01_products_equal_single_row_products() {
        for rows in [1, 9, 16, 17, 65] {
            let matrices =
                [64, 64, 32].map(|columns| mxfp4(rows, columns, |i| 120 + (i % 9) as u8));
            let x = wide(3 * 64, 5);
            for path in KernelPath::available() {
                for count in [1, 3] {
                    let threads = Threads::new(count).unwrap();
                    let mut outs = [3, 3, 6].map(|tokens| vec![0.0; tokens * rows]);
                    let all = matrices.iter().zip(&mut outs).map(|(matrix, out)| Product {
                        matrix: matrix.view(),
                        vectors: &x,
                        out,
                    });
                    products(&Kernels::on(path), &threads, all.collect());
                    for (matrix, out) in matrices.iter().zip(outs) {
                        for (place, out) in out.into_iter().enumerate() {
                            let x = &x[place / rows * matrix.columns()..][..matrix.columns()];
                            let expected = row_sum(matrix.view().row(place % rows), x) as f32;
                            assert_eq!(out.to_bits(), expected.to_bits());
                        }
                    }
                }
            }
        }
    }
}
