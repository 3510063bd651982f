//! Gated MLA per head and token in the absorbed form (A7; M3…M6).
//!
//! A head's keys are never expanded: its query is moved into the latent space instead, and its
//! values are made from the weighted latent. Absorbed and expanded differ in bits, so prefill does
//! as decode does.

use super::matrix::MatrixRef;
use super::norm::inverse_root;
use super::rows::Row;
use super::sums::Vectors;
use super::table::Kernels;

/// What the attention of one head and token reads.
#[derive(Debug, Clone, Copy)]
pub struct HeadAttention<'a> {
    /// The head's query \[nope | rope\].
    pub query: &'a [f32],
    /// kv_b's key rows of the head \[nope, kv_lora\].
    pub keys: MatrixRef<'a>,
    /// kv_b's value rows of the head \[v, kv_lora\].
    pub values: MatrixRef<'a>,
    /// Cached rows \[positions, kv_lora + rope\], those of later tokens of the chunk included.
    pub rows: &'a [f32],
    /// How many of them the token sees (M5).
    pub visible: usize,
}

impl HeadAttention<'_> {
    /// Width of a cached row, kv_lora + rope.
    #[must_use]
    pub fn row_width(&self) -> usize {
        self.keys.columns() + self.query.len() - self.keys.rows()
    }
}

/// Scores of \[q' | q_rope\] against the cached rows with q' = Σ q_nope · (key rows), softmax over
/// the latents, then the value rows; `out` \[v\].
pub fn attend(kernels: &Kernels, head: &HeadAttention<'_>, out: &mut [f32]) {
    let (latent_width, width) = (head.keys.columns(), head.row_width());
    let (nope, rope) = head.query.split_at(head.keys.rows());
    let mut query = vec![0.0; width];
    let (absorbed, query_rope) = query.split_at_mut(latent_width);
    (kernels.weighted_sum)(nope, Vectors::Weights(head.keys), absorbed);
    query_rope.copy_from_slice(rope);

    let scale = inverse_root(head.query.len());
    let rows = &head.rows[..head.visible * width];
    let score = |row| kernels.row_product(Row::F32(row), &query) * scale;
    let mut scores: Vec<f32> = rows.chunks_exact(width).map(score).collect();

    let mut latent = vec![0.0; latent_width];
    let latents = Vectors::Strided { data: rows, stride: width };
    (kernels.softmax_sum)(kernels, &mut scores, latents, &mut latent);
    for (row, out) in out.iter_mut().enumerate() {
        *out = kernels.row_product(head.values.row(row), &latent);
    }
}
