//! Weight matrices as they are stored, and their products with activations.
//!
//! A matrix \[rows, columns\] is applied as W·x. BF16 and MXFP4 stay packed in memory and are
//! widened on the way into the registers. Several products may be asked for at once, so that one
//! parallel region covers all projections of the same input; each output row is one row product
//! (A2, A3), computed by one thread.

use std::ops::Range;
use std::sync::Arc;

use super::contract::round_to_f32;
use super::mxfp4;
use super::path::KernelPath;
use super::rows::{Row, row_sum};
use super::threads::Threads;

/// Bytes of a tensor, shared with whatever owns them (a vector, a map, a slot of a ring). Aligned
/// for the element type they are read as; [`SharedBytes::new`] copies when they are not.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl std::fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.range.len())
    }
}

/// Owned words, so that the bytes are aligned for every element type.
struct AlignedBytes {
    words: Vec<u64>,
    len: usize,
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }
}

impl SharedBytes {
    /// The bytes `range` of `owner`. Bytes that do not start at a multiple of 8 are copied.
    ///
    /// # Panics
    /// When the range leaves the owner's bytes.
    #[must_use]
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) -> Self {
        let bytes = &(*owner).as_ref()[range.clone()];
        if bytes.as_ptr().align_offset(8) == 0 {
            return Self { owner, range };
        }
        Self::copy_of(bytes)
    }

    /// An aligned copy.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let copy = |buffer: &mut [u8]| {
            buffer.copy_from_slice(bytes);
            Ok::<(), std::convert::Infallible>(())
        };
        let Ok(copied) = Self::filled(bytes.len(), copy);
        copied
    }

    /// `len` aligned bytes as `fill` writes them, over zeros.
    ///
    /// # Errors
    /// Whatever `fill` reports.
    pub fn filled<E>(len: usize, fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<Self, E> {
        let mut words = vec![0_u64; len.div_ceil(8)];
        fill(&mut bytemuck::cast_slice_mut(&mut words)[..len])?;
        Ok(Self {
            owner: Arc::new(AlignedBytes { words, len }),
            range: 0..len,
        })
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }

    /// The bytes as elements. Their number was checked when the matrix was made.
    fn cast<T: bytemuck::Pod>(&self) -> &[T] {
        bytemuck::cast_slice(self.bytes())
    }
}

/// A matrix that does not fit its own shape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a {rows} x {columns} {kind} matrix needs {expected} bytes of {what}, got {got}")]
pub struct MatrixError {
    rows: usize,
    columns: usize,
    kind: &'static str,
    what: &'static str,
    expected: usize,
    got: usize,
}

/// How the elements are stored.
#[derive(Debug, Clone)]
enum Storage {
    F32(SharedBytes),
    Bf16(SharedBytes),
    Mxfp4 {
        packed: SharedBytes,
        scales: SharedBytes,
    },
}

/// A weight matrix \[rows, columns\] in its stored type.
#[derive(Debug, Clone)]
pub struct Matrix {
    rows: usize,
    columns: usize,
    storage: Storage,
}

impl Matrix {
    fn check(
        shape: (usize, usize),
        kind: &'static str,
        what: &'static str,
        expected: usize,
        bytes: &SharedBytes,
    ) -> Result<(), MatrixError> {
        let (rows, columns) = shape;
        let got = bytes.bytes().len();
        if got == expected {
            return Ok(());
        }
        Err(MatrixError {
            rows,
            columns,
            kind,
            what,
            expected,
            got,
        })
    }

    /// An F32 matrix from little-endian bytes \[rows, columns\].
    ///
    /// # Errors
    /// Another number of bytes than the shape needs.
    pub fn f32(rows: usize, columns: usize, values: SharedBytes) -> Result<Self, MatrixError> {
        Self::check(
            (rows, columns),
            "F32",
            "values",
            rows * columns * 4,
            &values,
        )?;
        Ok(Self {
            rows,
            columns,
            storage: Storage::F32(values),
        })
    }

    /// A BF16 matrix from little-endian bytes \[rows, columns\].
    ///
    /// # Errors
    /// Another number of bytes than the shape needs.
    pub fn bf16(rows: usize, columns: usize, values: SharedBytes) -> Result<Self, MatrixError> {
        Self::check(
            (rows, columns),
            "BF16",
            "values",
            rows * columns * 2,
            &values,
        )?;
        Ok(Self {
            rows,
            columns,
            storage: Storage::Bf16(values),
        })
    }

