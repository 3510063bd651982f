//! Gated MLA without positions (M1…M8), in the absorbed form everywhere (A7).
//!
//! The cache holds one row per position, \[normed latent | raw rope part\].

use super::forward::Pass;
use super::stage_output::StageOutput;
use super::workspace::MlaBuffers;
use super::{EngineError, LatentCache, LayerWeights, MlaWeights, State, Workspace};
use crate::kernels::mla::HeadAttention;
use crate::kernels::products::Product;
use crate::kernels::situ::gate;
use k3_core::stages::Stage;

/// MLA of a chunk: reads `residual.normed`, writes `residual.output` (after o_proj). A cache with
/// another number of rows than positions is refused.
pub(super) fn forward(
    pass: &Pass<'_>,
    layer: &LayerWeights,
    weights: &MlaWeights,
    state: &mut State,
    work: &mut Workspace,
    stages: &mut StageOutput<'_>,
) -> Result<(), EngineError> {
    let t = pass.tokens;
    let slot = pass.shape.layers[pass.layer].slot;
    let buffers = &mut work.mla;
    project(pass, layer, weights, work.residual.normed.first(t), buffers);
    let cache = &mut state.mla[slot];
    cache.rows.extend_from_slice(buffers.cache_rows.first(t));
    check_length(pass, cache)?;
    attend_all(pass, weights, cache, buffers);
    put(pass, buffers, stages);
    gate(&pass.kernels, buffers.output.first_mut(t), buffers.gate.first_mut(t));
    pass.product(&layer.output, buffers.output.first(t), work.residual.output.first_mut(t));
    Ok(())
}

/// M8: one row per position, those of this chunk included.
fn check_length(pass: &Pass<'_>, cache: &LatentCache) -> Result<(), EngineError> {
    let positions = pass.position + pass.tokens;
    let (expected, got) = (positions * pass.shape.mla.cache_width, cache.rows.len());
    if got == expected {
        return Ok(());
    }
    Err(EngineError::LatentCache { layer: pass.layer, position: positions - 1, expected, got })
}

/// Low-rank query, compressed row and gate.
fn project(
    pass: &Pass<'_>,
    layer: &LayerWeights,
    weights: &MlaWeights,
    x: &[f32],
    buffers: &mut MlaBuffers,
) {
    let (kernels, t) = (&pass.kernels, pass.tokens);
    let outs = [
        (&weights.q_a, &mut buffers.q_low),
        (&weights.kv_a, &mut buffers.compressed),
        (&layer.gate, &mut buffers.gate),
    ];
    let products = outs.into_iter().map(|(matrix, out)| Product {
        matrix: matrix.view(),
        vectors: x,
        out: out.first_mut(t),
    });
    pass.products(products.collect());
    for token in 0..t {
        let (low, normed) = (buffers.q_low.row(token), buffers.q_low_normed.row_mut(token));
        weights.q_a_norm.apply(kernels, low, normed);
        // The cached row: the normed latent, then the rope part as it is.
        let (latent, rope) = buffers.compressed.row(token).split_at(pass.shape.mla.kv_lora);
        let (latent_out, rope_out) =
            buffers.cache_rows.row_mut(token).split_at_mut(pass.shape.mla.kv_lora);
        weights.kv_a_norm.apply(kernels, latent, latent_out);
        rope_out.copy_from_slice(rope);
    }
    pass.product(&weights.q_b, buffers.q_low_normed.first(t), buffers.q.first_mut(t));
}

/// Every head of every token of the chunk.
fn attend_all(
    pass: &Pass<'_>,
    weights: &MlaWeights,
    cache: &LatentCache,
    buffers: &mut MlaBuffers,
) {
    let shape = pass.shape;
    let query_width = shape.mla.nope + shape.mla.rope;
    let queries = buffers.q.first(pass.tokens).chunks_exact(query_width);
    let outs = buffers.output.first_mut(pass.tokens).chunks_exact_mut(shape.mla.v);
    let work: Vec<_> = queries.zip(outs).enumerate().collect();
    let kv_b = weights.kv_b.view();
    pass.threads.for_each(work, &|(place, (query, out))| {
        let (head, position) = (place % shape.mla.heads, pass.position + place / shape.mla.heads);
        // kv_b per head: its keys, then its values.
        let first = head * (shape.mla.nope + shape.mla.v);
        let middle = first + shape.mla.nope;
        let head = HeadAttention {
            query,
            keys: kv_b.range(first..middle),
            values: kv_b.range(middle..middle + shape.mla.v),
            rows: &cache.rows,
            visible: position + 1,
        };
        (pass.kernels.attend)(&pass.kernels, &head, out);
    });
}

fn put(pass: &Pass<'_>, buffers: &MlaBuffers, stages: &mut StageOutput<'_>) {
    let (t, shape) = (pass.tokens, pass.shape);
    let width = shape.mla.cache_width;
    let rows = buffers.cache_rows.first(t);
    stages.put(
        Stage::MlaQ,
        &[t, shape.mla.heads, shape.mla.nope + shape.mla.rope],
        buffers.q.first(t),
    );
    stages.put_columns(Stage::MlaLatent, rows, width, 0..shape.mla.kv_lora);
    stages.put_columns(Stage::MlaKRope, rows, width, shape.mla.kv_lora..width);
    stages.put(Stage::MlaO, &[t, shape.mla.heads, shape.mla.v], buffers.output.first(t));
}
