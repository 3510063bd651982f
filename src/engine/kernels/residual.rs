//! The attention-residual mix (R1…R3): softmax over the banks and the running sum.
//!
//! Keys are normed, values are raw. The norm's weight and the projection are one vector, folded
//! once at load.

use super::rows::Row;
use super::sums::Vectors;
use super::table::Kernels;

/// mix = Σ p·t over the raw sources t of one token, p = softmax of the scores of their normed keys.
pub fn mix(
    kernels: &Kernels,
    sources: &[&[f32]],
    (folded, epsilon): (&[f32], f64),
    out: &mut [f32],
) {
    let mut key = vec![0.0; out.len()];
    let mut score = |source: &&[f32]| {
        (kernels.rms_norm_unit)(source, epsilon, &mut key);
        kernels.row_product(Row::F32(folded), &key)
    };
    let mut scores: Vec<f32> = sources.iter().map(&mut score).collect();
    (kernels.softmax_sum)(kernels, &mut scores, Vectors::List(sources), out);
}

/// norm.w ⊙ proj.w, each product rounded to f32 once.
#[must_use]
pub fn fold(norm: &[f32], projection: &[f32]) -> Vec<f32> {
    norm.iter().zip(projection).map(|(norm, projection)| norm * projection).collect()
}
