//! The router's choice and its weights (E2…E5).
//!
//! Selection: the k largest of f32(score + bias), ties to the LOWER index, k distinct ids always,
//! also when only −∞ is left. A NaN among the biased scores is reported, never ordered in silence.

use super::contract::RENORMALISATION_EPS;
use super::sums::scalar_sum;

/// The first NaN among score + bias: its expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NanScore {
    /// Expert index.
    pub expert: usize,
}

/// The chosen experts, ascending. `scores` and `bias` are \[experts\]; `top_k` ≤ experts.
///
/// # Errors
/// A biased score that is NaN.
pub fn select(scores: &[f32], bias: &[f32], top_k: usize) -> Result<Vec<usize>, NanScore> {
    let biased: Vec<f32> = scores.iter().zip(bias).map(|(score, bias)| score + bias).collect();
    if let Some(expert) = biased.iter().position(|score| score.is_nan()) {
        return Err(NanScore { expert });
    }
    let mut order: Vec<usize> = (0..biased.len()).collect();
    // Larger first, then lower index; no NaN is left, and −0 equals +0 as in any comparison.
    let before = |a: &usize, b: &usize| {
        biased[*b].partial_cmp(&biased[*a]).unwrap_or(std::cmp::Ordering::Equal).then(a.cmp(b))
    };
    if top_k < order.len() {
        order.select_nth_unstable_by(top_k, before);
        order.truncate(top_k);
    }
    order.sort_unstable();
    Ok(order)
}

/// The chosen experts of one token.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Their ids, ascending and distinct.
    pub ids: Vec<usize>,
    /// Their weights, in the order of the ids.
    pub weights: Vec<f32>,
}

/// Selection and weights of one token.
///
/// # Errors
/// A biased score that is NaN.
pub fn choose(
    scores: &[f32],
    bias: &[f32],
    top_k: usize,
    weighting: Weighting,
) -> Result<Choice, NanScore> {
    let ids = select(scores, bias, top_k)?;
    let weights = weights(scores, &ids, weighting);
    Ok(Choice { ids, weights })
}

/// How chosen scores become weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weighting {
    /// `moe_renormalize`; only with more than one chosen expert.
    pub renormalise: bool,
    /// `routed_scaling_factor`.
    pub scaling_factor: f32,
}

/// Weights of the chosen experts from their UNBIASED scores (E3, E4, E5), in the order of `ids`.
#[must_use]
pub fn weights(scores: &[f32], ids: &[usize], weighting: Weighting) -> Vec<f32> {
    let mut chosen: Vec<f32> = ids.iter().map(|&id| scores[id]).collect();
    if weighting.renormalise && chosen.len() > 1 {
        let divisor = scalar_sum(&chosen) as f32 + RENORMALISATION_EPS;
        for weight in &mut chosen {
            *weight /= divisor;
        }
    }
    for weight in &mut chosen {
        *weight *= weighting.scaling_factor;
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Weighting = Weighting { renormalise: true, scaling_factor: 1.0 };

    /// A10: a bias that leaks into the weights gives 0.7 and 0.3.
    #[test]
    fn a10_bias_steers_selection_only() {
        let scores = [0.5; 4];
        let ids = select(&scores, &[0.0, 0.0, 3.0, 1.0], 2).unwrap();
        assert_eq!(ids, [2, 3]);
        assert_eq!(weights(&scores, &ids, PLAIN), [0.5, 0.5]);
    }

    /// A11: equal scores at the cut go to the lower index.
    #[test]
    fn a11_ties_go_to_the_lower_index() {
        assert_eq!(select(&[0.5; 8], &[0.0; 8], 2).unwrap(), [0, 1]);
        let scores = [0.1, 0.9, 0.5, 0.5, 0.5];
        assert_eq!(select(&scores, &[0.0; 5], 3).unwrap(), [1, 2, 3]);
        // A zero of either sign is the same score.
        assert_eq!(select(&[0.0; 3], &[-0.0, 0.0, 0.0], 1).unwrap(), [0]);
    }

    /// A12: taken experts marked by −∞ win again when only −∞ is left.
    #[test]
    fn a12_ids_are_distinct_even_under_infinite_bias() {
        let mut bias = [f32::NEG_INFINITY; 6];
        bias[4] = 0.0;
        assert_eq!(select(&[0.5; 6], &bias, 3).unwrap(), [0, 1, 4]);
        assert_eq!(select(&[0.5; 3], &[0.0; 3], 3).unwrap(), [0, 1, 2]);
    }

    /// A13: router logits rounded to bf16 on one path. σ(1 + 1/512) exceeds σ(1) + 1/8192.
    #[test]
    fn a13_small_differences_decide() {
        use crate::kernels::functions::sigmoid;
        let mut scores = [0.0_f32; 9];
        (scores[7], scores[8]) = (sigmoid(1.0 + 1.0 / 512.0), sigmoid(1.0));
        let mut bias = [0.0_f32; 9];
        bias[8] = 1.0 / 8192.0;
        assert_eq!(select(&scores, &bias, 1).unwrap(), [7]);
    }

    /// A14: more experts than any fixed array would hold.
    #[test]
    fn a14_nine_hundred_and_a_hundred_thousand_experts() {
        for experts in [896, 1024, 100_000] {
            let scores: Vec<f32> = (0..experts).map(|i| i as f32).collect();
            let ids = select(&scores, &vec![0.0; experts], 16).unwrap();
            assert_eq!(ids, (experts - 16..experts).collect::<Vec<_>>());
        }
    }

    /// A NaN score is named, whether or not it would have been chosen.
    #[test]
    fn a_nan_score_is_an_error() {
        let scores = [0.9, 0.8, f32::NAN];
        assert_eq!(select(&scores, &[0.0; 3], 1), Err(NanScore { expert: 2 }));
    }

    /// E4, E5: one expert is not renormalised; scaling comes after.
    #[test]
    fn weights_follow_top_k_and_scaling() {
        let weighting = Weighting { renormalise: true, scaling_factor: 2.0 };
        assert_eq!(weights(&[0.25, 0.75], &[0], weighting), [0.5]);
        assert_eq!(weights(&[0.25, 0.75], &[0, 1], weighting), [0.5, 1.5]);
        let plain = Weighting { renormalise: false, scaling_factor: 2.0 };
        assert_eq!(weights(&[0.25, 0.75], &[0, 1], plain), [0.5, 1.5]);
        // All scores zero: 1e-20 in the divisor keeps the weights at zero.
        assert_eq!(weights(&[0.0, 0.0], &[0, 1], PLAIN), [0.0, 0.0]);
    }
}
