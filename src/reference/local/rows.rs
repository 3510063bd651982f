//! Rows of bounded numbers: the matrix product, the norms, and the softmax-weighted sum.

use ndarray::{Array2, Zip};
use rayon::prelude::*;

use super::arithmetic::{EVALUATION, Rounding};
use super::bounded::{Bounded, Terms, gamma};
use crate::released::L2_NORM_EPS;
use crate::rows::{Matrix, dots, from_values, slices, values_mut};

/// Bounded numbers \[T, width\], one row per token, row-major.
pub type BoundedRows = Array2<Bounded>;

/// Rows of `width` numbers that both sides have alike.
#[must_use]
pub fn exact(width: usize, values: &[f64]) -> BoundedRows {
    from_values(width, values.iter().copied().map(Bounded::exact).collect())
}

/// Two equally shaped sets of rows, number by number.
#[must_use]
pub fn zip(
    a: &BoundedRows,
    b: &BoundedRows,
    item: impl Fn(Bounded, Bounded) -> Bounded,
) -> BoundedRows {
    Zip::from(a).and(b).map_collect(|a, b| item(*a, *b))
}

/// From this many weights on, output rows are shared out over threads; each output is still one
/// sum.
const PARALLEL_WEIGHTS: usize = 1 << 18;

/// Vectors split into what the sums need of them; `[T, width]` each.
struct Split {
    values: Vec<Vec<f64>>,
    magnitudes: Vec<Vec<f64>>,
    /// Empty when every number is exact.
    errors: Vec<Vec<f64>>,
}

impl Split {
    fn new<'a>(rows: impl Iterator<Item = &'a [Bounded]> + Clone) -> Self {
        let each = |part: fn(&Bounded) -> f64| -> Vec<Vec<f64>> {
            let rows = rows.clone();
            rows.map(|row| row.iter().map(part).collect()).collect()
        };
        let is_exact = rows.clone().flatten().all(|x| x.error == 0.0);
        Self {
            values: each(|x| x.value),
            magnitudes: each(|x| x.magnitude()),
            errors: if is_exact { Vec::new() } else { each(|x| x.error) },
        }
    }

    /// The sums of products with a row of exact weights; `sizes` is their absolute values.
    fn terms(&self, weights: &[f64], sizes: &[f64]) -> impl Iterator<Item = Terms> {
        let tokens = self.values.len();
        let sums = |weights: &[f64], inputs: &[Vec<f64>]| {
            let inputs: Vec<&[f64]> = inputs.iter().map(Vec::as_slice).collect();
            let mut sums = vec![0.0; tokens];
            dots(weights, &inputs, &mut sums[..inputs.len()]);
            sums
        };
        let values = sums(weights, &self.values);
        let magnitudes = sums(sizes, &self.magnitudes);
        let errors = sums(sizes, &self.errors);
        let count = weights.len();
        (0..tokens).map(move |token| Terms {
            count,
            value: values[token],
            magnitude: magnitudes[token],
            propagated: errors[token],
        })
    }
}

impl Rounding {
    /// Σ w·x over exact weights in the wide precision, then one rounding.
    #[must_use]
    pub fn row_product(&self, weights: &[f64], x: &[Bounded]) -> Bounded {
        let sizes: Vec<f64> = weights.iter().map(|w| w.abs()).collect();
        let split = Split::new(std::iter::once(x));
        let terms = split.terms(weights, &sizes).next().unwrap_or_default();
        self.step.round(self.wide.sum(terms))
    }

    /// W·x for every row x of `input`; every output is one [`Rounding::row_product`].
    #[must_use]
    pub fn apply(&self, matrix: &Matrix, input: &BoundedRows) -> BoundedRows {
        debug_assert_eq!(input.ncols(), matrix.columns());
        let ((outputs, columns), tokens) = (matrix.dim(), input.nrows());
        let split = Split::new(slices(input));
        let mut turned = BoundedRows::default((outputs, tokens));
        let fill = |buffers: &mut [Vec<f64>; 2], (output, row): (usize, &mut [Bounded])| {
            let [widened, sizes] = buffers;
            let weights = matrix.row(output, widened);
            sizes.clear();
            sizes.extend(weights.iter().map(|w| w.abs()));
            for (out, terms) in row.iter_mut().zip(split.terms(weights, sizes)) {
                *out = self.step.round(self.wide.sum(terms));
            }
        };
        let buffers = <[Vec<f64>; 2]>::default;
        if outputs * columns >= PARALLEL_WEIGHTS {
            let shares = values_mut(&mut turned).par_chunks_mut(tokens.max(1)).enumerate();
            shares.with_min_len(16).for_each_init(buffers, fill);
        } else {
            let mut buffers = buffers();
            let shares = values_mut(&mut turned).chunks_mut(tokens.max(1)).enumerate();
            shares.for_each(|share| fill(&mut buffers, share));
        }
        turned.t().as_standard_layout().into_owned()
    }

    /// 1/√(Σx²/divisor + ε), all of it in the wide precision.
    fn inverse_root(&self, x: &[Bounded], divisor: usize, eps: f64) -> Bounded {
        let mut squares = Terms::default();
        x.iter().for_each(|x| squares.push(*x, *x));
        let wide = self.wide;
        let mut mean = wide.sum(squares);
        if divisor != 1 {
            mean = wide.div(mean, Bounded::exact(divisor as f64));
        }
        let root = wide.sqrt(wide.add(mean, wide.constant(eps)));
        wide.div(Bounded::exact(1.0), root)
    }