    /// An MXFP4 matrix from codes \[rows, columns/2\] and scale bytes \[rows, columns/32\].
    ///
    /// # Errors
    /// Columns that are no multiple of 32, or another number of bytes than the shape needs (B08).
    pub fn mxfp4(
        rows: usize,
        columns: usize,
        packed: SharedBytes,
        scales: SharedBytes,
    ) -> Result<Self, MatrixError> {
        let groups = columns.div_ceil(mxfp4::GROUP_COLUMNS);
        let code_bytes = rows * groups * mxfp4::GROUP_COLUMNS / 2;
        Self::check((rows, columns), "MXFP4", "codes", code_bytes, &packed)?;
        Self::check((rows, columns), "MXFP4", "scales", rows * groups, &scales)?;
        if !columns.is_multiple_of(mxfp4::GROUP_COLUMNS) {
            let (kind, what, got) = ("MXFP4", "codes (whole groups)", rows * columns / 2);
            return Err(MatrixError {
                rows,
                columns,
                kind,
                what,
                expected: code_bytes,
                got,
            });
        }
        Ok(Self {
            rows,
            columns,
            storage: Storage::Mxfp4 { packed, scales },
        })
    }

    /// An F32 matrix from numbers, row by row.
    ///
    /// # Errors
    /// Another number of values than the shape needs.
    pub fn from_f32(rows: usize, columns: usize, values: &[f32]) -> Result<Self, MatrixError> {
        Self::f32(
            rows,
            columns,
            SharedBytes::copy_of(bytemuck::cast_slice(values)),
        )
    }

    /// Number of rows (outputs).
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns (inputs).
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The matrix by reference, as the kernels take it.
    #[must_use]
    pub fn view(&self) -> MatrixRef<'_> {
        let values = match &self.storage {
            Storage::F32(values) => Values::F32(values.cast()),
            Storage::Bf16(values) => Values::Bf16(values.cast()),
            Storage::Mxfp4 { packed, scales } => Values::Mxfp4 {
                packed: packed.bytes(),
                scales: scales.bytes(),
            },
        };
        MatrixRef {
            rows: self.rows,
            columns: self.columns,
            values,
        }
    }

    /// Row and group of the first NaN scale byte (Q4), for MXFP4.
    #[must_use]
    pub fn first_nan_scale(&self) -> Option<(usize, usize)> {
        let Storage::Mxfp4 { scales, .. } = &self.storage else {
            return None;
        };
        let groups = self.columns / mxfp4::GROUP_COLUMNS;
        mxfp4::first_nan_scale(scales.bytes()).map(|place| (place / groups, place % groups))
    }
}

/// The elements of a [`MatrixRef`].
#[derive(Debug, Clone, Copy)]
enum Values<'a> {
    F32(&'a [f32]),
    Bf16(&'a [u16]),
    Mxfp4 { packed: &'a [u8], scales: &'a [u8] },
}

/// A borrowed matrix, or a range of its rows.
#[derive(Debug, Clone, Copy)]
pub struct MatrixRef<'a> {
    rows: usize,
    columns: usize,
    values: Values<'a>,
}

impl<'a> MatrixRef<'a> {
    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// One row.
    #[inline]
    #[must_use]
    pub fn row(&self, row: usize) -> Row<'a> {
        let columns = self.columns;
        match self.values {
            Values::F32(values) => Row::F32(&values[row * columns..(row + 1) * columns]),
            Values::Bf16(values) => Row::Bf16(&values[row * columns..(row + 1) * columns]),
            Values::Mxfp4 { packed, scales } => {
                let (bytes, groups) = (columns / 2, columns / mxfp4::GROUP_COLUMNS);
                Row::Mxfp4 {
                    packed: &packed[row * bytes..(row + 1) * bytes],
                    scales: &scales[row * groups..(row + 1) * groups],
                }
            }
        }
    }

    /// The rows of a range, as a matrix.
    #[must_use]
    pub fn range(&self, rows: Range<usize>) -> Self {
        let columns = self.columns;
        let elements = rows.start * columns..rows.end * columns;
        let values = match self.values {
            Values::F32(values) => Values::F32(&values[elements]),
            Values::Bf16(values) => Values::Bf16(&values[elements]),
            Values::Mxfp4 { packed, scales } => {
                let group = mxfp4::GROUP_COLUMNS;
                Values::Mxfp4 {
                    packed: &packed[elements.start / 2..elements.end / 2],
                    scales: &scales[elements.start / group..elements.end / group],
                }
            }
        };
        Self {
            rows: rows.len(),
            columns,
            values,
        }
    }
}

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
    for product in products {
        let rows = product.matrix.rows();
        let tokens = product.vectors.len() / product.matrix.columns();
        assert_eq!(product.vectors.len(), tokens * product.matrix.columns());
        assert_eq!(
            product.out.len(),
            tokens * rows,
            "output of a matrix product"
        );
        let parts = if threads.count() == 1 {
            1
        } else {
            4 * threads.count()
        };
        // Whole cache lines of output per block, so that threads do not write into one line.
        let block_rows = rows.div_ceil(parts).next_multiple_of(16);
        let mut rest: Vec<&mut [f32]> = product.out.chunks_exact_mut(rows.max(1)).collect();
        let mut first = 0;
        while first < rows {
            let last = rows.min(first + block_rows);
            let mut out = Vec::with_capacity(tokens);
            for rest in &mut rest {
                let (head, tail) = std::mem::take(rest).split_at_mut(last - first);
                out.push(head);
                *rest = tail;
            }
            let matrix = product.matrix.range(first..last);
            blocks.push(RowBlock {
                matrix,
                vectors: product.vectors,
                out,
            });
            first = last;
        }
    }
    blocks
}

