//! Mutants of SiTU and LatentMoE (clauses S1, S2, E1 to E10).

use super::super::formulas::{
    Formulas, NormSite, RENORMALISE_EPS, Released, largest, sigmoid, softmax, weighted_sum,
};
use super::super::moe::{ExpertWeights, MoeWeights};
use super::super::rows::{Matrix, Rows, dot};
use super::ReferenceMutant;
use crate::config::RawConfig;

/// The chosen in ascending order.
fn ascending(mut chosen: Vec<usize>) -> Vec<usize> {
    chosen.sort_unstable();
    chosen
}

/// Score + bias of every expert.
fn ranked(scores: &[f64], bias: &[f64]) -> Vec<f64> {
    scores.iter().zip(bias).map(|(s, b)| s + b).collect()
}

/// up·down·x: the input as the routed experts' bottleneck leaves it.
fn latent_round_trip(x: &Rows, weights: &MoeWeights) -> Rows {
    weights.up.apply(&weights.down.apply(x))
}

mutants! {
    CappedLogistic "situ-logistic-of-capped-gate" [S1]
    "the logistic takes the capped gate" {
        fn situ(&self, gate: f64, up: f64, beta: f64, linear_beta: f64) -> f64 {
            let gate = beta * (gate / beta).tanh();
            gate * sigmoid(gate) * linear_beta * (up / linear_beta).tanh()
        }
    }

    LogisticOfUp "situ-logistic-of-up" [S1]
    "the logistic takes the linear part" {
        fn situ(&self, gate: f64, up: f64, beta: f64, linear_beta: f64) -> f64 {
            let gate = beta * (gate / beta).tanh();
            gate * sigmoid(up) * linear_beta * (up / linear_beta).tanh()
        }
    }

    NoGateCap "situ-gate-cap-off" [S2]
    "the gate is not capped" {
        fn situ(&self, gate: f64, up: f64, _beta: f64, linear_beta: f64) -> f64 {
            gate * sigmoid(gate) * linear_beta * (up / linear_beta).tanh()
        }
    }

    NoUpCap "situ-up-cap-off" [S2]
    "the linear part is not capped" {
        fn situ(&self, gate: f64, up: f64, beta: f64, _linear_beta: f64) -> f64 {
            beta * (gate / beta).tanh() * sigmoid(gate) * up
        }
    }

    SwiGlu "situ-caps-off" [S2]
    "SwiGLU is computed instead of SiTU" {
        fn situ(&self, gate: f64, up: f64, _beta: f64, _linear_beta: f64) -> f64 {
            gate * sigmoid(gate) * up
        }
    }

    HardCaps "situ-hard-caps" [S2]
    "gate and linear part are clamped instead of bent by tanh" {
        fn situ(&self, gate: f64, up: f64, beta: f64, linear_beta: f64) -> f64 {
            let capped = gate.clamp(-beta, beta);
            capped * sigmoid(gate) * up.clamp(-linear_beta, linear_beta)
        }
    }

    BetasSwapped "situ-betas-swapped" [S2]
    "the two caps change places" {
        fn situ(&self, gate: f64, up: f64, beta: f64, linear_beta: f64) -> f64 {
            Released.situ(gate, up, linear_beta, beta)
        }
    }

    LiteralBeta "situ-beta-literal" [S2]
    "the released cap 4 of the gate stands in the code" {
        fn situ(&self, gate: f64, up: f64, _beta: f64, linear_beta: f64) -> f64 {
            Released.situ(gate, up, 4.0, linear_beta)
        }
    }

    LiteralLinearBeta "situ-linear-beta-literal" [S2]
    "the released cap 25 of the linear part stands in the code" {
        fn situ(&self, gate: f64, up: f64, beta: f64, _linear_beta: f64) -> f64 {
            Released.situ(gate, up, beta, 25.0)
        }
    }

    RouterOnLatent "router-on-latent" [E1]
    "the router reads what the latent bottleneck leaves of the input" {
        fn router_input(&self, x: &Rows, _mixed: &Rows, weights: &MoeWeights) -> Rows {
            latent_round_trip(x, weights)
        }
    }

    RouterBeforeNorm "router-before-norm" [E1]
    "the router reads the mix before its norm" {
        fn router_input(&self, _x: &Rows, mixed: &Rows, _weights: &MoeWeights) -> Rows {
            mixed.clone()
        }
    }

    RouterSoftmax "router-softmax" [E1]
    "the router scores are a softmax over the experts" {
        fn router_scores(&self, logits: &[f64]) -> Vec<f64> {
            softmax(logits)
        }
    }

    BiasNotInSelection "router-bias-ignored" [E2]
    "the correction bias does not steer the selection" {
        fn select(&self, scores: &[f64], _bias: &[f64], k: usize) -> Vec<usize> {
            ascending(largest(scores, k))
        }
    }

    BiasSubtracted "router-bias-subtracted" [E2]
    "the correction bias is subtracted in the selection" {
        fn select(&self, scores: &[f64], bias: &[f64], k: usize) -> Vec<usize> {
            let minus: Vec<f64> = bias.iter().map(|b| -b).collect();
            Released.select(scores, &minus, k)
        }
    }

    OneExpertLess "router-top-k-minus-one" [E2]
    "one expert too few is chosen" {
        fn select(&self, scores: &[f64], bias: &[f64], k: usize) -> Vec<usize> {
            Released.select(scores, bias, (k - 1).max(1))
        }
    }

    OneExpertMore "router-top-k-plus-one" [E2]
    "one expert too many is chosen" {
        fn select(&self, scores: &[f64], bias: &[f64], k: usize) -> Vec<usize> {
            Released.select(scores, bias, k + 1)
        }
    }

    TiesToTheHigher "router-ties-to-higher" [E2]
    "of equal scores the higher index is chosen" {
        fn select(&self, scores: &[f64], bias: &[f64], k: usize) -> Vec<usize> {
            let mut reversed = ranked(scores, bias);
            reversed.reverse();
            let chosen = largest(&reversed, k);
            ascending(chosen.into_iter().map(|i| scores.len() - 1 - i).collect())
        }
    }

    BiasInWeights "router-bias-in-weights" [E3]
    "the weights are the biased scores" {
        fn routing_weights(
            &self,
            scores: &[f64],
            bias: &[f64],
            chosen: &[usize],
            config: &RawConfig,
        ) -> Vec<f64> {
            Released.routing_weights(&ranked(scores, bias), bias, chosen, config)
        }
    }

    EqualWeights "router-weights-equal" [E3]
    "the chosen experts are averaged" {
        fn routing_weights(
            &self,
            scores: &[f64],
            bias: &[f64],
            chosen: &[usize],
            config: &RawConfig,
        ) -> Vec<f64> {
            Released.routing_weights(&vec![1.0; scores.len()], bias, chosen, config)
        }
    }

    WeightsByRank "router-weights-by-rank" [E3]
    "the weights stand in the order of the scores, the experts in the order of their ids" {
        fn routing_weights(
            &self,
            scores: &[f64],
            bias: &[f64],
            chosen: &[usize],
            config: &RawConfig,
        ) -> Vec<f64> {
            let mut weights = Released.routing_weights(scores, bias, chosen, config);
            weights.sort_by(|a, b| b.total_cmp(a));
            weights
        }
    }

    NotRenormalised "router-not-renormalised" [E4]
    "the chosen scores are not divided by their sum" {
        fn routing_weights(
            &self,
            scores: &[f64],
            _bias: &[f64],
            chosen: &[usize],
            config: &RawConfig,
        ) -> Vec<f64> {
            chosen.iter().map(|e| scores[*e] * config.routed_scaling_factor).collect()
        }
    }

    RenormalisedOverAll "router-renormalised-over-all" [E4]
    "the chosen scores are divided by the sum over all experts" {
        fn routing_weights(
            &self,
            scores: &[f64],
            _bias: &[f64],
            chosen: &[usize],
            config: &RawConfig,
        ) -> Vec<f64> {
            let sum = scores.iter().sum::<f64>() + RENORMALISE_EPS;
            let weight = |e: &usize| scores[*e] / sum * config.routed_scaling_factor;
            chosen.iter().map(weight).collect()
        }
    }

    ScalingOff "router-scaling-off" [E5]
    "the routed scaling factor is left out" {
        fn routing_weights(
            &self,
            scores: &[f64],
            bias: &[f64],
            chosen: &[usize],
            config: &RawConfig,
        ) -> Vec<f64> {
            let unscaled = RawConfig { routed_scaling_factor: 1.0, ..config.clone() };
            Released.routing_weights(scores, bias, chosen, &unscaled)
        }
    }

    ScalingOfK2 "router-scaling-of-k2" [E5]
    "K2's routed scaling factor 2.827 stands in the code" {
        fn routing_weights(
            &self,
            scores: &[f64],
            bias: &[f64],
            chosen: &[usize],
            config: &RawConfig,
        ) -> Vec<f64> {
            let scaled = RawConfig { routed_scaling_factor: 2.827, ..config.clone() };
            Released.routing_weights(scores, bias, chosen, &scaled)
        }
    }

    ExpertsOnSlice "experts-on-slice" [E6]
    "the experts read the first columns of the full-width input" {
        fn expert_input(&self, x: &Rows, latent: &Rows) -> Rows {
            x.map(latent.width, |x| x[..latent.width].to_vec())
        }
    }

    LatentNormedBefore "experts-input-normed" [E6]
    "the latent is normed before the experts" {
        fn expert_input(&self, _x: &Rows, latent: &Rows) -> Rows {
            latent.map(latent.width, |z| self.normalise(NormSite::Latent, z, 1e-5))
        }
    }

    GateAndUpSwapped "expert-w1-w3-swapped" [E7]
    "w3 is taken for the gate and w1 for the linear part" {
        fn expert_roles<'a>(&self, expert: &'a ExpertWeights) -> [&'a Matrix; 3] {
            [&expert.w3, &expert.w1, &expert.w2]
        }
    }

    GateForUp "expert-w1-twice" [E7]
    "w1 is used for the linear part too" {
        fn expert_roles<'a>(&self, expert: &'a ExpertWeights) -> [&'a Matrix; 3] {
            [&expert.w1, &expert.w1, &expert.w2]
        }
    }

    NextExpert "expert-next-id" [E7]
    "the weights of the expert after the chosen one are used" {
        fn expert_id(&self, chosen: usize, experts: usize) -> usize {
            (chosen + 1) % experts
        }
    }

    NormPerExpert "latent-norm-per-expert" [E8]
    "every expert's output is normed before the weighted sum" {
        fn expert_share(&self, output: Vec<f64>, norm: &[f64], eps: f64) -> Vec<f64> {
            self.rms_norm(NormSite::Latent, &output, norm, eps)
        }
        fn norm_of_sum(&self, sum: &[f64], _norm: &[f64], _eps: f64) -> Vec<f64> {
            sum.to_vec()
        }
    }

    SumUnweighted "experts-unweighted" [E8]
    "the experts' outputs are added without their weights" {
        fn combine(&self, outputs: &[Vec<f64>], weights: &[f64], width: usize) -> Vec<f64> {
            weighted_sum(outputs, &vec![1.0; weights.len()], width)
        }
    }

    UpTransposed "latent-up-transposed" [E9]
    "the up-projection's values are read as [L, E]" {
        fn project_up(&self, up: &Matrix, normed: &Rows) -> Rows {
            let (rows, columns) = (up.rows(), up.columns());
            let mut flat = Vec::with_capacity(rows * columns);
            let mut buffer = Vec::new();
            for row in 0..rows {
                flat.extend_from_slice(up.row(row, &mut buffer));
            }
            let column = |c: usize| (0..columns).map(|l| flat[l * rows + c]).collect::<Vec<f64>>();
            let turned: Vec<Vec<f64>> = (0..rows).map(column).collect();
            normed.map(rows, |y| turned.iter().map(|w| dot(w, y)).collect())
        }
    }

    RoutedDropped "latent-up-dropped" [E9]
    "the routed experts' part is lost and only the shared MLP is left" {
        fn project_up(&self, up: &Matrix, normed: &Rows) -> Rows {
            Rows::zeros(normed.count(), up.rows())
        }
    }

    SharedMissing "shared-missing" [E10]
    "the shared MLP is left out" {
        fn shared_weight(&self, _routing_weights: &[f64]) -> f64 {
            0.0
        }
    }

    SharedTwice "shared-per-expert" [E10]
    "the shared MLP is added once per shared expert" {
        fn shared_weight(&self, _routing_weights: &[f64]) -> f64 {
            2.0
        }
    }

    SharedWeighted "shared-weighted" [E10]
    "the shared MLP is weighted like the routed experts" {
        fn shared_weight(&self, routing_weights: &[f64]) -> f64 {
            routing_weights.iter().copied().fold(0.0, f64::max)
        }
    }

    SharedOnLatent "shared-on-latent" [E10]
    "the shared MLP reads what the latent bottleneck leaves of the input" {
        fn shared_input(&self, x: &Rows, _mixed: &Rows, weights: &MoeWeights) -> Rows {
            latent_round_trip(x, weights)
        }
    }

    SharedBeforeNorm "shared-before-norm" [E10]
    "the shared MLP reads the mix before its norm" {
        fn shared_input(&self, _x: &Rows, mixed: &Rows, _weights: &MoeWeights) -> Rows {
            mixed.clone()
        }
    }
}
