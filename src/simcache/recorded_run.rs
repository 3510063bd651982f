//! Checks that the decisions recorded in a trace follow from its settings.
//!
//! A v1 trace can hold what the engine's cache decided for every request. This module replays the
//! trace with the settings of the header and compares decision by decision: hit or read, and which
//! expert it replaced. A run and a simulation that share the slot table must agree exactly; the
//! first difference is named.

use k3_core::choice::Choice as _;
use serde::Serialize;

use super::replay::serve_group;
use super::workload::Workload;
use k3_cache::policy::PolicyName;
use k3_cache::slot_table::{Counters, Reserve, Served, SlotTable};
use k3_cache::trace::{Decision, Outcome, Trace};

/// What came of the comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecordedRun {
    /// Slots of the recording cache.
    pub slot_count: u32,
    /// Its policy.
    pub policy: String,
    /// Decisions in the file.
    pub decision_count: usize,
    /// Hits in the file.
    pub recorded_hits: u64,
    /// Experts read in the file.
    pub recorded_misses: u64,
    /// Evictions by decisions in the file (those of prefetches are not recorded).
    pub recorded_evictions: u64,
    /// The replay's counters, when a replay was possible.
    pub replayed: Option<Counters>,
    /// What kept the replay from running, or the first difference.
    pub difference: Option<String>,
}

/// Replays a trace with its own settings; None if it records no decisions.
pub fn check(trace: &Trace) -> Option<RecordedRun> {
    let header = trace.header.as_ref()?;
    if trace.decisions.is_empty() {
        return None;
    }
    let count = |wanted: fn(&Outcome) -> bool| {
        trace.decisions.iter().filter(|decision| wanted(&decision.outcome)).count() as u64
    };
    let mut run = RecordedRun {
        slot_count: header.slot_count,
        policy: header.policy.clone(),
        decision_count: trace.decisions.len(),
        recorded_hits: count(|outcome| *outcome == Outcome::Hit),
        recorded_misses: count(|outcome| *outcome != Outcome::Hit),
        recorded_evictions: count(|outcome| matches!(outcome, Outcome::LoadedOver(_))),
        replayed: None,
        difference: None,
    };
    match replay(trace) {
        Ok((counters, decisions)) => {
            run.replayed = Some(counters);
            run.difference = first_difference(trace, &decisions);
        }
        Err(reason) => run.difference = Some(reason),
    }
    Some(run)
}

/// Counters and decisions of a replay with the header's settings, prefetches included.
fn replay(trace: &Trace) -> Result<(Counters, Vec<Decision>), String> {
    let header = trace.header.as_ref().ok_or("the trace has no header")?;
    let requests = header.requests.ok_or("the header does not state the request unit")?;
    let policy = PolicyName::from_name(&header.policy)
        .ok_or_else(|| format!("policy '{}' is not known", header.policy))?;
    let slots = header.slot_count as usize;
    let policy = policy.build(&trace.shape, slots);
    let mut table = SlotTable::new(trace.shape.expert_count(), slots, policy)
        .map_err(|error| error.to_string())?;
    let workload = Workload::new(trace, requests);
    let mut prefetches = trace.prefetches.iter().peekable();
    let mut decisions = Vec::with_capacity(trace.decisions.len());
    for group in &workload.groups {
        while let Some(due) =
            prefetches.next_if(|prefetch| prefetch.before_demand as usize <= group.demands.start)
        {
            table.prefetch(&due.experts).map_err(|error| error.to_string())?;
        }
        let note = |served: Served| {
            decisions.push(Decision { expert: served.expert, outcome: served.outcome });
        };
        serve_group(&mut table, &workload, group, header.reserve.unwrap_or(Reserve::Late), note)
            .map_err(|error| error.to_string())?;
    }
    Ok((table.counters(), decisions))
}

fn first_difference(trace: &Trace, replayed: &[Decision]) -> Option<String> {
    let differs = trace.decisions.iter().zip(replayed).position(|(a, b)| a != b);
    if let Some(at) = differs {
        let name = |expert: u32| {
            let key = trace.shape.key(expert);
            format!("layer {} expert {}", key.layer, key.expert)
        };
        let say = |decision: &Decision| match decision.outcome {
            Outcome::Hit => format!("{} hit", name(decision.expert)),
            Outcome::Loaded => format!("{} read", name(decision.expert)),
            Outcome::LoadedOver(victim) => {
                format!("{} read over {}", name(decision.expert), name(victim))
            }
        };
        let (recorded, replayed) = (say(&trace.decisions[at]), say(&replayed[at]));
        return Some(format!("decision {at}: recorded {recorded}, replayed {replayed}"));
    }
    let (recorded, replayed) = (trace.decisions.len(), replayed.len());
    (recorded != replayed).then(|| format!("{recorded} decisions recorded, {replayed} replayed"))
}
