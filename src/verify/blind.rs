//! What a verdict in a narrow precision could not have seen.
//!
//! A tolerance of eight floors of bf16 hides mistakes that f32 shows. Which, is tried: every known
//! mistake in a clause of the model is given to the reference with its activations rounded to the
//! precision, and put before the gates that the judged subject passed. A clause is blind when some
//! mistake in it passes all of them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::context::Context;
use super::kill_matrix::{Mutant, caught};
use super::outcome::Verdict;
use super::registry::{Gate, TEACHER_FORCING};
use super::runner::{in_parallel, judge_on_set};
use super::subjects;
use k3_core::clauses::MODEL;

/// A clause of the model in which a mistake could have gone unseen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BlindSpot {
    /// Id of the clause.
    pub clause: &'static str,
    /// The clause.
    pub text: &'static str,
    /// Known mistakes in it.
    pub known: usize,
    /// Ids of those that no gate sees.
    pub unseen: Vec<String>,
}

/// The blind clauses, in the order of the model's. `passed` has the gates that the subject passed,
/// each with the subject's context on its set.
#[must_use]
pub fn blind_spots(
    passed: &[(&'static Gate, &Context<'_>)],
    threads: usize,
    tick: &(dyn Fn(usize, usize) + Sync),
) -> Vec<BlindSpot> {
    let Some(precision) = passed.iter().find_map(|(_, context)| context.precision()) else {
        return Vec::new();
    };
    let mutants = subjects::rounded_mutants(precision);
    let right = subjects::rounded_reference(precision);
    // What the right reference fails, rounded so, or is not asked, cannot tell the wrong ones.
    let verdict = |mutant: &Mutant, gate: &Gate, context: &Context<'_>| {
        let subject = context.with_source(mutant.source.as_ref());
        caught(|| judge_on_set(gate, &subject)).verdict
    };
    let mut judges = passed.to_vec();
    judges.retain(|(gate, context)| verdict(&right, gate, context) == Verdict::Pass);
    // The gate that sees most goes first.
    judges.sort_by_key(|(gate, _)| gate.id != TEACHER_FORCING);
    let seen = in_parallel(threads, mutants.len(), |place| {
        let mutant = &mutants[place];
        let is_red =
            judges.iter().any(|(gate, context)| verdict(mutant, gate, context) == Verdict::Fail);
        tick(place + 1, mutants.len());
        is_red
    });
    let mut by_clause: BTreeMap<&str, (usize, Vec<String>)> = BTreeMap::new();
    for (mutant, is_seen) in mutants.iter().zip(seen) {
        for clause in &mutant.clauses {
            let (known, unseen) = by_clause.entry(clause).or_default();
            *known += 1;
            unseen.extend((!is_seen).then(|| mutant.id.clone()));
        }
    }
    MODEL
        .iter()
        .filter_map(|clause| {
            let (known, unseen) = by_clause.remove(clause.id)?;
            let spot = BlindSpot { clause: clause.id, text: clause.text, known, unseen };
            (!spot.unseen.is_empty()).then_some(spot)
        })
        .collect()
}
