//! Rows of activations, stored matrices, and the one loop that applies a matrix.
//!
//! A matrix stays in the encoding of the checkpoint (a BF16 trunk layer of the released model is
//! 1 to 3 GB; widened to f64 it would be four times that) and is widened row by row, exactly, when
//! it is applied. Deliberately not here: `ndarray::dot` and anything else whose order of additions
//! depends on the CPU.

use rayon::prelude::*;

use super::moe::Mxfp4Rows;

/// Activations: a number of rows (tokens) of one width, row-major.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rows {
    /// Values per row.
    pub width: usize,
    /// `count() * width` values.
    pub values: Vec<f64>,
}

impl Rows {
    /// No rows yet.
    #[must_use]
    pub fn empty(width: usize) -> Self {
        Self {
            width,
            values: Vec::new(),
        }
    }

    /// `count` rows of zeros.
    #[must_use]
    pub fn zeros(count: usize, width: usize) -> Self {
        Self {
            width,
            values: vec![0.0; count * width],
        }
    }

    /// Number of rows.
    #[must_use]
    pub fn count(&self) -> usize {
        self.values.len().checked_div(self.width).unwrap_or(0)
    }

    /// Row `index`.
    #[must_use]
    pub fn row(&self, index: usize) -> &[f64] {
        &self.values[index * self.width..][..self.width]
    }

    /// Row `index`, to be written.
    pub fn row_mut(&mut self, index: usize) -> &mut [f64] {
        &mut self.values[index * self.width..][..self.width]
    }

    /// The rows in order.
    pub fn iter(&self) -> std::slice::ChunksExact<'_, f64> {
        self.values.chunks_exact(self.width.max(1))
    }

    /// Appends a row.
    pub fn push(&mut self, row: &[f64]) {
        debug_assert_eq!(row.len(), self.width);
        self.values.extend_from_slice(row);
    }

    /// Each row mapped to a row of width `width`.
    #[must_use]
    pub fn map(&self, width: usize, row: impl Fn(&[f64]) -> Vec<f64>) -> Self {
        let mut out = Self::empty(width);
        for source in self.iter() {
            out.push(&row(source));
        }
        out
    }
}

/// The sum of two equally shaped sets of rows, element by element.
#[must_use]
pub fn add(a: &Rows, b: &Rows) -> Rows {
    debug_assert_eq!((a.width, a.values.len()), (b.width, b.values.len()));
    Rows {
        width: a.width,
        values: a.values.iter().zip(&b.values).map(|(a, b)| a + b).collect(),
    }
}

/// Σ aᵢ·bᵢ in f64. Order: eight running sums, element i into sum i mod 8, in rising i; then the
/// eight are added in rising order. The order depends on nothing but the length.
#[must_use]
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: this processor has AVX2.
        return unsafe { dot_avx2(a, b) };
    }
    dot_in_eights(a, b)
}

/// The same sums in wider registers: the same additions and multiplications, so the same bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn dot_avx2(a: &[f64], b: &[f64]) -> f64 {
    dot_in_eights(a, b)
}

#[inline(always)]
fn dot_in_eights(a: &[f64], b: &[f64]) -> f64 {
    debug_assert_eq!(a.len(), b.len());
    // Arrays of eight rather than slices: the compiler then keeps the sums in registers.
    let mut sums = [0.0f64; 8];
    let (a_eights, a_rest) = a.as_chunks::<8>();
    let (b_eights, b_rest) = b.as_chunks::<8>();
    for (a, b) in a_eights.iter().zip(b_eights) {
        for i in 0..8 {
            sums[i] += a[i] * b[i];
        }
    }
    for (i, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        sums[i] += a * b;
    }
    sums.iter().sum()
}

/// The values of a matrix as the checkpoint encodes them.
#[derive(Debug, Clone, PartialEq)]
enum Encoded {
    /// BF16 bit patterns.
    Bf16(Vec<u16>),
    /// Packed codes with their scales, of a routed expert.
    Mxfp4(Box<Mxfp4Rows>),
    /// Already decoded values.
    F64(Vec<f64>),
}

/// A weight matrix \[rows, columns\], applied as W·x.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    rows: usize,
    columns: usize,
    encoded: Encoded,
}

/// From this many weights on, output rows are shared out over threads. Each output value is still
/// one `dot`, so the bits do not depend on it.
const PARALLEL_WEIGHTS: usize = 1 << 18;

impl Matrix {
    /// A matrix of BF16 bit patterns, row-major.
    #[must_use]
    pub fn from_bf16(rows: usize, columns: usize, bits: Vec<u16>) -> Self {
        debug_assert_eq!(bits.len(), rows * columns);
        Self {
            rows,
            columns,
            encoded: Encoded::Bf16(bits),
        }
    }

    /// A matrix of packed MXFP4 codes.
    #[must_use]
    pub fn from_mxfp4(rows: usize, columns: usize, codes: Mxfp4Rows) -> Self {
        Self {
            rows,
            columns,
            encoded: Encoded::Mxfp4(Box::new(codes)),
        }
    }

