//! Replays a workload through a slot table with a policy and counts, window by window.

use super::workload::{ByWindow, Group, WINDOW_COUNT, Workload};
use k3_cache::policy::{DemandView, Policy};
use k3_cache::slot_table::{CacheError, Requests, Reserve, Served, SlotTable};

/// Replays with a policy; hits by window. A batch larger than the cache is an error, a union is
/// served in waves.
pub fn replay(
    workload: &Workload,
    slot_count: usize,
    policy: Box<dyn Policy>,
    reserve: Reserve,
) -> Result<ByWindow, CacheError> {
    let mut hits = [0; WINDOW_COUNT];
    let mut table = SlotTable::new(workload.shape.expert_count(), slot_count, policy)?;
    for group in &workload.groups {
        let before = table.counters().hits;
        serve_group(&mut table, workload, group, reserve, |_| {})?;
        hits[group.window as usize] += table.counters().hits - before;
    }
    Ok(hits)
}

/// Serves one group: the demands it makes known, then its experts, in waves where it is a union.
pub fn serve_group(
    table: &mut SlotTable,
    workload: &Workload,
    group: &Group,
    reserve: Reserve,
    mut sink: impl FnMut(Served),
) -> Result<(), CacheError> {
    for demand in &workload.demands[group.demands.clone()] {
        table.observe(&DemandView {
            layer: demand.layer,
            experts: &workload.demanded[demand.experts.clone()],
            pending: demand.pending,
        });
    }
    let experts = workload.experts_of(group);
    if workload.requests == Requests::Union && experts.len() > table.slot_count() {
        for wave in table.waves(experts) {
            table.serve(&wave, reserve, &mut sink)?;
        }
    } else {
        table.serve(experts, reserve, &mut sink)?;
    }
    table.count_repeats(group.repeat_count);
    Ok(())
}
