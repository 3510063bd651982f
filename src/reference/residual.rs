//! The attention-residual mix (MODEL.md section 2.2, clauses R1 to R3).

use super::arithmetic::weighted_sum;
use super::formulas::NormSite;
use super::layer::Pass;
use super::rows::Rows;

/// What runs through the layers: the running sum and the banks, each \[T, E\]. Banks belong to the
/// tokens of one call; nothing of them is carried to the next.
#[derive(Debug, Clone, PartialEq)]
pub struct Residual {
    /// s.
    pub sum: Rows,
    /// b₀, b₁, … in the order they were pushed.
    pub banks: Vec<Rows>,
}

impl Residual {
    /// The embedding rows as the running sum, no bank.
    #[must_use]
    pub fn new(embedding: Rows) -> Self {
        Self { sum: embedding, banks: Vec::new() }
    }
}

/// mix(b, s) with a folded vector, token by token; \[T, E\].
#[must_use]
pub fn mix(pass: &Pass<'_>, site: NormSite, banks: &[Rows], sum: &Rows, fold: &[f64]) -> Rows {
    let (formulas, eps) = (pass.formulas, pass.norm_eps(site));
    let mut out = Rows::empty(sum.width);
    for (token, sum) in sum.iter().enumerate() {
        let banks: Vec<&[f64]> = banks.iter().map(|bank| bank.row(token)).collect();
        let sources = (formulas.mix_sources)(&banks, sum);
        let score = |source: &&[f64]| (formulas.mix_score)(formulas, site, source, fold, eps);
        let weights = (formulas.mix_weights)(&sources.iter().map(score).collect::<Vec<f64>>());
        let value = |source: &&[f64]| (formulas.mix_value)(site, source, eps);
        let values: Vec<Vec<f64>> = sources.iter().map(value).collect();
        out.push(&weighted_sum(&values, &weights, sum.len()));
    }
    out
}
