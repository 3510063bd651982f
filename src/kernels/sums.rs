//! Weighted sums of vectors and scalar sums (A4): one f64 accumulator per output, rising index.
//!
//! "Anything summed down a column" goes through [`weighted_sum`]: the residual mix, the absorbed
//! query, the attention output, the expert sum. The vectors may lie in one buffer, in several, or
//! be rows of a weight matrix; the order and the rounding are the same.

use super::matrix::MatrixRef;
use super::rows::Row;

/// Columns that are summed together; their accumulators stay in registers or the first cache.
const BLOCK_COLUMNS: usize = 64;

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

    /// `sums[j] += weight · t_index[first + j]`.
    #[inline]
    fn accumulate(&self, index: usize, weight: f64, first: usize, sums: &mut [f64]) {
        let columns = first..first + sums.len();
        match self.row(index) {
            Row::F32(row) => {
                for (sum, value) in sums.iter_mut().zip(&row[columns]) {
                    *sum += weight * f64::from(*value);
                }
            }
            Row::Bf16(row) => {
                for (sum, bits) in sums.iter_mut().zip(&row[columns]) {
                    *sum += weight * f64::from(super::bf16::widen(*bits));
                }
            }
            row @ Row::Mxfp4 { .. } => {
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum += weight * row.value(column);
                }
            }
        }
    }
}

/// out_j = f32((Σ_i weights_i · t_ij) / divisor), i rising. A divisor of 1 is exact.
pub fn weighted_sum_over(weights: &[f32], vectors: Vectors<'_>, divisor: f64, out: &mut [f32]) {
    let mut sums = [0.0_f64; BLOCK_COLUMNS];
    for (block, out) in out.chunks_mut(BLOCK_COLUMNS).enumerate() {
        let sums = &mut sums[..out.len()];
        sums.fill(0.0);
        for (index, weight) in weights.iter().enumerate() {
            vectors.accumulate(index, f64::from(*weight), block * BLOCK_COLUMNS, sums);
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = (*sum / divisor) as f32;
        }
    }
}

/// out_j = f32(Σ_i weights_i · t_ij), i rising.
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
pub fn expert_sum(ids: &[usize], weights: &[f32], outputs: Vectors<'_>, out: &mut [f32]) {
    let mut order: Vec<usize> = (0..ids.len()).collect();
    order.sort_by_key(|&place| ids[place]);
    let mut sums = [0.0_f64; BLOCK_COLUMNS];
    for (block, out) in out.chunks_mut(BLOCK_COLUMNS).enumerate() {
        let sums = &mut sums[..out.len()];
        sums.fill(0.0);
        for &place in &order {
            let weight = f64::from(weights[place]);
            outputs.accumulate(place, weight, block * BLOCK_COLUMNS, sums);
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = *sum as f32;
        }
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
        weighted_sum(
            &weights,
            Vectors::Strided {
                data: &ones,
                stride: 1,
            },
            &mut out,
        );
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
        expert_sum(
            &ids,
            &weights,
            Vectors::Strided {
                data: &ones,
                stride: 1,
            },
            &mut out,
        );
        assert_eq!(out, [0.0]);
    }

    /// Blocks of 64 columns must not show.
    #[test]
    fn widths_around_the_block_size() {
        for width in [1, 63, 64, 65, 130] {
            let data: Vec<f32> = (0..2 * width).map(|i| i as f32).collect();
            let mut out = vec![0.0; width];
            weighted_sum(
                &[2.0, 3.0],
                Vectors::Strided {
                    data: &data,
                    stride: width,
                },
                &mut out,
            );
            for (j, out) in out.iter().enumerate() {
                assert_eq!(*out, (2 * j + 3 * (width + j)) as f32);
            }
        }
    }
}
