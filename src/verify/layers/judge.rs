//! One layer judged: every stage by its local bound, and end to end by eight measured floors.
//!
//! The verdict is local. Of a subject in BF16 or half it is both: the local bound of a sum of n
//! stored values grows with n·u and the value with √n, so with eight bits it lets a wrong value
//! pass where the measured floor does not.
//!
//! The router. A subject's choice that differs from the reference's inside the band is a tie, and
//! the reference goes on with the subject's ids. Locally the band is the rounding of score + bias
//! ([`k3_reference::local`]); end to end it is twice the chained tolerance of a score, which is
//! 2·8·floor. A choice outside the band is not followed. Scores come before the choice, so the run
//! with rounded storage goes first and its scores give the floor.

use std::sync::{Mutex, PoisonError};

use crate::glob::Glob;
use crate::outcome::Verdict;
use crate::report::layers::{Chained, Element, LayerRow, StageRow};
use k3_core::Precision;
use k3_core::compare::{Comparison, Extreme, Tolerance, compare};
use k3_core::config::RawConfig;
use k3_core::stages::{Stage, StageDump, StageKey, StageValues};
use k3_reference::layer::{Attention, LayerWeights, Mlp};
use k3_reference::local::mlp::as_experts;
use k3_reference::local::{
    Arithmetic, Basis, Local, LocalStage, LocalValues, SubjectResidual, recompute_closing,
    recompute_layer,
};
use k3_reference::released::select;
use k3_reference::rounding::{RoundedStages, rounded_formulas};
use k3_reference::rows::values;
use k3_reference::{
    AsComputed, ClosingWeights, Formulas, Pass, RELEASED, ReferenceError, Residual, Rows, StageHook,
};

/// Factor on the measured noise floor end to end (`gates/PRECISION.md`).
pub const CHAINED_FACTOR: f64 = 8.0;

/// What every judgement needs to know.
#[derive(Debug)]
pub struct Judge<'a> {
    /// The raw fields of the config.
    pub config: &'a RawConfig,
    /// ε of MLA's two low-rank norms.
    pub mla_norm_eps: f64,
    /// What the subject computes in.
    pub arithmetic: Arithmetic,
    /// Stages asked for; all without it.
    pub stages: Option<Glob>,
}

