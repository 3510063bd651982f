//! What the output of a real router always obeys, checked where a file says nothing of itself.
//!
//! Every position asks a layer for exactly k experts, all different; the layers come in order, and
//! a trace of several passes reaches the model's last layer and uses more than the low expert ids.

use super::{Trace, TraceError};

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
    let zero = |odd: usize| words.iter().skip(odd).step_by(2).all(|&word| word == 0);
    let other = |odd: usize| words.iter().skip(odd).step_by(2).any(|&word| word != 0);
    let looks = if zero(0) && other(1) && words.iter().all(|&word| word == 0 || word >> 20 >= 0x3ff)
    {
        "float64"
    } else if zero(1) && other(0) {
        "int64"
    } else if zero(0) && other(1) && words.iter().any(|&word| word > 0xffff) {
        "big-endian int64"
    } else if words.iter().all(|&word| (0x3f80_0000..0x4800_0000).contains(&word) || word == 0)
        && other(0)
    {
        "float32"
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

/// The rules, for a trace whose demands were cut by the order of its requests.
pub(super) fn check(trace: &Trace) -> Result<(), TraceError> {
    let (shape, demands) = (&trace.shape, &trace.demands);
    let top_k = shape.top_k;
    let layers = trace.layers();
    let layer_count = u32::from(layers.last().copied().unwrap_or(0)) + 1;
    let expert = |&index: &u32| u32::from(shape.key(index).expert);
    let expert_count = trace.requests.iter().map(expert).max().unwrap_or(0) + 1;
    let mut lengths: Vec<u32> = Vec::new();
    for (index, demand) in demands.iter().enumerate() {
        match lengths.last_mut() {
            Some(length) if demands[index - 1].layer == demand.layer => *length += demand.count,
            _ => lengths.push(demand.count),
        }
    }
    // A trace may be cut off inside its last run.
    let whole = &lengths[..lengths.len().saturating_sub(1)];
    if let Some(run) = whole.iter().position(|length| length % top_k != 0) {
        let length = whole[run];
        let common = whole.iter().copied().fold(0, gcd);
        return Err(if common > 1 || whole.iter().all(|&length| length == 1) {
            other_model(
                format!("a layer is asked for {length} experts, no multiple of top-k {top_k}"),
                format!(
                    "--model-layers {layer_count} --experts {expert_count} (or more) \
                     --top-k {common}"
                ),
            )
        } else {
            TraceError::whole(format!(
                "run {run}: a layer is asked for {length} experts, no multiple of top-k {top_k}: \
                 this looks like the union of a prefill's experts; record the {top_k} experts of \
                 each position"
            ))
        });
    }
    for (index, demand) in demands.iter().enumerate() {
        let mut experts = trace.experts(demand).to_vec();
        experts.sort_unstable();
        if let Some(twice) = experts.windows(2).find(|pair| pair[0] == pair[1]) {
            let (layer, expert) = (demand.layer, expert(&twice[0]));
            return Err(other_model(
                format!(
                    "demand {index}: expert {expert} of layer {layer} twice among {top_k}; a \
                     router chooses {top_k} different ones"
                ),
                "--top-k N (or the file holds something else than layer and expert)".to_string(),
            ));
        }
    }
    in_order(trace, &layers)?;
    let passes = demands.windows(2).filter(|pair| pair[1].layer < pair[0].layer).count() + 1;
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
