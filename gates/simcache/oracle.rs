//! Routing recorded by the tiny oracle as a trace.

use std::collections::BTreeSet;

use k3_cache::policy::PolicyName;
use k3_cache::shape::ModelShape;
use k3_cache::slot_table::Requests;
use k3_cache::trace::Trace;
use k3_simcache::generator;
use k3_simcache::study;
use k3_simcache::workload::Workload;

use crate::support::fixture;
use crate::support::traces::{hits, plan};

/// Routing ids of the oracle's answers \[MoE layers, positions, top-k\] as a trace.
fn recorded(name: &str, prompt: u32) -> Trace {
    let bytes = std::fs::read(fixture("tiny/expected.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let ids = tensors.tensor(name).unwrap();
    let &[layers, positions, top_k] = ids.shape() else { panic!("{:?}", ids.shape()) };
    let shape = ModelShape {
        layer_count: layers as u32 + 1,
        first_moe_layer: 1,
        experts_per_layer: 8,
        top_k: top_k as u32,
        expert_bytes: 3 * 96 * 34,
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
#[test]
fn a_trace_recorded_from_router_ids() {
    let trace = recorded("router_ids.f64", 12);
    let per_token = u64::from((trace.shape.layer_count - 1) * trace.shape.top_k);
    let report = study::run(vec![trace], &plan()).unwrap();
    let view = &report.views[0];
    assert_eq!((view.focus, view.requests_per_token), ("decode", per_token));
    let all = view.rows.last().unwrap();
    assert_eq!(all.policies[0].hits, view.request_count - view.distinct_count as u64);
}

/// The tiny oracle's own routing, both sequences: LRU against a plain list, at every capacity.
#[test]
fn traces_recorded_from_the_tiny_oracle() {
    for (name, prompt) in [("router_ids.f64", 12), ("long.router_ids.f64", 200)] {
        let trace = recorded(name, prompt);
        let single = Workload::new(&trace, Requests::Single);
        let distinct: BTreeSet<u32> = trace.requests.iter().copied().collect();
        for capacity in 1..=distinct.len() {
            assert_eq!(
                hits(&single, capacity, PolicyName::Lru),
                plain_lru(&trace.requests, capacity),
                "{name} at {capacity}"
            );
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
