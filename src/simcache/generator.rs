//! Generated traces: the same on every machine, from a seed and integers only.
//!
//! Two kinds. `cyclic` asks every layer for experts 0..k, then k..2k and so on, and repeats: the
//! purest scan. `zipf` gives every layer a popularity of its own and keeps part of a position's
//! experts for the next one, as real routing does:
//!
//! 1. Layer l draws from a SplitMix64 of its own, seeded with the first output of a SplitMix64
//!    seeded `seed + l`.
//! 2. Its experts are shuffled (Fisher-Yates from the end); the one at place r (from 1) has weight
//!    floor(sqrt(sqrt(2^120 / r^q))), which is 2^30 / r^(q/4) rounded down: a Zipf exponent of q/4.
//! 3. At each position, each expert of the position before (in its order) is kept if `below(d)` is
//!    less than n, for a kept share of n/d. Then experts are drawn by weight (`below(total)` in the
//!    running sums), those already chosen are drawn again, until there are k.
//! 4. The k are shuffled: the router's order is not the order of popularity.
//!
//! Prefill positions run through each layer together, later positions one by one.

use k3_cache::shape::ModelShape;
use k3_cache::trace::{Chunk, Demand, Phase, Step, Trace};
use k3_core::random::SplitMix64;

/// A family member: sizes, positions, popularity, kept share, seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZipfSpec {
    /// Sizes of the model.
    pub shape: ModelShape,
    /// Positions of the prompt.
    pub prefill_positions: u32,
    /// Single positions after it.
    pub decode_positions: u32,
    /// Four times the Zipf exponent, at most 8.
    pub exponent_quarters: u32,
    /// Share of a position's experts kept for the next: numerator and denominator.
    pub kept_share: (u64, u64),
    /// Seed.
    pub seed: u64,
}

/// A trace by popularity and persistence.
pub fn zipf(spec: &ZipfSpec) -> Trace {
    let positions = spec.prefill_positions + spec.decode_positions;
    let first_layer = spec.shape.first_moe_layer;
    let rows: Vec<Vec<Vec<u32>>> = (first_layer..spec.shape.layer_count)
        .map(|layer| zipf_layer(spec, layer, positions))
        .collect();
    from_rows(&spec.shape, spec.prefill_positions, &rows)
}

/// Every layer asks for its experts in order, round and round.
pub fn cyclic(shape: &ModelShape, prefill_positions: u32, decode_positions: u32) -> Trace {
    let positions = prefill_positions + decode_positions;
    let row = |position: u32| {
        let first = position * shape.top_k;
        (first..first + shape.top_k).map(|expert| expert % shape.experts_per_layer).collect()
    };
    let layer: Vec<Vec<u32>> = (0..positions).map(row).collect();
    let layers = (shape.layer_count - shape.first_moe_layer) as usize;
    from_rows(shape, prefill_positions, &vec![layer; layers])
}

/// The trace of incremental decoding with this routing: `rows[layer][position]` are the experts
/// of a MoE layer (counted from the first) for a position. Recorded routing, such as the router
/// ids of an oracle, becomes a trace in the same way.
pub fn from_rows(shape: &ModelShape, prefill_positions: u32, rows: &[Vec<Vec<u32>>]) -> Trace {
    let mut trace = Trace {
        shape: *shape,
        requests: Vec::new(),
        demands: Vec::new(),
        chunks: Vec::new(),
        steps: Vec::new(),
        prefetches: Vec::new(),
        decisions: Vec::new(),
        header: None,
    };
    let positions = rows.first().map_or(0, Vec::len) as u32;
    let mut first_position = 0;
    while first_position < positions {
        let prefill = first_position < prefill_positions;
        let (phase, position_count) =
            if prefill { (Phase::Prefill, prefill_positions) } else { (Phase::Decode, 1) };
        let chunk = trace.chunks.len() as u32;
        trace.steps.push(Step { phase, first_position, position_count });
        trace.chunks.push(Chunk { step: chunk, first_position, position_count });
        for (place, layer_rows) in rows.iter().enumerate() {
            let layer = shape.first_moe_layer + place as u32;
            for position in first_position..first_position + position_count {
                let row = &layer_rows[position as usize];
                let (first, count) = (trace.requests.len() as u32, row.len() as u32);
                let experts = row.iter().map(|expert| layer * shape.experts_per_layer + expert);
                trace.requests.extend(experts);
                let layer = layer as u16;
                trace.demands.push(Demand { chunk, position, layer, first, count });
            }
        }
        first_position += position_count;
    }
    trace
}

fn zipf_layer(spec: &ZipfSpec, layer: u32, positions: u32) -> Vec<Vec<u32>> {
    let mut seeds = SplitMix64::new(spec.seed.wrapping_add(u64::from(layer)));
    let mut generator = SplitMix64::new(seeds.next_u64());
    let mut by_rank: Vec<u32> = (0..spec.shape.experts_per_layer).collect();
    generator.shuffle(&mut by_rank);
    let mut total = 0;
    let sums: Vec<u64> = (1..=u64::from(spec.shape.experts_per_layer))
        .map(|rank| {
            total += zipf_weight(rank, spec.exponent_quarters);
            total
        })
        .collect();
    let mut rows: Vec<Vec<u32>> = Vec::with_capacity(positions as usize);
    for _ in 0..positions {
        let (numerator, denominator) = spec.kept_share;
        let mut row: Vec<u32> = match rows.last() {
            Some(before) => before
                .iter()
                .copied()
                .filter(|_| generator.below(denominator) < numerator)
                .collect(),
            None => Vec::new(),
        };
        while row.len() < spec.shape.top_k as usize {
            let drawn = generator.below(total);
            let expert = by_rank[sums.partition_point(|&sum| sum <= drawn)];
            if !row.contains(&expert) {
                row.push(expert);
            }
        }
        generator.shuffle(&mut row);
        rows.push(row);
    }
    rows
}

/// 2^30 / rank^(quarters/4), rounded down (at least 1).
fn zipf_weight(rank: u64, quarters: u32) -> u64 {
    let power = u128::from(rank).pow(quarters);
    (((1_u128 << 120) / power).isqrt().isqrt() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The generator's own vector: whoever writes it again can compare.
    #[test]
    fn the_first_requests_of_a_seed() {
        let spec = ZipfSpec {
            shape: ModelShape::K3,
            prefill_positions: 2,
            decode_positions: 1,
            exponent_quarters: 4,
            kept_share: (1, 3),
            seed: 42,
        };
        let trace = zipf(&spec);
        let experts: Vec<u16> =
            trace.requests[..32].iter().map(|&expert| trace.shape.key(expert).expert).collect();
        assert_eq!(experts, FIRST_OF_SEED_42);
        assert_eq!(trace.requests.len(), 3 * 92 * 16);
    }

    const FIRST_OF_SEED_42: [u16; 32] = [
        722, 750, 837, 789, 443, 203, 638, 852, 590, 148, 289, 580, 663, 860, 415, 92, //
        105, 749, 638, 569, 325, 178, 538, 203, 663, 289, 92, 789, 323, 722, 750, 523,
    ];

    #[test]
    fn weights_are_the_powers_they_claim_to_be() {
        assert_eq!(zipf_weight(1, 4), 1 << 30);
        assert_eq!(zipf_weight(2, 4), 1 << 29);
        assert_eq!(zipf_weight(16, 2), 1 << 28);
        assert_eq!(zipf_weight(16, 3), 1 << 27);
        assert_eq!(zipf_weight(896, 8), (1 << 30) / (896 * 896));
    }
}
