//! Family (b): LatentMoE and SiTU (E1…E10, S1, S2).

use crate::kernels::functions;
use crate::kernels::norm;
use crate::kernels::router;
use crate::kernels::router::{NanScore, Weighting};
use crate::kernels::situ::Caps;
use crate::kernels::sums;
use crate::kernels::sums::Vectors;

/// SiTU element by element from (gate, up).
fn situ_with(gate: &[f32], up: &[f32], out: &mut [f32], element: impl Fn(f32, f32) -> f32) {
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        *out = element(*gate, *up);
    }
}

/// cap · tanh(x / cap).
fn capped(x: f32, cap: f32) -> f32 {
    cap * functions::tanh(x / cap)
}

engine_mutants! { Composition
    "e1-router-reads-the-unnormed-mix" ["E1"] "the router reads the mix before its norm" {
        fn router_input<'a>(&self, _normed: &'a [f32], mixed: &'a [f32]) -> &'a [f32] {
            mixed
        }
    }
    "e2-bias-not-used" ["E2"] "experts are chosen by score alone" {
        fn select(&self, scores: &[f32], _: &[f32], k: usize) -> Result<Vec<usize>, NanScore> {
            router::select(scores, &vec![0.0; scores.len()], k)
        }
    }
    "e2-ties-to-the-higher-index" ["E2"] "equal scores go to the higher index" {
        fn select(&self, scores: &[f32], bias: &[f32], k: usize) -> Result<Vec<usize>, NanScore> {
            let reversed = |values: &[f32]| values.iter().rev().copied().collect::<Vec<f32>>();
            let ids = router::select(&reversed(scores), &reversed(bias), k)?;
            Ok(ids.iter().rev().map(|id| scores.len() - 1 - id).collect())
        }
    }
    "e2-one-expert-twice" ["E2"] "a chosen expert marked by minus infinity can be chosen again" {
        fn select(&self, scores: &[f32], bias: &[f32], k: usize) -> Result<Vec<usize>, NanScore> {
            let mut left: Vec<f32> = scores.iter().zip(bias).map(|(s, b)| s + b).collect();
            let mut ids = Vec::new();
            for _ in 0..k {
                let mut best = 0;
                for (id, score) in left.iter().enumerate() {
                    if *score > left[best] {
                        best = id;
                    }
                }
                left[best] = f32::NEG_INFINITY;
                ids.push(best);
            }
            ids.sort_unstable();
            Ok(ids)
        }
    }
    "e2-softmax-scores" ["E2"] "scores are a softmax over the experts" {
        fn router_scores(&self, logits: &mut [f32]) {
            self.exp_all(logits);
            let sum = sums::scalar_sum(logits) as f32;
            logits.iter_mut().for_each(|score| *score /= sum);
        }
    }
    "e2-rounded-to-bf16" ["E2"] "router scores are rounded to BF16" {
        fn router_scores(&self, logits: &mut [f32]) {
            use crate::kernels::bf16::{round, widen};
            logits.iter_mut().for_each(|logit| *logit = widen(round(*logit)));
            self.sigmoid_all(logits);
        }
    }
    "e3-biased-weights" ["E3"] "weights come from the biased scores" {
        fn routing_weights(
            &self, scores: &[f32], bias: &[f32], ids: &[usize], weighting: Weighting,
        ) -> Vec<f32> {
            let biased: Vec<f32> = scores.iter().zip(bias).map(|(s, b)| s + b).collect();
            router::weights(&biased, ids, weighting)
        }
    }
    "e4-not-renormalised" ["E4"] "weights are not divided by their sum" {
        fn routing_weights(
            &self, scores: &[f32], _: &[f32], ids: &[usize], weighting: Weighting,
        ) -> Vec<f32> {
            router::weights(scores, ids, Weighting { renormalise: false, ..weighting })
        }
    }
    "e4-renormalised-over-all" ["E4"] "weights are divided by the sum over all experts" {
        fn routing_weights(
            &self, scores: &[f32], _: &[f32], ids: &[usize], weighting: Weighting,
        ) -> Vec<f32> {
            let sum = sums::scalar_sum(scores) as f32;
            ids.iter().map(|&id| scores[id] / sum * weighting.scaling_factor).collect()
        }
    }
    "e4-one-expert-renormalised" ["E4"] "a single chosen expert is renormalised to 1" {
        fn routing_weights(
            &self, scores: &[f32], _: &[f32], ids: &[usize], weighting: Weighting,
        ) -> Vec<f32> {
            if ids.len() == 1 && weighting.renormalise {
                return vec![weighting.scaling_factor];
            }
            router::weights(scores, ids, weighting)
        }
    }
    "e4-epsilon-too-large" ["E4"] "the sum is guarded by 1e-2" {
        fn routing_weights(
            &self, scores: &[f32], _: &[f32], ids: &[usize], weighting: Weighting,
        ) -> Vec<f32> {
            let chosen: Vec<f32> = ids.iter().map(|&id| scores[id]).collect();
            let sum = sums::scalar_sum(&chosen) as f32 + 1e-2;
            chosen.iter().map(|score| score / sum * weighting.scaling_factor).collect()
        }
    }
    "e5-scaling-of-k2" ["E5"] "the scaling factor is K2's 2.827" {
        fn routing_weights(
            &self, scores: &[f32], _: &[f32], ids: &[usize], weighting: Weighting,
        ) -> Vec<f32> {
            router::weights(scores, ids, Weighting { scaling_factor: 2.827, ..weighting })
        }
    }
    "e5-scaling-ignored" ["E5"] "the scaling factor is not applied" {
        fn routing_weights(
            &self, scores: &[f32], _: &[f32], ids: &[usize], weighting: Weighting,
        ) -> Vec<f32> {
            router::weights(scores, ids, Weighting { scaling_factor: 1.0, ..weighting })
        }
    }
    "e6-experts-read-the-input" ["E6"] "experts read the first columns of x, not the latent" {
        fn expert_input<'a>(&self, _latent: &'a [f32], normed: &'a [f32]) -> &'a [f32] {
            normed
        }
    }
    "e7-w1-and-w3-swapped" ["E7"] "w3 is the gate and w1 the linear part" {
        fn expert_activation(&self, w1: &[f32], w3: &[f32], caps: Caps, out: &mut [f32]) {
            self.situ(w3, w1, caps, out);
        }
    }
    "e8-no-norm-on-the-sum" ["E8"] "the weighted sum is not normed" {
        fn routed_norm(&self, sum: &[f32], _: &[f32], _: f64, out: &mut [f32]) {
            out.copy_from_slice(sum);
        }
    }
    "e8-norm-per-expert" ["E8"] "each expert's output is normed, the sum is not" {
        fn expert_sum(&self, ids: &[usize], w: &[f32], outputs: Vectors<'_>, out: &mut [f32]) {
            let mut all = Vec::new();
            for place in 0..ids.len() {
                let mut wide = vec![0.0; out.len()];
                outputs.row(place).widen(0, &mut wide);
                let row: Vec<f32> = wide.iter().map(|&value| value as f32).collect();
                let mut normed = vec![0.0; row.len()];
                norm::rms_norm_unit(&row, 1e-5, &mut normed);
                all.extend(normed);
            }
            let outputs = Vectors::Strided { data: &all, stride: out.len() };
            sums::expert_sum(ids, w, outputs, out);
        }
        fn routed_norm(&self, sum: &[f32], weight: &[f32], _: f64, out: &mut [f32]) {
            for ((out, sum), weight) in out.iter_mut().zip(sum).zip(weight) {
                *out = sum * weight;
            }
        }
    }
    "e9-routed-part-missing" ["E9"] "the up-projected sum is not added" {
        fn combine_moe(&self, _routed: &[f32], shared: &[f32], out: &mut [f32]) {
            out.copy_from_slice(shared);
        }
    }
    "e10-shared-part-missing" ["E10"] "the shared MLP is not added" {
        fn combine_moe(&self, routed: &[f32], _shared: &[f32], out: &mut [f32]) {
            out.copy_from_slice(routed);
        }
    }
    "e10-shared-part-weighted" ["E10"] "the shared MLP is added at half weight" {
        fn combine_moe(&self, routed: &[f32], shared: &[f32], out: &mut [f32]) {
            for ((out, routed), shared) in out.iter_mut().zip(routed).zip(shared) {
                *out = routed + 0.5 * shared;
            }
        }
    }
    "e10-shared-reads-the-unnormed-mix" ["E10"] "the shared MLP reads the mix before its norm" {
        fn shared_input<'a>(&self, _normed: &'a [f32], mixed: &'a [f32]) -> &'a [f32] {
            mixed
        }
    }
    "s1-sigmoid-of-the-capped-gate" ["S1"] "the sigmoid takes the capped gate" {
        fn situ(&self, gate: &[f32], up: &[f32], caps: Caps, out: &mut [f32]) {
            situ_with(gate, up, out, |gate, up| {
                let gate = capped(gate, caps.beta);
                gate * functions::sigmoid(gate) * capped(up, caps.linear_beta)
            });
        }
    }
    "s2-gate-not-capped" ["S2"] "the gate is not capped" {
        fn situ(&self, gate: &[f32], up: &[f32], caps: Caps, out: &mut [f32]) {
            situ_with(gate, up, out, |gate, up| {
                gate * functions::sigmoid(gate) * capped(up, caps.linear_beta)
            });
        }
    }
    "s2-linear-part-not-capped" ["S2"] "the linear part is not capped" {
        fn situ(&self, gate: &[f32], up: &[f32], caps: Caps, out: &mut [f32]) {
            situ_with(gate, up, out, |gate, up| {
                capped(gate, caps.beta) * functions::sigmoid(gate) * up
            });
        }
    }
    "s2-caps-swapped" ["S2"] "the two caps are swapped" {
        fn situ(&self, gate: &[f32], up: &[f32], caps: Caps, out: &mut [f32]) {
            situ_with(gate, up, out, |gate, up| {
                let activated = capped(gate, caps.linear_beta) * functions::sigmoid(gate);
                activated * capped(up, caps.beta)
            });
        }
    }
    "s2-clamped" ["S2"] "the caps are hard clamps" {
        fn situ(&self, gate: &[f32], up: &[f32], caps: Caps, out: &mut [f32]) {
            situ_with(gate, up, out, |gate, up| {
                let activated = gate.clamp(-caps.beta, caps.beta) * functions::sigmoid(gate);
                activated * up.clamp(-caps.linear_beta, caps.linear_beta)
            });
        }
    }
}
