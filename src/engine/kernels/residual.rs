//! The attention-residual mix (R1…R3): softmax over the banks and the running sum.
//!
//! Keys are normed, values are raw. The norm's weight and the projection are one vector, folded
//! once at load.

/// norm.w ⊙ proj.w, each product rounded to f32 once.
#[must_use]
pub fn fold(norm: &[f32], projection: &[f32]) -> Vec<f32> {
    norm.iter().zip(projection).map(|(norm, projection)| norm * projection).collect()
}