impl Judge<'_> {
    fn basis(&self) -> Basis<'_> {
        Basis { config: self.config, mla_norm_eps: self.mla_norm_eps, arithmetic: self.arithmetic }
    }

    /// The verdict over the stages of a row. None at all is nothing compared, unless only some
    /// stages were asked for.
    fn verdict(&self, stages: &[StageRow]) -> Verdict {
        if stages.is_empty() && self.stages.is_some() {
            return Verdict::NotSelected;
        }
        verdict(stages)
    }

    /// The pass of the reference with a hook.
    #[must_use]
    pub fn pass<'p>(&'p self, hook: &'p dyn StageHook) -> Pass<'p> {
        self.pass_with(&RELEASED, hook)
    }

    fn pass_with<'p>(&'p self, formulas: &'p Formulas, hook: &'p dyn StageHook) -> Pass<'p> {
        Pass { config: self.config, mla_norm_eps: self.mla_norm_eps, formulas, hook }
    }

    /// What the subject's activations are kept in.
    fn precision(&self) -> Precision {
        self.arithmetic.precision()
    }

    /// Judges a layer that was fed from the empty state. Gives the row, and the reference's stream
    /// after the layer where `before` is complete.
    ///
    /// # Errors
    /// A routed expert cannot be read.
    pub fn layer(
        &self,
        weights: &LayerWeights,
        before: &SubjectResidual,
        dump: &StageDump,
    ) -> Result<(LayerRow, Option<Residual>), ReferenceError> {
        let state = weights.new_state(self.config);
        let input = super::subject::complete(before);
        // Side by side: what one of them does alone on a thread, reading and the recurrence, does
        // not leave the other cores idle.
        let (local, chain) = rayon::join(
            || recompute_layer(&self.basis(), weights, before, &state, dump),
            || {
                let chain = input.as_ref().map(|input| self.chain(weights, input, dump));
                chain.transpose()
            },
        );
        let (local, chain) = (local?, chain?);
        let (attention, mlp, expected) = kind_of(weights);
        let layer = Some(weights.index);
        let stages = self.rows(layer, &expected, &local, dump, chain.as_ref());
        let row = LayerRow {
            place: "layer".to_owned(),
            layer,
            attention: Some(attention.to_owned()),
            mlp: Some(mlp.to_owned()),
            verdict: self.verdict(&stages),
            problem: None,
            h_max: largest(dump, StageKey::layer(weights.index, Stage::Out)),
            input_max: input.map(|input| largest_of(values(&input.sum))),
            stages,
            repeated: None,
        };
        Ok((row, chain.map(|chain| chain.after)))
    }

    /// Judges `final_mix`, `final_norm` and `logits`.
    ///
    /// # Errors
    /// None of its own.
    pub fn closing(
        &self,
        weights: &ClosingWeights,
        before: &SubjectResidual,
        dump: &StageDump,
    ) -> Result<LayerRow, ReferenceError> {
        let local = recompute_closing(&self.basis(), weights, before, dump)?;
        let input = super::subject::complete(before);
        let chain = input.as_ref().map(|input| {
            let (mut exact, mut floor) = (StageDump::default(), StageDump::default());
            weights.forward(&self.pass(&AsComputed), input, &mut exact);
            let formulas = rounded_formulas(self.precision());
            let stored = RoundedStages(self.precision());
            weights.forward(&self.pass_with(&formulas, &stored), input, &mut floor);
            Chain { exact, floor, ties: Vec::new(), after: input.clone() }
        });
        let expected = [Stage::FinalMix, Stage::FinalNorm, Stage::Logits];
        let stages = self.rows(None, &expected, &local, dump, chain.as_ref());
        Ok(LayerRow {
            place: "closing".to_owned(),
            layer: None,
            attention: None,
            mlp: None,
            verdict: self.verdict(&stages),
            problem: None,
            h_max: None,
            input_max: input.map(|input| largest_of(values(&input.sum))),
            stages,
            repeated: None,
        })
    }

    /// Judges `embed`, which is exact but for what half cannot hold of BF16: `right` are the rows
    /// as the reference reads them.
    #[must_use]
    pub fn embed(&self, right: &Rows, dump: &StageDump) -> LayerRow {
        let lost = |value: &f64| self.arithmetic.storing_loses(*value);
        let mut local = Local::default();
        if dump.tensors.contains_key(&StageKey::model(Stage::Embed)) {
            local.stages.push(LocalStage {
                key: StageKey::model(Stage::Embed),
                shape: vec![right.nrows(), right.ncols()],
                values: LocalValues::Real {
                    bound: right.iter().map(lost).collect(),
                    expected: values(right).to_vec(),
                },
            });
        }
        let stages = self.rows(None, &[Stage::Embed], &local, dump, None);
        LayerRow {
            place: "embed".to_owned(),
            layer: None,
            attention: None,
            mlp: None,
            verdict: self.verdict(&stages),
            problem: None,
            h_max: largest(dump, StageKey::model(Stage::Embed)),
            input_max: None,
            stages,
            repeated: None,
        }
    }

    /// The layer in f64 from its input, twice: with stored activations rounded, and as computed.
    fn chain(
        &self,
        weights: &LayerWeights,
        input: &Residual,
        dump: &StageDump,
    ) -> Result<Chain, ReferenceError> {
        let theirs = self.choices(weights.index, dump, input.sum.nrows());
        let run = |formulas: &Formulas, hook: &dyn StageHook| {
            let (mut residual, mut stages) = (input.clone(), StageDump::default());
            let mut state = weights.new_state(self.config);
            let pass = self.pass_with(formulas, hook);
            weights.forward(&pass, &mut residual, 0, &mut state, &mut stages)?;
            Ok::<_, ReferenceError>((residual, stages))
        };
        let rounded = Stored { stages: RoundedStages(self.precision()), choices: theirs.clone() };
        let (_, floor) = run(&rounded_formulas(self.precision()), &rounded)?;
        let key = StageKey::layer(weights.index, Stage::RouterScores);
        let bias = match &weights.mlp {
            Mlp::Moe(moe) => moe.bias.clone(),
            Mlp::Dense(_) => Vec::new(),
        };
        let follow = Follow {
            choices: theirs,
            floor_scores: real(&floor, key).to_vec(),
            bias,
            seen: Mutex::default(),
        };
        let (after, exact) = run(&RELEASED, &follow)?;
        let ties = follow.seen.into_inner().unwrap_or_else(PoisonError::into_inner).ties;
        // What the next layer is fed owes the subject nothing: parts of a run then see one chain.
        let after = if ties.is_empty() { after } else { run(&RELEASED, &AsComputed)?.0 };
        Ok(Chain { exact, floor, ties, after })
    }

    /// The subject's choice of every token, where it is one.
    fn choices(&self, layer: usize, dump: &StageDump, rows: usize) -> Vec<Option<Vec<usize>>> {
        let k = self.config.num_experts_per_token;
        let key = StageKey::layer(layer, Stage::RouterIds);
        match dump.tensors.get(&key).map(|tensor| &tensor.values) {
            Some(StageValues::Ids(ids)) if ids.len() == rows * k => {
                ids.chunks_exact(k).map(|ids| as_experts(ids, self.config.num_experts)).collect()
            }
            _ => vec![None; rows],
        }
    }

    fn rows(
        &self,
        layer: Option<usize>,
        expected: &[Stage],
        local: &Local,
        dump: &StageDump,
        chain: Option<&Chain>,
    ) -> Vec<StageRow> {
        let asked = expected.iter().copied().filter(|stage| {
            let glob = self.stages.as_ref();
            glob.is_none_or(|glob| glob.matches(stage.name()))
        });
        let row = |stage: Stage| {
            let key = StageKey { layer, stage };
            let Some(judged) = local.stages.iter().find(|judged| judged.key == key) else {
                let skipped = local.skipped.iter().find(|skipped| skipped.key == key);
                let lacking = skipped.map_or(key, |skipped| skipped.lacking);
                return not_run(stage, format!("the dump has no {lacking} of the right size"));
            };
            let record = judged.judge(dump);
            let mut row = stage_row(stage, &record);
            if let LocalValues::Ids { ties, .. } = &judged.values {
                row.ties = ties.len();
            }
            let is_half = self.arithmetic.is_narrow() && chain.is_none();
            if is_half && stage != Stage::Embed && row.verdict == Verdict::Pass {
                let problem = "half of the verdict in so few bits is the comparison end to end, \
                               and the dump lacks the running sum or a bank before the layer";
                return not_run(stage, problem.to_owned());
            }
            if self.arithmetic != Arithmetic::F64
                && let Some(chain) = chain
            {
                row.chained = chain.compare(key, dump, &mut row.ties);
                let is_within = row.chained.as_ref().is_none_or(|chained| chained.within);
                if self.arithmetic.is_narrow() && row.verdict == Verdict::Pass && !is_within {
                    row.verdict = Verdict::Fail;
                    row.problem = Some("beyond eight floors end to end".to_owned());
                }
            }
            row
        };
        asked.map(row).collect()
    }
}