/// Computes all products; every output is one row product, rounded once.
pub fn products(path: KernelPath, threads: &Threads, products: Vec<Product<'_>>) {
    let blocks = row_blocks(products, threads);
    threads.for_each(blocks, &|block| match path {
        KernelPath::Scalar => scalar_block(block),
    });
}

/// The scalar definition of a block: row by row, token by token.
fn scalar_block(block: RowBlock<'_>) {
    let RowBlock {
        matrix,
        vectors,
        mut out,
    } = block;
    for row in 0..matrix.rows() {
        let weights = matrix.row(row);
        for (x, out) in vectors.chunks_exact(matrix.columns()).zip(&mut out) {
            out[row] = round_to_f32(row_sum(weights, x));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B01: every small matrix shape, several tokens, any thread count: the same as row by row.
    #[test]
    fn b01_products_equal_single_row_products() {
        for rows in [1, 2, 7, 8, 9, 15, 16, 17, 65] {
            for groups in 1..=3 {
                let columns = 32 * groups;
                let codes: Vec<u8> = (0..rows * columns / 2)
                    .map(|i| (i * 37 + 11) as u8)
                    .collect();
                let scales: Vec<u8> = (0..rows * groups).map(|i| 120 + (i % 9) as u8).collect();
                let (codes, scales) = (SharedBytes::copy_of(&codes), SharedBytes::copy_of(&scales));
                let matrix = Matrix::mxfp4(rows, columns, codes, scales).unwrap();
                let x: Vec<f32> = (0..3 * columns).map(|i| (i as f32 * 0.37).sin()).collect();
                for count in [1, 3] {
                    let threads = Threads::new(count).unwrap();
                    let mut out = vec![0.0; 3 * rows];
                    let product = Product {
                        matrix: matrix.view(),
                        vectors: &x,
                        out: &mut out,
                    };
                    products(KernelPath::Scalar, &threads, vec![product]);
                    for (place, out) in out.iter().enumerate() {
                        let x = &x[place / rows * columns..][..columns];
                        let expected = row_sum(matrix.view().row(place % rows), x) as f32;
                        assert_eq!(out.to_bits(), expected.to_bits());
                    }
                }
            }
        }
    }

    /// B08: shape and byte range are separate facts and must agree.
    #[test]
    fn b08_sizes_that_disagree_are_refused() {
        let bytes = |n| SharedBytes::copy_of(&vec![0; n]);
        assert!(Matrix::mxfp4(16, 32, bytes(8), bytes(16)).is_err());
        assert!(Matrix::mxfp4(16, 64, bytes(512), bytes(16)).is_err());
        assert!(Matrix::mxfp4(2, 33, bytes(33), bytes(2)).is_err());
        assert!(Matrix::mxfp4(2, 33, bytes(64), bytes(4)).is_err());
        assert!(Matrix::bf16(3, 3, bytes(17)).is_err());
        assert!(Matrix::f32(3, 3, bytes(36)).is_ok());
    }

    /// Q4: a NaN scale is found by row and group, and poisons its row only.
    #[test]
    fn a_nan_scale_is_named_and_poisons_its_row() {
        let scales = [127, 127, 127, 255, 127, 127];
        let matrix = Matrix::mxfp4(
            3,
            64,
            SharedBytes::copy_of(&[0x11; 96]),
            SharedBytes::copy_of(&scales),
        );
        let matrix = matrix.unwrap();
        assert_eq!(matrix.first_nan_scale(), Some((1, 1)));
        let mut out = [0.0; 3];
        let product = Product {
            matrix: matrix.view(),
            vectors: &[1.0; 64],
            out: &mut out,
        };
        products(KernelPath::Scalar, &Threads::new(1).unwrap(), vec![product]);
        assert!(out[1].is_nan());
        assert_eq!((out[0], out[2]), (32.0, 32.0));
    }

    /// Bytes at an odd address are read all the same.
    #[test]
    fn misaligned_bytes_are_copied() {
        let owner: Arc<Vec<u8>> = Arc::new((0..41).collect());
        for start in 0..8 {
            let shared = SharedBytes::new(owner.clone(), start..start + 32);
            assert_eq!(shared.bytes(), &owner[start..start + 32]);
            assert_eq!(shared.cast::<f32>().len(), 8);
        }
    }
}
