//! The real trace gives the numbers that were computed elsewhere, exactly.

use std::collections::BTreeSet;
use std::path::Path;

use k3_cache::policy::PolicyName;
use k3_cache::shape::ModelShape;
use k3_cache::slot_table::{Requests, Reserve};
use k3_cache::trace::{Trace, read};
use k3_simcache::forecast::{K3_FIXED_BYTES, K3_TRUNK_BYTES};
use k3_simcache::generator;
use k3_simcache::measured;
use k3_simcache::optimum;
use k3_simcache::optimum::Admission;
use k3_simcache::order::{Recognition, mark_steps, recognise, relinearise};
use k3_simcache::replay::replay;
use k3_simcache::stack_distance;
use k3_simcache::study;
use k3_simcache::workload::{Window, Workload, sum_over};

use crate::make::{external, hits};

const RECORDED_SLOTS: [usize; 6] = [455, 911, 1823, 3647, 7294, 14588];
const LRU_SINGLE: [u64; 6] = [36_272, 36_272, 36_272, 36_272, 49_238, 90_086];
const LRU_BATCH: [u64; 6] = [36_272, 36_272, 36_272, 36_272, 49_289, 90_086];
const OPTIMUM_SINGLE: [u64; 6] = [39_457, 42_649, 49_033, 61_801, 84_675, 90_086];
const OPTIMUM_BATCH: [u64; 6] = [39_442, 42_634, 49_018, 61_786, 84_675, 90_086];

pub fn real_trace() -> Option<Trace> {
    let path = external("kimi-k3-routing/expert_trace.bin")?;
    Some(read(&path, &ModelShape::K3).unwrap())
}

pub fn decode_order() -> Option<Trace> {
    Some(relinearise(&real_trace()?).unwrap())
}

#[test]
fn the_trace_is_eight_sweeps_of_five_to_twelve_positions() {
    let Some(trace) = real_trace() else { return };
    assert_eq!((trace.requests.len(), trace.distinct_count()), (100_096, 10_010));
    let Recognition::Recompute(evidence) = recognise(&trace) else {
        panic!("not recognised as recompute sweeps");
    };
    assert_eq!(evidence.sweep_count, 8);
    assert_eq!(evidence.positions_per_sweep, [5, 6, 7, 8, 9, 10, 11, 12]);
    assert_eq!(evidence.row_count, 68 * 92);
    assert_eq!(evidence.repeated_row_count, 56 * 92);
    assert_eq!(evidence.same_order_row_count, 56 * 92);
}

#[test]
fn recorded_order_gives_the_published_hits() {
    let Some(mut trace) = real_trace() else {
        return;
    };
    let recognition = recognise(&trace);
    mark_steps(&mut trace, &recognition);
    for (requests, lru, optimum) in [
        (Requests::Single, LRU_SINGLE, OPTIMUM_SINGLE),
        (Requests::Batch, LRU_BATCH, OPTIMUM_BATCH),
    ] {
        let workload = Workload::new(&trace, requests);
        let distances = stack_distance::distances(&workload);
        let curve = stack_distance::lru_curve(&workload, &distances);
        assert_eq!(RECORDED_SLOTS.map(|slots| curve.hits(slots)), lru, "{requests:?}");
        let curve = optimum::curve(&workload);
        assert_eq!(RECORDED_SLOTS.map(|slots| curve.hits(slots)), optimum, "{requests:?}");
        // The replays say the same as the one-pass curves.
        for (place, slots) in [(0, 455), (4, 7294)] {
            assert_eq!(hits(&workload, slots, PolicyName::Lru), lru[place]);
            let replayed = optimum::replay(&workload, slots, Admission::Forced);
            assert_eq!(replayed.iter().sum::<u64>(), optimum[place]);
        }
    }
}