/// Attention, MLP, and the stages such a layer has.
fn kind_of(weights: &LayerWeights) -> (&'static str, &'static str, Vec<Stage>) {
    let (attention, is_kda) = match weights.attention {
        Attention::Kda(_) => ("KDA", true),
        Attention::Mla(_) => ("MLA", false),
    };
    let (mlp, is_moe) = match weights.mlp {
        Mlp::Dense(_) => ("dense", false),
        Mlp::Moe(_) => ("MoE", true),
    };
    let belongs = |stage: &Stage| {
        let name = stage.name();
        stage.is_per_layer()
            && (is_kda || !name.starts_with("kda."))
            && (!is_kda || !name.starts_with("mla."))
            && (is_moe || !(name.starts_with("moe.") || name.starts_with("router_")))
    };
    let stages = Stage::ALL.into_iter().filter(belongs).collect();
    (attention, mlp, stages)
}

/// Of all stages of a row.
pub(super) fn verdict(stages: &[StageRow]) -> Verdict {
    let has = |verdict| stages.iter().any(|stage| stage.verdict == verdict);
    if has(Verdict::Fail) {
        Verdict::Fail
    } else if has(Verdict::NotRun) || stages.is_empty() {
        Verdict::NotRun
    } else {
        Verdict::Pass
    }
}

fn not_run(stage: Stage, problem: String) -> StageRow {
    StageRow {
        stage: stage.name().to_owned(),
        verdict: Verdict::NotRun,
        problem: Some(problem),
        count: 0,
        mismatches: 0,
        ratio: None,
        required: None,
        worst: None,
        first: None,
        ties: 0,
        chained: None,
    }
}

fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// An element as the report has it.
pub(super) fn element_of(extreme: &Extreme) -> Element {
    Element {
        index: extreme.index.clone(),
        difference: finite(extreme.difference),
        got: finite(extreme.got),
        expected: finite(extreme.expected),
    }
}

fn stage_row(stage: Stage, record: &Comparison) -> StageRow {
    StageRow {
        stage: stage.name().to_owned(),
        verdict: if record.passed { Verdict::Pass } else { Verdict::Fail },
        problem: record.problem.clone(),
        count: record.count,
        mismatches: record.mismatches,
        ratio: record.ratio.and_then(finite),
        required: finite(record.required),
        worst: record.max_abs.as_ref().map(element_of),
        first: record.first_mismatch.as_ref().map(element_of),
        ties: 0,
        chained: None,
    }
}

