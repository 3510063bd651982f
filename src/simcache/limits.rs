//! Memory limits of a study: forecasts per limit, split curves, recommendations.

use super::curve::Curve;
use super::forecast::{
    Demanded, ForecastRow, Machine, MemoryLimit, PolicyHits, TooSmall, best_split,
    forecast as row_for,
};
use super::report::{Forecast, PinnedRow, Recommendation, SplitCurve, SplitPoint};
use super::statistics::{HotExpert, percent, rounded_fine};
use super::view::{Studied, ViewPlan, requests_per_token, trained_pins};
use super::workload::{Window, sum_over};
use k3_cache::policy::PolicyName;
use k3_cache::shape::ModelShape;
use k3_cache::trace::{Phase, Trace};
use k3_core::choice::Choice as _;

/// The published memory limits, GB.
const PUBLISHED_GB: [u64; 12] = [8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224];
/// Models with less than this in experts have no default limits.
const LARGE_MODEL_BYTES: u64 = 100_000_000_000;
/// Memory limits whose split is drawn.
const SPLIT_COUNT: usize = 4;
/// Points of a split curve besides the replayed capacities.
const SPLIT_POINTS: usize = 40;
/// The least gain in points that counts, however many requests there are.
const LEAST_GAIN_POINTS: f64 = 1.0;
/// Pins listed.
const PIN_LIST: usize = 32;

/// The published limits for models that need them.
pub fn defaults(shape: &ModelShape) -> Vec<MemoryLimit> {
    if shape.expert_count() as u64 * shape.expert_bytes < LARGE_MODEL_BYTES {
        return Vec::new();
    }
    PUBLISHED_GB.iter().map(|gb| MemoryLimit::Memory { bytes: gb * 1_000_000_000 }).collect()
}

/// Forecasts for all limits; None if there are none.
pub fn forecast(
    trace: &Trace,
    studied: &Studied,
    plan: &ViewPlan,
    machine: &Machine,
    limits: &[MemoryLimit],
) -> Option<Forecast> {
    let policies = policy_hits(studied, plan);
    if limits.is_empty() || policies.is_empty() {
        return None;
    }
    let demanded = demanded(trace, studied);
    let lru = curve_hits("lru", &studied.lru, plan);
    let optimum = curve_hits("optimum", &studied.optimum, plan);
    let mut forecast = Forecast {
        order: studied.view.order,
        rows: Vec::new(),
        split_advice: String::new(),
        too_small: Vec::new(),
        splits: Vec::new(),
        recommendations: Vec::new(),
    };
    let chance = chance_points(sum_over(demanded.focus, &demanded.request_counts));
    for limit in limits {
        let (memory, rows) = match *limit {
            MemoryLimit::Memory { bytes } => {
                let split = |hits: &PolicyHits| best_split(bytes, machine, &demanded, hits);
                (bytes, limit_rows(&lru, &policies, &optimum, chance, split))
            }
            MemoryLimit::Preset { name, trunk_bytes, expert_bytes } => {
                let slots = (expert_bytes / trace.shape.expert_bytes) as usize;
                let held = trunk_bytes.min(machine.trunk_bytes);
                let fixed = |hits: &PolicyHits| {
                    let by_window = hits.at(slots)?;
                    let row = row_for(machine, &demanded, &hits.name, slots, by_window, held);
                    Some(ForecastRow { preset: Some(name), ..row })
                };
                let memory = machine.fixed_bytes + held + expert_bytes;
                (memory, limit_rows(&lru, &policies, &optimum, chance, fixed))
            }
        };
        let Some((best, rows)) = rows else {
            let least = u64::from(trace.shape.top_k) * trace.shape.expert_bytes;
            let needed_bytes = machine.fixed_bytes + least;
            forecast.too_small.push(TooSmall { memory_bytes: memory, needed_bytes });
            continue;
        };
        let pinned = studied.pinned.iter().find(|row| row.slot_count == best.slot_count);
        forecast.recommendations.push(recommend(&best, pinned, studied, &lru, machine));
        forecast.rows.extend(rows);
    }
    forecast.splits = split_curves(studied, &demanded, machine, limits, &policies);
    forecast.split_advice = split_advice(&demanded, &policies);
    Some(forecast)
}

/// Gain in points below which a difference over `requests` requests may be chance: twice the
/// largest standard error of a rate, and no less than a point.
fn chance_points(requests: u64) -> f64 {
    (100.0 / (requests.max(1) as f64).sqrt()).max(LEAST_GAIN_POINTS)
}