#[test]
fn decode_order_gives_the_measured_hits_of_the_last_step() {
    let Some(trace) = decode_order() else { return };
    let workload = Workload::new(&trace, Requests::Single);
    assert_eq!(workload.request_counts[Window::DecodeLast as usize], 1472);
    let curve = stack_distance::lru_curve(&workload, &stack_distance::distances(&workload));
    let slots = [28, 159, 250, 432, 615, 979, 1344, 2073, 2802, 3531, 4386, 6208];
    let rates = slots.map(|slots| {
        let hits = curve.by_window(slots)[Window::DecodeLast as usize];
        format!("{:.2}", 100.0 * hits as f64 / 1472.0)
    });
    let zero = "0.00";
    let expected =
        [zero, zero, zero, zero, zero, zero, zero, "29.89", "32.20", "33.08", "35.53", "43.82"];
    assert_eq!(rates, expected);
    // kimi-k3-in-c reserves misses first; these five counts are the ones measured on it.
    let batch = Workload::new(&trace, Requests::Batch);
    let early = [2073, 2802, 3531, 4386, 6208].map(|slots| {
        let policy = PolicyName::Lru.build(&batch.shape, slots);
        replay(&batch, slots, policy, Reserve::Early).unwrap()[Window::DecodeLast as usize]
    });
    assert_eq!(early, [440, 474, 487, 523, 644]);
}

#[test]
fn the_first_step_reads_99_70_gb_from_64_slots_on() {
    let Some(trace) = decode_order() else { return };
    for requests in [Requests::Single, Requests::Batch] {
        let workload = Workload::new(&trace, requests);
        let curve = stack_distance::lru_curve(&workload, &stack_distance::distances(&workload));
        let prefill = Window::Prefill as usize;
        let read = |slots: usize| {
            let missed = workload.request_counts[prefill] - curve.by_window(slots)[prefill];
            format!("{:.2}", missed as f64 * 17_547_264.0 / 1e9)
        };
        for slots in [64, 113, 1472, 10_010] {
            assert_eq!(read(slots), "99.70", "{requests:?} {slots}");
        }
        assert_ne!(read(32), "99.70", "{requests:?}: half of that is not enough");
    }
}

#[test]
fn decode_order_gives_the_forced_optimum_of_the_single_steps() {
    let Some(trace) = decode_order() else { return };
    for (requests, expected) in [
        (Requests::Single, ["29.31", "45.08", "51.67"]),
        (Requests::Batch, ["28.80", "44.99", "51.64"]),
    ] {
        let workload = Workload::new(&trace, requests);
        let requests = sum_over(Window::DECODE, &workload.request_counts);
        assert_eq!(requests, 7 * 1472);
        let curve = optimum::curve(&workload);
        let rates = [455, 911, 1344].map(|slots| {
            let hits = sum_over(Window::DECODE, &curve.by_window(slots));
            format!("{:.2}", 100.0 * hits as f64 / requests as f64)
        });
        assert_eq!(rates, expected);
    }
}

#[test]
fn layer_cycle_on_the_real_trace() {
    let Some(trace) = decode_order() else { return };
    let workload = Workload::new(&trace, Requests::Batch);
    let requests = sum_over(Window::DECODE, &workload.request_counts) as f64;
    let rate = |policy: PolicyName, slots: usize| {
        let policy = policy.build(&workload.shape, slots);
        let hits = replay(&workload, slots, policy, Reserve::Late).unwrap();
        100.0 * sum_over(Window::DECODE, &hits) as f64 / requests
    };
    for (slots, at_least) in [(455, 10.0), (911, 18.0), (1344, 25.0)] {
        let rate = rate(PolicyName::LayerCycle, slots);
        assert!(rate >= at_least, "{rate} at {slots}");
    }
    for slots in [455, 911, 1344, 1823, 2802, 3647, 6208, 7294, 10_941] {
        let (ours, lru) = (rate(PolicyName::LayerCycle, slots), rate(PolicyName::Lru, slots));
        let (s3, random) = (rate(PolicyName::S3Fifo, slots), rate(PolicyName::Random, slots));
        println!("{slots}: ours {ours:.2} lru {lru:.2} s3-fifo {s3:.2} random {random:.2}");
        assert!(ours > lru - 1.0, "{ours} against {lru} at {slots}");
    }
}

