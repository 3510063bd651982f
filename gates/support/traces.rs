//! Small traces and the plan of a study.

use k3_cache::policy::PolicyName;
use k3_cache::shape::ModelShape;
use k3_cache::slot_table::{Requests, Reserve};
use k3_cache::trace::{Trace, headerless};
use k3_simcache::forecast::{ASSUMED_DISK_RATE, Machine};
use k3_simcache::generator::{ZipfSpec, zipf};
use k3_simcache::order::Order;
use k3_simcache::replay::replay;
use k3_simcache::study::StudyPlan;
use k3_simcache::workload::Workload;

/// A model small enough to look at: 6 layers, 12 experts each, top-3.
pub const SMALL: ModelShape = ModelShape {
    layer_count: 6,
    first_moe_layer: 1,
    experts_per_layer: 12,
    top_k: 3,
    expert_bytes: 1_000_000_000,
};

/// A model of one layer whose experts are asked for one by one.
pub const FLAT: ModelShape = ModelShape {
    layer_count: 1,
    first_moe_layer: 0,
    experts_per_layer: 64,
    top_k: 1,
    expert_bytes: 1_000_000,
};

/// A flat trace of single requests.
pub fn flat(requests: &[u32]) -> Trace {
    headerless::from_requests(requests.to_vec(), &FLAT)
}

/// The generated trace that most tests use: 4 prompt positions, then 12 single ones.
pub fn small_zipf(seed: u64) -> Trace {
    zipf(&ZipfSpec {
        shape: SMALL,
        prefill_positions: 4,
        decode_positions: 12,
        exponent_quarters: 3,
        kept_share: (1, 3),
        seed,
    })
}

/// Bytes of a headerless trace.
pub fn pairs(pairs: &[(i32, i32)]) -> Vec<u8> {
    pairs
        .iter()
        .flat_map(|(layer, expert)| [layer.to_le_bytes(), expert.to_le_bytes()].concat())
        .collect()
}

/// The same decode steps computed with the whole prefix each time, as headerless requests.
pub fn recomputed(trace: &Trace, first_positions: u32, positions: u32) -> Trace {
    let mut requests = Vec::new();
    for prefix in first_positions..=positions {
        for layer in trace.layers() {
            for position in 0..prefix {
                let row = trace.demands.iter().find(|d| d.layer == layer && d.position == position);
                requests.extend_from_slice(trace.experts(row.unwrap()));
            }
        }
    }
    headerless::from_requests(requests, &trace.shape)
}

/// Hits of a policy.
pub fn hits(workload: &Workload, slots: usize, policy: PolicyName) -> u64 {
    let policy = policy.build(&workload.shape, slots);
    replay(workload, slots, policy, Reserve::Late).unwrap().iter().sum()
}

/// A plan without anything special.
pub fn plan() -> StudyPlan {
    StudyPlan {
        order: Order::Auto,
        requests: Some(Requests::Batch),
        reserve: Reserve::Late,
        policies: Vec::new(),
        prefetch: Vec::new(),
        slot_counts: Vec::new(),
        limits: None,
        machine: Machine {
            disk_bytes_per_second: ASSUMED_DISK_RATE,
            disk_rate_given: false,
            compute_seconds_per_token: 0.0,
            trunk_bytes: 0,
            fixed_bytes: 0,
        },
        measured: None,
        tolerance_points: 1.0,
        keep_layers: None,
        keep_positions: None,
    }
}
