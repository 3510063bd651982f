//! What the defaults of [`Operations`] do that is more than a line: the operations made of others,
//! written once over any `Operations`, and the plain rules.
//!
//! The former are compiled twice: for production in its own type, and for all wrong variants
//! together behind `dyn Operations`, where each call lands on the variant's own method if it has
//! one.

use super::{Operations, Projection};
use crate::kernels::contract::round_to_f32;
use crate::kernels::rows::Row;
use crate::kernels::simd::compiled;
use crate::kernels::situ;
use crate::kernels::situ::Caps;
use crate::kernels::sums;
use crate::kernels::sums::Vectors;
use crate::kernels::{kda, softmax};

/// A6: softmax over `scores` (overwritten), applied to the vectors.
pub(super) fn softmax_sum<O: Operations + ?Sized>(
    operations: &O,
    scores: &mut [f32],
    vectors: Vectors<'_>,
    out: &mut [f32],
) {
    if !softmax::shift_by_maximum(scores) {
        out.fill(0.0);
        return;
    }
    operations.exp_all(scores);
    let z = sums::scalar_sum(scores);
    compiled::weighted_sum_over(operations.path(), scores, vectors, z, out);
}

/// R2: the mix of one token; `keys` is scratch of one row.
pub(super) fn residual_mix<O: Operations + ?Sized>(
    operations: &O,
    sources: &[&[f32]],
    folded: &[f32],
    epsilon: f64,
    keys: &mut [f32],
    out: &mut [f32],
) {
    let mut scores = vec![0.0; sources.len()];
    for (score, source) in scores.iter_mut().zip(sources) {
        operations.rms_norm_unit(source, epsilon, keys);
        *score = operations.row_product(Row::F32(folded), keys);
    }
    operations.softmax_sum(&mut scores, Vectors::List(sources), out);
}

/// x·σ(x) of every element.
pub(super) fn silu_all<O: Operations + ?Sized>(operations: &O, values: &mut [f32]) {
    let mut logistic = [0.0; situ::BLOCK];
    for block in values.chunks_mut(situ::BLOCK) {
        let logistic = &mut logistic[..block.len()];
        logistic.copy_from_slice(block);
        operations.sigmoid_all(logistic);
        for (value, logistic) in block.iter_mut().zip(logistic) {
            *value *= *logistic;
        }
    }
}

/// K3, K4: q is normed and scaled by D^−½, k is normed, v is left alone.
pub(super) fn condition_head<O: Operations + ?Sized>(
    operations: &O,
    projection: Projection,
    head: &mut [f32],
) {
    match projection {
        Projection::Query => {
            operations.l2_norm(head);
            let scale = operations.query_scale(head.len());
            head.iter_mut().for_each(|value| *value *= scale);
        }
        Projection::Key => operations.l2_norm(head),
        Projection::Value => {}
    }
}

/// K6, K7: log decay of head `head`; `z` and `dt_bias` are that head's.
pub(super) fn log_decay<O: Operations + ?Sized>(
    operations: &O,
    head: usize,
    z: &[f32],
    dt_bias: &[f32],
    gate: (&[f32], f32),
    out: &mut [f32],
) {
    let (a_log, lower_bound) = gate;
    let mut rate = [a_log[head]];
    operations.exp_all(&mut rate);
    kda::decay_argument(z, dt_bias, rate[0], out);
    operations.sigmoid_all(out);
    out.iter_mut().for_each(|value| *value *= lower_bound);
}

/// K12: one head's output, normed, then gated.
pub(super) fn kda_head_output<O: Operations + ?Sized>(
    operations: &O,
    o: &mut [f32],
    weight: &[f32],
    epsilon: f64,
    gate: &mut [f32],
) {
    let raw = o.to_vec();
    operations.rms_norm(&raw, weight, epsilon, o);
    operations.output_gate(o, gate);
}

/// K12, M7: values · σ(gate); `gate` is overwritten.
pub(super) fn output_gate<O: Operations + ?Sized>(
    operations: &O,
    values: &mut [f32],
    gate: &mut [f32],
) {
    operations.sigmoid_all(gate);
    for (value, gate) in values.iter_mut().zip(gate) {
        *value *= *gate;
    }
}

/// M2, M3: the cached row, \[normed latent | raw rope part\].
pub(super) fn cache_row<O: Operations + ?Sized>(
    operations: &O,
    compressed: &[f32],
    weight: &[f32],
    epsilon: f64,
    out: &mut [f32],
) {
    let (latent, rope) = compressed.split_at(weight.len());
    let (latent_out, rope_out) = out.split_at_mut(weight.len());
    operations.rms_norm(latent, weight, epsilon, latent_out);
    rope_out.copy_from_slice(rope);
}

/// S1, S2 (A9): SiTU in f32 steps.
pub(super) fn situ<O: Operations + ?Sized>(
    operations: &O,
    gate: &[f32],
    up: &[f32],
    caps: Caps,
    out: &mut [f32],
) {
    let mut buffers = [[0.0; situ::BLOCK]; 3];
    let blocks = gate.chunks(situ::BLOCK).zip(up.chunks(situ::BLOCK));
    for ((gate, up), out) in blocks.zip(out.chunks_mut(situ::BLOCK)) {
        let [tanh_gate, sigmoid_gate, tanh_up] = &mut buffers;
        let n = gate.len();
        tanh_gate[..n].copy_from_slice(gate);
        sigmoid_gate[..n].copy_from_slice(gate);
        tanh_up[..n].copy_from_slice(up);
        situ::divide(&mut tanh_gate[..n], caps.beta);
        situ::divide(&mut tanh_up[..n], caps.linear_beta);
        operations.tanh_all(&mut tanh_gate[..n]);
        operations.sigmoid_all(&mut sigmoid_gate[..n]);
        operations.tanh_all(&mut tanh_up[..n]);
        situ::combine(tanh_gate, sigmoid_gate, tanh_up, caps, out);
    }
}

/// L3: the embedding row of an id, widened.
pub(super) fn embed(row: Row<'_>, out: &mut [f32]) {
    for (column, out) in out.iter_mut().enumerate() {
        *out = round_to_f32(row.value(column));
    }
}

/// K7, K8: the first `heads` values of `A_log`; the rest must be zero.
///
/// # Errors
/// Index and value of the first non-zero padding.
pub(super) fn a_log(stored: &[f32], heads: usize) -> Result<Vec<f32>, (usize, f32)> {
    let tail = stored.iter().enumerate().skip(heads);
    match tail.into_iter().find(|(_, value)| **value != 0.0) {
        Some((index, value)) => Err((index, *value)),
        None => Ok(stored[..heads].to_vec()),
    }
}

/// running += addend, one f32 addition each.
pub(super) fn add(running: &mut [f32], addend: &[f32]) {
    for (running, addend) in running.iter_mut().zip(addend) {
        *running += addend;
    }
}

/// E9, E10: up·y plus the shared MLP's output, unweighted.
pub(super) fn combine_moe(routed: &[f32], shared: &[f32], out: &mut [f32]) {
    for ((out, routed), shared) in out.iter_mut().zip(routed).zip(shared) {
        *out = routed + shared;
    }
}

/// R1: the sources of a mix, in the order of their index.
pub(super) fn mix_sources<'a>(banks: &[&'a [f32]], running: &'a [f32]) -> Vec<&'a [f32]> {
    banks.iter().copied().chain([running]).collect()
}
