//! Statistics of a trace without any cache: hottest experts, reuse from one position to the next,
//! reuse distances, plateau and knee of a curve.

use serde::Serialize;

use super::curve::Curve;
use k3_cache::trace::{Demand, Phase, Trace};

/// One expert and how often it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HotExpert {
    /// Zero-based layer.
    pub layer: u16,
    /// Zero-based expert.
    pub expert: u16,
    /// Requests.
    pub request_count: u32,
}

/// The most asked for experts; ties in order of layer and expert.
pub fn hottest(trace: &Trace, count: usize) -> Vec<HotExpert> {
    let mut uses = vec![0_u32; trace.shape.expert_count()];
    for &expert in &trace.requests {
        uses[expert as usize] += 1;
    }
    let mut ranked: Vec<u32> =
        (0..uses.len() as u32).filter(|&expert| uses[expert as usize] > 0).collect();
    ranked.sort_by_key(|&expert| (std::cmp::Reverse(uses[expert as usize]), expert));
    let hot = |&expert: &u32| {
        let key = trace.shape.key(expert);
        let request_count = uses[expert as usize];
        HotExpert { layer: key.layer, expert: key.expert, request_count }
    };
    ranked.iter().take(count).map(hot).collect()
}

/// Experts that a position shares with the position before, layer by layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reuse {
    /// Layers, ascending.
    pub layers: Vec<u16>,
    /// Positions that have a predecessor in the trace, ascending.
    pub positions: Vec<u32>,
    /// `[layer][position]`: shared experts; null where one of the two rows is missing.
    pub shared_counts: Vec<Vec<Option<u32>>>,
    /// Mean over the positions, by layer.
    pub mean_by_layer: Vec<f64>,
    /// Mean over everything.
    pub mean: f64,
}

/// Reuse between consecutive positions; None where positions are unknown or re-computed.
pub fn reuse(trace: &Trace) -> Option<Reuse> {
    let marked =
        |step: &k3_cache::trace::Step| matches!(step.phase, Phase::Prefill | Phase::Decode);
    if !trace.steps.iter().all(marked) {
        return None;
    }
    let layers = trace.layers();
    let mut last: Vec<Option<&Demand>> = vec![None; layers.len()];
    let mut shared: Vec<(usize, u32, u32)> = Vec::new();
    for demand in &trace.demands {
        let Ok(place) = layers.binary_search(&demand.layer) else {
            continue;
        };
        let before = last[place].replace(demand);
        if let Some(before) = before.filter(|before| before.position + 1 == demand.position) {
            let old = trace.experts(before);
            let count = trace.experts(demand).iter().filter(|expert| old.contains(expert)).count();
            shared.push((place, demand.position, count as u32));
        }
    }
    let mut positions: Vec<u32> = shared.iter().map(|entry| entry.1).collect();
    positions.sort_unstable();
    positions.dedup();
    let mut shared_counts = vec![vec![None; positions.len()]; layers.len()];
    for (place, position, count) in shared {
        if let Ok(column) = positions.binary_search(&position) {
            shared_counts[place][column] = Some(count);
        }
    }
    let mean_by_layer: Vec<f64> =
        shared_counts.iter().map(|row| mean_of(row.iter().flatten())).collect();
    let mean = mean_of(shared_counts.iter().flatten().flatten());
    (!positions.is_empty()).then_some(Reuse {
        layers,
        positions,
        shared_counts,
        mean_by_layer: mean_by_layer.into_iter().map(rounded).collect(),
        mean: rounded(mean),
    })
}

fn mean_of<'a>(values: impl Iterator<Item = &'a u32>) -> f64 {
    let (sum, count) =
        values.fold((0_u64, 0_u64), |(sum, count), &value| (sum + u64::from(value), count + 1));
    if count == 0 { 0.0 } else { sum as f64 / count as f64 }
}

/// Four decimals, for rates: enough for a report, short in JSON.
pub fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// Nine decimals, for GB and seconds: small models read kilobytes.
pub fn rounded_fine(value: f64) -> f64 {
    (value * 1e9).round() / 1e9
}

/// `part` of `whole` in percent, four decimals; 0 of nothing is 0.
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { rounded(100.0 * part as f64 / whole as f64) }
}

/// Lookups whose reuse distance is in one range.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DistanceBucket {
    /// Smallest distance: the distinct experts since the last use, itself included.
    pub from: u32,
    /// Largest distance.
    pub to: u32,
    /// Lookups.
    pub count: u64,
}

/// Reuse distances in ranges that double; the second value counts first uses.
pub fn distance_histogram(distances: &[Option<u32>]) -> (Vec<DistanceBucket>, u64) {
    let mut buckets: Vec<DistanceBucket> = Vec::new();
    let mut first_uses = 0;
    for distance in distances {
        let Some(distance) = distance else {
            first_uses += 1;
            continue;
        };
        let bucket = distance.max(&1).ilog2() as usize;
        while buckets.len() <= bucket {
            let from = 1_u32 << buckets.len();
            buckets.push(DistanceBucket { from, to: from + (from - 1), count: 0 });
        }
        buckets[bucket].count += 1;
    }
    (buckets, first_uses)
}

/// The longest stretch (by ratio of slots) over which more slots bring next to nothing although
/// more could be had, and the knee at its end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plateau {
    /// Fewest slots of the stretch.
    pub from_slots: usize,
    /// Most slots of it: the knee. One slot more begins to pay.
    pub to_slots: usize,
    /// Hit rate at the knee, percent.
    pub hit_percent: f64,
}

/// Gain, in points, below which a stretch counts as flat.
const FLAT_POINTS: f64 = 0.5;

/// Finds the plateau of a curve over `hits_at`; None if no stretch doubles the slots.
pub fn plateau(
    curve: &Curve,
    request_count: u64,
    hits_at: impl Fn(&Curve, usize) -> u64,
) -> Option<Plateau> {
    let last = curve.distinct_count();
    let rate = |slots: usize| percent(hits_at(curve, slots), request_count);
    let ceiling = rate(last);
    let first = curve.first_slot_count.max(1);
    let mut from = first;
    let mut best: Option<(usize, usize)> = None;
    for to in first..=last {
        if ceiling - rate(to) < FLAT_POINTS {
            break;
        }
        while rate(to) - rate(from) >= FLAT_POINTS {
            from += 1;
        }
        let longer = best.is_none_or(|(old_from, old_to)| to * old_from > old_to * from);
        if to >= 2 * from && longer {
            best = Some((from, to));
        }
    }
    let (from_slots, to_slots) = best?;
    Some(Plateau { from_slots, to_slots, hit_percent: rate(to_slots) })
}
