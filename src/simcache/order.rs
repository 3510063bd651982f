//! The order in which incremental decoding would have made the requests.
//!
//! An engine without carried state runs the whole prefix again at every step. Its trace holds every
//! row (position and layer) once per step, and a replay of it counts re-computation as reuse. This
//! module recognises such sweeps, reports the evidence, and re-linearises the trace: the first
//! sweep's positions as prefill, layer by layer, then one new position per step.
//!
//! A sweep is a maximal run of demands whose layers never fall. Recompute sweeps: at least two,
//! every layer of each asked for by the same number of positions, one position more each time, and
//! every row of a sweep equal, as a set, to that row of the sweep before. Anything less is not
//! recognised, and the report gives the reason.

use k3_core::choice::Choice;
use serde::Serialize;

use k3_cache::trace::{Chunk, Demand, Phase, Step, Trace, router};

/// Which order to study.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// As the file has it.
    Recorded,
    /// As incremental decoding asks.
    Decode,
    /// Both, if the file re-computes; else as the file has it.
    Auto,
}

impl Choice for Order {
    const ALL: &'static [Self] = &[Self::Recorded, Self::Decode, Self::Auto];

    fn name(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::Decode => "decode",
            Self::Auto => "auto",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Recorded => "As the file has it",
            Self::Decode => "As incremental decoding asks",
            Self::Auto => "Both, if the file re-computes; else as the file has it",
        }
    }
}

/// What spoke for recompute sweeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecomputeEvidence {
    /// Number of sweeps.
    pub sweep_count: usize,
    /// Positions of each sweep.
    pub positions_per_sweep: Vec<u32>,
    /// Layers that ask for experts.
    pub moe_layer_count: usize,
    /// Rows (position and layer) in all sweeps.
    pub row_count: usize,
    /// Rows that repeat a row of the sweep before.
    pub repeated_row_count: usize,
    /// Repeated rows that also have the experts in the same order.
    pub same_order_row_count: usize,
}

/// What the order of a trace is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Recognition {
    /// The whole prefix again at every step.
    Recompute(RecomputeEvidence),
    /// Passes through the layers whose rows do not repeat: state was carried.
    Incremental {
        /// Positions of each pass; of one that holds unions, at least so many.
        positions_per_sweep: Vec<u32>,
        /// Passes that hold, for each layer, the union of what their positions chose.
        union_sweep_count: usize,
        /// Why it is not recompute.
        reason: String,
    },
    /// No passes through the layers can be made out.
    Unknown {
        /// What is missing.
        reason: String,
    },
}

/// One pass through the layers: a range of demands, `positions` in every layer, or in a union at
/// least so many.
#[derive(Debug, Clone, Copy)]
struct Sweep {
    first: usize,
    end: usize,
    positions: usize,
    is_union: bool,
}

/// Reads the order of a trace.
pub fn recognise(trace: &Trace) -> Recognition {
    let sweeps = match find_sweeps(trace) {
        Ok(sweeps) => sweeps,
        Err(reason) => return Recognition::Unknown { reason },
    };
    match recompute_evidence(trace, &sweeps) {
        Ok(evidence) => Recognition::Recompute(evidence),
        Err(reason) => {
            let positions_per_sweep = sweeps.iter().map(|sweep| sweep.positions as u32).collect();
            let union_sweep_count = sweeps.iter().filter(|sweep| sweep.is_union).count();
            Recognition::Incremental { positions_per_sweep, union_sweep_count, reason }
        }
    }
}

/// Gives a headerless trace its steps and positions, as far as the order tells.
pub fn mark_steps(trace: &mut Trace, recognition: &Recognition) {
    if trace.header.is_some() || matches!(recognition, Recognition::Unknown { .. }) {
        return;
    }
    let recompute = matches!(recognition, Recognition::Recompute(_));
    let Ok(sweeps) = find_sweeps(trace) else {
        return;
    };
    trace.steps.clear();
    trace.chunks.clear();
    let mut next_position = 0;
    for (index, sweep) in sweeps.iter().enumerate() {
        let positions = sweep.positions as u32;
        let (phase, first_position) = match (recompute, positions) {
            (true, _) => (Phase::Recompute, 0),
            (false, 1) if index > 0 && !sweep.is_union => (Phase::Decode, next_position),
            (false, _) => (Phase::Prefill, next_position),
        };
        next_position = first_position + positions;
        trace.steps.push(Step { phase, first_position, position_count: positions });
        trace.chunks.push(Chunk { step: index as u32, first_position, position_count: positions });
        let pass = &mut trace.demands[sweep.first..sweep.end];
        for layer in pass.chunk_by_mut(|a, b| a.layer == b.layer) {
            for (demand, position) in layer.iter_mut().zip(first_position..) {
                (demand.chunk, demand.position) = (index as u32, position);
            }
        }
    }
}

