//! Group F of the trials: what went wrong in other caches and simulators, tried here.

use k3_cache::policy::{Policy, PolicyName};
use k3_cache::shape::ModelShape;
use k3_cache::slot_table::{CacheError, Requests, Reserve, SlotTable};
use k3_cache::trace::{Outcome, Trace, TraceError, headerless, parse};
use k3_core::choice::Choice as _;
use k3_core::random::SplitMix64;
use k3_simcache::generator;
use k3_simcache::optimum;
use k3_simcache::optimum::Admission;
use k3_simcache::replay::replay;
use k3_simcache::stack_distance::{distances, lru_curve};
use k3_simcache::study::{StudyError, run};
use k3_simcache::workload::Workload;

use crate::support::traces::{FLAT, SMALL, flat, hits, pairs, plan, small_zipf};

fn single(trace: &Trace) -> Workload {
    Workload::new(trace, Requests::Single)
}

fn best(workload: &Workload, slots: usize, admission: Admission) -> u64 {
    optimum::replay(workload, slots, admission).iter().sum()
}

#[test]
fn f01_forced_admission_is_the_bound_and_bypass_is_told_apart() {
    let workload = single(&flat(&[4, 1, 2, 2, 1, 4, 1, 0, 4, 4]));
    assert_eq!(hits(&workload, 1, PolicyName::Lru), 2);
    assert_eq!(best(&workload, 1, Admission::Forced), 2);
    assert_eq!(best(&workload, 1, Admission::MayBypass), 3);
    let cycle = single(&flat(&[1, 2, 3, 1, 2, 3, 1, 2, 3]));
    assert_eq!(hits(&cycle, 2, PolicyName::Lru), 0);
    assert_eq!(best(&cycle, 2, Admission::Forced), 3);
    assert_eq!(best(&cycle, 2, Admission::MayBypass), 4);
    let report = run(vec![flat(&[1, 2, 3, 1])], &plan()).unwrap();
    assert!(report.settings.optimum.starts_with("forced admission"));
}

#[test]
fn f02_the_text_book_trace() {
    let workload = single(&flat(&[1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5]));
    let lru = lru_curve(&workload, &distances(&workload));
    let optimum = optimum::curve(&workload);
    let at = |slots: usize| (lru.hits(slots), optimum.hits(slots));
    assert_eq!([1, 2, 3, 4, 5].map(at), [(0, 0), (0, 3), (2, 5), (4, 6), (7, 7)]);
    assert_eq!(lru.distinct_count(), 5);
    assert_eq!(lru.hits(5), 12 - 5);
}

#[test]
fn f03_a_cache_of_no_slots_is_refused_and_victims_never_depend_on_hashing() {
    let policy = PolicyName::Lru.build(&FLAT, 0);
    assert_eq!(SlotTable::new(64, 0, policy).unwrap_err(), CacheError::NoSlots);
    let mut plan = plan();
    plan.slot_counts = vec![0];
    let error = run(vec![flat(&[1])], &plan).unwrap_err();
    assert!(matches!(error, StudyError::Cache(CacheError::NoSlots)));
    let workload = single(&flat(&[1, 1, 2]));
    assert_eq!(best(&workload, 0, Admission::Forced), 0);
    let trace = small_zipf(5);
    for &name in PolicyName::ALL {
        assert_eq!(victims(&trace, name), victims(&trace, name), "{name:?}");
    }
}

/// Everyone a policy throws out, in order.
fn victims(trace: &Trace, name: PolicyName) -> Vec<u32> {
    let workload = Workload::new(trace, Requests::Batch);
    let policy = name.build(&trace.shape, 10);
    let mut table = SlotTable::new(trace.shape.expert_count(), 10, policy).unwrap();
    let mut victims = Vec::new();
    for group in &workload.groups {
        let note = |served: k3_cache::slot_table::Served| {
            if let Outcome::LoadedOver(victim) = served.outcome {
                victims.push(victim);
            }
        };
        k3_simcache::replay::serve_group(&mut table, &workload, group, Reserve::Late, note)
            .unwrap();
    }
    assert!(!victims.is_empty());
    victims
}

#[test]
fn f04_layer_0_expert_0_first_is_a_miss() {
    let trace = parse(&pairs(&[(0, 0), (0, 0)]), &ModelShape::K3).unwrap();
    let workload = single(&trace);
    for &name in PolicyName::ALL {
        assert_eq!(hits(&workload, 4, name), 1, "{name:?}: only the second is a hit");
    }
    assert_eq!(best(&workload, 4, Admission::Forced), 1);
    assert_eq!(distances(&workload), [None, Some(1)]);
}