/// The report on the real trace is kept under `reports/simcache/`: its text as a snapshot, its
/// main plots as files. Made again with
/// `k3-verify simcache expert_trace.bin --measured measured-ladder.tsv --out DIR`.
#[test]
fn the_committed_report_and_plots_are_those_of_the_real_trace() {
    let Some(trace) = real_trace() else { return };
    let Some(measured) = external("kimi-k3-routing/measured-ladder.tsv") else {
        return;
    };
    let mut plan = crate::make::plan();
    plan.requests = None;
    plan.machine.trunk_bytes = K3_TRUNK_BYTES;
    plan.machine.fixed_bytes = K3_FIXED_BYTES;
    plan.measured = Some(measured::read(&measured).unwrap());
    let report = study::run(vec![trace], &plan).unwrap();
    crate::reports::snapshot("kimi-k3-text", &report.document().text());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("reports/simcache");
    let drawn = report.document().figures().unwrap();
    for name in ["hit-rate-decode", "orders", "split", "reuse-decode", "measured-hit-rate"] {
        let svg = &drawn.iter().find(|plot| plot.0 == name).unwrap().1;
        let kept = std::fs::read_to_string(folder.join(format!("kimi-k3-{name}.svg")));
        assert!(kept.is_ok_and(|kept| kept == *svg), "kimi-k3-{name}.svg is not what is drawn now");
    }
}

/// Routing ids of an answer file \[MoE layers, positions, top-k\] as a trace.
fn recorded(path: &Path, name: &str, prompt: u32, expert_bytes: u64) -> Trace {
    let bytes = std::fs::read(path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let ids = tensors.tensor(name).unwrap();
    let &[layers, positions, top_k] = ids.shape() else { panic!("{:?}", ids.shape()) };
    let shape = ModelShape {
        layer_count: layers as u32 + 1,
        first_moe_layer: 1,
        experts_per_layer: 8,
        top_k: top_k as u32,
        expert_bytes,
    };
    let mut ids = ids.data().chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let rows: Vec<Vec<Vec<u32>>> = (0..layers)
        .map(|_| (0..positions).map(|_| ids.by_ref().take(top_k).collect()).collect())
        .collect();
    let trace = generator::from_rows(&shape, prompt, &rows);
    assert_eq!(trace.requests.len(), layers * positions * top_k);
    trace
}

/// The study's decode view of a recorded trace asks for every layer's top-k once per token, and
/// with room for all misses only what it never had.
fn judge_recorded(trace: Trace) {
    let per_token = u64::from((trace.shape.layer_count - 1) * trace.shape.top_k);
    let report = study::run(vec![trace], &crate::make::plan()).unwrap();
    let view = &report.views[0];
    assert_eq!((view.focus, view.requests_per_token), ("decode", per_token));
    let all = view.rows.last().unwrap();
    assert_eq!(all.policies[0].hits, view.request_count - view.distinct_count as u64);
}

/// Routing recorded elsewhere becomes a trace: the router ids of a tiny model's answers.
#[test]
fn a_trace_recorded_from_router_ids() {
    if let Some(path) = external("tiny-k3-a/expected.safetensors") {
        judge_recorded(recorded(&path, "router_ids.released", 20, 3 * 48 * 64));
    }
}

/// The tiny oracle's own routing, both sequences: LRU against a plain list, at every capacity.
#[test]
fn traces_recorded_from_the_tiny_oracle() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tiny/expected.safetensors");
    for (name, prompt) in [("router_ids.f64", 12), ("long.router_ids.f64", 200)] {
        let trace = recorded(&path, name, prompt, 3 * 96 * 34);
        let single = Workload::new(&trace, Requests::Single);
        let distinct: BTreeSet<u32> = trace.requests.iter().copied().collect();
        for capacity in 1..=distinct.len() {
            assert_eq!(
                hits(&single, capacity, PolicyName::Lru),
                plain_lru(&trace.requests, capacity),
                "{name} at {capacity}"
            );
        }
        if name == "router_ids.f64" {
            judge_recorded(trace);
        }
    }
}

/// Hits of LRU the obvious way: a list in order of use.
fn plain_lru(requests: &[u32], capacity: usize) -> u64 {
    let (mut held, mut hits) = (Vec::new(), 0);
    for request in requests {
        if let Some(place) = held.iter().position(|kept| kept == request) {
            held.remove(place);
            hits += 1;
        } else if held.len() == capacity {
            held.remove(0);
        }
        held.push(*request);
    }
    hits
}
