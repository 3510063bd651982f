//! Greedy decoding by full recompute: each step feeds everything so far into a new sequence and
//! appends the id of the largest logit. The ids must be the set's, exactly.

use crate::context::Context;
use crate::outcome::Outcome;
use crate::subject::{Generation, SubjectError};

/// Runs the gate; it stops at the first wrong id, after which the sequences differ anyway.
#[must_use]
pub fn full_recompute(context: &Context<'_>) -> Outcome {
    let set = context.set;
    if let Some(outcome) = context.unfit(&set.full.ids) {
        return outcome;
    }
    if let Some(generation) = context.generation() {
        return own_decoding(&set.greedy_ids, generation);
    }
    let mut ids = set.prompt_ids.clone();
    for (step, &expected) in set.greedy_ids.iter().enumerate() {
        match last_argmax(context, &ids) {
            Ok(Some(id)) if id == expected => ids.push(id),
            Ok(Some(id)) => {
                return Outcome::failed(format!("step {step}: expected {expected}, got {id}"));
            }
            Ok(None) => {
                return Outcome::failed(format!(
                    "step {step}: expected {expected}, got no finite \
                    maximum"
                ));
            }
            Err(error) => return Outcome::without_numbers(&format!("step {step}: "), &error),
        }
    }
    Outcome::judged(
        !set.greedy_ids.is_empty(),
        format!("{} of {} ids", ids.len() - set.prompt_ids.len(), set.greedy_ids.len()),
    )
}

/// A subject that decodes on its own: the ids it prints.
fn own_decoding(expected: &[u32], generation: Result<&Generation, SubjectError>) -> Outcome {
    let got = match generation {
        Ok(generation) => &generation.ids,
        Err(error) => return Outcome::without_numbers("", &error),
    };
    match got.iter().zip(expected).position(|(got, right)| got != right) {
        Some(step) => {
            Outcome::failed(format!("step {step}: expected {}, got {}", expected[step], got[step]))
        }
        None => Outcome::judged(
            !expected.is_empty() && got.len() == expected.len(),
            format!("{} of {} ids, decoded by the engine itself", got.len(), expected.len()),
        ),
    }
}

fn last_argmax(context: &Context<'_>, ids: &[u32]) -> Result<Option<u32>, SubjectError> {
    let logits = context.recompute(ids)?;
    if logits.rows != ids.len() {
        let message = format!("{} logit rows for {} ids", logits.rows, ids.len());
        return Err(SubjectError::Failed(message));
    }
    Ok(logits.argmax(ids.len() - 1))
}
