//! Invariance: the same bits however the subject is run.
//!
//! One factor at a time: kernel paths, threads, prefill chunks, rings, expert slots and policies as
//! the subject offers them, and its seeded combinations (all of them with --exhaustive); two
//! sequences interleaved; the carried state taken out and put back at every position, with another
//! token fed in between.

use super::incremental::{append, same_bits};
use crate::context::Context;
use crate::outcome::{NamedComparison, Outcome, Verdict};
use crate::subject::{Logits, SubjectError};
use k3_core::stages::NoStages;

/// Runs the gate.
#[must_use]
pub fn however_run(context: &Context<'_>) -> Outcome {
    if context.source.variants().is_empty() {
        return Outcome::new(Verdict::NotApplicable, "the subject has only one way to run");
    }
    match judge(context) {
        Ok(comparisons) => summarise(comparisons),
        Err(error) => Outcome::without_numbers("", &error),
    }
}

fn judge(context: &Context<'_>) -> Result<Vec<NamedComparison>, SubjectError> {
    let set = context.set;
    let expected = context.full_logits()?;
    let mut comparisons = Vec::new();
    let variants = if context.exhaustive {
        context.source.exhaustive_variants()
    } else {
        context.source.variants()
    };
    for variant in variants {
        let subject = variant.source.open(set.opening(context.mla_norm_eps))?;
        let ids = &set.full.ids[..variant.tokens.min(set.full.ids.len())];
        let logits = subject.sequence().feed(ids, &mut NoStages)?;
        let expected = first_rows(expected, ids.len());
        comparisons.push(same_bits(&variant.name, &logits, &expected));
    }
    comparisons.extend(interleaved(context, expected)?);
    if let Some(logits) = state_out_and_in(context)? {
        comparisons.push(same_bits("state out and in", &logits, expected));
    }
    Ok(comparisons)
}

/// Two sequences, token by token in turn: the set's ids, and the same ids backwards.
fn interleaved(
    context: &Context<'_>,
    expected: &Logits,
) -> Result<Vec<NamedComparison>, SubjectError> {
    let ids = &context.set.full.ids;
    let backwards: Vec<u32> = ids.iter().rev().copied().collect();
    let alone = context.recompute(&backwards)?;
    let subject = context.subject()?;
    let (mut first, mut second) = (subject.sequence(), subject.sequence());
    let mut rows = [empty(expected), empty(expected)];
    for (a, b) in ids.iter().zip(&backwards) {
        append(&mut rows[0], first.feed(&[*a], &mut NoStages)?);
        append(&mut rows[1], second.feed(&[*b], &mut NoStages)?);
    }
    Ok(vec![
        same_bits("interleaved, first", &rows[0], expected),
        same_bits("interleaved, second", &rows[1], &alone),
    ])
}

/// At every position: state out, another token in, state back.
fn state_out_and_in(context: &Context<'_>) -> Result<Option<Logits>, SubjectError> {
    let mut sequence = context.subject()?.sequence();
    let mut rows: Option<Logits> = None;
    for &id in &context.set.full.ids {
        let Some(kept) = sequence.state() else {
            return Ok(None);
        };
        sequence.feed(&[context.set.full.ids[0]], &mut NoStages)?;
        sequence.set_state(kept);
        let row = sequence.feed(&[id], &mut NoStages)?;
        match &mut rows {
            Some(rows) => append(rows, row),
            None => rows = Some(row),
        }
    }
    Ok(rows)
}

/// The first rows; what follows a position cannot change it, as `incremental` shows.
fn first_rows(logits: &Logits, rows: usize) -> Logits {
    let rows = rows.min(logits.rows);
    Logits {
        rows,
        vocabulary: logits.vocabulary,
        values: logits.values[..rows * logits.vocabulary].to_vec(),
    }
}

fn empty(like: &Logits) -> Logits {
    Logits { rows: 0, vocabulary: like.vocabulary, values: Vec::new() }
}

fn summarise(comparisons: Vec<NamedComparison>) -> Outcome {
    let wrong = comparisons.iter().find(|c| !c.record.passed);
    let summary = match wrong {
        Some(wrong) => super::incremental::describe(wrong),
        None => format!("equal bits in {} ways", comparisons.len()),
    };
    let mut outcome = Outcome::judged(wrong.is_none() && !comparisons.is_empty(), summary);
    outcome.comparisons = comparisons;
    outcome
}
