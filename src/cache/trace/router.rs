//! What the output of a real router always obeys, checked where a file says nothing of itself.
//!
//! Every position asks a layer for exactly k experts, all different; the layers come in order, and
//! a trace of several passes reaches the model's last layer and uses more than the low expert ids.
//! A pass may also hold the union of its positions' experts, as long as others are single.

use super::{Demand, Trace, TraceError};
use crate::shape::ModelShape;

/// Requests of a headerless trace below which its order proves nothing.
pub(super) const ENOUGH_REQUESTS: usize = 100;

/// Words of another width than int32, where the bytes tell.
pub(super) fn width(bytes: &[u8]) -> Result<(), TraceError> {
    let words: Vec<u32> = bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .collect();
    // Sixteen requests: fewer may be zero by chance.
    if words.len() < 64 {
        return Ok(());
    }
    // Whole numbers from 1 to 65536, or 0.
    let is_f32 = |word: &u32| (0x3f80_0000..0x4800_0000).contains(word) || *word == 0;
    let zero = |odd: usize| words.iter().skip(odd).step_by(2).all(|&word| word == 0);
    let other = |odd: usize| words.iter().skip(odd).step_by(2).any(|&word| word != 0);
    let looks = if zero(0) && other(1) && words.iter().all(|&word| word == 0 || word >> 20 >= 0x3ff)
    {
        "float64"
    } else if is_triples(&words) {
        "triples of int32 (token, layer, expert)"
    } else if zero(1) && other(0) {
        "int64 (every second word is 0)"
    } else if zero(0) && other(1) && words.iter().any(|&word| word > 0xffff) {
        "big-endian int64"
    } else if words.iter().all(is_f32) && other(0) {
        "float32"
    } else if words.iter().all(|word| is_f32(&word.swap_bytes())) && other(0) {
        "big-endian float32"
    } else if words.iter().all(|&word| word & 0xffff < 4096)
        && words.iter().filter(|&&word| word > 0xffff).count() > words.len() / 2
        && words.iter().any(|&word| word & 0xffff != 0)
    {
        "int16"
    } else {
        return Ok(());
    };
    Err(TraceError::whole(format!(
        "the file looks like {looks}, pairs of little-endian int32 (layer, expert) are read: write \
         them with numpy's .astype('<i4')"
    )))
}

/// The words of a table of three columns of which the first counts positions.
fn is_triples(words: &[u32]) -> bool {
    let (rows, rest) = words.as_chunks::<3>();
    let rises = |pair: &[[u32; 3]]| pair[0][0] == pair[1][0] || pair[0][0] + 1 == pair[1][0];
    rest.is_empty()
        && words.iter().all(|&word| word < 1 << 16)
        && rows.windows(2).all(rises)
        && rows.first().map(|row| row[0]) != rows.last().map(|row| row[0])
}

/// The rules, for a trace whose demands were cut by the order of its requests.
pub(super) fn check(trace: &Trace) -> Result<(), TraceError> {
    let (shape, demands) = (&trace.shape, &trace.demands);
    let top_k = shape.top_k;
    let layers = trace.layers();
    let layer_count = u32::from(layers.last().copied().unwrap_or(0)) + 1;
    let expert = |&index: &u32| u32::from(shape.key(index).expert);
    let expert_count = trace.requests.iter().map(expert).max().unwrap_or(0) + 1;
    let passes: Vec<&[Demand]> = demands.chunk_by(|a, b| a.layer <= b.layer).collect();
    let lengths: Vec<Vec<u32>> = passes.iter().map(|pass| run_lengths(pass)).collect();
    // A trace may be cut off inside its last run.
    let count = lengths.iter().map(Vec::len).sum::<usize>() - 1;
    let whole: Vec<u32> = lengths.iter().flatten().copied().take(count).collect();
    let unions: Vec<bool> = passes.iter().map(|pass| is_union(trace, pass)).collect();
    let is_union =
        lengths.iter().zip(&unions).flat_map(|(pass, &union)| pass.iter().map(move |_| union));
    let odd = whole.iter().zip(is_union).enumerate();
    let odd = odd.filter(|(_, (length, union))| !union && *length % top_k != 0);
    let odd = odd.map(|(run, _)| run).next().or_else(|| {
        // Nothing tells what one position asks for.
        unions.iter().all(|union| *union).then_some(0)
    });
    if let Some(run) = odd {
        let length = whole.get(run).copied().unwrap_or(0);
        let common = whole.iter().copied().fold(0, gcd);
        let usual = usual(&whole);
        return Err(if common > 1 || usual < top_k {
            other_model(
                format!("a layer is asked for {length} experts, no multiple of top-k {top_k}"),
                format!(
                    "--model-layers {layer_count} --experts {expert_count} (or more) \
                     --top-k {}",
                    if common > 1 { common } else { usual }
                ),
            )
        } else {
            TraceError::whole(format!(
                "run {run}: a layer is asked for {length} experts, no multiple of top-k {top_k}: \
                 this looks like the union of a prefill's experts, and no passes of single \
                 positions follow it; record the {top_k} experts of each position"
            ))
        });
    }
    distinct(trace)?;
    in_order(trace, &layers)?;
    if *shape == ModelShape::K3 && layers.first() == Some(&0) {
        return Err(other_model(
            "layer 0 asks for experts, and that of K3 is dense".to_owned(),
            format!("--model-layers {layer_count} --experts {expert_count} (or more)"),
        ));
    }
    let passes = passes.len();
    if passes >= 2 && layer_count < shape.layer_count {
        return Err(other_model(
            format!("{passes} passes end at layer {}, of {}", layer_count - 1, shape.layer_count),
            format!("--model-layers {layer_count}"),
        ));
    }
    let each = trace.requests.len() as u64 / layers.len().max(1) as u64;
    if each >= 8 * u64::from(shape.experts_per_layer) && 2 * expert_count <= shape.experts_per_layer
    {
        return Err(other_model(
            format!(
                "no expert above {} of {} in {each} requests to a layer",
                expert_count - 1,
                shape.experts_per_layer
            ),
            format!("--experts {expert_count}"),
        ));
    }
    Ok(())
}