/// The recommended row of a limit, and all its rows: LRU, the recommended policy if another, the
/// optimum. Ours is recommended unless another policy is quicker and hits more by at least
/// `chance` points on this trace. Random replacement is a baseline, nothing to recommend.
fn limit_rows(
    lru: &PolicyHits,
    policies: &[PolicyHits],
    optimum: &PolicyHits,
    chance: f64,
    row: impl Fn(&PolicyHits) -> Option<ForecastRow>,
) -> Option<(ForecastRow, Vec<ForecastRow>)> {
    let ours = |row: &ForecastRow| row.policy == PolicyName::LayerCycle.name();
    let mut candidates: Vec<ForecastRow> =
        policies.iter().filter(|hits| hits.name != "random").filter_map(&row).collect();
    candidates.sort_by_key(|row| !ours(row));
    let mut best: Option<ForecastRow> = None;
    for row in candidates {
        let better = |best: &ForecastRow| {
            let points = if ours(best) { chance } else { 0.0 };
            row.seconds_per_token < best.seconds_per_token
                && row.hit_percent >= best.hit_percent + points
        };
        if best.as_ref().is_none_or(better) {
            best = Some(row);
        }
    }
    let best = best?;
    let mut rows: Vec<ForecastRow> = row(lru).into_iter().collect();
    if best.policy != "lru" {
        rows.push(best.clone());
    }
    rows.extend(row(optimum));
    Some((best, rows))
}

/// What a GB of trunk and a GB of expert slots save for every token.
fn split_advice(demanded: &Demanded, policies: &[PolicyHits]) -> String {
    let requests = sum_over(demanded.focus, &demanded.request_counts);
    let saved_per_slot = |hits: &PolicyHits| {
        let rates = hits.points.iter().map(|(slots, by_window)| {
            let rate = sum_over(demanded.focus, by_window) as f64 / requests.max(1) as f64;
            (rate * demanded.requests_per_token as f64 / *slots as f64, *slots)
        });
        rates.fold((0.0, 0), |best: (f64, usize), rate| if rate.0 > best.0 { rate } else { best })
    };
    let mut best = ("none", 0.0, 0);
    for hits in policies.iter().filter(|hits| hits.name != "random") {
        let (saved, slots) = saved_per_slot(hits);
        if saved > best.1 {
            best = (&hits.name, saved, slots);
        }
    }
    let (policy, saved, slots) = best;
    let order = if saved < 1.0 { "trunk first" } else { "it depends on the memory limit" };
    format!(
        "a GB of trunk held saves 1 GB of reading for every token, a GB of expert slots at most \
         {saved:.2} GB ({policy}, {slots} slots): {order}"
    )
}

/// What a forecast needs to know of the trace.
pub fn demanded(trace: &Trace, studied: &Studied) -> Demanded {
    let prefill =
        |chunk: &&k3_cache::trace::Chunk| trace.steps[chunk.step as usize].phase == Phase::Prefill;
    Demanded {
        shape: trace.shape,
        focus: studied.focus,
        request_counts: studied.workload.request_counts,
        requests_per_token: requests_per_token(trace),
        prefill_chunk_count: trace.chunks.iter().filter(prefill).count() as u64,
    }
}

/// The replayed policies, LRU too.
fn policy_hits(studied: &Studied, plan: &ViewPlan) -> Vec<PolicyHits> {
    let hits = |(policy, hits): (&PolicyName, &Vec<Option<_>>)| PolicyHits {
        name: policy.name().to_string(),
        points: plan
            .slot_counts
            .iter()
            .zip(hits)
            .filter_map(|(&slots, hits)| hits.map(|hits| (slots, hits)))
            .collect(),
    };
    plan.policies.iter().zip(&studied.grid).map(hits).collect()
}

fn curve_hits(name: &str, curve: &Curve, plan: &ViewPlan) -> PolicyHits {
    let points = plan.slot_counts.iter().filter(|&&slots| slots >= curve.first_slot_count);
    PolicyHits {
        name: name.to_string(),
        points: points.map(|&slots| (slots, curve.by_window(slots))).collect(),
    }
}

