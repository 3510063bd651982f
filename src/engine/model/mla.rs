//! Gated MLA without positions (M1…M8), in the absorbed form everywhere (A7).
//!
//! The cache holds one row per position, \[normed latent | raw rope part\]. A head's keys are
//! never expanded: its query is moved into the latent space instead, and its values are made from
//! the weighted latent. Absorbed and expanded differ in bits, so prefill does as decode does.

use super::forward::Pass;
use super::stage_output::StageOutput;
use super::workspace::MlaBuffers;
use super::{
    EngineError, LatentCache, LayerWeights, MlaWeights, NormSite, Operations, Shape, State,
    Workspace,
};
use crate::kernels::matrix::MatrixRef;
use crate::kernels::products::Product;
use crate::kernels::rows::Row;
use crate::kernels::sums::Vectors;
use k3_core::stages::Stage;

/// What the attention of one head and token reads.
#[derive(Debug, Clone, Copy)]
pub struct HeadAttention<'a> {
    /// Widths.
    pub shape: &'a Shape,
    /// Which head.
    pub head: usize,
    /// Position of the token.
    pub position: usize,
    /// The head's query \[nope+rope\].
    pub query: &'a [f32],
    /// The whole of kv_b \[heads·(nope+v), kv_lora\].
    pub kv_b: MatrixRef<'a>,
    /// Cached rows \[positions, kv_lora+rope\]; those of later tokens of the chunk included.
    pub rows: &'a [f32],
}

/// MLA of a chunk: reads `residual.normed`, writes `residual.output` (after o_proj). A cache with
/// another number of rows than positions is refused.
pub(super) fn forward<O: Operations + ?Sized>(
    pass: &Pass<'_, O>,
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
    let cache = pass.operations.latent_cache(&mut state.mla, slot);
    for token in 0..t {
        let row = buffers.cache_rows.row(token);
        pass.operations.cache_append(cache, pass.position + token, row);
    }
    check_length(pass, cache)?;
    attend_all(pass, weights, cache, buffers);
    put(pass, buffers, stages);
    let value_width = pass.shape.mla_heads * pass.shape.v_width;
    let values = buffers.output.first_mut(t).chunks_exact_mut(value_width);
    for (values, gate) in values.zip(buffers.gate.first_mut(t).chunks_exact_mut(value_width)) {
        pass.operations.mla_gate(values, gate);
    }
    let product = Product {
        matrix: layer.output.view(),
        vectors: buffers.output.first(t),
        out: work.residual.output.first_mut(t),
    };
    pass.operations.products(pass.threads, vec![product]);
    Ok(())
}

/// M8: one row per position, those of this chunk included.
fn check_length<O: ?Sized>(pass: &Pass<'_, O>, cache: &LatentCache) -> Result<(), EngineError> {
    let positions = pass.position + pass.tokens;
    let (expected, got) = (positions * pass.shape.cache_width(), cache.rows.len());
    if got == expected {
        return Ok(());
    }
    Err(EngineError::LatentCache { layer: pass.layer, position: positions - 1, expected, got })
}

/// Low-rank query, compressed row and gate.
fn project<O: Operations + ?Sized>(
    pass: &Pass<'_, O>,
    layer: &LayerWeights,
    weights: &MlaWeights,
    x: &[f32],
    buffers: &mut MlaBuffers,
) {
    let (operations, t) = (pass.operations, pass.tokens);
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
    operations.products(pass.threads, products.collect());
    for token in 0..t {
        let (low, normed) = (buffers.q_low.row(token), buffers.q_low_normed.row_mut(token));
        let epsilon = pass.epsilon(NormSite::MlaQuery);
        operations.mla_query_norm(low, &weights.q_a_norm, epsilon, normed);
        let (compressed, row) = (buffers.compressed.row(token), buffers.cache_rows.row_mut(token));
        let epsilon = pass.epsilon(NormSite::MlaLatent);
        operations.cache_row(compressed, &weights.kv_a_norm, epsilon, row);
    }
    let product = Product {
        matrix: weights.q_b.view(),
        vectors: buffers.q_low_normed.first(t),
        out: buffers.q.first_mut(t),
    };
    operations.products(pass.threads, vec![product]);
}