    /// A matrix of decoded values, row-major.
    #[must_use]
    pub fn from_f64(rows: usize, columns: usize, values: Vec<f64>) -> Self {
        debug_assert_eq!(values.len(), rows * columns);
        Self {
            rows,
            columns,
            encoded: Encoded::F64(values),
        }
    }

    /// Output width.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input width.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Row `index` \[columns\], widened exactly; `buffer` holds it where it is not kept as f64.
    pub fn row<'a>(&'a self, index: usize, buffer: &'a mut Vec<f64>) -> &'a [f64] {
        let range = index * self.columns..(index + 1) * self.columns;
        match &self.encoded {
            Encoded::Bf16(bits) => {
                buffer.clear();
                buffer.extend(bits[range].iter().map(|bits| bf16_to_f64(*bits)));
                buffer
            }
            Encoded::Mxfp4(codes) => {
                buffer.clear();
                buffer.resize(self.columns, 0.0);
                codes.decode(index, buffer);
                buffer
            }
            Encoded::F64(values) => &values[range],
        }
    }

    /// W·x for every row x of `input` \[T, columns\]; gives \[T, rows\].
    #[must_use]
    pub fn apply(&self, input: &Rows) -> Rows {
        self.apply_rows(input, |row| row)
    }

    /// Like [`Matrix::apply`], with output i taken from weight row `source(i)`.
    #[must_use]
    pub fn apply_rows(&self, input: &Rows, source: impl Fn(usize) -> usize + Sync) -> Rows {
        debug_assert_eq!(input.width, self.columns);
        let tokens = input.count();
        // One output row of W at a time over all tokens, kept as [rows, T] and turned at the end.
        let mut turned = vec![0.0; self.rows * tokens];
        let fill = |buffer: &mut Vec<f64>, (output, values): (usize, &mut [f64])| {
            let weights = self.row(source(output), buffer);
            for (value, x) in values.iter_mut().zip(input.iter()) {
                *value = dot(weights, x);
            }
        };
        if self.rows * self.columns >= PARALLEL_WEIGHTS {
            let shares = turned.par_chunks_mut(tokens.max(1)).enumerate();
            shares.with_min_len(16).for_each_init(Vec::new, fill);
        } else {
            let mut buffer = Vec::new();
            let outputs = turned.chunks_mut(tokens.max(1)).enumerate();
            outputs.for_each(|output| fill(&mut buffer, output));
        }
        let mut out = Rows::zeros(tokens, self.rows);
        for (output, values) in turned.chunks(tokens.max(1)).enumerate() {
            for (token, value) in values.iter().enumerate() {
                out.values[token * self.rows + output] = *value;
            }
        }
        out
    }
}

/// A BF16 is the upper half of an f32; both steps are exact.
#[must_use]
pub fn bf16_to_f64(bits: u16) -> f64 {
    f64::from(f32::from_bits(u32::from(bits) << 16))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A length that is no multiple of eight must not lose its rest, nor move an element.
    #[test]
    fn dot_takes_every_element_once() {
        for length in 0..40 {
            let a: Vec<f64> = (0..length).map(f64::from).collect();
            let b: Vec<f64> = a.iter().map(|x| x + 1.0).collect();
            let right: i32 = (0..length).map(|i| i * (i + 1)).sum();
            assert_eq!(dot(&a, &b), f64::from(right));
        }
    }

    /// Wider registers change no bit, at any length.
    #[test]
    fn dot_has_the_bits_of_the_plain_sums() {
        let value = |i: usize| ((i * 7919) % 1013) as f64 / 977.0 - 0.5;
        let a: Vec<f64> = (0..300).map(value).collect();
        let b: Vec<f64> = (0..300).map(|i| value(i * 31 + 7)).collect();
        for length in 0..a.len() {
            let (a, b) = (&a[..length], &b[..length]);
            assert_eq!(dot(a, b).to_bits(), dot_in_eights(a, b).to_bits());
        }
    }

    /// The threaded path is the same sums: its bits are those of the plain one, row by row.
    #[test]
    fn threads_change_no_bit() {
        let (rows, columns) = (600, 500);
        let value = |i: usize| ((i * 7919) % 1013) as f64 / 977.0 - 0.5;
        let weights: Vec<f64> = (0..rows * columns).map(value).collect();
        let input = Rows {
            width: columns,
            values: (0..3 * columns).map(|i| value(i + 5)).collect(),
        };
        let large = Matrix::from_f64(rows, columns, weights.clone());
        assert!(rows * columns >= PARALLEL_WEIGHTS);
        let out = large.apply(&input);
        for (token, x) in input.iter().enumerate() {
            for (row, weights) in weights.chunks_exact(columns).enumerate() {
                assert_eq!(out.row(token)[row].to_bits(), dot(weights, x).to_bits());
            }
        }
    }
}
