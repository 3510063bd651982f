//! Local tolerances: every stage recomputed from the SUBJECT's own inputs to it.
//!
//! A chained comparison mixes a stage's own error with all that came before. Here each stage of a
//! dump is computed anew in f64 by the released formulas from what the subject itself stored for
//! the stages it reads (and with the subject's router ids), so that what is left is the rounding of
//! that one stage. Every expected value comes with a bound on that rounding, carried through the
//! same formulas ([`bounded`]). No factor in it is tuned.
//!
//! # What a bound consists of
//!
//! A subject's number x̃ = value + δ with |δ| ≤ error. Three things add to an error:
//!
//! 1. **Propagation**: what the errors of the operands do, to all orders ([`bounded`],
//!    [`arithmetic`]). Inputs out of the dump and weights are exact, so this is only the error of
//!    values in between that no stage stores.
//! 2. **The subject's rounding points** (MODEL.md section 3). One f32 operation or one store:
//!    u·|x|, u = 2⁻²⁴, plus half the smallest subnormal. A sum of n products in a precision of unit
//!    s, in ANY order, fused or not: a product passes at most n roundings, so γ(n, s)·Σ|w·x| with
//!    γ(n, s) = n·s/(1 − n·s); s = 2⁻⁵³ for [`Arithmetic::F64Sums`], where the products are exact
//!    and one rounding to f32 follows; s = 2⁻²⁴ for [`Arithmetic::F32Sums`], where with that
//!    rounding it is the (n + 1)·u·Σ|w·x| of the textbooks. exp, tanh and σ: as many units in the
//!    last place as [`Arithmetic`] says.
//! 3. **The evaluation here**, the same with 2⁻⁵³.
//!
//! Where forms of a formula round at different places, the bound covers all of them: x·(1/r) and
//! x/r; folded and separate mix vectors; e/Z before or after the weighted sum; absorbed and
//! expanded attention ([`mla`]); KDA's decay on the key (MODEL.md section 3) or on the state. Not
//! covered: blocked or rescaled softmax, chunked forms of the delta rule.
//!
//! # Narrow subjects
//!
//! An engine in BF16 or half sums in f32 and stores in its precision, u = 2⁻⁸ or 2⁻¹¹; where
//! engines differ in what they store, the bound has a rounding for it
//! ([`arithmetic::Rounding::narrow_store`]). What no engine keeps narrower than f32 has the bounds
//! of an f32 engine ([`arithmetic::Rounding::single`]). gates/PRECISION.md tables both. Running
//! error bounds over long sums are wide in so few bits: for such a subject the comparison end to
//! end counts too (`k3_gates::layers::judge`).
//!
//! Stages that only hand a value on (`embed`, `attn_mix` while there is no bank) have the bound 0.
//! A single rounding (`mla.k_rope`, `moe.latent`, `kda.conv`, logits) comes to half an ULP and the
//! error of its f64 sum.
//!
//! # The softmax
//!
//! See [`rows::SoftmaxWeights`]: the maximum that is subtracted falls out of N/Z, so only the
//! rounding of the difference counts; errors of the weights move a mean only by what the values
//! differ from it.
//!
//! # The recurrence
//!
//! Per head, a subject with S̃ = S + ε takes ã = α̃ ⊙ k rounded, ũ = Σ S̃_i·ã_i + ρ,
//! δ̃ = β(v − ũ) + σ and S̃'_i = α̃_i·S̃_i + k_i·δ̃ + τ_i per column, so exactly
//!
//! ε' = (I − βkkᵀ)·diag(α)·ε + l + k·m with the local errors l_i = (α̃_i − α_i)·S̃_i + τ_i and
//! m = σ − β·(Σ S̃_i·(ã_i − α_i·k_i) + ρ).
//!
//! Two bounds are carried. Element by element: α_i·E_i + |l_i| + |k_i|·(error of δ̃). This alone
//! would grow like (1 + β‖k‖²)ᵗ when nothing decays, because it gives up the sign of the delta
//! rule. By column: the norm of ε, whose factor ‖(I − βkkᵀ)·diag(α)‖ ≤
//! max α · max(1, |1 − β‖k‖²|) is at most 1, so that it grows no faster than the number of tokens.
//! Both hold after every token, so each takes what the other knows. q and u are read with the
//! smaller of Σ|x_i|·E_i and ‖x‖·‖ε‖.
//!
//! # The router
//!
//! `router_ids` is chosen anew from the subject's own scores. Two experts may change places when
//! their score + bias differ by no more than the roundings of the two sums; such rows are ties.

