//! Sites of the router, the experts and SiTU (E1…E10, S1, S2).

use crate::kernels::contract::RENORMALISATION_EPS;
use crate::kernels::functions::{sigmoid, tanh};
use crate::kernels::router;
use crate::kernels::router::{NanScore, Weighting};
use crate::kernels::situ::Caps;
use crate::kernels::sums;
use crate::model::Contract;

sites! {
    "e1-router-logits" "E1" "the router's logits" {
        fn router_scores(&self, logits: &mut [f32]) {
            self.0.all(logits);
            self.sigmoid_all(logits);
        }
    }
    "e2-bias" "E2" "the selection bias" {
        fn select(&self, scores: &[f32], bias: &[f32], k: usize) -> Result<Vec<usize>, NanScore> {
            router::select(scores, &self.0.copy(bias), k)
        }
    }
    "e3-bias-in-weights" "E3" "blend: weights from the biased scores" {
        fn routing_weights(
            &self, scores: &[f32], bias: &[f32], ids: &[usize], weighting: Weighting,
        ) -> Vec<f32> {
            let pairs = scores.iter().zip(bias);
            let scores: Vec<f32> = pairs.map(|(s, b)| self.0.blend(*s, s + b)).collect();
            router::weights(&scores, ids, weighting)
        }
    }
    "e4-divisor" "E4" "the divisor of the renormalisation" {
        fn routing_weights(
            &self, scores: &[f32], _bias: &[f32], ids: &[usize], weighting: Weighting,
        ) -> Vec<f32> {
            let divisor = |sum: f32| self.0.single(sum + RENORMALISATION_EPS);
            renormalised(scores, ids, weighting, divisor)
        }
    }
    "e4-epsilon" "E4" "the 1e-20 of the renormalisation" {
        fn routing_weights(
            &self, scores: &[f32], _bias: &[f32], ids: &[usize], weighting: Weighting,
        ) -> Vec<f32> {
            let divisor = |sum: f32| sum + self.0.single(RENORMALISATION_EPS);
            renormalised(scores, ids, weighting, divisor)
        }
    }
    "e5-scaling-factor" "E5" "the scaling factor" {
        fn routing_weights(
            &self, scores: &[f32], _bias: &[f32], ids: &[usize], weighting: Weighting,
        ) -> Vec<f32> {
            let scaling_factor = self.0.single(weighting.scaling_factor);
            router::weights(scores, ids, Weighting { scaling_factor, ..weighting })
        }
    }
    "e6-latent" "E6" "the latent, as the experts' w1 and w3 see it" {
        fn expert_activation(&self, w1: &[f32], w3: &[f32], caps: Caps, out: &mut [f32]) {
            self.situ(&self.0.copy(w1), &self.0.copy(w3), caps, out);
        }
    }
    "e7-gate" "E7" "w1's product" {
        fn expert_activation(&self, w1: &[f32], w3: &[f32], caps: Caps, out: &mut [f32]) {
            self.situ(&self.0.copy(w1), w3, caps, out);
        }
    }
    "e7-up" "E7" "w3's product" {
        fn expert_activation(&self, w1: &[f32], w3: &[f32], caps: Caps, out: &mut [f32]) {
            self.situ(w1, &self.0.copy(w3), caps, out);
        }
    }
    "e8-norm" "E8" "the normed sum over experts" {
        fn routed_norm(&self, sum: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
            self.rms_norm(sum, weight, epsilon, out);
            self.0.all(out);
        }
    }
    "e9-routed" "E9" "the up-projection of the routed experts" {
        fn combine_moe(&self, routed: &[f32], shared: &[f32], out: &mut [f32]) {
            Contract::default().combine_moe(&self.0.copy(routed), shared, out);
        }
    }
    "e10-shared" "E10" "the shared MLP's output" {
        fn combine_moe(&self, routed: &[f32], shared: &[f32], out: &mut [f32]) {
            Contract::default().combine_moe(routed, &self.0.copy(shared), out);
        }
    }
    "s1-capped-gate" "S1" "blend: the logistic of the capped gate" {
        fn situ(&self, gate: &[f32], up: &[f32], caps: Caps, out: &mut [f32]) {
            for ((gate, up), out) in gate.iter().zip(up).zip(out) {
                let capped = caps.beta * tanh(gate / caps.beta);
                let activated = capped * sigmoid(self.0.blend(*gate, capped));
                *out = activated * (caps.linear_beta * tanh(up / caps.linear_beta));
            }
        }
    }
    "s2-beta" "S2" "beta, the cap on the gate" {
        fn situ(&self, gate: &[f32], up: &[f32], caps: Caps, out: &mut [f32]) {
            let beta = self.0.single(caps.beta);
            Contract { path: self.path() }.situ(gate, up, Caps { beta, ..caps }, out);
        }
    }
    "s2-linear-beta" "S2" "linear beta, the cap on the linear part" {
        fn situ(&self, gate: &[f32], up: &[f32], caps: Caps, out: &mut [f32]) {
            let linear_beta = self.0.single(caps.linear_beta);
            Contract { path: self.path() }.situ(gate, up, Caps { linear_beta, ..caps }, out);
        }
    }
}

/// The router's rule for weights with another divisor, made from the sum of the chosen scores.
fn renormalised(
    scores: &[f32],
    ids: &[usize],
    weighting: Weighting,
    divisor: impl Fn(f32) -> f32,
) -> Vec<f32> {
    let mut chosen: Vec<f32> = ids.iter().map(|&id| scores[id]).collect();
    if weighting.renormalise && chosen.len() > 1 {
        let divisor = divisor(sums::scalar_sum(&chosen) as f32);
        chosen.iter_mut().for_each(|weight| *weight /= divisor);
    }
    chosen.iter().map(|weight| weight * weighting.scaling_factor).collect()
}
