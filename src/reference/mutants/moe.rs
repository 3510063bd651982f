//! Mutants of SiTU and of the experts (clauses S1, S2, E6 to E10).

use super::super::arithmetic::{sigmoid, weighted_sum};
use super::super::formulas::{Formulas, NormSite, RELEASED};
use super::super::released;
use super::super::rows::{Rows, dot};
use super::router::latent_round_trip;
use super::{ReferenceMutant, mutant};

/// The mutants of this area.
pub(super) const ALL: &[ReferenceMutant] = &[
    mutant(
        "situ-logistic-of-capped-gate",
        &["S1"],
        "the logistic takes the capped gate",
        Formulas {
            situ: |gate, up, beta, linear_beta| {
                let gate = beta * (gate / beta).tanh();
                gate * sigmoid(gate) * linear_beta * (up / linear_beta).tanh()
            },
            ..RELEASED
        },
    ),
    mutant(
        "situ-logistic-of-up",
        &["S1"],
        "the logistic takes the linear part",
        Formulas {
            situ: |gate, up, beta, linear_beta| {
                let gate = beta * (gate / beta).tanh();
                gate * sigmoid(up) * linear_beta * (up / linear_beta).tanh()
            },
            ..RELEASED
        },
    ),
    mutant(
        "situ-gate-cap-off",
        &["S2"],
        "the gate is not capped",
        Formulas {
            situ: |gate, up, _, linear_beta| {
                gate * sigmoid(gate) * linear_beta * (up / linear_beta).tanh()
            },
            ..RELEASED
        },
    ),
    mutant(
        "situ-up-cap-off",
        &["S2"],
        "the linear part is not capped",
        Formulas {
            situ: |gate, up, beta, _| beta * (gate / beta).tanh() * sigmoid(gate) * up,
            ..RELEASED
        },
    ),
    mutant(
        "situ-caps-off",
        &["S2"],
        "SwiGLU is computed instead of SiTU",
        Formulas { situ: |gate, up, _, _| gate * sigmoid(gate) * up, ..RELEASED },
    ),
    mutant(
        "situ-hard-caps",
        &["S2"],
        "gate and linear part are clamped instead of bent by tanh",
        Formulas {
            situ: |gate, up, beta, linear_beta| {
                let capped = gate.clamp(-beta, beta);
                capped * sigmoid(gate) * up.clamp(-linear_beta, linear_beta)
            },
            ..RELEASED
        },
    ),
    mutant(
        "situ-betas-swapped",
        &["S2"],
        "the two caps change places",
        Formulas {
            situ: |gate, up, beta, linear_beta| released::situ(gate, up, linear_beta, beta),
            ..RELEASED
        },
    ),
    mutant(
        "situ-beta-literal",
        &["S2"],
        "the released cap 4 of the gate stands in the code",
        Formulas {
            situ: |gate, up, _, linear_beta| released::situ(gate, up, 4.0, linear_beta),
            ..RELEASED
        },
    ),
    mutant(
        "situ-linear-beta-literal",
        &["S2"],
        "the released cap 25 of the linear part stands in the code",
        Formulas { situ: |gate, up, beta, _| released::situ(gate, up, beta, 25.0), ..RELEASED },
    ),
    mutant(
        "experts-on-slice",
        &["E6"],
        "the experts read the first columns of the full-width input",
        Formulas {
            expert_input: |x, latent| x.map(latent.width, |x| x[..latent.width].to_vec()),
            ..RELEASED
        },
    ),
    mutant(
        "experts-input-normed",
        &["E6"],
        "the latent is normed before the experts",
        Formulas {
            expert_input: |_, latent| {
                latent.map(latent.width, |z| released::normalise(NormSite::Latent, z, 1e-5))
            },
            ..RELEASED
        },
    ),
    mutant(
        "expert-w1-w3-swapped",
        &["E7"],
        "w3 is taken for the gate and w1 for the linear part",
        Formulas { expert_roles: |expert| [&expert.w3, &expert.w1, &expert.w2], ..RELEASED },
    ),
    mutant(
        "expert-w1-twice",
        &["E7"],
        "w1 is used for the linear part too",
        Formulas { expert_roles: |expert| [&expert.w1, &expert.w1, &expert.w2], ..RELEASED },
    ),
    mutant(
        "expert-next-id",
        &["E7"],
        "the weights of the expert after the chosen one are used",
        Formulas { expert_id: |chosen, experts| (chosen + 1) % experts, ..RELEASED },
    ),
    mutant(
        "latent-norm-per-expert",
        &["E8"],
        "every expert's output is normed before the weighted sum",
        Formulas {
            expert_share: |output, norm, eps| {
                released::rms_norm(&RELEASED, NormSite::Latent, &output, norm, eps)
            },
            norm_of_sum: |_, sum, _, _| sum.to_vec(),
            ..RELEASED
        },
    ),
    mutant(
        "experts-unweighted",
        &["E8"],
        "the experts' outputs are added without their weights",
        Formulas {
            combine: |outputs, weights, width| {
                weighted_sum(outputs, &vec![1.0; weights.len()], width)
            },
            ..RELEASED
        },
    ),
    mutant(
        "latent-up-transposed",
        &["E9"],
        "the up-projection's values are read as [L, E]",
        Formulas {
            project_up: |up, normed| {
                let (rows, columns) = (up.rows(), up.columns());
                let mut flat = Vec::with_capacity(rows * columns);
                let mut buffer = Vec::new();
                for row in 0..rows {
                    flat.extend_from_slice(up.row(row, &mut buffer));
                }
                let column =
                    |c: usize| (0..columns).map(|l| flat[l * rows + c]).collect::<Vec<f64>>();
                let turned: Vec<Vec<f64>> = (0..rows).map(column).collect();
                normed.map(rows, |y| turned.iter().map(|w| dot(w, y)).collect())
            },
            ..RELEASED
        },
    ),
    mutant(
        "latent-up-dropped",
        &["E9"],
        "the routed experts' part is lost and only the shared MLP is left",
        Formulas { project_up: |up, normed| Rows::zeros(normed.count(), up.rows()), ..RELEASED },
    ),
    mutant(
        "shared-missing",
        &["E10"],
        "the shared MLP is left out",
        Formulas { shared_weight: |_| 0.0, ..RELEASED },
    ),
    mutant(
        "shared-per-expert",
        &["E10"],
        "the shared MLP is added once per shared expert",
        Formulas { shared_weight: |_| 2.0, ..RELEASED },
    ),
    mutant(
        "shared-weighted",
        &["E10"],
        "the shared MLP is weighted like the routed experts",
        Formulas {
            shared_weight: |routing_weights| routing_weights.iter().copied().fold(0.0, f64::max),
            ..RELEASED
        },
    ),
    mutant(
        "shared-on-latent",
        &["E10"],
        "the shared MLP reads what the latent bottleneck leaves of the input",
        Formulas { shared_input: |x, _, weights| latent_round_trip(x, weights), ..RELEASED },
    ),
    mutant(
        "shared-before-norm",
        &["E10"],
        "the shared MLP reads the mix before its norm",
        Formulas { shared_input: |_, mixed, _| mixed.clone(), ..RELEASED },
    ),
];