pub mod arithmetic;
pub mod bounded;
pub mod kda;
pub mod layer;
pub mod mla;
pub mod mlp;
pub mod residual;
pub mod rows;
pub mod subject;

pub use arithmetic::Arithmetic;
pub use layer::recompute_layer;
pub use subject::{Found, SubjectResidual};

use self::arithmetic::Rounding;
use self::bounded::Bounded;
use self::subject::Subject;
use super::error::ReferenceError;
use super::formulas::NormSite;
use super::layer::Pass;
use super::model::{ClosingWeights, Model, embed};
use super::released::{norm_eps, opens_block};
use super::rows::map_rows;
use super::{AsComputed, RELEASED};
use k3_core::compare::{Comparison, Tolerance, compare};
use k3_core::config::RawConfig;
use k3_core::stages::{Stage, StageDump, StageKey, StageValues};

/// What all recomputation needs to know.
#[derive(Debug, Clone, Copy)]
pub struct Basis<'a> {
    /// The raw fields of the config.
    pub config: &'a RawConfig,
    /// ε of MLA's two low-rank norms (clause N3).
    pub mla_norm_eps: f64,
    /// What the subject computes in.
    pub arithmetic: Arithmetic,
}

impl Basis<'_> {
    fn norm_eps(&self, site: NormSite) -> f64 {
        norm_eps(site, self.config.rms_norm_eps, self.mla_norm_eps)
    }
}

/// What was recomputed, and what could not be.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Local {
    /// In execution order.
    pub stages: Vec<LocalStage>,
    /// In execution order.
    pub skipped: Vec<Skipped>,
}

impl Local {
    fn append(&mut self, mut other: Self) {
        self.stages.append(&mut other.stages);
        self.skipped.append(&mut other.skipped);
    }
}

/// One stage, recomputed.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalStage {
    /// Which.
    pub key: StageKey,
    /// Its shape, outermost first; the subject's has to be the same.
    pub shape: Vec<usize>,
    /// What it should be.
    pub values: LocalValues,
}

/// Expected values of a stage.
#[derive(Debug, Clone, PartialEq)]
pub enum LocalValues {
    /// Numbers, each with the distance a right subject may be from it.
    Real {
        /// By the released formulas in f64.
        expected: Vec<f64>,
        /// One bound per value; infinite where there is none.
        bound: Vec<f64>,
    },
    /// Router ids; the subject's have to be equal.
    Ids {
        /// Chosen from the subject's scores; in a tied row the subject's own ids.
        expected: Vec<i32>,
        /// Rows in which the subject chose otherwise, inside the band of the rounding of
        /// score + bias: to be reported, no failure.
        ties: Vec<usize>,
    },
}

/// A stage that was not recomputed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skipped {
    /// Which.
    pub key: StageKey,
    /// What the dump lacks, or holds in another size: the stage itself or one it is computed from.
    pub lacking: StageKey,
}

impl LocalStage {
    /// Compares the subject's values of this stage with the expected ones, within their bounds. A
    /// stage that the dump lacks, another shape, and a bound that is infinite never pass.
    #[must_use]
    pub fn judge(&self, dump: &StageDump) -> Comparison {
        let refuse = |reason: String| {
            let mut record = compare(&[], &[], &[0], &Tolerance::Bits);
            record.problem = Some(reason);
            record
        };
        let Some(tensor) = dump.tensors.get(&self.key) else {
            return refuse("the dump does not hold it".to_owned());
        };
        if tensor.shape != self.shape {
            return refuse(format!("shape {:?}, expected {:?}", tensor.shape, self.shape));
        }
        match (&tensor.values, &self.values) {
            (StageValues::Real(got), LocalValues::Real { expected, bound }) => {
                if bound.iter().any(|bound| bound.is_infinite()) {
                    return refuse("no bound: an error outgrew its divisor".to_owned());
                }
                compare(got, expected, &self.shape, &Tolerance::PerElement(bound.clone()))
            }
            (StageValues::Ids(got), LocalValues::Ids { expected, .. }) => {
                let real =
                    |ids: &[i32]| -> Vec<f64> { ids.iter().map(|id| (*id).into()).collect() };
                compare(&real(got), &real(expected), &self.shape, &Tolerance::Bits)
            }
            _ => refuse("ids where numbers belong, or the other way round".to_owned()),
        }
    }
}

