//! Weighted sums of vectors and scalar sums (A4): one f64 accumulator per output, rising index.
//!
//! "Anything summed down a column" goes through [`weighted_sum`]: the residual mix, the absorbed
//! query, the attention output, the expert sum. The vectors may be in one buffer, in several, or
//! rows of a weight matrix; the order and the rounding are the same.

use super::matrix::MatrixRef;
use super::rows::Row;

/// Columns that are summed together: their sums are four AVX-512 registers.
const BLOCK_COLUMNS: usize = 32;

/// The vectors t₀, t₁, … of a weighted sum. Only their first `out.len()` elements are read.
#[derive(Debug, Clone, Copy)]
pub enum Vectors<'a> {
    /// Vector i starts at `data[i * stride]`.
    Strided {
        /// The buffer.
        data: &'a [f32],
        /// Elements from one vector to the next.
        stride: usize,
    },
    /// Separate vectors.
    List(&'a [&'a [f32]]),
    /// Rows of a weight matrix.
    Weights(MatrixRef<'a>),
}

impl<'a> Vectors<'a> {
    /// Vector `index` as a row.
    #[inline]
    #[must_use]
    pub fn row(&self, index: usize) -> Row<'a> {
        match *self {
            Self::Strided { data, stride } => Row::F32(&data[index * stride..(index + 1) * stride]),
            Self::List(list) => Row::F32(list[index]),
            Self::Weights(matrix) => matrix.row(index),
        }
    }

    /// `sums[j] += weight · t_index[first + j]` for N columns.
    #[inline(always)]
    fn accumulate<const N: usize>(
        &self,
        index: usize,
        weight: f64,
        first: usize,
        sums: &mut [f64; N],
    ) {
        match self.row(index) {
            Row::F32(row) => {
                let row = &row[first..first + N];
                for column in 0..N {
                    sums[column] += weight * f64::from(row[column]);
                }
            }
            Row::Bf16(row) => {
                let row = &row[first..first + N];
                for column in 0..N {
                    sums[column] += weight * f64::from(super::bf16::widen(row[column]));
                }
            }
            row @ Row::Mxfp4 { .. } => {
                for (column, sum) in sums.iter_mut().enumerate() {
                    *sum += weight * row.value(first + column);
                }
            }
        }
    }
}

/// N columns of a weighted sum over (index, weight) pairs, divided and rounded once.
#[inline(always)]
fn sum_columns<const N: usize>(
    terms: impl Iterator<Item = (usize, f32)>,
    vectors: Vectors<'_>,
    divisor: f64,
    first: usize,
    out: &mut [f32],
) {
    let mut sums = [0.0_f64; N];
    for (index, weight) in terms {
        vectors.accumulate(index, f64::from(weight), first, &mut sums);
    }
    for (out, sum) in out[first..first + N].iter_mut().zip(sums) {
        *out = (sum / divisor) as f32;
    }
}

/// All columns of a weighted sum, in blocks whose sums stay in registers.
#[inline(always)]
fn sum_all(
    terms: impl Iterator<Item = (usize, f32)> + Clone,
    vectors: Vectors<'_>,
    divisor: f64,
    out: &mut [f32],
) {
    let whole = out.len() / BLOCK_COLUMNS * BLOCK_COLUMNS;
    for first in (0..whole).step_by(BLOCK_COLUMNS) {
        sum_columns::<BLOCK_COLUMNS>(terms.clone(), vectors, divisor, first, out);
    }
    for first in whole..out.len() {
        sum_columns::<1>(terms.clone(), vectors, divisor, first, out);
    }
}

/// out_j = f32((Σ_i weights_i · t_ij) / divisor), i rising. A divisor of 1 is exact.
#[inline(always)]
pub fn weighted_sum_over(weights: &[f32], vectors: Vectors<'_>, divisor: f64, out: &mut [f32]) {
    sum_all(weights.iter().copied().enumerate(), vectors, divisor, out);
}

/// out_j = f32(Σ_i weights_i · t_ij), i rising.
#[inline(always)]
pub fn weighted_sum(weights: &[f32], vectors: Vectors<'_>, out: &mut [f32]) {
    weighted_sum_over(weights, vectors, 1.0, out);
}

/// Σ values in one f64 accumulator, rising index, NOT rounded (softmax Z).
#[must_use]
pub fn scalar_sum(values: &[f32]) -> f64 {
    let mut sum = 0.0;
    for value in values {
        sum += f64::from(*value);
    }
    sum
}

/// The expert sum of one token (A9): f32 outputs weighted and summed in rising expert id, in
/// whatever order they are listed. `ids`, `weights` and the vectors run in parallel.
#[inline(always)]
pub fn expert_sum(ids: &[usize], weights: &[f32], outputs: Vectors<'_>, out: &mut [f32]) {
    let mut order: Vec<usize> = (0..ids.len()).collect();
    order.sort_by_key(|&place| ids[place]);
    let terms = order.iter().map(|&place| (place, weights[place]));
    sum_all(terms, outputs, 1.0, out);
}

/// running += addend, one f32 addition each (R6).
pub fn add(running: &mut [f32], addend: &[f32]) {
    for (running, addend) in running.iter_mut().zip(addend) {
        *running += addend;
    }
}

/// The output of an MoE layer: routed + shared, one f32 addition each (E9, E10).
pub fn combine(routed: &[f32], shared: &[f32], out: &mut [f32]) {
    for (out, (routed, shared)) in out.iter_mut().zip(routed.iter().zip(shared)) {
        *out = routed + shared;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1e16 + 1 + … + 1 − 1e16 in f64: rising order loses every single 1, another order does not.
    #[test]
    fn one_accumulator_in_rising_order() {
        let weights = [1e16_f32, 1.0, 1.0, -1e16];
        let ones = [1.0_f32; 4];
        let mut out = [9.0_f32];
        weighted_sum(&weights, Vectors::Strided { data: &ones, stride: 1 }, &mut out);
        let rising = ((f64::from(1e16_f32) + 1.0) + 1.0) - f64::from(1e16_f32);
        assert_eq!(f64::from(out[0]), rising);
        assert_eq!(scalar_sum(&weights), rising);
        assert_ne!(rising, 2.0);
    }

    /// The sum must not follow the order of arrival.
    #[test]
    fn expert_sum_runs_in_rising_id_whatever_the_arrival() {
        let (ids, weights) = ([9, 2, 5], [-1e16_f32, 1e16, 1.0]);
        let ones = [1.0_f32; 3];
        let mut out = [9.0_f32];
        expert_sum(&ids, &weights, Vectors::Strided { data: &ones, stride: 1 }, &mut out);
        assert_eq!(out, [0.0]);
    }

    /// Blocks of columns must not show.
    #[test]
    fn widths_around_the_block_size() {
        for width in [1, 31, 32, 33, 64, 130] {
            let data: Vec<f32> = (0..2 * width).map(|i| i as f32).collect();
            let mut out = vec![0.0; width];
            weighted_sum(&[2.0, 3.0], Vectors::Strided { data: &data, stride: width }, &mut out);
            for (j, out) in out.iter().enumerate() {
                assert_eq!(*out, (2 * j + 3 * (width + j)) as f32);
            }
        }
    }
}
