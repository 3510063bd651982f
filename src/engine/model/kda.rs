//! KDA, steps 1 to 5 of MODEL.md section 2.3 (K1…K13), for a chunk of tokens.
//!
//! Tokens follow one another through the state, heads are independent: threads take heads. One
//! token and many run the same code, so a chunk boundary changes no bit.

use super::forward::Pass;
use super::stage_output::StageOutput;
use super::workspace::{KdaBuffers, Rows};
use super::{
    EngineError, KdaState, KdaWeights, LayerWeights, NormSite, Operations, Projection, State,
    Workspace,
};
use crate::kernels::kda::StepInputs;
use crate::kernels::matrix::Matrix;
use crate::kernels::products::Product;
use k3_core::stages::Stage;

/// KDA of a chunk: reads `residual.normed`, writes `residual.output` (after o_proj).
pub(super) fn forward<O: Operations + ?Sized>(
    pass: &Pass<'_, O>,
    layer: &LayerWeights,
    weights: &KdaWeights,
    state: &mut State,
    work: &mut Workspace,
    stages: &mut StageOutput<'_>,
) -> Result<(), EngineError> {
    let t = pass.tokens;
    let slot = pass.shape.layers[pass.layer].slot;
    let slot = pass.operations.kda_slot(&mut state.kda, slot, pass.position);
    let buffers = &mut work.kda;
    project(pass, layer, weights, work.residual.normed.first(t), buffers);
    convolve(pass, weights, slot, buffers);
    decay(pass, weights, buffers);
    put_inputs(pass, buffers, stages);
    recur(pass, slot, buffers);
    put_outputs(pass, slot, buffers, stages);
    gate(pass, weights, buffers);
    let product = Product {
        matrix: layer.output.view(),
        vectors: buffers.output.first(t),
        out: work.residual.output.first_mut(t),
    };
    pass.operations.products(pass.threads, vec![product]);
    Ok(())
}

/// Every projection of the normed input, then f_b of f_a.
fn project<O: Operations + ?Sized>(
    pass: &Pass<'_, O>,
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
    let products = outs.into_iter().map(|(matrix, out)| product_of(matrix, x, t, out));
    pass.operations.products(pass.threads, products.collect());
    pass.operations.between_low_rank(buffers.low_rank.first_mut(t));
    let z = product_of(&weights.f_b, buffers.low_rank.first(t), t, &mut buffers.z);
    pass.operations.products(pass.threads, vec![z]);
    for token in 0..t {
        pass.operations.write_strength(buffers.beta.row_mut(token));
    }
}

/// A product into the first `t` rows of a buffer.
fn product_of<'a>(
    matrix: &'a Matrix,
    vectors: &'a [f32],
    t: usize,
    out: &'a mut Rows,
) -> Product<'a> {
    Product { matrix: matrix.view(), vectors, out: out.first_mut(t) }
}

/// Convolution over time, SiLU, then norm and scale per head.
fn convolve<O: Operations + ?Sized>(
    pass: &Pass<'_, O>,
    weights: &KdaWeights,
    slot: &mut KdaState,
    buffers: &mut KdaBuffers,
) {
    let (operations, width) = (pass.operations, pass.shape.kda_projection());
    let history_len = slot.convolution.len() / 3;
    let mut work = Vec::new();
    let outs = buffers.vectors.iter_mut();
    for ((projection, input), out) in Projection::ALL.into_iter().zip(&buffers.inputs).zip(outs) {
        let history = operations.history_of(projection);
        let old = slot.convolution[history * history_len..][..history_len].to_vec();
        let rows = out.first_mut(pass.tokens).chunks_exact_mut(width).enumerate();
        work.push((projection, input, old, rows));
    }
    pass.threads.for_each(work, &|(projection, input, mut history, rows)| {
        let taps = &weights.taps[projection as usize];
        for (token, out) in rows {
            let mut window: Vec<&[f32]> = history.chunks_exact(width).collect();
            window.push(input.row(token));
            operations.convolve(&window, taps, out);
            operations.after_convolution(projection, out);
            for head in out.chunks_exact_mut(pass.shape.kda_width) {
                operations.condition_head(projection, head);
            }
            operations.shift_history(&mut history, input.row(token));
        }
    });
    for (projection, input) in Projection::ALL.into_iter().zip(&buffers.inputs) {
        let history = &mut slot.convolution[projection as usize * history_len..][..history_len];
        for token in 0..pass.tokens {
            operations.shift_history(history, input.row(token));
        }
    }
}