/// Recomputes every stage of the dump of a sequence `ids` fed from the empty state, in execution
/// order, by the released formulas (whatever table `model` was opened with).
///
/// # Errors
/// No ids, an id outside the vocabulary, or a routed expert that cannot be read.
pub fn recompute(
    model: &Model,
    dump: &StageDump,
    ids: &[u32],
    arithmetic: Arithmetic,
) -> Result<Local, ReferenceError> {
    let basis = Basis { config: model.config(), mla_norm_eps: model.mla_norm_eps(), arithmetic };
    let (tokens, width) = (ids.len(), basis.config.hidden_size);
    let mut local = embedding(model, &basis, dump, ids)?;
    let sum_after = |key| subject::values(dump, key, tokens * width);
    let exact = |key| sum_after(key).map(|values| rows::exact(width, values));
    let mut residual = SubjectResidual {
        rows: tokens,
        sum: exact(StageKey::model(Stage::Embed)),
        banks: Vec::new(),
    };
    for weights in model.layers() {
        let state = weights.new_state(basis.config);
        local.append(recompute_layer(&basis, weights, &residual, &state, dump)?);
        if opens_block(weights.index, basis.config.attn_res_block_size) {
            residual.banks.push(residual.sum);
        }
        residual.sum = exact(StageKey::layer(weights.index, Stage::Out));
    }
    local.append(recompute_closing(&basis, model.closing(), &residual, dump)?);
    Ok(local)
}

/// `embed`: exact but for what half cannot hold of BF16.
fn embedding(
    model: &Model,
    basis: &Basis<'_>,
    dump: &StageDump,
    ids: &[u32],
) -> Result<Local, ReferenceError> {
    let pass = Pass {
        config: basis.config,
        mla_norm_eps: basis.mla_norm_eps,
        formulas: &RELEASED,
        hook: &AsComputed,
    };
    let rows = embed(model.reader(), &pass, ids)?;
    let mut subject = Subject::new(dump, None, ids.len());
    subject.real(Stage::Embed, &[ids.len(), rows.ncols()], |_| {
        let stored = |x: f64| Bounded::exact(x).widened(basis.arithmetic.storing_loses(x));
        Ok(rows.mapv(stored))
    })?;
    Ok(subject.local)
}

/// Recomputes `final_mix`, `final_norm` and `logits` where the dump has them; `before` is the
/// subject's running sum after the last layer and all banks.
///
/// # Errors
/// None of its own: nothing is read here.
pub fn recompute_closing(
    basis: &Basis<'_>,
    closing: &ClosingWeights,
    before: &SubjectResidual,
    dump: &StageDump,
) -> Result<Local, ReferenceError> {
    let rounding = Rounding::new(basis.arithmetic);
    let mut subject = Subject::new(dump, None, before.rows);
    let width = closing.norm.len();
    let shape = [before.rows, width];
    subject.real(Stage::FinalMix, &shape, |_| {
        let (banks, sum) = (before.all_banks()?, before.sum.clone()?);
        let eps = basis.norm_eps(NormSite::OutputMix);
        let fold = &closing.output_fold;
        Ok(residual::mix(&rounding, &banks, &sum, fold, eps))
    })?;
    subject.real(Stage::FinalNorm, &shape, |subject| {
        let mixed = subject.exact(Stage::FinalMix, width)?;
        let eps = basis.norm_eps(NormSite::Final);
        Ok(map_rows(&mixed, width, |row| rounding.rms_norm(row, &closing.norm, eps)))
    })?;
    let shape = [before.rows, closing.head.rows()];
    subject.real(Stage::Logits, &shape, |subject| {
        let normed = subject.exact(Stage::FinalNorm, width)?;
        Ok(rounding.apply(&closing.head, &normed))
    })?;
    Ok(subject.local)
}
