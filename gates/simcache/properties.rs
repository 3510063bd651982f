//! What holds on any trace.

use k3_cache::policy::PolicyName;
use k3_cache::shape::ModelShape;
use k3_cache::slot_table::{Requests, Reserve};
use k3_cache::trace::v1::MAGIC;
use k3_cache::trace::{Trace, headerless, parse};
use k3_core::choice::Choice as _;
use k3_simcache::generator::from_rows;
use k3_simcache::optimum;
use k3_simcache::optimum::Admission;
use k3_simcache::order::{Recognition, recognise, relinearise};
use k3_simcache::recorded_run;
use k3_simcache::replay::replay;
use k3_simcache::stack_distance::{distances, lru_curve};
use k3_simcache::workload::{WINDOW_COUNT, Workload};
use proptest::prelude::*;

use super::trace_v1::recorded;
use crate::support::traces::{hits, recomputed};

/// Any sizes that stay small: layers 1..=4, experts 2..=10 each, top-k 1..=3.
fn any_shape() -> impl Strategy<Value = ModelShape> {
    (1_u32..=4, 2_u32..=10, 1_u32..=3).prop_map(|(layer_count, experts_per_layer, top_k)| {
        ModelShape {
            layer_count,
            first_moe_layer: 0,
            experts_per_layer,
            top_k: top_k.min(experts_per_layer),
            expert_bytes: 1000,
        }
    })
}

/// Any requests at all: demands of uneven length, repeated experts.
fn any_requests() -> impl Strategy<Value = Trace> {
    any_shape().prop_flat_map(|shape| {
        let experts = shape.expert_count() as u32;
        prop::collection::vec(0..experts, 1..300)
            .prop_map(move |requests| headerless::from_requests(requests, &shape))
    })
}

/// Passes through the layers: a prompt of 1..=3 positions and 1..=6 single ones.
fn any_decode() -> impl Strategy<Value = (Trace, u32)> {
    (any_shape(), 1_u32..=3, 1_u32..=6, any::<u64>()).prop_map(|(shape, prefill, decode, seed)| {
        let mut generator = k3_core::random::SplitMix64::new(seed);
        let mut row = || {
            let mut experts: Vec<u32> = (0..shape.experts_per_layer).collect();
            generator.shuffle(&mut experts);
            experts.truncate(shape.top_k as usize);
            experts
        };
        let layers = shape.layer_count;
        let rows: Vec<Vec<Vec<u32>>> =
            (0..layers).map(|_| (0..prefill + decode).map(|_| row()).collect()).collect();
        (from_rows(&shape, prefill, &rows), prefill)
    })
}

