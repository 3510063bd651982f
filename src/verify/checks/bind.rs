//! Binding: every tensor of the checkpoint is bound, or listed as unused by class; none is
//! missing; dtypes and shapes are what the config implies.
//!
//! Two readers are asked: the strict one of the engine, which also says what is left over, and the
//! subject's own, which must accept the same checkpoint.

use crate::context::Context;
use crate::outcome::Outcome;
use k3_checkpoint::{Binding, Checkpoint};

/// Runs the gate.
#[must_use]
pub fn every_tensor(context: &Context<'_>) -> Outcome {
    let set = context.set;
    let checkpoint = match Checkpoint::open(&set.model_dir) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return Outcome::failed(error.to_string()),
    };
    let binding = match Binding::bind(&checkpoint, &set.config) {
        Ok(binding) => binding,
        Err(error) => return Outcome::failed(error.to_string()),
    };
    if let Err(error) = context.subject() {
        return Outcome::failed(format!("{} refuses: {error}", context.source.name()));
    }
    let unused = binding.unused_counts();
    let listed: Vec<String> =
        unused.iter().map(|(class, count)| format!("{count} of {class}")).collect();
    let left_over = if listed.is_empty() { "none".to_owned() } else { listed.join(", ") };
    Outcome::judged(true, format!("{} tensors bound, unused: {left_over}", binding.bound_count()))
}
