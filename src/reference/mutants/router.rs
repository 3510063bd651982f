//! Mutants of the router (clauses E1 to E5).

use super::super::arithmetic::{largest, softmax};
use super::super::formulas::{Formulas, RELEASED};
use super::super::released::{self, RENORMALISE_EPS};
use super::moe::{latent_round_trip, mlp_reading};
use super::{ReferenceMutant, mutant};
use k3_core::config::RawConfig;

/// The chosen in ascending order.
fn ascending(mut chosen: Vec<usize>) -> Vec<usize> {
    chosen.sort_unstable();
    chosen
}

/// Score + bias of every expert.
fn ranked(scores: &[f64], bias: &[f64]) -> Vec<f64> {
    scores.iter().zip(bias).map(|(s, b)| s + b).collect()
}

/// The mutants of this area.
pub(super) const ALL: &[ReferenceMutant] = &[
    mutant(
        "router-on-latent",
        &["E1"],
        "the router reads what the latent bottleneck leaves of the input",
        Formulas {
            mlp: |pass, layer, h, stages| {
                mlp_reading(pass, layer, h, stages, |x, weights| {
                    let router = latent_round_trip(x, weights);
                    [router, x.clone()]
                })
            },
            ..RELEASED
        },
    ),
    mutant(
        "router-before-norm",
        &["E1"],
        "the router reads the mix before its norm",
        Formulas {
            mlp: |pass, layer, h, stages| {
                mlp_reading(pass, layer, h, stages, |x, _| [h.clone(), x.clone()])
            },
            ..RELEASED
        },
    ),
    mutant(
        "router-softmax",
        &["E1"],
        "the router scores are a softmax over the experts",
        Formulas { router_scores: |logits| softmax(logits), ..RELEASED },
    ),
    mutant(
        "router-bias-ignored",
        &["E2"],
        "the correction bias does not steer the selection",
        Formulas { select: |scores, _, k| ascending(largest(scores, k)), ..RELEASED },
    ),
    mutant(
        "router-bias-subtracted",
        &["E2"],
        "the correction bias is subtracted in the selection",
        Formulas {
            select: |scores, bias, k| {
                let minus: Vec<f64> = bias.iter().map(|b| -b).collect();
                released::select(scores, &minus, k)
            },
            ..RELEASED
        },
    ),
    mutant(
        "router-top-k-minus-one",
        &["E2"],
        "one expert too few is chosen",
        Formulas {
            select: |scores, bias, k| released::select(scores, bias, (k - 1).max(1)),
            ..RELEASED
        },
    ),
    mutant(
        "router-top-k-plus-one",
        &["E2"],
        "one expert too many is chosen",
        Formulas { select: |scores, bias, k| released::select(scores, bias, k + 1), ..RELEASED },
    ),
    mutant(
        "router-ties-to-higher",
        &["E2"],
        "of equal scores the higher index is chosen",
        Formulas {
            select: |scores, bias, k| {
                let mut reversed = ranked(scores, bias);
                reversed.reverse();
                let chosen = largest(&reversed, k);
                ascending(chosen.into_iter().map(|i| scores.len() - 1 - i).collect())
            },
            ..RELEASED
        },
    ),
    mutant(
        "router-bias-in-weights",
        &["E3"],
        "the weights are the biased scores",
        Formulas {
            routing_weights: |scores, bias, chosen, config| {
                released::routing_weights(&ranked(scores, bias), bias, chosen, config)
            },
            ..RELEASED
        },
    ),
    mutant(
        "router-weights-equal",
        &["E3"],
        "the chosen experts are averaged",
        Formulas {
            routing_weights: |scores, bias, chosen, config| {
                released::routing_weights(&vec![1.0; scores.len()], bias, chosen, config)
            },
            ..RELEASED
        },
    ),
    mutant(
        "router-weights-by-rank",
        &["E3"],
        "the weights are in the order of the scores, the experts in the order of their ids",
        Formulas {
            routing_weights: |scores, bias, chosen, config| {
                let mut weights = released::routing_weights(scores, bias, chosen, config);
                weights.sort_by(|a, b| b.total_cmp(a));
                weights
            },
            ..RELEASED
        },
    ),
    mutant(
        "router-not-renormalised",
        &["E4"],
        "the chosen scores are not divided by their sum",
        Formulas {
            routing_weights: |scores, _, chosen, config| {
                chosen.iter().map(|e| scores[*e] * config.routed_scaling_factor).collect()
            },
            ..RELEASED
        },
    ),
    mutant(
        "router-renormalised-over-all",
        &["E4"],
        "the chosen scores are divided by the sum over all experts",
        Formulas {
            routing_weights: |scores, _, chosen, config| {
                let sum = scores.iter().sum::<f64>() + RENORMALISE_EPS;
                let weight = |e: &usize| scores[*e] / sum * config.routed_scaling_factor;
                chosen.iter().map(weight).collect()
            },
            ..RELEASED
        },
    ),
    mutant(
        "router-scaling-off",
        &["E5"],
        "the routed scaling factor is left out",
        Formulas {
            routing_weights: |scores, bias, chosen, config| {
                let unscaled = RawConfig { routed_scaling_factor: 1.0, ..config.clone() };
                released::routing_weights(scores, bias, chosen, &unscaled)
            },
            ..RELEASED
        },
    ),
    mutant(
        "router-scaling-of-k2",
        &["E5"],
        "K2's routed scaling factor 2.827 is hard-coded",
        Formulas {
            routing_weights: |scores, bias, chosen, config| {
                let scaled = RawConfig { routed_scaling_factor: 2.827, ..config.clone() };
                released::routing_weights(scores, bias, chosen, &scaled)
            },
            ..RELEASED
        },
    ),
];
