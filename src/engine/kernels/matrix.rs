//! Weight matrices as they are stored: F32, BF16, or packed MXFP4.
//!
//! A matrix \[rows, columns\] is applied as W·x. It stays packed in memory, in bytes that it may
//! share with a file map or a slot of a ring, and is widened on the way into the registers.

use std::ops::Range;
use std::sync::Arc;

use super::mxfp4;
use super::rows::Row;

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
        Ok(Self { owner: Arc::new(AlignedBytes { words, len }), range: 0..len })
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
    Mxfp4 { packed: SharedBytes, scales: SharedBytes },
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
        Err(MatrixError { rows, columns, kind, what, expected, got })
    }

    /// An F32 matrix from little-endian bytes \[rows, columns\].
    ///
    /// # Errors
    /// Another number of bytes than the shape needs.
    pub fn f32(rows: usize, columns: usize, values: SharedBytes) -> Result<Self, MatrixError> {
        Self::check((rows, columns), "F32", "values", rows * columns * 4, &values)?;
        Ok(Self { rows, columns, storage: Storage::F32(values) })
    }

    /// A BF16 matrix from little-endian bytes \[rows, columns\].
    ///
    /// # Errors
    /// Another number of bytes than the shape needs.
    pub fn bf16(rows: usize, columns: usize, values: SharedBytes) -> Result<Self, MatrixError> {
        Self::check((rows, columns), "BF16", "values", rows * columns * 2, &values)?;
        Ok(Self { rows, columns, storage: Storage::Bf16(values) })
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
            return Err(MatrixError { rows, columns, kind, what, expected: code_bytes, got });
        }
        Ok(Self { rows, columns, storage: Storage::Mxfp4 { packed, scales } })
    }

    /// An F32 matrix from numbers, row by row.
    ///
    /// # Errors
    /// Another number of values than the shape needs.
    pub fn from_f32(rows: usize, columns: usize, values: &[f32]) -> Result<Self, MatrixError> {
        Self::f32(rows, columns, SharedBytes::copy_of(bytemuck::cast_slice(values)))
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
            Storage::Mxfp4 { packed, scales } => {
                Values::Mxfp4 { packed: packed.bytes(), scales: scales.bytes() }
            }
        };
        MatrixRef { rows: self.rows, columns: self.columns, values }
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
pub(super) enum Values<'a> {
    F32(&'a [f32]),
    Bf16(&'a [u16]),
    Mxfp4 { packed: &'a [u8], scales: &'a [u8] },
}

/// A borrowed matrix, or a range of its rows.
#[derive(Debug, Clone, Copy)]
pub struct MatrixRef<'a> {
    rows: usize,
    columns: usize,
    pub(super) values: Values<'a>,
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
        Self { rows: rows.len(), columns, values }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::rows::row_sum;

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
        let matrix =
            Matrix::mxfp4(3, 64, SharedBytes::copy_of(&[0x11; 96]), SharedBytes::copy_of(&scales));
        let matrix = matrix.unwrap();
        assert_eq!(matrix.first_nan_scale(), Some((1, 1)));
        let sum = |row| row_sum(matrix.view().row(row), &[1.0; 64]);
        assert!(sum(1).is_nan());
        assert_eq!((sum(0), sum(2)), (32.0, 32.0));
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