/// The trace as incremental decoding would have recorded it: prefill of the first sweep's
/// positions, then single positions, every row taken from the last sweep. None unless recompute
/// sweeps are recognised.
pub fn relinearise(trace: &Trace) -> Option<Trace> {
    let sweeps = find_sweeps(trace).ok()?;
    recompute_evidence(trace, &sweeps).ok()?;
    let (first, last) = (sweeps.first()?, sweeps.last()?);
    let mut linear = Trace {
        requests: Vec::new(),
        demands: Vec::new(),
        chunks: Vec::new(),
        steps: Vec::new(),
        prefetches: Vec::new(),
        decisions: Vec::new(),
        ..trace.clone()
    };
    let mut begin = 0;
    while begin < last.positions {
        let count = if begin == 0 { first.positions } else { 1 };
        let phase = if begin == 0 { Phase::Prefill } else { Phase::Decode };
        let (first_position, position_count) = (begin as u32, count as u32);
        let chunk = linear.chunks.len() as u32;
        linear.steps.push(Step { phase, first_position, position_count });
        linear.chunks.push(Chunk { step: chunk, first_position, position_count });
        let layers = (last.end - last.first) / last.positions;
        for (layer, place) in (0..layers).flat_map(|layer| (0..count).map(move |p| (layer, p))) {
            let row = &trace.demands[last.first + layer * last.positions + begin + place];
            let (first, position) = (linear.requests.len() as u32, (begin + place) as u32);
            linear.requests.extend_from_slice(trace.experts(row));
            linear.demands.push(Demand { chunk, position, first, ..*row });
        }
        begin += count;
    }
    Some(linear)
}

/// Cuts the demands into passes and checks that each is complete.
fn find_sweeps(trace: &Trace) -> Result<Vec<Sweep>, String> {
    let (demands, top_k) = (&trace.demands, trace.shape.top_k);
    let mut bounds = vec![0];
    bounds.extend((1..demands.len()).filter(|&i| demands[i].layer < demands[i - 1].layer));
    bounds.push(demands.len());
    let layers = trace.layers();
    let mut sweeps = Vec::with_capacity(bounds.len() - 1);
    for (index, bound) in bounds.windows(2).enumerate() {
        let (first, end) = (bound[0], bound[1]);
        let pass = &demands[first..end];
        let asked = pass.chunk_by(|a, b| a.layer == b.layer);
        if asked.clone().map(|run| run[0].layer).eq(layers.iter().copied())
            && router::is_union(trace, pass)
        {
            let positions = asked.map(<[Demand]>::len).max().unwrap_or(0);
            sweeps.push(Sweep { first, end, positions, is_union: true });
            continue;
        }
        if let Some(short) = pass.iter().position(|demand| demand.count != top_k) {
            let (count, short) = (pass[short].count, first + short);
            return Err(format!("demand {short} has {count} experts where top-k is {top_k}"));
        }
        let rows = end - first;
        if layers.is_empty() || rows % layers.len() != 0 {
            let layer_count = layers.len();
            return Err(format!("sweep {index} has {rows} rows, no multiple of {layer_count}"));
        }
        let positions = rows / layers.len();
        let regular = (0..rows).all(|row| demands[first + row].layer == layers[row / positions]);
        if !regular {
            return Err(format!("sweep {index} does not ask every layer for {positions} rows"));
        }
        sweeps.push(Sweep { first, end, positions, is_union: false });
    }
    if sweeps.iter().all(|sweep| sweep.is_union) {
        return Err("no pass tells what single positions ask for".to_string());
    }
    Ok(sweeps)
}

/// Whether each sweep is the one before plus one position; else what speaks against it.
fn recompute_evidence(trace: &Trace, sweeps: &[Sweep]) -> Result<RecomputeEvidence, String> {
    if sweeps.len() < 2 {
        return Err("there is only one pass through the layers".to_string());
    }
    if let Some(union) = sweeps.iter().position(|sweep| sweep.is_union) {
        return Err(format!("pass {union} holds the union of a prefill's experts"));
    }
    let moe_layer_count = trace.layers().len();
    let (mut repeated, mut same_order) = (0, 0);
    for (index, pair) in sweeps.windows(2).enumerate() {
        let (before, after) = (pair[0], pair[1]);
        if after.positions != before.positions + 1 {
            let (had, has) = (before.positions, after.positions);
            return Err(format!("pass {} runs {has} positions after {had}", index + 1));
        }
        for row in 0..moe_layer_count * before.positions {
            let (layer, place) = (row / before.positions, row % before.positions);
            let old = &trace.demands[before.first + row];
            let new = &trace.demands[after.first + layer * after.positions + place];
            let (old, new) = (trace.experts(old), trace.experts(new));
            if old != new && !same_set(old, new) {
                let layer = trace.demands[before.first + row].layer;
                return Err(format!(
                    "pass {} routes position {place} of layer {layer} differently",
                    index + 1
                ));
            }
            repeated += 1;
            same_order += usize::from(old == new);
        }
    }
    Ok(RecomputeEvidence {
        sweep_count: sweeps.len(),
        positions_per_sweep: sweeps.iter().map(|sweep| sweep.positions as u32).collect(),
        moe_layer_count,
        row_count: trace.demands.len(),
        repeated_row_count: repeated,
        same_order_row_count: same_order,
    })
}

fn same_set(a: &[u32], b: &[u32]) -> bool {
    let sorted = |experts: &[u32]| {
        let mut experts = experts.to_vec();
        experts.sort_unstable();
        experts
    };
    sorted(a) == sorted(b)
}