/// g and α per head and channel.
fn decay<O: Operations + ?Sized>(
    pass: &Pass<'_, O>,
    weights: &KdaWeights,
    buffers: &mut KdaBuffers,
) {
    let width = pass.shape.kda_width;
    let gate = (weights.a_log.as_slice(), pass.shape.gate_lower_bound);
    for token in 0..pass.tokens {
        let heads = buffers.z.row(token).chunks_exact(width);
        let out = buffers.log_decay.row_mut(token).chunks_exact_mut(width);
        let biases = weights.dt_bias.chunks_exact(width);
        for (head, ((z, bias), out)) in heads.zip(biases).zip(out).enumerate() {
            pass.operations.log_decay(head, z, bias, gate, out);
        }
        buffers.alpha.row_mut(token).copy_from_slice(buffers.log_decay.row(token));
        pass.operations.exp_all(buffers.alpha.row_mut(token));
    }
}

/// The recurrence: each head through all tokens of the chunk.
fn recur<O: Operations + ?Sized>(
    pass: &Pass<'_, O>,
    slot: &mut KdaState,
    buffers: &mut KdaBuffers,
) {
    let width = pass.shape.kda_width;
    let projection = pass.shape.kda_projection();
    let mut outs: Vec<Vec<&mut [f32]>> = Vec::new();
    outs.resize_with(pass.shape.kda_heads, Vec::new);
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
            pass.operations.kda_step(state, &inputs, out);
        }
    });
}

/// K12: per head, norm then gate.
fn gate<O: Operations + ?Sized>(
    pass: &Pass<'_, O>,
    weights: &KdaWeights,
    buffers: &mut KdaBuffers,
) {
    let width = pass.shape.kda_width;
    let epsilon = pass.epsilon(NormSite::KdaOutput);
    let heads = buffers.output.first_mut(pass.tokens).chunks_exact_mut(width);
    let gates = buffers.gate.first_mut(pass.tokens).chunks_exact_mut(width);
    for (o, gate) in heads.zip(gates) {
        pass.operations.kda_head_output(o, &weights.o_norm, epsilon, gate);
    }
}

fn put_inputs<O: Operations + ?Sized>(
    pass: &Pass<'_, O>,
    buffers: &KdaBuffers,
    stages: &mut StageOutput<'_>,
) {
    let t = pass.tokens;
    let per_channel = [t, pass.shape.kda_heads, pass.shape.kda_width];
    let [q, k, v] = &buffers.vectors;
    stages.put(Stage::KdaQ, &per_channel, q.first(t));
    stages.put(Stage::KdaK, &per_channel, k.first(t));
    stages.put(Stage::KdaV, &per_channel, v.first(t));
    stages.put(Stage::KdaZ, &per_channel, buffers.z.first(t));
    stages.put(Stage::KdaG, &per_channel, buffers.log_decay.first(t));
    stages.put(Stage::KdaBeta, &per_channel[..2], buffers.beta.first(t));
}

fn put_outputs<O: Operations + ?Sized>(
    pass: &Pass<'_, O>,
    slot: &KdaState,
    buffers: &KdaBuffers,
    stages: &mut StageOutput<'_>,
) {
    let (t, heads, width) = (pass.tokens, pass.shape.kda_heads, pass.shape.kda_width);
    stages.put(Stage::KdaO, &[t, heads, width], buffers.output.first(t));
    stages.put(Stage::KdaState, &[heads, width, width], &slot.recurrent);
    let history = [3, pass.shape.conv_kernel - 1, pass.shape.kda_projection()];
    stages.put(Stage::KdaConv, &history, &slot.convolution);
}
