//! Incremental decoding: prompt as one prefill, then single ids on the carried state. The ids must
//! be the set's and every logit must equal full recompute in bits.
//!
//! A long sequence, if the set has one, is fed in uneven pieces as well, with cuts at, before and
//! after the usual chunk lengths of 64 and 128.

use crate::context::Context;
use crate::outcome::{NamedComparison, Outcome, Verdict};
use crate::registry::Needs;
use crate::subject::{Generation, Logits, SubjectError};
use k3_core::compare::{Tolerance, compare, ratio_text};
use k3_core::stages::NoStages;

/// Lengths of the pieces in which a long sequence is fed; the rest follows as one more piece.
/// Their running sums are 1, 3, 63, 64, 65, 127, 129.
const PIECES: [usize; 7] = [1, 2, 60, 1, 1, 62, 2];

/// Runs the gate.
#[must_use]
pub fn carried_state(context: &Context<'_>) -> Outcome {
    if let Some(outcome) = context.unfit(&context.set.full.ids) {
        return outcome;
    }
    let judged = match (context.generation(), Needs::Bits.missing_in(context.source)) {
        (Some(generation), _) => {
            generation.and_then(|generation| own_decoding(context, generation))
        }
        (None, None) => decode(context),
        (None, Some(reason)) => {
            let reason = format!("{reason} and does not decode by itself");
            return Outcome::new(Verdict::NotApplicable, reason);
        }
    };
    match judged {
        Ok(outcome) => outcome,
        Err(error) => Outcome::without_numbers("", &error),
    }
}

fn decode(context: &Context<'_>) -> Result<Outcome, SubjectError> {
    let set = context.set;
    let mut sequence = context.subject()?.sequence();
    let mut logits = sequence.feed(&set.prompt_ids, &mut NoStages)?;
    let mut wrong = None;
    for (step, &expected) in set.greedy_ids.iter().enumerate() {
        let chosen = logits.argmax(logits.rows - 1);
        if chosen != Some(expected) && wrong.is_none() {
            let got = chosen.map_or("no finite maximum".to_owned(), |id| id.to_string());
            wrong = Some(format!("step {step}: expected {expected}, got {got}"));
        }
        append(&mut logits, sequence.feed(&[expected], &mut NoStages)?);
    }
    let mut comparisons = vec![same_bits("full ids", &logits, context.full_logits()?)];
    // The long sequence is only worth its time when the short one is right.
    let right_so_far = wrong.is_none() && comparisons[0].record.passed;
    if let Some(long) = set.long.as_ref().filter(|_| right_so_far) {
        let pieced = feed_in_pieces(context, &long.ids)?;
        comparisons.push(same_bits("long ids in pieces", &pieced, context.long_logits()?));
    }
    let first_difference = comparisons.iter().find(|c| !c.record.passed).map(describe);
    let passed = wrong.is_none() && first_difference.is_none() && !set.greedy_ids.is_empty();
    let rows: usize = comparisons.iter().map(|c| c.record.count).sum();
    let summary = wrong.or(first_difference).unwrap_or_else(|| {
        format!("{} ids; {rows} logits equal full recompute in bits", set.greedy_ids.len())
    });
    let mut outcome = Outcome::judged(passed, summary);
    outcome.comparisons = comparisons;
    Ok(outcome)
}

/// A subject that decodes on its own: its ids, and the logits it chose by. Equal bits are a
/// promise of the arithmetic contract, which a foreign engine has not given: it is held to the
/// right logits, and whether its carried state gives the bits of its recompute is only told.
fn own_decoding(context: &Context<'_>, generation: &Generation) -> Result<Outcome, SubjectError> {
    let set = context.set;
    let (first, logits) = (set.prompt_ids.len() - 1, &generation.logits);
    let range = first * logits.vocabulary..(first + logits.rows) * logits.vocabulary;
    let tolerance = Tolerance::Absolute(context.logits_tolerance(&set.full.ids)?);
    let shape = [logits.rows, logits.vocabulary];
    let record = compare(&logits.values, &set.full.logits[range.clone()], &shape, &tolerance);
    let same_ids = generation.ids == set.greedy_ids;
    let passed = same_ids && record.passed && !set.greedy_ids.is_empty();
    let named = NamedComparison { name: "logits.f64, generated positions".to_owned(), record };
    let rows = logits.rows;
    let summary = if !same_ids {
        "its ids are not the greedy ids".to_owned()
    } else if !named.record.passed {
        describe(&named)
    } else {
        let recomputed = &context.full_logits()?.values[range];
        let bits = if recomputed == logits.values {
            "the bits of its recompute"
        } else {
            "not the bits of its recompute"
        };
        let ratio = ratio_text(named.record.ratio.unwrap_or(f64::NAN));
        let of = set.greedy_ids.len();
        format!("{of} ids; {rows} of {of} rows of logits at {ratio} of their tolerance, {bits}")
    };
    let mut outcome = Outcome::judged(passed, summary);
    outcome.comparisons.push(named);
    Ok(outcome)
}

fn feed_in_pieces(context: &Context<'_>, ids: &[u32]) -> Result<Logits, SubjectError> {
    let mut sequence = context.subject()?.sequence();
    let mut all: Option<Logits> = None;
    let mut rest = ids;
    for length in PIECES.into_iter().chain([usize::MAX]) {
        let (piece, tail) = rest.split_at(length.min(rest.len()));
        if piece.is_empty() {
            break;
        }
        rest = tail;
        let rows = sequence.feed(piece, &mut NoStages)?;
        match &mut all {
            Some(all) => append(all, rows),
            None => all = Some(rows),
        }
    }
    all.ok_or_else(|| SubjectError::Failed("the long sequence is empty".to_owned()))
}

/// Adds rows below rows.
pub fn append(logits: &mut Logits, more: Logits) {
    logits.rows += more.rows;
    logits.values.extend(more.values);
}

/// Compares two passes in bits.
#[must_use]
pub fn same_bits(name: &str, carried: &Logits, recomputed: &Logits) -> NamedComparison {
    let shape = [recomputed.rows, recomputed.vocabulary];
    let record = compare(&carried.values, &recomputed.values, &shape, &Tolerance::Bits);
    NamedComparison { name: name.to_owned(), record }
}

/// The first difference in words.
#[must_use]
pub fn describe(comparison: &NamedComparison) -> String {
    let record = &comparison.record;
    match (&record.problem, &record.first_mismatch) {
        (Some(problem), _) => format!("{}: {problem}", comparison.name),
        (None, Some(first)) => format!(
            "{}: {} of {} logits differ, first at {:?}: {:e} against {:e}",
            comparison.name,
            record.mismatches,
            record.count,
            first.index,
            first.got,
            first.expected
        ),
        (None, None) => comparison.name.clone(),
    }
}
