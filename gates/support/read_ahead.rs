//! Reading ahead counted a second time, with plain lists.

use std::collections::BTreeMap;

use k3_cache::policy::PolicyName;
use k3_cache::slot_table::{Requests, Reserve};
use k3_cache::trace::{Demand, Phase, Trace};
use k3_simcache::prefetch::{Predictor, PrefetchCounts, PrefetchPlan, replay};
use k3_simcache::workload::{Window, Workload};

/// Reads up to `count` experts ahead.
pub fn plan(predictor: Predictor, count: usize) -> PrefetchPlan {
    PrefetchPlan { predictor, count }
}

/// What a demand's experts are thrown out by.
#[derive(Clone, Copy, PartialEq)]
enum By {
    Demand,
    ReadingAhead,
}

/// LRU as a list, oldest first, and who threw out whom.
struct List {
    slots: usize,
    resident: Vec<u32>,
    thrown_out: BTreeMap<u32, By>,
    evictions_ahead: u64,
}

impl List {
    /// Takes the oldest that is not in `kept`, if there is no room.
    fn load(&mut self, expert: u32, kept: &[u32], by: By, counted: bool) {
        if self.resident.len() == self.slots {
            let oldest = self.resident.iter().position(|other| !kept.contains(other));
            let victim = self.resident.remove(oldest.unwrap());
            self.thrown_out.insert(victim, by);
            self.evictions_ahead += u64::from(counted && by == By::ReadingAhead);
        }
        self.thrown_out.remove(&expert);
        self.resident.push(expert);
    }
}

/// What is named before the demand of that index, with the layer's earlier demands at hand.
fn named(
    trace: &Trace,
    index: usize,
    plan: PrefetchPlan,
    before: &[Vec<u32>],
    slots: usize,
) -> Vec<u32> {
    let demand = &trace.demands[index];
    let all: Vec<u32> = match plan.predictor {
        Predictor::PreviousToken => before.last().cloned().unwrap_or_default(),
        Predictor::Perfect => {
            let visit = trace.demands[index..]
                .iter()
                .take_while(|other| (other.chunk, other.layer) == (demand.chunk, demand.layer));
            visit.flat_map(|demand| trace.experts(demand).to_vec()).collect()
        }
        Predictor::MostFrequent => {
            let mut uses: BTreeMap<u32, i64> = BTreeMap::new();
            for &expert in before.iter().flatten() {
                *uses.entry(expert).or_default() += 1;
            }
            let mut uses: Vec<(i64, u32)> = uses.into_iter().map(|(e, n)| (-n, e)).collect();
            uses.sort_unstable();
            uses.into_iter().map(|(_, expert)| expert).collect()
        }
    };
    let mut named = Vec::new();
    for expert in all {
        if !named.contains(&expert) {
            named.push(expert);
        }
    }
    named.truncate(plan.count.min(slots));
    named
}

/// The same question answered from the trace's demands, position by position, with lists.
fn by_hand(trace: &Trace, slots: usize, plan: PrefetchPlan) -> PrefetchCounts {
    let mut list =
        List { slots, resident: Vec::new(), thrown_out: BTreeMap::new(), evictions_ahead: 0 };
    let mut counts = PrefetchCounts::default();
    let mut asked_before: BTreeMap<u16, Vec<Vec<u32>>> = BTreeMap::new();
    let mut ahead: Vec<u32> = Vec::new();
    for (index, demand) in trace.demands.iter().enumerate() {
        let counted = trace.step_of(demand).phase == Phase::Decode;
        let visit = |demand: &Demand| (demand.chunk, demand.layer);
        let before = asked_before.entry(demand.layer).or_default();
        if index == 0 || visit(&trace.demands[index - 1]) != visit(demand) {
            let named = named(trace, index, plan, before, slots);
            let mut kept: Vec<u32> = named.clone();
            kept.retain(|expert| list.resident.contains(expert));
            ahead.clear();
            for expert in named {
                if !list.resident.contains(&expert) {
                    list.load(expert, &kept, By::ReadingAhead, counted);
                    kept.push(expert);
                    ahead.push(expert);
                    counts.reads_ahead += u64::from(counted);
                }
            }
        }
        let experts = trace.experts(demand);
        let mut kept: Vec<u32> = experts.to_vec();
        kept.retain(|expert| list.resident.contains(expert));
        for &expert in experts {
            if list.resident.contains(&expert) {
                counts.used_ahead += u64::from(counted && ahead.contains(&expert));
            } else {
                let by = list.thrown_out.get(&expert);
                counts.caused_misses += u64::from(counted && by == Some(&By::ReadingAhead));
                counts.demand_misses += u64::from(counted);
                list.load(expert, &kept, By::Demand, counted);
                kept.push(expert);
            }
            ahead.retain(|other| *other != expert);
        }
        // All are used, in request order.
        for &expert in experts {
            list.resident.retain(|other| *other != expert);
            list.resident.push(expert);
        }
        before.push(experts.to_vec());
    }
    counts.evictions_ahead = list.evictions_ahead;
    counts
}

/// The replay and the lists agree to the count.
#[track_caller]
pub fn agree(trace: &Trace, slots: usize, plan: PrefetchPlan) -> PrefetchCounts {
    let workload = Workload::new(trace, Requests::Batch);
    let counts = replay(&workload, slots, PolicyName::Lru, Reserve::Late, plan, Window::DECODE);
    let counts = counts.unwrap();
    assert_eq!(counts, by_hand(trace, slots, plan), "{slots} slots, {plan:?}");
    counts
}
