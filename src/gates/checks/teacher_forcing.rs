//! Teacher forcing: the right ids are fed whatever the subject would have chosen, and at every
//! position its argmax and every logit must be right.

use crate::compare::{Budget, compare};
use crate::gates::context::Context;
use crate::gates::evidence::TeacherForced;
use crate::gates::outcome::{Information, NamedComparison, Outcome};
use crate::gates::subject::{Logits, SubjectError};

/// The full ids (prompt and greedy ids) against `logits.f64`.
#[must_use]
pub fn full(context: &Context<'_>) -> Outcome {
    let mut outcome = judge(
        context,
        "logits.f64",
        &context.set.full,
        context.full_logits(),
    );
    if let Ok(logits) = context.full_logits() {
        outcome.information = beside(context, logits);
    }
    outcome
}

/// The long sequence against `long.logits.f64`.
#[must_use]
pub fn long(context: &Context<'_>) -> Outcome {
    match &context.set.long {
        Some(long) => judge(context, "long.logits.f64", long, context.long_logits()),
        None => Outcome::failed("the set has no long sequence"),
    }
}

fn judge(
    context: &Context<'_>,
    name: &str,
    answers: &TeacherForced,
    logits: Result<&Logits, SubjectError>,
) -> Outcome {
    let logits = match logits {
        Ok(logits) => logits,
        Err(error) => return Outcome::failed(error.to_string()),
    };
    let shape = [answers.ids.len(), context.set.config.vocab_size];
    if [logits.rows, logits.vocabulary] != shape {
        let got = [logits.rows, logits.vocabulary];
        return Outcome::failed(format!("logits have shape {got:?}, expected {shape:?}"));
    }
    let budget = Budget::Absolute(context.logits_tolerance());
    let record = compare(&logits.values, &answers.logits, &shape, &budget);
    let wrong: Vec<usize> = (0..logits.rows)
        .filter(|&row| logits.argmax(row) != Some(answers.argmax[row]))
        .collect();
    let right = logits.rows - wrong.len();
    let mut summary = format!("argmax {right} of {}", logits.rows);
    if let Some(&row) = wrong.first() {
        let got = logits
            .argmax(row)
            .map_or("no finite maximum".to_owned(), |id| id.to_string());
        summary += &format!(
            ", first wrong at position {row}: expected {}, got {got}",
            answers.argmax[row]
        );
    }
    match (&record.problem, &record.max_abs) {
        (Some(problem), _) => summary += &format!("; {problem}"),
        (None, Some(worst)) => {
            summary += &format!(
                "; max |diff| {:.3e} at [{}, {}], {:.2e} of {}",
                worst.difference,
                worst.index[0],
                worst.index[1],
                record.ratio.unwrap_or(f64::NAN),
                record.budget
            );
        }
        (None, None) => {}
    }
    let mut outcome = Outcome::judged(wrong.is_empty() && record.passed, summary);
    outcome.comparisons.push(NamedComparison {
        name: name.to_owned(),
        record,
    });
    outcome
}

/// Distances to the set's other logits, nearest first, so that a reader sees which family of
/// engines the subject's numbers belong to.
fn beside(context: &Context<'_>, logits: &Logits) -> Vec<Information> {
    let distance = |other: &[f64]| {
        logits
            .values
            .iter()
            .zip(other)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f64::max)
    };
    let mut rows: Vec<Information> = context
        .set
        .other_logits
        .iter()
        .filter(|(_, values)| values.len() == logits.values.len())
        .map(|(name, values)| Information {
            name: name.clone(),
            max_abs: distance(values),
        })
        .collect();
    rows.sort_by(|a, b| a.max_abs.total_cmp(&b.max_abs));
    rows
}
