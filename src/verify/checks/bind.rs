//! Binding: the subject loads every tensor that the config implies, and no other; what is left over
//! is listed by class; dtypes and shapes are what the config implies.
//!
//! Two readers take part. The strict one of the engine's side says which tensors are expected and
//! which are left over. The subject reports which tensors it loaded: the engine by what its source
//! gave, the reference by what its own reader found under names of its own.

use std::collections::BTreeSet;

use crate::context::Context;
use crate::outcome::{Outcome, Verdict};
use k3_checkpoint::{Binding, Checkpoint, UnusedClass};
use k3_core::listing::listed;

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
    let name = context.source.name();
    let loaded = match context.subject() {
        Ok(subject) => subject.loaded(),
        Err(error) => return Outcome::without_numbers(&format!("{name} refuses: "), &error),
    };
    let Some(loaded) = loaded else {
        let reason = format!("{name} does not say which tensors it has loaded");
        return Outcome::new(Verdict::NotApplicable, reason);
    };
    let mut unbound = BTreeSet::new();
    let mut unused = BTreeSet::new();
    for one in binding.unused() {
        let name = checkpoint.info(one.id).name;
        unbound.insert(name);
        // A layer's loader need not know that layer 0 has nothing to mix yet.
        if one.class != UnusedClass::ResidualBeforeFirstBank {
            unused.insert(name);
        }
    }
    let all = checkpoint.tensors().map(|info| info.name);
    let skipped: Vec<&str> =
        all.filter(|name| !unbound.contains(name) && !loaded.contains(*name)).collect();
    let besides: Vec<&str> = unused.into_iter().filter(|name| loaded.contains(*name)).collect();
    for (names, what) in [(skipped, "not loaded"), (besides, "loaded without a use")] {
        if !names.is_empty() {
            let (count, names) = (names.len(), listed(&names, names.len()));
            return Outcome::failed(format!("{count} tensors {what}: {names}"));
        }
    }
    let listed: Vec<String> = binding
        .unused_counts()
        .iter()
        .map(|(class, count)| format!("{count} of {class}"))
        .collect();
    let left_over = if listed.is_empty() { "none".to_owned() } else { listed.join(", ") };
    let count = loaded.iter().filter(|name| !unbound.contains(name.as_str())).count();
    Outcome::judged(true, format!("{count} tensors loaded, unused: {left_over}"))
}
