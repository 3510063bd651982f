//! Reading ahead against a second count made with plain lists, and what real routing says of it.

use k3_core::choice::Choice as _;
use std::collections::BTreeMap;

use k3_cache::policy::PolicyName;
use k3_cache::slot_table::{Requests, Reserve};
use k3_cache::trace::{Demand, Phase, Trace};
use k3_simcache::forecast::{K3_FIXED_BYTES, K3_TRUNK_BYTES, Machine};
use k3_simcache::prefetch::{Predictor, PrefetchCounts, PrefetchPlan, Scale, replay};
use k3_simcache::study::run;
use k3_simcache::tables::prefetch_table;
use k3_simcache::workload::{Window, Workload};

use crate::make::{SMALL, plan as study_plan, small_zipf};
use crate::published::decode_order;
use crate::reports::snapshot;

fn plan(predictor: Predictor, count: usize) -> PrefetchPlan {
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
fn agree(trace: &Trace, slots: usize, plan: PrefetchPlan) -> PrefetchCounts {
    let workload = Workload::new(trace, Requests::Batch);
    let counts = replay(&workload, slots, PolicyName::Lru, Reserve::Late, plan, Window::DECODE);
    let counts = counts.unwrap();
    assert_eq!(counts, by_hand(trace, slots, plan), "{slots} slots, {plan:?}");
    counts
}

#[test]
fn plain_lists_count_the_same() {
    let mut seen = PrefetchCounts::default();
    for seed in [1, 2, 3] {
        let trace = small_zipf(seed);
        for slots in [3, 4, 5, 7, 9, 15, 20, 40, SMALL.expert_count()] {
            for predictor in Predictor::ALL {
                for count in [1, 2, 3, 5, 12] {
                    let counts = agree(&trace, slots, plan(predictor, count));
                    assert!(counts.used_ahead <= counts.reads_ahead);
                    seen.caused_misses += counts.caused_misses;
                    seen.used_ahead += counts.used_ahead;
                    seen.evictions_ahead += counts.evictions_ahead;
                }
            }
        }
    }
    assert!(seen.caused_misses > 0 && seen.used_ahead > 0 && seen.evictions_ahead > 0);
}

/// Whoever knows what comes waits for nothing and reads no more; whoever names nothing changes
/// nothing.
#[test]
fn the_bound_waits_for_nothing() {
    let trace = small_zipf(7);
    let workload = Workload::new(&trace, Requests::Batch);
    for &policy in PolicyName::ALL {
        let bound = plan(Predictor::Perfect, 12);
        let counts = replay(&workload, 20, policy, Reserve::Late, bound, Window::DECODE).unwrap();
        assert_eq!(counts.demand_misses, 0, "{policy:?}");
        assert_eq!(counts.used_ahead, counts.reads_ahead, "{policy:?}");
    }
}

/// Why the engine does not read ahead. On the real trace, in decode order, with the engine's
/// policy: with slots for a token's experts and more, those of the token before are resident
/// anyway; with fewer, more is read in all, so a disk that is busy with the trunk takes longer, by
/// whatever predictor that cannot see what comes. The counts are held against the lists for LRU;
/// `reports/simcache/kimi-k3-prefetch.snap` is the table.
#[test]
fn reading_ahead_reads_more_than_it_saves_on_real_routing() {
    let Some(trace) = decode_order() else { return };
    let workload = Workload::new(&trace, Requests::Batch);
    let token = 1472;
    let machine = Machine {
        disk_bytes_per_second: 3e9,
        disk_rate_given: true,
        compute_seconds_per_token: 11.0,
        trunk_bytes: K3_TRUNK_BYTES,
        fixed_bytes: K3_FIXED_BYTES,
    };
    let scale = Scale {
        workload: &workload,
        focus: Window::DECODE,
        requests_per_token: token as u64,
        machine: &machine,
    };
    let mut rows = Vec::new();
    for (predictor, count) in [
        (Predictor::PreviousToken, 4),
        (Predictor::PreviousToken, 16),
        (Predictor::MostFrequent, 16),
        (Predictor::Perfect, 16),
    ] {
        for slots in [32, 113, 455, 911, 1367, 1823, 3647] {
            let way = plan(predictor, count);
            agree(&trace, slots, way);
            let row = scale.row(slots, PolicyName::LayerCycle, Reserve::Late, way);
            let row = row.unwrap();
            assert!(row.read_gb_per_token >= row.plain_gb_per_token, "{row:?}");
            if predictor == Predictor::PreviousToken && slots >= token {
                assert_eq!(row.counts.reads_ahead, 0, "{row:?}");
            } else if predictor != Predictor::Perfect && slots < token {
                assert!(row.trunk_streamed.ahead > row.trunk_streamed.plain, "{row:?}");
                // Where it could help: nothing else to read while there is computing to do.
                assert!(row.trunk_held.ahead < row.trunk_held.plain, "{row:?}");
            }
            rows.push(row);
        }
    }
    let head = "Reading ahead on real routing, decode order: 3 GB/s, 11 s of computing per token, a \
                trunk of\n108.81 GB held or streamed.";
    let table = prefetch_table(&rows).text();
    snapshot("kimi-k3-prefetch", &format!("{head}\n\n{table}"));
}

/// A capacity that a batch does not fit was left out without a word.
#[test]
fn a_capacity_that_a_batch_does_not_fit_is_refused_in_the_table_of_reading_ahead() {
    let mut study = study_plan();
    study.prefetch = vec![plan(Predictor::Perfect, 2)];
    study.policies = vec![PolicyName::Lru];
    study.slot_counts = vec![1, 8];
    let report = run(vec![small_zipf(42)], &study).unwrap();
    let slots: Vec<usize> = report.prefetch.iter().map(|row| row.slot_count).collect();
    assert_eq!(slots, [8]);
    let [refused] = &report.prefetch_refused[..] else {
        panic!("{:?}", report.prefetch_refused);
    };
    assert!(refused.contains("1 slot"), "{refused}");
    let words = report.document().text();
    let (_, section) = words.split_once("Reading ahead").unwrap();
    assert!(section.contains(&format!("refused: {refused}")), "{section}");
}
