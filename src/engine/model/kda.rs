//! KDA, steps 1 to 5 of MODEL.md section 2.3 (K1…K13), for a chunk of tokens.
//!
//! Tokens follow one another through the state, heads are independent: threads take heads. One
//! token and many run the same code, so a chunk boundary changes no bit.

use super::forward::Pass;
use super::stage_output::StageOutput;
use super::workspace::KdaBuffers;
use super::{EngineError, KdaState, KdaWeights, LayerWeights, State, Workspace};
use crate::kernels::convolution::shift_history;
use crate::kernels::kda::{DecayInputs, StepInputs};
use crate::kernels::norm::inverse_root;
use crate::kernels::products::Product;
use k3_core::stages::Stage;

/// KDA of a chunk: reads `residual.normed`, writes `residual.output` (after o_proj).
pub(super) fn forward(
    pass: &Pass<'_>,
    layer: &LayerWeights,
    weights: &KdaWeights,
    state: &mut State,
    work: &mut Workspace,
    stages: &mut StageOutput<'_>,
) -> Result<(), EngineError> {
    let t = pass.tokens;
    let slot = pass.shape.layers[pass.layer].slot;
    let slot = &mut state.kda[slot];
    let buffers = &mut work.kda;
    project(pass, layer, weights, work.residual.normed.first(t), buffers);
    convolve(pass, weights, slot, buffers);
    decay(pass, weights, buffers);
    put_inputs(pass, buffers, stages);
    recur(pass, slot, buffers);
    put_outputs(pass, slot, buffers, stages);
    gate(pass, weights, buffers);
    pass.product(&layer.output, buffers.output.first(t), work.residual.output.first_mut(t));
    Ok(())
}

/// Every projection of the normed input, f_b of f_a, and β.
fn project(
    pass: &Pass<'_>,
    layer: &LayerWeights,
    weights: &KdaWeights,
    x: &[f32],
    buffers: &mut KdaBuffers,
) {
    let t = pass.tokens;
    let [q, k, v] = &mut buffers.inputs;
    let [wq, wk, wv] = &weights.projections;
    let outs = [
        (wq, q),
        (wk, k),
        (wv, v),
        (&layer.gate, &mut buffers.gate),
        (&weights.f_a, &mut buffers.low_rank),
        (&weights.b, &mut buffers.beta),
    ];
    let products = outs.into_iter().map(|(matrix, out)| Product {
        matrix: matrix.view(),
        vectors: x,
        out: out.first_mut(t),
    });
    pass.products(products.collect());
    pass.product(&weights.f_b, buffers.low_rank.first(t), buffers.z.first_mut(t));
    (pass.kernels.sigmoid)(buffers.beta.first_mut(t));
}

/// Convolution over time, SiLU, then per head the norm of q and k and the scale of q.
fn convolve(pass: &Pass<'_>, weights: &KdaWeights, slot: &mut KdaState, buffers: &mut KdaBuffers) {
    let (kernels, width) = (&pass.kernels, pass.shape.kda.width);
    let head_width = pass.shape.kda.head_dim;
    // Factors after the l2norm of q and k; v is not normed.
    let factors = [Some(inverse_root(head_width)), Some(1.0), None];
    let third = slot.convolution.len() / 3;
    let (query, rest) = slot.convolution.split_at_mut(third);
    let (key, value) = rest.split_at_mut(third);
    let parts = [query, key, value].into_iter().zip(&weights.taps).zip(factors);
    let rows = buffers.inputs.iter().zip(&mut buffers.vectors);
    pass.threads.for_each(parts.zip(rows).collect(), &|(
        ((history, taps), factor),
        (input, out),
    )| {
        for (token, out) in out.first_mut(pass.tokens).chunks_exact_mut(width).enumerate() {
            let newest = input.row(token);
            let window: Vec<&[f32]> = history.chunks_exact(width).chain([newest]).collect();
            (kernels.convolve)(&window, taps, out);
            (kernels.silu)(kernels, out);
            for head in out.chunks_exact_mut(head_width) {
                if let Some(factor) = factor {
                    (kernels.l2_norm)(head, factor);
                }
            }
            shift_history(history, newest);
        }
    });
}

