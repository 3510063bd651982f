//! Stages: every intermediate value for which the set has an answer, in execution order, so that
//! a failure names the first place where the subject leaves the right path.
//!
//! Tolerances. The set's stage tensors are f64 and so is the reference: what may differ is the
//! order of summation and the last bits of `exp`, and the set's own tolerance for f64 logits is
//! taken relative to the largest value of each tensor. An f32 subject is held to the set's
//! tolerance for f32 in the same way, and to LOCAL bounds: the reference recomputes each stage from
//! the subject's own inputs to it. Layer outputs and routing weights made by f32 implementations
//! carry their makers' rounding: 1e-3 and 5e-5.

use crate::context::Context;
use crate::evidence::{LayerOutputs, RouterAnswers};
use crate::outcome::{NamedComparison, Outcome};
use crate::subject::{Precision, SubjectError};
use k3_core::compare::{Comparison, Tolerance, compare, ratio_text};
use k3_core::stages::{Stage, StageDump, StageKey, StageTensor, StageValues};
use k3_reference::local::{Arithmetic, recompute};
use k3_reference::{Model, ReferenceError};

/// Tolerance on layer outputs that were made in f32.
const F32_LAYER_OUTPUT_TOLERANCE: f64 = 1e-3;
/// Tolerance on routing weights that were made in f32, of a scaling factor up to 1.
const F32_ROUTER_WEIGHT_TOLERANCE: f64 = 5e-5;

/// Runs the gate.
#[must_use]
pub fn against_answers(context: &Context<'_>) -> Outcome {
    match judge(context) {
        Ok(outcome) => outcome,
        Err(error) => Outcome::without_numbers("", &error),
    }
}

fn judge(context: &Context<'_>) -> Result<Outcome, SubjectError> {
    let set = context.set;
    let mut comparisons = Vec::new();
    if set.stage_rows > 0 {
        let dump = context.stage_dump()?;
        for (key, expected) in &set.stages {
            comparisons.push(one_stage(context, *key, dump.tensors.get(key), expected));
        }
        if context.source.precision() == Precision::F32 {
            comparisons.extend(local_stages(context, dump)?);
        }
    }
    // Longer passes are only worth their time when the shorter ones are right.
    let right = |done: &[NamedComparison]| done.iter().all(|c| c.record.passed);
    if right(&comparisons) && (set.router.is_some() || set.layer_outputs.is_some()) {
        let mut dump = StageDump::default();
        context.subject()?.sequence().feed(&set.full.ids, &mut dump)?;
        if let Some(router) = &set.router {
            comparisons.extend(router_answers(context, router, &dump));
        }
        if let Some(outputs) = &set.layer_outputs {
            comparisons.push(layer_outputs(context, outputs, &dump));
        }
    }
    Ok(summarise(comparisons))
}

/// Every stage against the reference on the SUBJECT's own inputs to that stage: what remains is
/// the stage's own rounding, held to a derived bound per element.
fn local_stages(
    context: &Context<'_>,
    dump: &StageDump,
) -> Result<Vec<NamedComparison>, SubjectError> {
    let set = context.set;
    let failed = |error: ReferenceError| SubjectError::Failed(error.to_string());
    let model = Model::open(&set.model_dir, context.mla_norm_eps).map_err(failed)?;
    let ids = &set.full.ids[..set.stage_rows];
    let local = recompute(&model, dump, ids, Arithmetic::F64Sums).map_err(failed)?;
    let missing = local.skipped.iter().map(|skipped| NamedComparison {
        name: format!("{} (local)", skipped.key),
        record: absent(),
    });
    let judged = local.stages.iter().map(|stage| NamedComparison {
        name: format!("{} (local)", stage.key),
        record: stage.judge(dump),
    });
    Ok(judged.chain(missing).collect())
}

fn summarise(comparisons: Vec<NamedComparison>) -> Outcome {
    let failures = comparisons.iter().filter(|c| !c.record.passed).count();
    let summary = match comparisons.iter().find(|c| !c.record.passed) {
        Some(first) => {
            format!("{failures} of {} differ, first {}", comparisons.len(), describe(first))
        }
        None => {
            let worst = comparisons
                .iter()
                .filter_map(|c| Some((c.record.ratio?, &c.name)))
                .max_by(|a, b| a.0.total_cmp(&b.0));
            let worst = worst.map_or_else(String::new, |(ratio, name)| {
                format!(", worst {name} at {} of its tolerance", ratio_text(ratio))
            });
            format!("{} tensors{worst}", comparisons.len())
        }
    };
    let mut outcome = Outcome::judged(failures == 0 && !comparisons.is_empty(), summary);
    outcome.comparisons = comparisons;
    outcome
}

