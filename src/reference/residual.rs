//! The attention-residual mix (MODEL.md section 2.2, clauses R1 to R3).

use super::formulas::NormSite;
use super::layer::Pass;
use super::rows::{Rows, row, slices, stack};

/// What runs through the layers: the running sum and the banks, each \[T, E\]. Banks belong to the
/// tokens of one call; nothing of them is carried to the next.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Residual {
    /// s, the running sum.
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

/// mix(b, s) with a folded vector \[E\], token by token; \[T, E\].
#[must_use]
pub fn mix_rows(pass: &Pass<'_>, site: NormSite, banks: &[Rows], sum: &Rows, fold: &[f64]) -> Rows {
    let (formulas, eps) = (pass.formulas, pass.norm_eps(site));
    let of_token = |(token, sum)| {
        let banks: Vec<&[f64]> = banks.iter().map(|bank| row(bank, token)).collect();
        let sources = (formulas.mix_sources)(&banks, sum);
        (formulas.mix)(formulas, site, &sources, fold, eps)
    };
    stack(sum.ncols(), slices(sum).enumerate().map(of_token))
}
