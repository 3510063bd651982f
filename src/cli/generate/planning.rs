//! The memory plan of a run, from its options.

use super::super::output::CommandError;
use super::ModelArgs;
use k3_cache::presets;
use k3_core::exit::Exit;
use k3_core::host::memory;
use k3_engine::memory::plan::LimitOf;
use k3_engine::memory::{MemoryPlan, Wishes};
use k3_engine::stream::ModelFiles;
use k3_engine::stream::model::IO_THREADS;

/// Share of the free memory that is used by default; the rest is left to other processes.
const UNASKED_SHARE: f64 = 0.95;

/// Threads besides the workers: those that read trunk, experts and vocabulary, and the one that
/// reads ahead.
const OTHER_THREADS: usize = 3 * IO_THREADS + 1;

/// The requested split: a preset's, then single options over it.
#[must_use]
fn wishes(args: &ModelArgs) -> Wishes {
    let preset = args.preset.as_deref().and_then(presets::named);
    let bytes = |gigabytes: f64| (gigabytes * 1e9) as u64;
    let slots = args.expert_slots.map(|slots| slots as usize);
    let preset_experts = preset.filter(|_| slots.is_none());
    Wishes {
        trunk_bytes: args.trunk_gb.or_else(|| preset.map(|preset| bytes(preset.trunk_gb))),
        expert_bytes: args
            .cache_gb
            .or_else(|| preset_experts.map(|preset| bytes(preset.expert_gb))),
        expert_slots: slots,
        ring_slots: args.ring.map(|slots| slots as usize),
    }
}

/// The plan for a run over `positions` positions with `rows` rows of logits, or the refusal.
/// `tokenizer` is the memory that a tokenizer has already taken, if one is needed.
///
/// # Errors
/// Exit 5 with both numbers.
pub fn plan(
    args: &ModelArgs,
    files: &ModelFiles,
    (positions, rows): (usize, usize),
    tokenizer: Option<u64>,
    threads: usize,
) -> Result<MemoryPlan, CommandError> {
    let chunk = (args.prefill_chunk as usize).min(positions.max(1));
    let mut demand = files.demand_beside(positions, chunk, tokenizer.unwrap_or(0));
    demand.tokenizer_bytes = tokenizer.map_or(0, |_| k3_text::RESIDENT_BYTES);
    demand.logit_rows = rows;
    demand.streams_vocabulary = streams_vocabulary(args);
    // What the process already holds is part of the plan, but no longer of the free memory.
    let held = memory::resident_bytes().unwrap_or(0);
    let machine = memory::available().beside_threads(threads + OTHER_THREADS).in_all(held);
    let wishes = wishes(args);
    let limit = match (args.memory, machine) {
        (Some(asked), Some(machine)) => Some(asked.min(machine)),
        (asked, machine) => asked.or(machine),
    };
    let unasked = match (args.memory, machine) {
        (None, Some(machine)) => Some((machine as f64 * UNASKED_SHARE) as u64),
        _ => limit,
    };
    let planned = demand.plan(&wishes, unasked).or_else(|_| demand.plan(&wishes, limit));
    planned.map_err(|refusal| {
        let hint = match refusal.limit_of {
            LimitOf::Trunk => {
                "the limit is --trunk-gb or the preset's; fewer slots (--ring) need less"
            }
            LimitOf::Experts => "the limit is --cache-gb, --expert-slots or the preset's",
            LimitOf::Process if limit == args.memory => {
                "the limit is --memory; fewer positions, a smaller chunk or preset ultra need less"
            }
            LimitOf::Process => {
                "the limit is what this machine, its control group or `ulimit` leaves; fewer \
                 positions, a smaller chunk or preset ultra need less"
            }
        };
        CommandError::new(refusal, Exit::Refused).hint(hint)
    })
}

/// Whether embedding rows and head are read on demand.
pub fn streams_vocabulary(args: &ModelArgs) -> bool {
    args.preset.as_deref() == Some(presets::ULTRA)
}
