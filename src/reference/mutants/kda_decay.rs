//! Mutants of KDA's decay (clauses K6 to K8).

use super::super::arithmetic::{sigmoid, silu};
use super::super::formulas::{Formulas, RELEASED};
use super::super::kda::DecayInputs;
use super::super::released;
use super::{ReferenceMutant, mutant};

/// log(1 + exp(x)).
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// exp(A_log\[h\]) and z + dt_bias of the channel.
fn rate_and_input(d: &DecayInputs<'_>) -> (f64, f64) {
    let channel = d.head * d.head_dim + d.channel;
    (d.a_log[d.head].exp(), d.z[channel] + d.dt_bias[channel])
}

/// The mutants of this area.
pub(super) const ALL: &[ReferenceMutant] = &[
    mutant(
        "decay-silu-between",
        &["K6"],
        "SiLU is applied between f_a and f_b",
        Formulas {
            decay_input: |weights, x| weights.f_b.apply(&weights.f_a.apply(x).mapv(silu)),
            ..RELEASED
        },
    ),
    mutant(
        "decay-first-head-for-all",
        &["K6"],
        "the first head's rows of f_b serve every head",
        Formulas {
            log_decay: |d| {
                let bias = d.dt_bias[d.head * d.head_dim + d.channel];
                let rate = d.a_log[d.head].exp();
                d.lower_bound * sigmoid(rate * (d.z[d.channel] + bias))
            },
            ..RELEASED
        },
    ),
    mutant(
        "decay-bias-outside",
        &["K6"],
        "dt_bias is added after the multiplication with exp(A_log)",
        Formulas {
            log_decay: |d| {
                let channel = d.head * d.head_dim + d.channel;
                let rate = d.a_log[d.head].exp();
                d.lower_bound * sigmoid(rate * d.z[channel] + d.dt_bias[channel])
            },
            ..RELEASED
        },
    ),
    mutant(
        "decay-bias-dropped",
        &["K6"],
        "dt_bias is left out",
        Formulas {
            log_decay: |d| {
                let rate = d.a_log[d.head].exp();
                d.lower_bound * sigmoid(rate * d.z[d.head * d.head_dim + d.channel])
            },
            ..RELEASED
        },
    ),
    mutant(
        "decay-bias-per-head",
        &["K6"],
        "dt_bias is read as one value per head",
        Formulas {
            log_decay: |d| {
                let z = d.z[d.head * d.head_dim + d.channel];
                d.lower_bound * sigmoid(d.a_log[d.head].exp() * (z + d.dt_bias[d.head]))
            },
            ..RELEASED
        },
    ),
    mutant(
        "decay-softplus",
        &["K7"],
        "the older decay −exp(A_log)·softplus is used",
        Formulas {
            log_decay: |d| {
                let (rate, input) = rate_and_input(d);
                -rate * softplus(input)
            },
            ..RELEASED
        },
    ),
    mutant(
        "decay-softplus-clamped",
        &["K7"],
        "the older decay −exp(A_log)·softplus is used and clamped at the bound",
        Formulas {
            log_decay: |d| {
                let (rate, input) = rate_and_input(d);
                (-rate * softplus(input)).max(d.lower_bound)
            },
            ..RELEASED
        },
    ),
    mutant(
        "decay-bound-literal",
        &["K7"],
        "the released bound −5 is hard-coded",
        Formulas {
            log_decay: |d| released::log_decay(&DecayInputs { lower_bound: -5.0, ..*d }),
            ..RELEASED
        },
    ),
    mutant(
        "decay-rate-without-exp",
        &["K7"],
        "A_log is used without exp",
        Formulas {
            log_decay: |d| {
                let (_, input) = rate_and_input(d);
                d.lower_bound * sigmoid(d.a_log[d.head] * input)
            },
            ..RELEASED
        },
    ),
    mutant(
        "decay-rate-outside",
        &["K7"],
        "exp(A_log) multiplies the logistic instead of its argument",
        Formulas {
            log_decay: |d| {
                let (rate, input) = rate_and_input(d);
                d.lower_bound * rate * sigmoid(input)
            },
            ..RELEASED
        },
    ),
    mutant(
        "decay-rate-per-channel",
        &["K7", "K8"],
        "A_log is taken per channel of the head, padding included",
        Formulas {
            decay_rates: |stored, _| Ok(stored.to_vec()),
            log_decay: |d| {
                let channel = d.head * d.head_dim + d.channel;
                let rate = d.a_log[d.channel].exp();
                d.lower_bound * sigmoid(rate * (d.z[channel] + d.dt_bias[channel]))
            },
            ..RELEASED
        },
    ),
    mutant(
        "decay-rate-next-head",
        &["K7"],
        "A_log is taken from the next head",
        Formulas {
            log_decay: |d| {
                let (_, input) = rate_and_input(d);
                let rate = d.a_log[(d.head + 1) % d.a_log.len()].exp();
                d.lower_bound * sigmoid(rate * input)
            },
            ..RELEASED
        },
    ),
    mutant(
        "decay-rates-from-tail",
        &["K8"],
        "A_log is sliced at its end, where the padding is",
        Formulas {
            decay_rates: |stored, heads| Ok(stored[stored.len() - heads..].to_vec()),
            ..RELEASED
        },
    ),
    mutant(
        "decay-padding-not-checked",
        &["K8"],
        "non-zero padding of A_log is cut off in silence",
        Formulas { decay_rates: |stored, heads| Ok(stored[..heads].to_vec()), ..RELEASED },
    ),
];