fn units() -> impl Strategy<Value = Requests> {
    prop::sample::select(vec![Requests::Single, Requests::Batch, Requests::Union])
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn one_pass_equals_replay(trace in any_requests(), requests in units()) {
        let workload = Workload::new(&trace, requests);
        let lru = lru_curve(&workload, &distances(&workload));
        let optimum = optimum::curve(&workload);
        for slots in workload.largest_group..=lru.distinct_count() + 1 {
            prop_assert_eq!(lru.hits(slots), hits(&workload, slots, PolicyName::Lru));
            let replayed = optimum::replay(&workload, slots, Admission::Forced);
            prop_assert_eq!(optimum.by_window(slots), replayed);
        }
    }

    #[test]
    fn curves_never_fall_and_meet_the_ceiling(trace in any_requests(), requests in units()) {
        let workload = Workload::new(&trace, requests);
        let lru = lru_curve(&workload, &distances(&workload));
        let optimum = optimum::curve(&workload);
        let distinct = lru.distinct_count();
        prop_assert_eq!(distinct, optimum.distinct_count());
        let ceiling = workload.request_count() - distinct as u64;
        for slots in workload.largest_group..distinct {
            prop_assert!(lru.hits(slots) <= lru.hits(slots + 1));
            prop_assert!(optimum.hits(slots) <= optimum.hits(slots + 1));
        }
        for slots in [distinct, distinct + 1, distinct + 100] {
            prop_assert_eq!(lru.hits(slots), ceiling);
            prop_assert_eq!(optimum.hits(slots), ceiling);
        }
    }

    #[test]
    fn the_optimum_beats_every_policy(
        trace in any_requests(),
        requests in units(),
        extra in 0_usize..6,
    ) {
        let workload = Workload::new(&trace, requests);
        let slots = workload.largest_group + extra;
        let optimum: u64 = optimum::replay(&workload, slots, Admission::Forced).iter().sum();
        for &name in PolicyName::ALL {
            for reserve in [Reserve::Late, Reserve::Early] {
                let policy = name.build(&workload.shape, slots);
                let hits: u64 = replay(&workload, slots, policy, reserve).unwrap().iter().sum();
                prop_assert!(hits <= optimum, "{name:?} {reserve:?}: {hits} against {optimum}");
            }
        }
        let bypass: u64 = optimum::replay(&workload, slots, Admission::MayBypass).iter().sum();
        prop_assert!(bypass >= optimum);
    }

    /// Nothing beats the optimum: every way to choose victims is tried.
    #[test]
    fn the_optimum_is_the_optimum(
        requests in prop::collection::vec(0_u32..5, 1..11),
        slots in 1_usize..4,
    ) {
        let shape = ModelShape { experts_per_layer: 8, ..crate::support::traces::FLAT };
        let trace = headerless::from_requests(requests.clone(), &shape);
        let workload = Workload::new(&trace, Requests::Single);
        let found: u64 = optimum::replay(&workload, slots, Admission::Forced).iter().sum();
        prop_assert_eq!(found, most_hits(&requests, &mut Vec::new(), slots));
    }

    #[test]
    fn with_room_for_all_every_policy_hits_all_but_first_uses(
        trace in any_requests(),
        requests in units(),
    ) {
        let workload = Workload::new(&trace, requests);
        let distinct = trace.distinct_count();
        for &name in PolicyName::ALL {
            let expected = workload.request_count() - distinct as u64;
            prop_assert_eq!(hits(&workload, distinct, name), expected);
        }
    }

    /// A union may be larger than the cache; then it comes in waves, and nothing is lost.
    #[test]
    fn unions_in_waves_count_every_lookup(trace in any_requests(), slots in 1_usize..5) {
        let workload = Workload::new(&trace, Requests::Union);
        let optimum: u64 = optimum::replay(&workload, slots, Admission::Forced).iter().sum();
        prop_assert!(optimum <= workload.request_count());
        for &name in PolicyName::ALL {
            prop_assert!(hits(&workload, slots, name) <= optimum, "{name:?}");
        }
    }

    /// One trace after another: requests add up, and a warm cache is never worse for LRU.
    #[test]
    fn joined_traces_are_consistent((first, _) in any_decode(), seed in any::<u64>()) {
        let mut generator = k3_core::random::SplitMix64::new(seed);
        let experts = first.shape.expert_count() as u64;
        let requests: Vec<u32> = (0..40).map(|_| generator.below(experts) as u32).collect();
        let second = headerless::from_requests(requests, &first.shape);
        let mut joined = first.clone();
        joined.append(&second).unwrap();
        let whole = Workload::new(&joined, Requests::Batch);
        let parts = [&first, &second].map(|part| Workload::new(part, Requests::Batch));
        let sums: Vec<u64> = (0..WINDOW_COUNT)
            .map(|window| parts.iter().map(|part| part.request_counts[window]).sum())
            .collect();
        prop_assert_eq!(whole.request_count(), sums.iter().sum::<u64>());
        prop_assert!(joined.distinct_count() <= first.distinct_count() + second.distinct_count());
        for slots in whole.largest_group..whole.largest_group + 8 {
            let apart: u64 = parts.iter().map(|part| hits(part, slots, PolicyName::Lru)).sum();
            let together = hits(&whole, slots, PolicyName::Lru);
            prop_assert!(together >= apart);
            let of = |part: &Workload| -> u64 {
                optimum::replay(part, slots, Admission::Forced).iter().sum()
            };
            prop_assert!(of(&whole) >= parts.iter().map(of).sum::<u64>());
        }
    }

    /// What the writer writes, the reader reads.
    #[test]
    fn written_traces_are_read_back((trace, _) in any_decode(), requests in units()) {
        let slots = 12.max(trace.shape.top_k as usize);
        let policy = PolicyName::LayerCycle;
        let bytes = recorded(&trace, slots, policy, requests, Reserve::Late, 0);
        let back = parse(&bytes, &ModelShape::K3).unwrap();
        prop_assert_eq!(&back.requests, &trace.requests);
        prop_assert_eq!(&back.demands, &trace.demands);
        prop_assert_eq!(&back.steps, &trace.steps);
        prop_assert_eq!(recorded_run::check(&back).unwrap().difference, None);
    }

    /// Any bytes at all, with and without our magic: an error or a trace, never a panic.
    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = parse(&bytes, &ModelShape::K3);
        let ours = [&MAGIC[..], &bytes].concat();
        prop_assert!(parse(&ours, &ModelShape::K3).is_err());
        let mut damaged = super::hostile::good();
        for pair in bytes.chunks_exact(2).take(3) {
            let at = (usize::from(pair[0]) * 3) % damaged.len();
            damaged[at] ^= pair[1];
        }
        let _ = parse(&damaged, &ModelShape::K3);
    }

    /// Computing the prefix again at every step and then undoing it gives the same trace.
    #[test]
    fn recompute_sweeps_are_recognised_and_undone((trace, prefill) in any_decode()) {
        let positions = trace.steps.len() as u32 - 1 + prefill;
        prop_assume!(positions > prefill);
        let again = recomputed(&trace, prefill, positions);
        let Recognition::Recompute(evidence) = recognise(&again) else {
            // One layer, or a last layer no larger than the first, has no visible sweeps.
            prop_assume!(trace.layers().len() > 1);
            return Err(TestCaseError::fail("not recognised"));
        };
        prop_assert_eq!(evidence.sweep_count as u32, positions - prefill + 1);
        let linear = relinearise(&again).unwrap();
        prop_assert_eq!(&linear.requests, &trace.requests);
        prop_assert_eq!(&linear.demands, &trace.demands);
        prop_assert_eq!(&linear.steps, &trace.steps);
    }
}

/// The most hits of any choice of victims, by trying all.
fn most_hits(requests: &[u32], cache: &mut Vec<u32>, slots: usize) -> u64 {
    let Some((&first, rest)) = requests.split_first() else {
        return 0;
    };
    if cache.contains(&first) {
        return 1 + most_hits(rest, cache, slots);
    }
    if cache.len() < slots {
        cache.push(first);
        let hits = most_hits(rest, cache, slots);
        cache.pop();
        return hits;
    }
    let mut most = 0;
    for place in 0..cache.len() {
        let victim = std::mem::replace(&mut cache[place], first);
        most = most.max(most_hits(rest, cache, slots));
        cache[place] = victim;
    }
    most
}
