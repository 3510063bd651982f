//! The kernels as a table of functions: what a vector path, and nothing else, is free to replace.
//!
//! [`Kernels::SCALAR`] is the scalar definition of every rule; the table of a vector path has some
//! entries compiled for wider registers, with the same bits (A11). An entry is called once per row,
//! head, tile or block, never per element. Entries that are made of others get the table itself,
//! so that replacing an entry replaces it everywhere.

use super::kda::{DecayInputs, StepInputs};
use super::mla::HeadAttention;
use super::path::KernelPath;
use super::products::Product;
use super::router::{Choice, NanScore, Weighting};
use super::rows::Row;
use super::situ::Caps;
use super::sums::Vectors;
use super::threads::Threads;
use super::{contract, softmax, sums};
use super::{convolution, functions, kda, mla, norm, products, residual, router, rows, situ};

/// The arithmetic of the engine, one entry per rule.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::type_complexity, reason = "an entry's type is its function's signature")]
pub struct Kernels {
    /// The instructions that the entries use.
    pub path: KernelPath,
    /// A10: e^x of every element, in place.
    pub exp: fn(&mut [f32]),
    /// A10: σ of every element, in place.
    pub sigmoid: fn(&mut [f32]),
    /// A10: tanh of every element, in place.
    pub tanh: fn(&mut [f32]),
    /// A1: the exact values of a stored row.
    pub widen: fn(Row<'_>, &mut [f64]),
    /// A2, A3: Σ w·x of one row, before its rounding.
    pub row_sum: fn(Row<'_>, &[f32]) -> f64,
    /// Many row products, W·x for several matrices and tokens: in bits what [`Self::row_sum`]
    /// yields, rounded once.
    pub products: fn(&Kernels, &Threads, Vec<Product<'_>>),
    /// A4: f32(Σ weights·vectors), rising index.
    pub weighted_sum: fn(&[f32], Vectors<'_>, &mut [f32]),
    /// A4, A6: f32(Σ e·vectors / Z) from exponentials e and their sum Z.
    pub normalised_sum: fn(&[f32], Vectors<'_>, f64, &mut [f32]),
    /// A6: softmax over scores (overwritten), applied to the vectors.
    pub softmax_sum: fn(&Kernels, &mut [f32], Vectors<'_>, &mut [f32]),
    /// A5: RMSNorm(x; w, ε).
    pub rms_norm: fn(&[f32], &[f32], f64, &mut [f32]),
    /// A5: RMSNorm(x; 1, ε), for the keys of a mix.
    pub rms_norm_unit: fn(&[f32], f64, &mut [f32]),
    /// A5: l2norm of one head in place, then one f32 product with a factor.
    pub l2_norm: fn(&mut [f32], f32),
    /// R1, R2: the mix of one token's sources under a folded vector with ε.
    pub residual_mix: fn(&Kernels, &[&[f32]], (&[f32], f64), &mut [f32]),
    /// K1: the convolution of one token; the window oldest first, taps \[P, kernel\].
    pub convolve: fn(&[&[f32]], &[f32], &mut [f32]),
    /// K2: x·σ(x) of every element, in place.
    pub silu: fn(&Kernels, &mut [f32]),
    /// K6, K7: log decay of one head.
    pub log_decay: fn(&Kernels, &DecayInputs<'_>, &mut [f32]),
    /// A8: one step of one head; state \[key width, value width\].
    pub kda_step: fn(&mut [f32], &StepInputs<'_>, &mut [f32]),
    /// K12: one head's output in place, RMSNorm(o; w, ε), then · σ(gate); the gate is overwritten.
    pub gated_norm: fn(&Kernels, &mut [f32], (&[f32], f64), &mut [f32]),
    /// A7: one head of one token in the absorbed form; output \[v\].
    pub attend: fn(&Kernels, &HeadAttention<'_>, &mut [f32]),
    /// E2 to E5: the chosen of scores and biases, k of them, and their weights.
    pub choose: fn(&[f32], &[f32], usize, Weighting) -> Result<Choice, NanScore>,
    /// A9: the weighted sum of one token's expert outputs, in rising id.
    pub expert_sum: fn(&[usize], &[f32], Vectors<'_>, &mut [f32]),
    /// R6: running += addend.
    pub add: fn(&mut [f32], &[f32]),
    /// E9, E10: the routed and the shared output of a chunk, added.
    pub combine: fn(&[f32], &[f32], &mut [f32]),
    /// A9: SiTU(gate, up) in f32 steps.
    pub situ: fn(&Kernels, &[f32], &[f32], Caps, &mut [f32]),
}

impl Kernels {
    /// The scalar definitions.
    pub const SCALAR: Self = Self {
        path: KernelPath::SCALAR,
        exp: functions::exp_all,
        sigmoid: functions::sigmoid_all,
        tanh: functions::tanh_all,
        widen: rows::widen,
        row_sum: rows::row_sum,
        products: products::products,
        weighted_sum: sums::weighted_sum,
        normalised_sum: sums::weighted_sum_over,
        softmax_sum: softmax::softmax_sum,
        rms_norm: norm::rms_norm,
        rms_norm_unit: norm::rms_norm_unit,
        l2_norm: norm::l2_norm,
        residual_mix: residual::mix,
        convolve: convolution::convolve,
        silu: situ::silu,
        log_decay: kda::log_decay,
        kda_step: kda::step,
        gated_norm: norm::gated_norm,
        attend: mla::attend,
        choose: router::choose,
        expert_sum: sums::expert_sum,
        add: sums::add,
        combine: sums::combine,
        situ: situ::situ,
    };

    /// The table of a path.
    #[must_use]
    pub fn on(path: KernelPath) -> Self {
        Self { path, ..super::simd::compiled::table(path) }
    }

    /// The table of the fastest path of this processor.
    #[must_use]
    pub fn fastest() -> Self {
        Self::on(KernelPath::detect())
    }

    /// One row product: the sum, rounded once.
    #[must_use]
    pub fn row_product(&self, row: Row<'_>, x: &[f32]) -> f32 {
        contract::round_to_f32((self.row_sum)(row, x))
    }
}
