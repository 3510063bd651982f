//! Softmax and the weighted sum under it (A6), for attention and for the residual mix.
//!
//! One pass over all scores for the maximum, one for e and Z, one for N; never blocked, never
//! rescaled, so that a longer history changes bits only through its own terms.
//!
//! Defined edges: all scores −∞ give a zero vector (nothing may be seen, nothing is seen); a NaN
//! or +∞ among the scores gives NaN, which travels on and ends as an error at the logits.

use super::sums::{Vectors, scalar_sum};
use super::table::Kernels;

/// The largest score; −∞ for none. NaN scores are passed over here: they make e NaN below.
#[must_use]
pub fn maximum(scores: &[f32]) -> f32 {
    let mut maximum = f32::NEG_INFINITY;
    for score in scores {
        if *score > maximum {
            maximum = *score;
        }
    }
    maximum
}

/// Turns scores into f32(s − M), ready for exp. False when every score is −∞: no weights exist.
#[must_use]
pub fn shift_by_maximum(scores: &mut [f32]) -> bool {
    let maximum = maximum(scores);
    if scores.iter().all(|score| *score == f32::NEG_INFINITY) {
        return false;
    }
    for score in scores {
        *score -= maximum;
    }
    true
}

/// Softmax over `scores` (overwritten), applied to the vectors: out = f32(N/Z) with Z = Σ e and
/// N_j = Σ e·v_j, both in f64 and rising.
pub fn softmax_sum(kernels: &Kernels, scores: &mut [f32], vectors: Vectors<'_>, out: &mut [f32]) {
    if !shift_by_maximum(scores) {
        out.fill(0.0);
        return;
    }
    (kernels.exp)(scores);
    (kernels.normalised_sum)(scores, vectors, scalar_sum(scores), out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn softmax(scores: &[f32]) -> Vec<f32> {
        let n = scores.len();
        let mut identity = vec![0.0; n * n];
        for i in 0..n {
            identity[i * n + i] = 1.0;
        }
        let mut out = vec![9.0; n];
        let vectors = Vectors::Strided { data: &identity, stride: n };
        softmax_sum(&Kernels::SCALAR, &mut scores.to_vec(), vectors, &mut out);
        out
    }

    /// A20: −∞ minus −∞ turned a whole row into NaN.
    #[test]
    fn a20_softmax_edges() {
        let inf = f32::INFINITY;
        assert_eq!(softmax(&[-inf, -inf]), [0.0, 0.0]);
        assert_eq!(softmax(&[1e30, -1e30]), [1.0, 0.0]);
        assert_eq!(softmax(&[0.0, -1e30]), [1.0, 0.0]);
        assert_eq!(softmax(&[-inf, 3.0]), [0.0, 1.0]);
        assert_eq!(softmax(&[-7.5]), [1.0]);
        assert!(softmax(&[inf, 0.0])[0].is_nan());
        assert!(softmax(&[f32::NAN, -inf])[1].is_nan());
        assert_eq!(softmax(&[3e38, 3e38, 3e38, 3e38]), [0.25; 4]);
    }

    /// e/Z with e = 1, e⁻¹: 0.7310586, 0.2689414.
    #[test]
    fn two_scores() {
        let p = softmax(&[5.0, 4.0]);
        assert!((p[0] - 0.731_058_6).abs() < 6e-8 && (p[1] - 0.268_941_4).abs() < 3e-8);
    }
}