#[test]
fn f05_a_filter_recomputes_next_uses() {
    let whole = small_zipf(11);
    let layers = whole.filtered(|demand| demand.layer % 2 == 0);
    let head = whole.filtered(|demand| demand.position < 7);
    let sample = whole.filtered(|demand| (demand.position + u32::from(demand.layer)) % 3 == 0);
    for part in [layers, head, sample] {
        assert!(part.requests.len() < whole.requests.len() && !part.requests.is_empty());
        for requests in [Requests::Single, Requests::Batch] {
            let workload = Workload::new(&part, requests);
            let lru = lru_curve(&workload, &distances(&workload));
            let optimum = optimum::curve(&workload);
            for slots in workload.largest_group..=optimum.distinct_count() {
                assert!(optimum.hits(slots) >= lru.hits(slots));
                assert_eq!(optimum.hits(slots), best(&workload, slots, Admission::Forced));
            }
        }
    }
    let mut plan = plan();
    plan.keep_layers = Some((vec![2, 3], "2..3".to_string()));
    let report = run(vec![whole.clone()], &plan).unwrap();
    let view = report.views.first().unwrap();
    let kept = whole.filtered(|demand| [2, 3].contains(&demand.layer));
    assert_eq!(view.request_count as usize, kept.requests.len());
}

#[test]
fn f06_loading_a_batchs_misses_never_evicts_its_own_hits() {
    // A naive order evicts 1, the oldest, while loading 4.
    for &name in PolicyName::ALL {
        let mut table = SlotTable::new(64, 3, name.build(&FLAT, 3)).unwrap();
        table.serve(&[1, 2, 3], Reserve::Late, |_| {}).unwrap();
        let mut served = Vec::new();
        table.serve(&[1, 4, 5], Reserve::Late, |one| served.push(one)).unwrap();
        assert_eq!(served[0].outcome, Outcome::Hit, "{name:?}");
        assert_eq!(table.slot_of(1), Some(served[0].slot), "{name:?}");
        let slots: Vec<u32> = served.iter().map(|one| one.slot).collect();
        assert_eq!(table.counters().hits, 1);
        assert!(slots[0] != slots[1] && slots[1] != slots[2] && slots[0] != slots[2]);
        let refused = table.serve(&[1, 2, 3, 4], Reserve::Late, |_| {}).unwrap_err();
        assert_eq!(refused, CacheError::GroupTooLarge { slot_count: 3, group: 4 });
    }
    // The order of kimi-k3-in-c does it, and reads 1 again.
    let mut table = SlotTable::new(64, 3, PolicyName::Lru.build(&FLAT, 3)).unwrap();
    table.serve(&[1, 2, 3], Reserve::Early, |_| {}).unwrap();
    table.serve(&[1, 4, 5], Reserve::Early, |_| {}).unwrap();
    assert_eq!((table.counters().hits, table.counters().misses), (0, 6));
}

#[test]
fn f06_a_union_larger_than_the_cache_is_served_in_waves() {
    let mut table = SlotTable::new(64, 3, PolicyName::Lru.build(&FLAT, 3)).unwrap();
    table.serve(&[7, 8], Reserve::Late, |_| {}).unwrap();
    let waves = table.waves(&[1, 2, 7, 3, 8]);
    assert_eq!(waves, [vec![7, 8, 1], vec![2, 3]], "residents first, then the missing");
}

#[test]
fn f07_an_expert_twice_in_one_list_is_one_read_and_two_uses() {
    let shape = ModelShape { top_k: 4, experts_per_layer: 128, ..FLAT };
    let trace = headerless::from_requests(vec![5, 88, 88, 65], &shape);
    for requests in [Requests::Single, Requests::Batch] {
        let workload = Workload::new(&trace, requests);
        assert_eq!(workload.request_count(), 4);
        for &name in PolicyName::ALL {
            assert_eq!(hits(&workload, 4, name), 1, "{name:?} {requests:?}");
        }
        assert_eq!(best(&workload, 4, Admission::Forced), 1);
        assert_eq!(lru_curve(&workload, &distances(&workload)).hits(4), 1);
    }
    let report = run(vec![trace], &plan()).unwrap();
    assert_eq!(report.trace.repeated_request_count, 1);
    assert!(report.notes.iter().any(|note| note.contains("one read, two uses")));
}

