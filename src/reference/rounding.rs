//! The reference with every stored activation rounded to a narrower precision.
//!
//! What an engine of that precision cannot avoid, the noise floor, is how far this variant is from
//! the unrounded reference. Sums stay in f64, every value that an engine would store is rounded
//! once. [`POINTS`] is the table of these values; the stage values among them are rounded by a
//! hook ([`RoundedStages`]), the others by [`rounded_formulas`].
//!
//! The KDA state, the log decay, router scores and routing weights are kept in single at least.
//! (mlx-lm casts routing weights back to the activations' precision; local bounds allow for it.)

use ndarray::Array2;

use super::formulas::{Formulas, NormSite, Part, RELEASED};
use super::mla::MlaCache;
use super::moe::sum_of_experts;
use super::released;
use super::rows::{Matrix, Rows};
use super::stage_hook::StageHook;
use k3_core::Precision;
use k3_core::stages::{Stage, StageKey};

/// A value that is rounded, and whether it stays in single when the precision is narrower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundingPoint {
    /// Which value.
    pub value: &'static str,
    /// Whether it is kept in single at least.
    pub at_least_single: bool,
}

const fn point(value: &'static str, at_least_single: bool) -> RoundingPoint {
    RoundingPoint { value, at_least_single }
}

/// Everything that is rounded. Every stage value but the expert ids is one line of it; the other
/// lines are what engines store between stages.
pub const POINTS: [RoundingPoint; 19] = [
    point("every stage tensor not named below", false),
    point("kda.state after every token", true),
    point("kda.g", true),
    point("router_scores", true),
    point("router_weights", true),
    point("inputs of the three convolutions (q, k, v projections)", false),
    point("outputs of the convolutions, and again after SiLU", false),
    point("q and k after l2norm, q again after its scale", false),
    point("f_a x", false),
    point("b_proj x, before the logistic", false),
    point("g_proj x of KDA and of MLA", false),
    point("input and output of every RMSNorm with a weight", false),
    point("KDA output after norm and gate, MLA output after its gate", false),
    point("kv_a x", false),
    point("kv_b(latent): expanded keys and values in the cache", false),
    point("gate and up projections of every MLP, and their SiTU", false),
    point("output of every routed expert", false),
    point("up-projection of the routed sum", false),
    point("the running sum after attention", false),
];

/// The precision in which a stage value is kept.
#[must_use]
pub fn kept_in(stage: Stage, precision: Precision) -> Precision {
    match stage {
        Stage::KdaState | Stage::KdaG | Stage::RouterScores | Stage::RouterWeights => {
            precision.at_least_single()
        }
        _ => precision,
    }
}

/// Rounds every stage value before any later step reads it.
#[derive(Debug, Clone, Copy)]
pub struct RoundedStages(pub Precision);

impl StageHook for RoundedStages {
    fn stored(&self, key: StageKey, values: &mut [f64]) {
        let kept = kept_in(key.stage, self.0);
        for value in values {
            *value = kept.round(*value);
        }
    }

    fn stored_ids(&self, _key: StageKey, _chosen: &mut [Vec<usize>]) {}
}

/// The released formulas with the values between the stages rounded.
#[must_use]
pub fn rounded_formulas(precision: Precision) -> Formulas {
    match precision {
        Precision::Bf16 => with_grid::<Bf16>(),
        Precision::F16 => with_grid::<F16>(),
        Precision::F32 => with_grid::<F32>(),
        Precision::F64 => RELEASED,
    }
}

/// A precision as a type: a table of function pointers cannot carry a value.
trait Grid {
    const PRECISION: Precision;

    fn number(value: f64) -> f64 {
        Self::PRECISION.round(value)
    }

    fn vector(values: &[f64]) -> Vec<f64> {
        values.iter().map(|value| Self::number(*value)).collect()
    }

    fn rows(rows: &Rows) -> Rows {
        rows.mapv(Self::number)
    }
}

struct Bf16;
struct F16;
struct F32;

impl Grid for Bf16 {
    const PRECISION: Precision = Precision::Bf16;
}
impl Grid for F16 {
    const PRECISION: Precision = Precision::F16;
}
impl Grid for F32 {
    const PRECISION: Precision = Precision::F32;
}

fn with_grid<G: Grid>() -> Formulas {
    Formulas {
        rms_norm: rms_norm::<G>,
        convolve: convolve::<G>,
        convolution_activation: |part, x| G::number(released::convolution_activation(part, x)),
        l2_norm: |head| G::vector(&released::l2_norm(head)),
        decay_input: |weights, x| weights.f_b.apply(&G::rows(&weights.f_a.apply(x))),
        beta: |logits, head| released::beta(&G::vector(logits), head),
        kda_output: kda_output::<G>,
        latent: |formulas, compressed, weight, eps| {
            released::latent(formulas, &G::vector(compressed), weight, eps)
        },
        mla_output: |o, gate| G::vector(&released::mla_output(o, &G::vector(gate))),
        extend_cache: extend_cache::<G>,
        situ: |gate, up, beta, linear_beta| {
            G::number(released::situ(G::number(gate), G::number(up), beta, linear_beta))
        },
        routed_sum: |pass, weights, z, routing| {
            sum_of_experts(pass, weights, z, routing, |output| G::vector(&output))
        },
        project_up: |up: &Matrix, normed: &Rows| G::rows(&released::project_up(up, normed)),
        sum_after_attention: |opens, sum, attention| {
            G::rows(&released::sum_after_attention(opens, sum, attention))
        },
        ..RELEASED
    }
}

fn rms_norm<G: Grid>(
    formulas: &Formulas,
    site: NormSite,
    x: &[f64],
    weight: &[f64],
    eps: f64,
) -> Vec<f64> {
    G::vector(&released::rms_norm(formulas, site, &G::vector(x), weight, eps))
}

fn convolve<G: Grid>(part: Part, history: &Rows, input: &Rows, taps: &Array2<f64>) -> Rows {
    let out = released::convolve(part, &G::rows(history), &G::rows(input), taps);
    G::rows(&out)
}

fn kda_output<G: Grid>(
    formulas: &Formulas,
    o: &[f64],
    o_norm: &[f64],
    gate: &[f64],
    eps: f64,
) -> Vec<f64> {
    let out = released::kda_output(formulas, o, o_norm, &G::vector(gate), eps);
    G::vector(&out)
}

fn extend_cache<G: Grid>(cache: &mut MlaCache, entries: &MlaCache) {
    let mut entries = entries.clone();
    entries.key_value = G::rows(&entries.key_value);
    released::extend_cache(cache, &entries);
}