/// No demand asks twice for an expert.
fn distinct(trace: &Trace) -> Result<(), TraceError> {
    let top_k = trace.shape.top_k;
    for (index, demand) in trace.demands.iter().enumerate() {
        let mut experts = trace.experts(demand).to_vec();
        experts.sort_unstable();
        if let Some(twice) = experts.windows(2).find(|pair| pair[0] == pair[1]) {
            let (layer, expert) = (demand.layer, trace.shape.key(twice[0]).expert);
            return Err(other_model(
                format!(
                    "demand {index}: expert {expert} of layer {layer} twice among {top_k}; a \
                     router chooses {top_k} different ones"
                ),
                "--top-k N (or the file holds something else than layer and expert)".to_string(),
            ));
        }
    }
    Ok(())
}

/// Experts that each layer of a pass is asked for.
fn run_lengths(pass: &[Demand]) -> Vec<u32> {
    let runs = pass.chunk_by(|a, b| a.layer == b.layer);
    runs.map(|run| run.iter().map(|demand| demand.count).sum()).collect()
}

/// The commonest of some lengths, the least among equals.
pub(super) fn usual(lengths: &[u32]) -> u32 {
    let mut sorted = lengths.to_vec();
    sorted.sort_unstable();
    let runs = sorted.chunk_by(|a, b| a == b);
    // `max_by_key` would take the last of equals.
    runs.rev().max_by_key(|run| run.len()).map_or(0, |run| run[0])
}

/// Whether a pass over the layers holds, for each of them, the UNION of what its positions chose,
/// as an engine's cache sees a prefill: every expert once, at least top-k of them, and not the
/// same multiple of top-k in every layer.
pub fn is_union(trace: &Trace, pass: &[Demand]) -> bool {
    let top_k = trace.shape.top_k;
    let lengths = run_lengths(pass);
    let regular = lengths.iter().all(|length| length % top_k == 0 && *length == lengths[0]);
    let mut runs = pass.chunk_by(|a, b| a.layer == b.layer);
    !regular
        && lengths.iter().all(|length| *length >= top_k)
        && runs.all(|run| {
            let mut experts: Vec<u32> =
                run.iter().flat_map(|demand| trace.experts(demand)).copied().collect();
            let count = experts.len();
            experts.sort_unstable();
            experts.dedup();
            experts.len() == count
        })
}

/// Whether every pass asks every layer, in order.
fn in_order(trace: &Trace, layers: &[u16]) -> Result<(), TraceError> {
    let mut asked: Vec<u16> = trace.demands.iter().map(|demand| demand.layer).collect();
    asked.dedup();
    let begin = layers.iter().position(|layer| Some(layer) == asked.first()).unwrap_or(0);
    let due = layers.iter().cycle().skip(begin);
    if let Some((run, (layer, due))) = asked.iter().zip(due).enumerate().find(|(_, (a, b))| a != b)
    {
        return Err(TraceError::whole(format!(
            "run {run}: layer {layer} is asked where layer {due} is due: a pass asks every layer \
             in order; lines may be missing, or sequences mixed"
        )));
    }
    Ok(())
}

fn other_model(what: String, flags: String) -> TraceError {
    TraceError::OutOfRange(format!("{what}: try {flags}"))
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