/// g and α per head and channel.
fn decay(pass: &Pass<'_>, weights: &KdaWeights, buffers: &mut KdaBuffers) {
    let (kernels, width) = (&pass.kernels, pass.shape.kda.head_dim);
    let (t, projection, lower_bound) =
        (pass.tokens, pass.shape.kda.width, pass.shape.gate_lower_bound);
    let z = buffers.z.first(t).chunks_exact(projection);
    let log_decay = buffers.log_decay.first_mut(t).chunks_exact_mut(projection);
    let alpha = buffers.alpha.first_mut(t).chunks_exact_mut(projection);
    pass.threads.for_each(z.zip(log_decay).zip(alpha).collect(), &|((z, log_decay), alpha)| {
        let heads = z.chunks_exact(width).zip(log_decay.chunks_exact_mut(width));
        let gates = weights.dt_bias.chunks_exact(width).zip(&weights.a_log);
        for ((z, out), (dt_bias, a_log)) in heads.zip(gates) {
            let inputs = DecayInputs { z, dt_bias, a_log: *a_log, lower_bound };
            (kernels.log_decay)(kernels, &inputs, out);
        }
        alpha.copy_from_slice(log_decay);
        (kernels.exp)(alpha);
    });
}

/// The recurrence: each head through all tokens of the chunk.
fn recur(pass: &Pass<'_>, slot: &mut KdaState, buffers: &mut KdaBuffers) {
    let width = pass.shape.kda.head_dim;
    let projection = pass.shape.kda.width;
    let mut outs: Vec<Vec<&mut [f32]>> = Vec::new();
    outs.resize_with(pass.shape.kda.heads, Vec::new);
    for row in buffers.output.first_mut(pass.tokens).chunks_exact_mut(projection) {
        for (head, out) in row.chunks_exact_mut(width).enumerate() {
            outs[head].push(out);
        }
    }
    let [q, k, v] = &buffers.vectors;
    let (alpha, beta) = (&buffers.alpha, &buffers.beta);
    let states = slot.recurrent.chunks_exact_mut(width * width);
    let work: Vec<_> = states.zip(outs).enumerate().collect();
    pass.threads.for_each(work, &|(head, (state, outs))| {
        let columns = head * width..(head + 1) * width;
        for (token, out) in outs.into_iter().enumerate() {
            let inputs = StepInputs {
                q: &q.row(token)[columns.clone()],
                k: &k.row(token)[columns.clone()],
                v: &v.row(token)[columns.clone()],
                alpha: &alpha.row(token)[columns.clone()],
                beta: beta.row(token)[head],
            };
            (pass.kernels.kda_step)(state, &inputs, out);
        }
    });
}

/// K12: per head, norm then gate.
fn gate(pass: &Pass<'_>, weights: &KdaWeights, buffers: &mut KdaBuffers) {
    let (t, width, projection) = (pass.tokens, pass.shape.kda.head_dim, pass.shape.kda.width);
    let norm = (weights.o_norm.weight.as_slice(), weights.o_norm.epsilon);
    let outputs = buffers.output.first_mut(t).chunks_exact_mut(projection);
    let gates = buffers.gate.first_mut(t).chunks_exact_mut(projection);
    pass.threads.for_each(outputs.zip(gates).collect(), &|(output, gate)| {
        for (o, gate) in output.chunks_exact_mut(width).zip(gate.chunks_exact_mut(width)) {
            (pass.kernels.gated_norm)(&pass.kernels, o, norm, gate);
        }
    });
}

fn put_inputs(pass: &Pass<'_>, buffers: &KdaBuffers, stages: &mut StageOutput<'_>) {
    let t = pass.tokens;
    let per_channel = [t, pass.shape.kda.heads, pass.shape.kda.head_dim];
    let [q, k, v] = &buffers.vectors;
    stages.put(Stage::KdaQ, &per_channel, q.first(t));
    stages.put(Stage::KdaK, &per_channel, k.first(t));
    stages.put(Stage::KdaV, &per_channel, v.first(t));
    stages.put(Stage::KdaZ, &per_channel, buffers.z.first(t));
    stages.put(Stage::KdaG, &per_channel, buffers.log_decay.first(t));
    stages.put(Stage::KdaBeta, &per_channel[..2], buffers.beta.first(t));
}

fn put_outputs(
    pass: &Pass<'_>,
    slot: &KdaState,
    buffers: &KdaBuffers,
    stages: &mut StageOutput<'_>,
) {
    let (t, heads, width) = (pass.tokens, pass.shape.kda.heads, pass.shape.kda.head_dim);
    stages.put(Stage::KdaO, &[t, heads, width], buffers.output.first(t));
    stages.put(Stage::KdaState, &[heads, width, width], &slot.recurrent);
    let history = [3, pass.shape.kda.taps - 1, pass.shape.kda.width];
    stages.put(Stage::KdaConv, &history, &slot.convolution);
}
