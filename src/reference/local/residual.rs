//! The attention-residual mix with bounds (clauses R1 to R3).

use super::arithmetic::Rounding;
use super::bounded::Bounded;
use super::rows::{BoundedRows, SoftmaxWeights};
use crate::rows::{row, slices, stack};

/// mix(b, s), token by token: score = row product of the rounded RMSNorm(t; 1) with the folded
/// vector (exact: a product of two BF16 fits f32), softmax over the sources, Σ p·t with raw t. A
/// narrow subject does all of it in f32 and stores the outcome.
#[must_use]
pub fn mix(
    rounding: &Rounding,
    banks: &[BoundedRows],
    sum: &BoundedRows,
    fold: &[f64],
    eps: f64,
) -> BoundedRows {
    let stored = |x| rounding.narrow_store(x);
    let rounding = &rounding.single();
    let of_token = |(token, sum)| -> Vec<Bounded> {
        let mut sources: Vec<&[Bounded]> = banks.iter().map(|bank| row(bank, token)).collect();
        sources.push(sum);
        let score = |source: &&[Bounded]| {
            let normed = rounding.normalise(source, eps);
            rounding.row_product(fold, &normed)
        };
        let scores: Vec<Bounded> = sources.iter().map(score).collect();
        let weights = SoftmaxWeights::new(rounding, &scores);
        let column = |column| stored(weights.mean(rounding, &sources, column));
        (0..sum.len()).map(column).collect()
    };
    stack(sum.ncols(), slices(sum).enumerate().map(of_token))
}
