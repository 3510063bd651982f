//! Mutants of SiTU and of the experts (clauses S1, S2, E6 to E10).

use ndarray::s;

use super::super::arithmetic::{sigmoid, weighted_sum};
use super::super::error::ReferenceError;
use super::super::formulas::{Formulas, NormSite, RELEASED};
use super::super::layer::{LayerWeights, Mlp, Pass};
use super::super::moe::{ExpertWeights, MoeInputs, MoeWeights, moe, sum_of_experts};
use super::super::released;
use super::super::rows::{Matrix, Rows, from_values, map_rows};
use super::super::stage_hook::Stages;
use super::norms::no_norm;
use super::{ReferenceMutant, mutant};
use k3_core::stages::Stage;

/// up·down·x: the input as the routed experts' bottleneck leaves it.
pub(super) fn latent_round_trip(x: &Rows, weights: &MoeWeights) -> Rows {
    weights.up.apply(&weights.down.apply(x))
}

/// [`released::mlp`] where the router and the shared MLP of LatentMoE read what `inputs` makes of
/// the normed input, in this order.
pub(super) fn mlp_reading(
    pass: &Pass<'_>,
    layer: &LayerWeights,
    h: &Rows,
    stages: &mut Stages<'_>,
    inputs: impl Fn(&Rows, &MoeWeights) -> [Rows; 2],
) -> Result<Rows, ReferenceError> {
    let Mlp::Moe(weights) = &layer.mlp else {
        return released::mlp(pass, layer, h, stages);
    };
    let mut x = pass.norm(NormSite::PostAttention, h, &layer.post_attention_norm);
    stages.put_rows(Stage::MlpNorm, &mut x);
    let [router, shared] = &inputs(&x, weights);
    moe(pass, weights, MoeInputs { router, experts: &x, shared }, stages)
}

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
        "the released cap 4 of the gate is hard-coded",
        Formulas {
            situ: |gate, up, _, linear_beta| released::situ(gate, up, 4.0, linear_beta),
            ..RELEASED
        },
    ),
    mutant(
        "situ-linear-beta-literal",
        &["S2"],
        "the released cap 25 of the linear part is hard-coded",
        Formulas { situ: |gate, up, beta, _| released::situ(gate, up, beta, 25.0), ..RELEASED },
    ),
    mutant(
        "experts-on-slice",
        &["E6"],
        "the experts read the first columns of the full-width input",
        Formulas {
            expert_input: |weights, x| x.slice(s![.., ..weights.norm.len()]).to_owned(),
            ..RELEASED
        },
    ),
    mutant(
        "experts-input-normed",
        &["E6"],
        "the latent is normed before the experts",
        Formulas {
            expert_input: |weights, x| {
                let z = released::expert_input(weights, x);
                map_rows(&z, z.ncols(), |z| released::normalise(NormSite::Latent, z, 1e-5))
            },
            ..RELEASED
        },
    ),
    mutant(
        "expert-w1-w3-swapped",
        &["E7"],
        "w3 is taken for the gate and w1 for the linear part",
        Formulas {
            expert: |formulas, weights, id| {
                let ExpertWeights { w1, w2, w3 } = weights.expert(formulas, id)?;
                Ok(ExpertWeights { w1: w3, w2, w3: w1 })
            },
            ..RELEASED
        },
    ),
    mutant(
        "expert-w1-twice",
        &["E7"],
        "w1 is used for the linear part too",
        Formulas {
            expert: |formulas, weights, id| {
                let expert = weights.expert(formulas, id)?;
                Ok(ExpertWeights { w3: expert.w1.clone(), ..expert })
            },
            ..RELEASED
        },
    ),
    mutant(
        "expert-next-id",
        &["E7"],
        "the weights of the expert after the chosen one are used",
        Formulas {
            expert: |formulas, weights, id| {
                weights.expert(formulas, (id + 1) % weights.router.rows())
            },
            ..RELEASED
        },
    ),
    mutant(
        "latent-norm-per-expert",
        &["E8"],
        "every expert's output is normed before the weighted sum",
        Formulas {
            routed_sum: |pass, weights, z, routing| {
                let eps = pass.norm_eps(NormSite::Latent);
                sum_of_experts(pass, weights, z, routing, |output| {
                    released::rms_norm(&RELEASED, NormSite::Latent, &output, &weights.norm, eps)
                })
            },
            ..no_norm!(Latent)
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
                let (rows, columns) = up.dim();
                let row = |index| up.row(index, &mut Vec::new()).to_vec();
                let flat: Vec<f64> = (0..rows).flat_map(row).collect();
                let turned = from_values(rows, flat);
                debug_assert_eq!(turned.nrows(), columns);
                Matrix::F64(turned.t().as_standard_layout().into_owned()).apply(normed)
            },
            ..RELEASED
        },
    ),
    mutant(
        "latent-up-dropped",
        &["E9"],
        "the routed experts' part is lost and only the shared MLP is left",
        Formulas { project_up: |up, normed| Rows::zeros((normed.nrows(), up.rows())), ..RELEASED },
    ),
    mutant(
        "shared-missing",
        &["E10"],
        "the shared MLP is left out",
        Formulas { add_shared: |routed, _, _| routed.clone(), ..RELEASED },
    ),
    mutant(
        "shared-per-expert",
        &["E10"],
        "the shared MLP is added once per shared expert",
        Formulas { add_shared: |routed, shared, _| routed + 2.0 * shared, ..RELEASED },
    ),
    mutant(
        "shared-weighted",
        &["E10"],
        "the shared MLP is weighted like the routed experts",
        Formulas {
            add_shared: |routed, shared, routing| {
                let mut sum = routed.clone();
                for (token, weights) in routing.weights.iter().enumerate() {
                    let largest = weights.iter().copied().fold(0.0, f64::max);
                    sum.row_mut(token).scaled_add(largest, &shared.row(token));
                }
                sum
            },
            ..RELEASED
        },
    ),
    mutant(
        "shared-on-latent",
        &["E10"],
        "the shared MLP reads what the latent bottleneck leaves of the input",
        Formulas {
            mlp: |pass, layer, h, stages| {
                mlp_reading(pass, layer, h, stages, |x, weights| {
                    [x.clone(), latent_round_trip(x, weights)]
                })
            },
            ..RELEASED
        },
    ),
    mutant(
        "shared-before-norm",
        &["E10"],
        "the shared MLP reads the mix before its norm",
        Formulas {
            mlp: |pass, layer, h, stages| {
                mlp_reading(pass, layer, h, stages, |x, _| [x.clone(), h.clone()])
            },
            ..RELEASED
        },
    ),
];