/// Every head of every token of the chunk.
fn attend_all<O: Operations + ?Sized>(
    pass: &Pass<'_, O>,
    weights: &MlaWeights,
    cache: &LatentCache,
    buffers: &mut MlaBuffers,
) {
    let shape = pass.shape;
    let query_width = shape.nope + shape.rope;
    let queries = buffers.q.first(pass.tokens).chunks_exact(query_width);
    let outs = buffers.output.first_mut(pass.tokens).chunks_exact_mut(shape.v_width);
    let work: Vec<_> = queries.zip(outs).enumerate().collect();
    let kv_b = weights.kv_b.view();
    pass.threads.for_each(work, &|(place, (query, out))| {
        let (head, position) = (place % shape.mla_heads, pass.position + place / shape.mla_heads);
        let rows = cache.rows.as_slice();
        let head = HeadAttention { shape, head, position, query, kv_b, rows };
        pass.operations.attend(&head, out);
    });
}

/// A7: \[q' | q_rope\] with q' = Σ over the nope index of q · (kv_b's key rows).
pub(super) fn absorbed_query<O: Operations + ?Sized>(
    operations: &O,
    head: &HeadAttention<'_>,
    out: &mut [f32],
) {
    let shape = head.shape;
    let (nope, rope) = operations.query_parts(shape.nope, shape.rope);
    let (keys, _) = operations.kv_b_rows(shape, head.head);
    let (latent_out, rope_out) = out.split_at_mut(shape.kv_lora);
    let keys = Vectors::Weights(head.kv_b.range(keys));
    operations.weighted_sum(&head.query[nope], keys, latent_out);
    rope_out.copy_from_slice(&head.query[rope]);
}

/// A7: scores against the cached rows, softmax over the latents, then kv_b's value rows.
pub(super) fn attend_absorbed<O: Operations + ?Sized>(
    operations: &O,
    head: &HeadAttention<'_>,
    out: &mut [f32],
) {
    let shape = head.shape;
    let width = shape.cache_width();
    let mut query = vec![0.0; width];
    operations.absorbed_query(head, &mut query);
    let scale = operations.attention_scale(shape.nope, shape.rope);
    let visible = operations.visible(head.position, head.rows.len() / width);
    let rows = &head.rows[visible.start * width..visible.end * width];
    let score = |row| operations.row_product(Row::F32(row), &query) * scale;
    let mut scores: Vec<f32> = rows.chunks_exact(width).map(score).collect();
    let mut latent = vec![0.0; shape.kv_lora];
    let vectors = Vectors::Strided { data: rows, stride: width };
    operations.softmax_sum(&mut scores, vectors, &mut latent);
    let (_, values) = operations.kv_b_rows(shape, head.head);
    for (row, out) in values.zip(out) {
        *out = operations.row_product(head.kv_b.row(row), &latent);
    }
}

fn put<O: Operations + ?Sized>(
    pass: &Pass<'_, O>,
    buffers: &MlaBuffers,
    stages: &mut StageOutput<'_>,
) {
    let (t, shape) = (pass.tokens, pass.shape);
    let width = shape.cache_width();
    let rows = buffers.cache_rows.first(t);
    stages.put(Stage::MlaQ, &[t, shape.mla_heads, shape.nope + shape.rope], buffers.q.first(t));
    stages.put_columns(Stage::MlaLatent, rows, width, 0..shape.kv_lora);
    stages.put_columns(Stage::MlaKRope, rows, width, shape.kv_lora..width);
    stages.put(Stage::MlaO, &[t, shape.mla_heads, shape.v_width], buffers.output.first(t));
}