    /// RMSNorm: (x·r)·w in the wide precision, one rounding at the end; narrow subjects may store
    /// x·r.
    #[must_use]
    pub fn rms_norm(&self, x: &[Bounded], weight: &[f64], eps: f64) -> Vec<Bounded> {
        let inverse = self.inverse_root(x, x.len(), eps);
        let item = |(x, w): (&Bounded, &f64)| {
            let normed = self.narrow_store(self.wide.mul(*x, inverse));
            self.step.round(self.wide.mul(normed, Bounded::exact(*w)))
        };
        x.iter().zip(weight).map(item).collect()
    }

    /// RMSNorm with weight 1: x·r, one rounding.
    #[must_use]
    pub fn normalise(&self, x: &[Bounded], eps: f64) -> Vec<Bounded> {
        let inverse = self.inverse_root(x, x.len(), eps);
        let item = |x: &Bounded| self.step.round(self.wide.mul(*x, inverse));
        x.iter().map(item).collect()
    }

    /// t/√(Σt² + 1e-6): x·r, one rounding. Narrow subjects may take it as an RMSNorm with ε/D,
    /// stored, times D^−½, a constant rounded too.
    #[must_use]
    pub fn l2_norm(&self, head: &[Bounded]) -> Vec<Bounded> {
        let inverse = self.inverse_root(head, 1, L2_NORM_EPS);
        let stored = |x| self.narrow_store(self.narrow_store(x));
        let item = |x: &Bounded| self.step.round(stored(self.wide.mul(*x, inverse)));
        head.iter().map(item).collect()
    }
}

/// The weights of a softmax: e^(s_i − M), each with the bound on its own error.
///
/// A right subject has ẽ_i = e^(d̃_i)·(1 + f) with d̃_i = (s̃_i − M̃)·(1 + δ) and M̃ the same for
/// all i, so a common factor e^(M − M̃) falls out of every ratio N/Z. What is left in the exponent
/// is η_i = e_i + u·|s̃_i − M̃|, with |s̃_i − M̃| ≤ |s_i − M| + e_i + max e; the relative error of
/// the weight is ρ_i = e^η_i·(1 + f) − 1. No blocks, no rescaling: one pass over all scores.
#[derive(Debug, Clone, PartialEq)]
pub struct SoftmaxWeights {
    weights: Vec<Bounded>,
    /// Z = Σ e.
    sum: f64,
    /// Z minus the errors of its terms: the least the subject's can be.
    least: f64,
}

impl SoftmaxWeights {
    /// The weights of some scores, at least one.
    #[must_use]
    pub fn new(rounding: &Rounding, scores: &[Bounded]) -> Self {
        let values = scores.iter().map(|s| s.value);
        let maximum = values.fold(f64::NEG_INFINITY, f64::max);
        let shift_error = scores.iter().map(|s| s.error).fold(0.0, f64::max);
        let (relative, underflow) = rounding.exp_error();
        let step = rounding.step;
        let weight = |score: &Bounded| {
            let distance = score.value - maximum;
            let reach = distance.abs() + score.error + shift_error;
            let own = step.roundoff * reach + step.tiny + EVALUATION * distance.abs();
            let exponent = score.error + own;
            let value = distance.exp();
            let ratio = exponent.exp_m1() + exponent.exp() * relative;
            Bounded { value, error: value * ratio + underflow * shift_error.exp() }
        };
        let weights: Vec<Bounded> = scores.iter().map(weight).collect();
        let sum: f64 = weights.iter().map(|w| w.value).sum();
        let least = sum - weights.iter().map(|w| w.error).sum::<f64>();
        Self { weights, sum, least }
    }

    /// Column `column` of N/Z = Σ e·v / Σ e, rounded once.
    ///
    /// With out = N/Z, Σ e_i·(v_i − out) = 0, so the errors r_i of the weights move it by exactly
    /// Σ r_i·(v_i − out) / Z̃: what all values have in common is not moved. On top come the errors
    /// of the values, weighted; γ(n + 1) on the terms of N (one more than a sum of n products, for
    /// subjects that divide each weight by Z first) and γ(n) on Z; one division. A narrow subject
    /// may store each weight after that division: one rounding of every term.
    #[must_use]
    pub fn mean(&self, rounding: &Rounding, values: &[&[Bounded]], column: usize) -> Bounded {
        let of = |row: &&[Bounded]| row[column];
        let pairs = || self.weights.iter().copied().zip(values.iter().map(of));
        let total: f64 = pairs().map(|(w, v)| w.value * v.value).sum();
        let value = total / self.sum;
        let (mut propagated, mut magnitude) = (0.0, 0.0);
        for (weight, v) in pairs() {
            propagated += weight.error * (v.value - value).abs() + weight.magnitude() * v.error;
            magnitude += weight.magnitude() * v.magnitude();
        }
        if self.least.is_nan() || self.least <= 0.0 {
            let error = f64::INFINITY;
            return Bounded { value, error };
        }
        let count = values.len();
        let both = |n| gamma(n, rounding.wide.roundoff) + gamma(n, EVALUATION);
        let stored = rounding.narrow_store(Bounded::exact(magnitude)).error;
        let numerator = (propagated + both(count + 1) * magnitude + stored) / self.least;
        let underflow = (count + 1) as f64 * rounding.wide.tiny / self.least;
        let quotient = Bounded { value, error: numerator + underflow };
        let divided = quotient.widened(both(count + 1) * quotient.magnitude());
        rounding.step.round(divided)
    }
}