#[test]
fn f08_the_bound_is_enforced_at_every_step() {
    let trace = small_zipf(2);
    let workload = Workload::new(&trace, Requests::Batch);
    for &name in PolicyName::ALL {
        let slots = 4;
        let mut table =
            SlotTable::new(SMALL.expert_count(), slots, name.build(&SMALL, slots)).unwrap();
        for group in &workload.groups {
            table.serve(workload.experts_of(group), Reserve::Late, |_| {}).unwrap();
            let resident = (0..SMALL.expert_count() as u32)
                .filter(|&expert| table.slot_of(expert).is_some())
                .count();
            assert!(resident <= slots && resident == table.resident_count(), "{name:?}");
        }
        let counters = table.counters();
        assert!(counters.evictions > 0);
        assert_eq!(counters.misses, counters.evictions + slots as u64, "{name:?}");
    }
}

#[test]
fn f09_cut_swapped_and_foreign_traces_are_refused_by_name() {
    let good = pairs(&[(1, 498), (1, 764), (92, 895)]);
    assert_eq!(parse(&good, &ModelShape::K3).unwrap().requests.len(), 3);
    let cut = parse(&good[..good.len() - 4], &ModelShape::K3).unwrap_err();
    assert!(cut.to_string().contains("20 bytes are no multiple of 8"), "{cut}");
    let swapped: Vec<u8> =
        good.chunks(4).flat_map(|word| word.iter().rev().copied().collect::<Vec<u8>>()).collect();
    let error = parse(&swapped, &ModelShape::K3).unwrap_err();
    assert!(matches!(error, TraceError::ByteSwapped(_)));
    assert!(error.to_string().contains("are layer 1, expert 498 in the other"), "{error}");
    let negative = parse(&pairs(&[(1, 1), (-1, 3)]), &ModelShape::K3).unwrap_err();
    assert_eq!(negative.to_string(), "record 1: layer -1 is negative");
    let expert = parse(&pairs(&[(1, 896)]), &ModelShape::K3).unwrap_err();
    assert!(expert.to_string().contains("expert 896 is out of range, layers have 896"), "{expert}");
    assert!(matches!(parse(&[], &ModelShape::K3).unwrap_err(), TraceError::Empty));
}

/// The plainest LRU there is: a list, oldest first.
struct NaiveList(Vec<u32>);

#[test]
fn f10_lru_picks_the_same_victim_as_a_naive_list_at_every_step() {
    let mut generator = SplitMix64::new(10);
    let slots = 23;
    let mut table = SlotTable::new(64, slots, PolicyName::Lru.build(&FLAT, slots)).unwrap();
    let mut list = NaiveList(Vec::new());
    for step in 0..10_000 {
        let expert = generator.below(64) as u32;
        let expected = match list.0.iter().position(|&e| e == expert) {
            Some(place) => {
                list.0.remove(place);
                Outcome::Hit
            }
            None if list.0.len() == slots => Outcome::LoadedOver(list.0.remove(0)),
            None => Outcome::Loaded,
        };
        list.0.push(expert);
        let mut outcome = None;
        table.serve(&[expert], Reserve::Late, |served| outcome = Some(served.outcome)).unwrap();
        assert_eq!(outcome, Some(expected), "step {step}");
    }
}

#[test]
fn a_policy_that_gives_away_a_slot_in_use_is_caught() {
    /// Always the first slot.
    struct Careless;
    impl Policy for Careless {
        fn inserted(&mut self, _slot: u32, _expert: u32) {}
        fn used(&mut self, _slot: u32, _fresh: bool) {}
        fn victim(&mut self, _: u32, _: &k3_cache::slot_table::InUse) -> u32 {
            0
        }
    }
    let caught = std::panic::catch_unwind(|| {
        let workload = Workload::new(&small_zipf(1), Requests::Batch);
        replay(&workload, 4, Box::new(Careless), Reserve::Late)
    });
    assert!(caught.is_err(), "two experts in one slot go unnoticed");
}

#[test]
fn a_cyclic_scan_gives_lru_nothing_below_its_working_set() {
    let trace = generator::cyclic(&SMALL, 0, 16);
    let workload = Workload::new(&trace, Requests::Batch);
    // Twelve experts a layer, three at a time, five layers: a cycle of 60 experts.
    let lru = lru_curve(&workload, &distances(&workload));
    // A demand is looked up as a whole, so its last expert is two nearer than its first.
    assert_eq!((lru.hits(57), lru.hits(60)), (0, 240 - 60));
    assert!(optimum::curve(&workload).hits(30) > 60);
}

#[test]
fn positions_can_only_be_kept_where_they_are_known() {
    let mut plan = plan();
    plan.keep_positions = Some(2);
    let shape = ModelShape { top_k: 4, ..SMALL };
    let ragged = headerless::from_requests(vec![13, 14, 15], &shape);
    assert!(matches!(run(vec![ragged], &plan).unwrap_err(), StudyError::NoPositions(_)));
    let report = run(vec![small_zipf(1)], &plan).unwrap();
    assert_eq!(report.views[0].request_count, 2 * 15);
}
