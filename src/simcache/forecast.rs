//! From hit counts to bytes and seconds: what a memory limit yields, and how to split it.
//!
//! A token reads the part of the trunk that is not held in memory and the experts that are not
//! resident; divided by the disk's rate that is its I/O time, to which the time for computing is
//! added. Nothing overlaps in this model, so seconds are an upper bound for an engine that reads
//! ahead. The trunk counts byte by byte (an engine holds whole layers). Rates and compute times are
//! arguments; nothing is measured here.
//!
//! Memory = fixed (embedding, head, state, read buffers) + trunk held + expert slots.

use serde::Serialize;

use super::statistics::{percent, rounded_fine};
use super::workload::{ByWindow, Window, sum_over};
use k3_cache::shape::ModelShape;

/// Bytes of K3's packed trunk: what a token reads when nothing is held.
pub const K3_TRUNK_BYTES: u64 = 108_810_000_000;
/// K3's memory besides trunk and experts: embedding and head 4.70 GB, the rest is state and read
/// buffers, as in the published table (63.71 GB resident with 33.46 + 23.59 GB held).
pub const K3_FIXED_BYTES: u64 = 6_650_000_000;
/// Disk rate assumed when none is given, bytes per second.
pub const ASSUMED_DISK_RATE: f64 = 3e9;

/// The machine a forecast is for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Machine {
    /// Rate of the disk.
    pub disk_bytes_per_second: f64,
    /// Whether the rate was given or is the assumed one.
    pub disk_rate_given: bool,
    /// Time for computing one decoded token.
    pub compute_seconds_per_token: f64,
    /// Trunk bytes a token reads when nothing is held.
    pub trunk_bytes: u64,
    /// Memory besides trunk and experts.
    pub fixed_bytes: u64,
}

/// What is to be forecast.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum MemoryLimit {
    /// All memory; the split is looked for.
    Memory {
        /// Bytes in all.
        bytes: u64,
    },
    /// A preset; its split is fixed.
    Preset {
        /// Its name.
        name: &'static str,
        /// Trunk held, bytes.
        trunk_bytes: u64,
        /// Expert slots, bytes.
        expert_bytes: u64,
    },
}

/// Hits of one policy at the capacities it was replayed at.
#[derive(Debug, Clone)]
pub struct PolicyHits {
    /// Name in the report.
    pub name: String,
    /// Slots (ascending) and hits by window.
    pub points: Vec<(usize, ByWindow)>,
}

impl PolicyHits {
    /// Hits at exactly this capacity.
    pub fn at(&self, slot_count: usize) -> Option<&ByWindow> {
        let place = self.points.binary_search_by_key(&slot_count, |point| point.0).ok()?;
        Some(&self.points[place].1)
    }
}

/// The part of a trace that a forecast speaks about.
#[derive(Debug, Clone, PartialEq)]
pub struct Demanded {
    /// Sizes of the model.
    pub shape: ModelShape,
    /// Windows that make up a decoded token's hit rate.
    pub focus: &'static [Window],
    /// Requests by window.
    pub request_counts: ByWindow,
    /// Requests of one token: top-k times MoE layers.
    pub requests_per_token: u64,
    /// Chunks of the prefill: each reads the trunk once.
    pub prefill_chunk_count: u64,
}

/// One forecast.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ForecastRow {
    /// Memory in all.
    pub memory_bytes: u64,
    /// Preset, where it is one.
    pub preset: Option<&'static str>,
    /// Policy (or the optimum).
    pub policy: String,
    /// Expert slots.
    pub slot_count: usize,
    /// Bytes of the slots.
    pub expert_slot_bytes: u64,
    /// Trunk held in memory.
    pub trunk_held_bytes: u64,
    /// Hit rate of a decoded token.
    pub hit_percent: f64,
    /// Experts read for a decoded token.
    pub expert_gb_per_token: f64,
    /// Trunk read for a decoded token.
    pub trunk_gb_per_token: f64,
    /// Seconds for reading experts.
    pub expert_seconds: f64,
    /// Seconds for reading the trunk.
    pub trunk_seconds: f64,
    /// All seconds of a decoded token.
    pub seconds_per_token: f64,
    /// Experts and trunk read for the whole prompt; null without prefill in the trace.
    pub prefill_gb: Option<f64>,
    /// Seconds of reading for the whole prompt.
    pub prefill_seconds: Option<f64>,
}

/// A limit that cannot hold what a token uses at once.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TooSmall {
    /// Memory in all.
    pub memory_bytes: u64,
    /// The least that works: fixed memory and top-k experts.
    pub needed_bytes: u64,
}

/// Slots that a limit leaves when the whole trunk is held, if any.
pub fn slots_beside_trunk(memory: u64, machine: &Machine, shape: &ModelShape) -> Option<usize> {
    let left = memory.checked_sub(machine.fixed_bytes + machine.trunk_bytes)?;
    let slots = (left / shape.expert_bytes) as usize;
    (slots >= shape.top_k as usize).then_some(slots)
}

