//! Teacher forcing: the right ids are fed whatever the subject would have chosen, and at every
//! position its argmax and every logit must be right.

use crate::context::Context;
use crate::diagnosis;
use crate::evidence::{RouterAnswers, TeacherForced};
use crate::outcome::{Information, NamedComparison, Outcome, Verdict};
use crate::registry::Needs;
use crate::subject::{Logits, SubjectError};
use k3_core::compare::{Tolerance, compare, ratio_text};
use k3_core::stages::{Stage, StageDump, StageKey, StageSink, StageTensor, StageValues};

/// The full ids (prompt and greedy ids) against `logits.f64`.
#[must_use]
pub fn full(context: &Context<'_>) -> Outcome {
    if let Some(outcome) = context.unfit(&context.set.full.ids) {
        return outcome;
    }
    let mut outcome = judge(context, "logits.f64", &context.set.full, context.full_logits());
    if let Ok(logits) = context.full_logits() {
        outcome.information = beside(context, logits);
        if outcome.verdict == Verdict::Fail && hides_stages(context) {
            outcome.details = diagnosis::lines(context, logits);
        }
    }
    outcome
}

/// The long sequence against `long.logits.f64`, and its router choices where the set has them.
#[must_use]
pub fn long(context: &Context<'_>) -> Outcome {
    let Some(long) = &context.set.long else {
        return Outcome::failed("the set has no long sequence");
    };
    if let Some(outcome) = context.unfit(&long.ids) {
        return outcome;
    }
    let mut outcome = judge(context, "long.logits.f64", long, context.long_logits());
    let (Some(ids), Some(router)) = (&context.set.long_router_ids, &context.set.router) else {
        return outcome;
    };
    if outcome.verdict == Verdict::Pass && !hides_stages(context) {
        match router_choices(context, &long.ids) {
            Ok(dump) => {
                let choices = long_router_ids(router, ids, long.ids.len(), &dump);
                if let Some(wrong) = choices.iter().find(|choice| !choice.record.passed) {
                    outcome.verdict = Verdict::Fail;
                    outcome.summary += &format!("; {} differ", wrong.name);
                }
                outcome.comparisons.extend(choices);
            }
            Err(error) => return Outcome::without_numbers("", &error),
        }
    }
    outcome
}

fn hides_stages(context: &Context<'_>) -> bool {
    Needs::Stages.missing_in(context.source).is_some()
}

fn router_choices(context: &Context<'_>, ids: &[u32]) -> Result<StageDump, SubjectError> {
    let mut kept = OnlyRouterIds::default();
    context.subject()?.sequence().feed(ids, &mut kept)?;
    Ok(kept.dump)
}

/// Keeps the router's choices and nothing else of a long pass.
#[derive(Default)]
struct OnlyRouterIds {
    dump: StageDump,
}

impl StageSink for OnlyRouterIds {
    fn wants(&self, key: StageKey) -> bool {
        key.stage == Stage::RouterIds
    }

    fn put(&mut self, _key: StageKey, _shape: &[usize], _values: &[f64]) {}

    fn put_ids(&mut self, key: StageKey, shape: &[usize], ids: &[i32]) {
        self.dump.put_ids(key, shape, ids);
    }
}

/// Router ids of every MoE layer over the long sequence.
fn long_router_ids(
    router: &RouterAnswers,
    answers: &[i32],
    rows: usize,
    dump: &StageDump,
) -> Vec<NamedComparison> {
    let per_layer = rows * router.top_k;
    let one_layer = |(place, layer): (usize, &usize)| {
        let got = match dump.tensors.get(&StageKey::layer(*layer, Stage::RouterIds)) {
            Some(StageTensor { values: StageValues::Ids(ids), .. }) => real(ids),
            _ => Vec::new(),
        };
        let expected = real(&answers[place * per_layer..(place + 1) * per_layer]);
        NamedComparison {
            name: format!("router ids of layer {layer}, long sequence"),
            record: compare(&got, &expected, &[rows, router.top_k], &Tolerance::Bits),
        }
    };
    router.layers.iter().enumerate().map(one_layer).collect()
}

fn real(ids: &[i32]) -> Vec<f64> {
    ids.iter().map(|id| f64::from(*id)).collect()
}

fn judge(
    context: &Context<'_>,
    name: &str,
    answers: &TeacherForced,
    logits: Result<&Logits, SubjectError>,
) -> Outcome {
    let logits = match logits {
        Ok(logits) => logits,
        Err(error) => return Outcome::without_numbers("", &error),
    };
    let shape = [answers.ids.len(), context.set.config.vocab_size];
    if [logits.rows, logits.vocabulary] != shape {
        let got = [logits.rows, logits.vocabulary];
        return Outcome::failed(format!("logits have shape {got:?}, expected {shape:?}"));
    }
    let tolerance = match context.logits_tolerance(&answers.ids) {
        Ok(tolerance) => tolerance,
        Err(error) => return Outcome::without_numbers("", &error),
    };
    let tolerance = Tolerance::Absolute(tolerance);
    let record = compare(&logits.values, &answers.logits, &shape, &tolerance);
    let wrong: Vec<usize> =
        (0..logits.rows).filter(|&row| logits.argmax(row) != Some(answers.argmax[row])).collect();
    let right = logits.rows - wrong.len();
    let mut summary = format!("argmax {right} of {}", logits.rows);
    if let Some(&row) = wrong.first() {
        let got = logits.argmax(row).map_or("no finite maximum".to_owned(), |id| id.to_string());
        summary += &format!(
            ", first wrong at position {row}: expected {}, got {got}",
            answers.argmax[row]
        );
    }
    match (&record.problem, &record.max_abs) {
        (Some(problem), _) => summary += &format!("; {problem}"),
        (None, Some(worst)) => {
            summary += &format!(
                "; max |diff| {:.3e} at [{}, {}], {} of {}",
                worst.difference,
                worst.index[0],
                worst.index[1],
                ratio_text(record.ratio.unwrap_or(f64::NAN)),
                record.tolerance
            );
        }
        (None, None) => {}
    }
    let mut outcome = Outcome::judged(wrong.is_empty() && record.passed, summary);
    outcome.comparisons.push(NamedComparison { name: name.to_owned(), record });
    outcome
}

/// Distances to the set's other logits, nearest first, so that a reader sees which family of
/// engines the subject's numbers belong to.
fn beside(context: &Context<'_>, logits: &Logits) -> Vec<Information> {
    let distance = |other: &[f64]| {
        logits.values.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    };
    let mut rows: Vec<Information> = context
        .set
        .other_logits
        .iter()
        .filter(|(_, values)| values.len() == logits.values.len())
        .map(|(name, values)| Information { name: name.clone(), max_abs: distance(values) })
        .collect();
    rows.sort_by(|a, b| a.max_abs.total_cmp(&b.max_abs));
    rows
}