fn recommend(
    best: &ForecastRow,
    pinned: Option<&PinnedRow>,
    studied: &Studied,
    lru: &PolicyHits,
    machine: &Machine,
) -> Recommendation {
    let requests = sum_over(studied.focus, &studied.workload.request_counts);
    let lru_hits = lru.at(best.slot_count).map_or(0, |hits| sum_over(studied.focus, hits));
    let mut reason = format!(
        "{} hits {:.2} % at {} slots, LRU {:.2} %",
        best.policy,
        best.hit_percent,
        best.slot_count,
        percent(lru_hits, requests)
    );
    let held = best.trunk_held_bytes;
    reason += &match machine.trunk_bytes {
        0 => String::new(),
        all if held >= all => "; the whole trunk is held".to_string(),
        all => format!("; {:.0} % of the trunk is held", 100.0 * held as f64 / all as f64),
    };
    let mut pins = Vec::new();
    if let Some(row) = pinned {
        let rate = |hits: u64| percent(hits, row.judged_request_count);
        let gain = rate(row.pinned_hits) - rate(row.best_hits);
        if gain >= chance_points(row.judged_request_count) && row.pin_count > 0 {
            pins = pin_list(studied, row.pin_count.min(PIN_LIST));
            reason +=
                &format!("; pins gain {gain:.2} points on the part they were not learned from");
        } else {
            reason += &format!(
                "; no expert pins: on the part they were not learned from they reach {:.2} %, {} \
                 {:.2} %",
                rate(row.pinned_hits),
                row.best_policy,
                rate(row.best_hits)
            );
        }
    }
    Recommendation {
        memory_bytes: best.memory_bytes,
        preset: best.preset,
        policy: best.policy.clone(),
        trunk_held_gb: rounded_fine(held as f64 / 1e9),
        slot_count: best.slot_count,
        pins,
        reason,
    }
}

fn pin_list(studied: &Studied, count: usize) -> Vec<HotExpert> {
    let workload = &studied.workload;
    let hot = |&expert: &u32| {
        let key = workload.shape.key(expert);
        let uses = workload.groups.iter().filter(|group| !Window::JUDGED.contains(&group.window));
        let uses = uses.filter(|group| workload.experts_of(group).contains(&expert)).count();
        HotExpert { layer: key.layer, expert: key.expert, request_count: uses as u32 }
    };
    trained_pins(workload, count).iter().map(hot).collect()
}

/// Seconds by split for a few of the limits.
fn split_curves(
    studied: &Studied,
    demanded: &Demanded,
    machine: &Machine,
    limits: &[MemoryLimit],
    policies: &[PolicyHits],
) -> Vec<SplitCurve> {
    let shape = &demanded.shape;
    let least = machine.fixed_bytes + studied.lru.first_slot_count as u64 * shape.expert_bytes;
    let memories: Vec<u64> = limits
        .iter()
        .filter_map(|limit| match limit {
            MemoryLimit::Memory { bytes } if *bytes > least => Some(*bytes),
            _ => None,
        })
        .collect();
    let count = memories.len().min(SPLIT_COUNT);
    // Evenly spread over the limits, from the largest down, the smallest rarely having a choice.
    let chosen =
        (0..count).map(|place| memories[memories.len() - 1 - place * memories.len() / count]);
    let mut chosen: Vec<u64> = chosen.collect();
    chosen.sort_unstable();
    let best = policies.iter().find(|hits| hits.name == "layer-cycle").or(policies.first());
    chosen.into_iter().map(|memory| split_curve(studied, demanded, machine, memory, best)).collect()
}

fn split_curve(
    studied: &Studied,
    demanded: &Demanded,
    machine: &Machine,
    memory: u64,
    policy: Option<&PolicyHits>,
) -> SplitCurve {
    let left = memory - machine.fixed_bytes;
    let most = (left / demanded.shape.expert_bytes) as usize;
    let first = studied.lru.first_slot_count;
    let mut slots: Vec<usize> = (0..=SPLIT_POINTS)
        .map(|point| first + (most - first) * point / SPLIT_POINTS)
        .chain(policy.iter().flat_map(|hits| hits.points.iter().map(|point| point.0)))
        .filter(|slots| (first..=most).contains(slots))
        .collect();
    slots.sort_unstable();
    slots.dedup();
    let point = |slot_count: usize| {
        let slot_bytes = slot_count as u64 * demanded.shape.expert_bytes;
        let held = (left - slot_bytes).min(machine.trunk_bytes);
        let seconds =
            |hits| row_for(machine, demanded, "", slot_count, hits, held).seconds_per_token;
        SplitPoint {
            slot_count,
            expert_slot_gb: rounded_fine(slot_bytes as f64 / 1e9),
            trunk_held_gb: rounded_fine(held as f64 / 1e9),
            lru_seconds: seconds(&studied.lru.by_window(slot_count)),
            optimum_seconds: seconds(&studied.optimum.by_window(slot_count)),
            policy_seconds: policy.and_then(|hits| hits.at(slot_count)).map(seconds),
        }
    };
    SplitCurve { memory_bytes: memory, points: slots.into_iter().map(point).collect() }
}