/// The best split of a limit for one policy, among the capacities it was replayed at. Ties go to
/// fewer slots.
pub fn best_split(
    memory: u64,
    machine: &Machine,
    demanded: &Demanded,
    hits: &PolicyHits,
) -> Option<ForecastRow> {
    let left = memory.checked_sub(machine.fixed_bytes)?;
    let mut best: Option<ForecastRow> = None;
    for &(slot_count, ref by_window) in &hits.points {
        let slot_bytes = slot_count as u64 * demanded.shape.expert_bytes;
        if slot_bytes > left {
            break;
        }
        let held = (left - slot_bytes).min(machine.trunk_bytes);
        let mut row = forecast(machine, demanded, &hits.name, slot_count, by_window, held);
        row.memory_bytes = memory;
        if best.as_ref().is_none_or(|best| row.seconds_per_token < best.seconds_per_token) {
            best = Some(row);
        }
    }
    best
}

/// The forecast for given slots and a given part of the trunk.
pub fn forecast(
    machine: &Machine,
    demanded: &Demanded,
    policy: &str,
    slot_count: usize,
    hits: &ByWindow,
    trunk_held_bytes: u64,
) -> ForecastRow {
    let expert_bytes = demanded.shape.expert_bytes as f64;
    let requests = sum_over(demanded.focus, &demanded.request_counts);
    let focused = sum_over(demanded.focus, hits);
    let missed = if requests == 0 { 0.0 } else { (requests - focused) as f64 / requests as f64 };
    let expert_read = missed * demanded.requests_per_token as f64 * expert_bytes;
    let trunk_read = (machine.trunk_bytes - trunk_held_bytes.min(machine.trunk_bytes)) as f64;
    let rate = machine.disk_bytes_per_second;
    let prefill = Window::Prefill as usize;
    let prefill_read = (demanded.request_counts[prefill] > 0).then(|| {
        let missed = demanded.request_counts[prefill] - hits[prefill];
        missed as f64 * expert_bytes + demanded.prefill_chunk_count as f64 * trunk_read
    });
    let expert_slot_bytes = slot_count as u64 * demanded.shape.expert_bytes;
    let seconds = (expert_read + trunk_read) / rate + machine.compute_seconds_per_token;
    ForecastRow {
        memory_bytes: machine.fixed_bytes + expert_slot_bytes + trunk_held_bytes,
        preset: None,
        policy: policy.to_string(),
        slot_count,
        expert_slot_bytes,
        trunk_held_bytes,
        hit_percent: percent(focused, requests),
        expert_gb_per_token: rounded_fine(expert_read / 1e9),
        trunk_gb_per_token: rounded_fine(trunk_read / 1e9),
        expert_seconds: rounded_fine(expert_read / rate),
        trunk_seconds: rounded_fine(trunk_read / rate),
        seconds_per_token: rounded_fine(seconds),
        prefill_gb: prefill_read.map(|bytes| rounded_fine(bytes / 1e9)),
        prefill_seconds: prefill_read.map(|bytes| rounded_fine(bytes / rate)),
    }
}

/// A line through (gigabytes read, seconds): what measurements say of disk and computing.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TimeFit {
    /// Seconds at no bytes: computing.
    pub compute_seconds: f64,
    /// Bytes per second: the slope, turned over.
    pub disk_bytes_per_second: f64,
}

/// Least squares; None with fewer than three points, equal sizes or a falling line.
pub fn fit_time(points: &[(f64, f64)]) -> Option<TimeFit> {
    if points.len() < 3 {
        return None;
    }
    let count = points.len() as f64;
    let mean_x = points.iter().map(|point| point.0).sum::<f64>() / count;
    let mean_y = points.iter().map(|point| point.1).sum::<f64>() / count;
    let xx: f64 = points.iter().map(|point| (point.0 - mean_x).powi(2)).sum();
    let xy: f64 = points.iter().map(|point| (point.0 - mean_x) * (point.1 - mean_y)).sum();
    let slope = xy / xx;
    if !slope.is_finite() || slope <= 0.0 {
        return None;
    }
    let compute = mean_y - slope * mean_x;
    // Computing takes no negative time: then the line goes through the origin.
    let through_origin = || {
        let xy: f64 = points.iter().map(|point| point.0 * point.1).sum();
        let xx: f64 = points.iter().map(|point| point.0.powi(2)).sum();
        xy / xx
    };
    let slope = if compute < 0.0 { through_origin() } else { slope };
    let compute_seconds = rounded_fine(compute.max(0.0));
    Some(TimeFit { compute_seconds, disk_bytes_per_second: (1e9 / slope).round() })
}