fn describe(comparison: &NamedComparison) -> String {
    let record = &comparison.record;
    match (&record.problem, &record.first_mismatch) {
        (Some(problem), _) => format!("{}: {problem}", comparison.name),
        (None, Some(first)) => format!(
            "{} at {:?}: expected {:e}, got {:e}, tolerance {}",
            comparison.name, first.index, first.expected, first.got, record.tolerance
        ),
        (None, None) => comparison.name.clone(),
    }
}

fn one_stage(
    context: &Context<'_>,
    key: StageKey,
    got: Option<&StageTensor>,
    expected: &StageTensor,
) -> NamedComparison {
    let name = key.to_string();
    let Some(got) = got else {
        return NamedComparison { name, record: absent() };
    };
    if got.shape != expected.shape {
        let mut record = absent();
        record.problem = Some(format!("shape {:?}, expected {:?}", got.shape, expected.shape));
        return NamedComparison { name, record };
    }
    let record = match (&got.values, &expected.values) {
        (StageValues::Real(got), StageValues::Real(right)) => {
            let largest = right.iter().map(|v| v.abs()).fold(0.0, f64::max);
            let tolerance = Tolerance::Absolute(stage_tolerance(context) * largest);
            compare(got, right, &expected.shape, &tolerance)
        }
        (StageValues::Ids(got), StageValues::Ids(right)) => {
            compare(&as_real(got), &as_real(right), &expected.shape, &Tolerance::Bits)
        }
        _ => absent(),
    };
    NamedComparison { name, record }
}

/// Tolerance relative to the largest value of a stage tensor.
fn stage_tolerance(context: &Context<'_>) -> f64 {
    match context.source.precision() {
        Precision::F64 => context.set.f64_tolerance,
        _ => context.set.f32_tolerance,
    }
}

/// A record that cannot pass: the subject did not yield the value.
fn absent() -> Comparison {
    let mut record = compare(&[], &[], &[0], &Tolerance::Bits);
    record.problem = Some("the subject did not provide it".to_owned());
    record
}

fn as_real(ids: &[i32]) -> Vec<f64> {
    ids.iter().map(|id| f64::from(*id)).collect()
}

/// Router ids (as sets: both sides ascend) and weights of every MoE layer.
fn router_answers(
    context: &Context<'_>,
    answers: &RouterAnswers,
    dump: &StageDump,
) -> Vec<NamedComparison> {
    let shape = [answers.rows, answers.top_k];
    let per_layer = answers.rows * answers.top_k;
    // The weights are shares of one times the scaling factor, and their rounding grows with it.
    let unit = context.set.config.routed_scaling_factor.max(1.0);
    let weight_tolerance = Tolerance::Absolute(
        unit * match context.source.precision() {
            Precision::F64 if !answers.is_f32 => context.set.f64_tolerance,
            _ => F32_ROUTER_WEIGHT_TOLERANCE,
        },
    );
    let mut comparisons = Vec::new();
    for (place, &layer) in answers.layers.iter().enumerate() {
        let range = place * per_layer..(place + 1) * per_layer;
        let real = |stage| match dump.tensors.get(&StageKey::layer(layer, stage)) {
            Some(StageTensor { values: StageValues::Real(values), .. }) => values.clone(),
            Some(StageTensor { values: StageValues::Ids(ids), .. }) => as_real(ids),
            None => Vec::new(),
        };
        let ids = as_real(&answers.ids[range.clone()]);
        comparisons.push(NamedComparison {
            name: format!("router ids of layer {layer}, all rows"),
            record: compare(&real(Stage::RouterIds), &ids, &shape, &Tolerance::Bits),
        });
        let weights = &answers.weights[range];
        comparisons.push(NamedComparison {
            name: format!("router weights of layer {layer}, all rows"),
            record: compare(&real(Stage::RouterWeights), weights, &shape, &weight_tolerance),
        });
    }
    comparisons
}

fn layer_outputs(
    context: &Context<'_>,
    answers: &LayerOutputs,
    dump: &StageDump,
) -> NamedComparison {
    let config = &context.set.config;
    let shape = [config.num_hidden_layers, context.set.full.ids.len(), config.hidden_size];
    let mut got = Vec::with_capacity(answers.values.len());
    for layer in 0..config.num_hidden_layers {
        if let Some(StageTensor { values: StageValues::Real(values), .. }) =
            dump.tensors.get(&StageKey::layer(layer, Stage::Out))
        {
            got.extend_from_slice(values);
        }
    }
    let tolerance = if answers.is_f32 || context.source.precision() == Precision::F32 {
        F32_LAYER_OUTPUT_TOLERANCE
    } else {
        context.set.f64_tolerance
    };
    let record = compare(&got, &answers.values, &shape, &Tolerance::Absolute(tolerance));
    NamedComparison { name: answers.name.clone(), record }
}