fn real(dump: &StageDump, key: StageKey) -> &[f64] {
    match dump.tensors.get(&key).map(|tensor| &tensor.values) {
        Some(StageValues::Real(values)) => values,
        _ => &[],
    }
}

fn largest_of(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |most: f64, value| most.max(value.abs()))
}

fn largest(dump: &StageDump, key: StageKey) -> Option<f64> {
    let values = real(dump, key);
    (!values.is_empty()).then(|| largest_of(values)).and_then(finite)
}

/// The two runs of the reference from the layer's input.
struct Chain {
    exact: StageDump,
    floor: StageDump,
    /// Rows in which the reference went on with the subject's ids.
    ties: Vec<usize>,
    after: Residual,
}

impl Chain {
    fn compare(&self, key: StageKey, dump: &StageDump, ties: &mut usize) -> Option<Chained> {
        let (exact, got) = (self.exact.tensors.get(&key)?, dump.tensors.get(&key)?);
        if let (StageValues::Ids(exact), StageValues::Ids(got)) = (&exact.values, &got.values) {
            *ties = self.ties.len().max(*ties);
            let within = exact == got;
            return Some(Chained {
                within,
                ratio: within.then_some(0.0),
                max_abs: None,
                floor: 0.0,
            });
        }
        let (exact_values, floor) = (real(&self.exact, key), real(&self.floor, key));
        let distances = exact_values.iter().zip(floor).map(|(a, b)| (a - b).abs());
        let floor = distances.fold(0.0, f64::max);
        let tolerance = Tolerance::Absolute(CHAINED_FACTOR * floor);
        let record = compare(real(dump, key), exact_values, &exact.shape, &tolerance);
        Some(Chained {
            within: record.passed,
            ratio: record.ratio.and_then(finite),
            max_abs: record.max_abs.and_then(|worst| finite(worst.difference)),
            floor,
        })
    }
}

/// Rounds every stored activation to the subject's precision, which is what such an engine cannot
/// avoid, and goes by the subject's ids.
#[derive(Debug)]
struct Stored {
    stages: RoundedStages,
    choices: Vec<Option<Vec<usize>>>,
}

impl StageHook for Stored {
    fn stored(&self, key: StageKey, values: &mut [f64]) {
        self.stages.stored(key, values);
    }

    fn stored_ids(&self, _key: StageKey, chosen: &mut [Vec<usize>]) {
        for (ours, theirs) in chosen.iter_mut().zip(&self.choices) {
            if let Some(theirs) = theirs {
                ours.clone_from(theirs);
            }
        }
    }
}

/// Leaves values as computed and follows the subject's ids inside the band.
#[derive(Debug)]
struct Follow {
    choices: Vec<Option<Vec<usize>>>,
    floor_scores: Vec<f64>,
    bias: Vec<f64>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    scores: Vec<f64>,
    ties: Vec<usize>,
}

impl StageHook for Follow {
    fn stored(&self, key: StageKey, values: &mut [f64]) {
        if key.stage == Stage::RouterScores {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.scores = values.to_vec();
        }
    }

    fn stored_ids(&self, _key: StageKey, chosen: &mut [Vec<usize>]) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let distances = seen.scores.iter().zip(&self.floor_scores);
        let floor = distances.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        let band = 2.0 * CHAINED_FACTOR * floor;
        let experts = self.bias.len();
        for (row, (ours, theirs)) in chosen.iter_mut().zip(&self.choices).enumerate() {
            let Some(theirs) = theirs.as_ref().filter(|theirs| *theirs != ours) else {
                continue;
            };
            let scores = &seen.scores[row * experts..][..experts];
            let sum = |id: &usize| scores[*id] + self.bias[*id];
            // Every expert they took instead may be beaten by no more than the band.
            let least = select(scores, &self.bias, ours.len());
            let cut = least.iter().map(sum).fold(f64::INFINITY, f64::min);
            let lowest = theirs.iter().map(sum).fold(f64::INFINITY, f64::min);
            let left_out = ours.iter().filter(|id| !theirs.contains(id)).map(sum);
            let most_left_out = left_out.fold(f64::NEG_INFINITY, f64::max);
            if cut - lowest <= band && most_left_out - lowest <= band {
                ours.clone_from(theirs);
                seen.ties.push(row);
            }
        }
    }
}
