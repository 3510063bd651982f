//! Identifies a mistake from logits alone: which known mutant produces the same ones?
//!
//! A foreign engine shows its logits and nothing inside. Every mutant of the kill matrix is a known
//! mistake with known logits: when the engine's are within its tolerance of a mutant's, at
//! positions where they are beyond it from the right ones, the mistake has a name and clauses. The
//! stage at which that mutant first leaves its own right variant is the place to look at.

use super::context::Context;
use super::kill_matrix::Mutant;
use super::runner::in_parallel;
use super::subject::{Logits, Precision, SubjectSource};
use super::subjects;
use k3_core::stages::{NoStages, StageDump};

/// Positions fed at least and at most; the mistake must show within them.
const LEAST_ROWS: usize = 4;
const MOST_ROWS: usize = 32;
/// Mutants listed.
const LISTED: usize = 3;

/// How far a mutant's logits are from the subject's.
struct Distance {
    place: usize,
    max_abs: f64,
}

/// Lines that name the mistake of a subject whose logits of the full ids are wrong, or say that
/// no known mistake explains them.
#[must_use]
pub fn lines(context: &Context<'_>, logits: &Logits) -> Vec<String> {
    let Ok(tolerance) = context.logits_tolerance(&context.set.full.ids) else {
        return Vec::new();
    };
    let (right, vocabulary) = (&context.set.full.logits, logits.vocabulary);
    if right.len() != logits.values.len() {
        return Vec::new();
    }
    let off = |row: usize| {
        let range = row * vocabulary..(row + 1) * vocabulary;
        largest_difference(&right[range.clone()], &logits.values[range])
    };
    let Some(first) = (0..logits.rows).find(|row| off(*row) > tolerance) else {
        return Vec::new();
    };
    let rows = (first + 1).max(LEAST_ROWS).min(logits.rows);
    if rows > MOST_ROWS {
        return vec![format!(
            "the first wrong position is {first}: too late to identify a mistake"
        )];
    }
    let from_right = (0..rows).map(off).fold(0.0, f64::max);
    let (mutants, near) = ranked(context, &logits.values[..rows * vocabulary], tolerance);
    let mut lines = vec![format!(
        "the first wrong position is {first}; over {rows} positions {from_right:.3e} from right"
    )];
    let same: Vec<&Distance> = near.iter().filter(|near| near.max_abs <= tolerance).collect();
    for distance in same.iter().take(LISTED) {
        let mutant = &mutants[distance.place];
        let ids = &context.set.full.ids[..rows];
        let place = first_stage(context, mutant, ids)
            .map_or_else(String::new, |stage| format!("; look at {stage} first"));
        lines.push(format!(
            "conforms to a known mistake ({:.3e} away): {} [{}]: {}{place}",
            distance.max_abs,
            mutant.id,
            mutant.clauses.join(" "),
            mutant.what
        ));
    }
    if same.len() > LISTED {
        lines.push(format!("and {} more mistakes with the same logits", same.len() - LISTED));
    }
    if let (true, Some(distance)) = (same.is_empty(), near.first()) {
        let mutant = &mutants[distance.place];
        let (id, away) = (&mutant.id, distance.max_abs);
        lines
            .push(format!("no known mistake produces these logits; nearest {id}, {away:.3e} away"));
    }
    lines
}

/// The mutants asked, and how far each is, nearest first. The reference's mutants break every
/// clause of the model; the engine's are asked only when none of those explains the logits.
fn ranked(context: &Context<'_>, logits: &[f64], tolerance: f64) -> (Vec<Mutant>, Vec<Distance>) {
    let (mut mutants, rest): (Vec<Mutant>, Vec<Mutant>) =
        subjects::mutants().into_iter().partition(|mutant| mutant.family == 'a');
    // The same mistakes rounded to f32 explain nothing more.
    let rest: Vec<Mutant> = rest.into_iter().filter(|mutant| mutant.family != 'b').collect();
    let mut near = nearest(context, &mutants, logits);
    if near.first().is_none_or(|near| near.max_abs > tolerance) {
        let asked = mutants.len();
        for mut distance in nearest(context, &rest, logits) {
            distance.place += asked;
            near.push(distance);
        }
        near.sort_by(|a, b| a.max_abs.total_cmp(&b.max_abs));
        mutants.extend(rest);
    }
    (mutants, near)
}

/// The mutants by their distance, those that cannot run on the checkpoint left out.
fn nearest(context: &Context<'_>, mutants: &[Mutant], logits: &[f64]) -> Vec<Distance> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let rows = logits.len() / context.set.config.vocab_size;
    let ids = &context.set.full.ids[..rows];
    let found = in_parallel(threads, mutants.len(), |place| {
        // A mutant may stumble over its own mistake; then it explains nothing.
        let run = || {
            let source = mutants[place].source.as_ref();
            let set = context.set;
            let subject = source.open(set.opening(context.mla_norm_eps));
            let values = subject.ok()?.sequence().feed(ids, &mut NoStages).ok()?.values;
            Some(largest_difference(&values, logits))
        };
        let max_abs = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).ok()??;
        max_abs.is_finite().then_some(Distance { place, max_abs })
    });
    let mut found: Vec<Distance> = found.into_iter().flatten().collect();
    found.sort_by(|a, b| a.max_abs.total_cmp(&b.max_abs));
    found
}

/// Largest difference of two rows; infinite when they are not equally long or not finite.
fn largest_difference(a: &[f64], b: &[f64]) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, |most, d| if d.is_nan() { f64::INFINITY } else { d.max(most) })
}

/// The first stage, in execution order, in which the mutant's bits are not those of the right
/// subject of the same arithmetic.
fn first_stage(context: &Context<'_>, mutant: &Mutant, ids: &[u32]) -> Option<String> {
    let wrong = dump(context, mutant.source.as_ref(), ids)?;
    let right = subjects::shipped()
        .into_iter()
        .find(|source| source.precision() == mutant.source.precision())?;
    let right = dump(context, right.as_ref(), ids)?;
    let differs = right.tensors.iter().find(|(key, tensor)| wrong.tensors.get(key) != Some(tensor));
    differs.map(|(key, _)| key.to_string())
}

fn dump(context: &Context<'_>, source: &dyn SubjectSource, ids: &[u32]) -> Option<StageDump> {
    debug_assert!(matches!(source.precision(), Precision::F64 | Precision::F32));
    let set = context.set;
    let subject = source.open(set.opening(context.mla_norm_eps));
    let mut dump = StageDump::default();
    subject.ok()?.sequence().feed(ids, &mut dump).ok()?;
    Some(dump)
}
