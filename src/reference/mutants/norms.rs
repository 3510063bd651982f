//! Mutants of RMSNorm and of its ε, all places together and each place alone (N1 to N3).

use super::super::arithmetic::{divided, product};
use super::super::formulas::{Formulas, NormSite, RELEASED};
use super::super::released;
use super::super::rows::dot;
use super::{ReferenceMutant, mutant};

/// The mutants of this area.
pub(super) const ALL: &[ReferenceMutant] = &[
    mutant(
        "norm-weight-before",
        &["N1"],
        "the weight is multiplied in before the mean square is taken",
        Formulas {
            rms_norm: |formulas, site, x, weight, eps| {
                (formulas.normalise)(site, &product(x, weight), eps)
            },
            ..RELEASED
        },
    ),
    mutant(
        "norm-weight-plus-one",
        &["N1"],
        "the weight is taken as an offset from one",
        Formulas {
            rms_norm: |formulas, site, x, weight, eps| {
                let normed = (formulas.normalise)(site, x, eps);
                normed.iter().zip(weight).map(|(x, w)| x * (1.0 + w)).collect()
            },
            ..RELEASED
        },
    ),
    mutant(
        "norm-sum-of-squares",
        &["N1"],
        "the sum of squares is taken instead of their mean",
        Formulas { normalise: |_, x, eps| divided(x, (dot(x, x) + eps).sqrt()), ..RELEASED },
    ),
    mutant(
        "norm-mean-subtracted",
        &["N1"],
        "the mean is subtracted first, as LayerNorm does",
        Formulas {
            normalise: |site, x, eps| {
                let mean = x.iter().sum::<f64>() / x.len() as f64;
                let centred: Vec<f64> = x.iter().map(|x| x - mean).collect();
                released::normalise(site, &centred, eps)
            },
            ..RELEASED
        },
    ),
    mutant(
        "norm-eps-dropped",
        &["N1", "N2"],
        "ε is left out of every norm",
        Formulas { normalise: |site, x, _| released::normalise(site, x, 0.0), ..RELEASED },
    ),
    mutant(
        "norm-eps-mla-both-rms-norm-eps",
        &["N3"],
        "rms_norm_eps is used in both low-rank norms of MLA, as several engines do",
        Formulas { norm_eps: |_, rms_norm_eps, _| rms_norm_eps, ..RELEASED },
    ),
    mutant(
        "norm-eps-class-default-everywhere",
        &["N2"],
        "the class default 1e-6 is used in every norm",
        Formulas { norm_eps: |_, _, _| 1e-6, ..RELEASED },
    ),
    mutant(
        "norm-eps-literal",
        &["N2"],
        "the released 1e-5 is hard-coded instead of the config's rms_norm_eps",
        Formulas {
            norm_eps: |site, _, mla_norm_eps| released::norm_eps(site, 1e-5, mla_norm_eps),
            ..RELEASED
        },
    ),
];

/// x / (root of the mean square + ε).
fn eps_outside_root(x: &[f64], eps: f64) -> Vec<f64> {
    divided(x, (dot(x, x) / x.len() as f64).sqrt() + eps)
}

/// ε added to the root instead of under it, in one place.
macro_rules! outside_root {
    ($place:ident) => {
        Formulas {
            normalise: |site, x, eps| match site {
                NormSite::$place => eps_outside_root(x, eps),
                _ => released::normalise(site, x, eps),
            },
            ..RELEASED
        }
    };
}

/// Another ε in one place; the rule gets `rms_norm_eps`.
macro_rules! eps_at {
    ($place:ident, $rule:expr) => {
        Formulas {
            norm_eps: |site, rms_norm_eps, mla_norm_eps| match site {
                NormSite::$place => $rule(rms_norm_eps),
                _ => released::norm_eps(site, rms_norm_eps, mla_norm_eps),
            },
            ..RELEASED
        }
    };
}

/// One norm left out.
macro_rules! no_norm {
    ($place:ident) => {
        Formulas {
            rms_norm: |formulas, site, x, weight, eps| match site {
                NormSite::$place => x.to_vec(),
                _ => released::rms_norm(formulas, site, x, weight, eps),
            },
            ..RELEASED
        }
    };
}

pub(super) use no_norm;

/// One norm's weight left out.
macro_rules! no_weight {
    ($place:ident) => {
        Formulas {
            rms_norm: |formulas, site, x, weight, eps| match site {
                NormSite::$place => (formulas.normalise)(site, x, eps),
                _ => released::rms_norm(formulas, site, x, weight, eps),
            },
            ..RELEASED
        }
    };
}

/// The slips of ε in the places of the norms that take `rms_norm_eps`, one place at a time.
macro_rules! eps_slips {
    ($($site:ident $place:literal)+) => {
        &[$(
            mutant(
                concat!("norm-eps-outside-root-", $place),
                &["N1"],
                concat!("ε is added outside the root, in the norm: ", $place),
                outside_root!($site),
            ),
            mutant(
                concat!("norm-eps-other-", $place),
                &["N2"],
                concat!("1e-6 is used instead of rms_norm_eps, in the norm: ", $place),
                eps_at!($site, |_| 1e-6),
            ),
            mutant(
                concat!("norm-eps-literal-", $place),
                &["N2"],
                concat!("a literal 1e-5 replaces rms_norm_eps, in the norm: ", $place),
                eps_at!($site, |_| 1e-5),
            ),
        )+]
    };
}

/// Three slips of ε in each of the eight places that take `rms_norm_eps`.
pub(super) const EPS_SLIPS: &[ReferenceMutant] = eps_slips! {
    Input "input"
    PostAttention "post-attention"
    Final "final"
    AttnMix "attention-mix"
    MlpMix "mlp-mix"
    OutputMix "output-mix"
    KdaOutput "kda-output"
    Latent "latent"
};

/// Other mistakes in one norm alone.
pub(super) const ONE_PLACE: &[ReferenceMutant] = &[
    mutant(
        "norm-eps-outside-root-mla-q",
        &["N1", "N3"],
        "ε is added outside the root, in q_a_layernorm",
        outside_root!(MlaQ),
    ),
    mutant(
        "norm-eps-outside-root-mla-kv",
        &["N1", "N3"],
        "ε is added outside the root, in kv_a_layernorm",
        outside_root!(MlaKv),
    ),
    mutant(
        "norm-eps-mla-q-rms-norm-eps",
        &["N3"],
        "rms_norm_eps is used in q_a_layernorm",
        eps_at!(MlaQ, |eps| eps),
    ),
    mutant(
        "norm-eps-mla-kv-rms-norm-eps",
        &["N3"],
        "rms_norm_eps is used in kv_a_layernorm",
        eps_at!(MlaKv, |eps| eps),
    ),
    mutant("norm-skipped-input", &["N1"], "input_layernorm is left out", no_norm!(Input)),
    mutant(
        "norm-skipped-post-attention",
        &["N1"],
        "post_attention_layernorm is left out",
        no_norm!(PostAttention),
    ),
    mutant("norm-skipped-mla-q", &["M1"], "q_a_layernorm is left out", no_norm!(MlaQ)),
    mutant("norm-skipped-mla-kv", &["M2"], "kv_a_layernorm is left out", no_norm!(MlaKv)),
    mutant("norm-skipped-kda-output", &["K12"], "o_norm is left out", no_norm!(KdaOutput)),
    mutant("norm-skipped-latent", &["E8"], "routed_expert_norm is left out", no_norm!(Latent)),
    mutant(
        "norm-weight-dropped-mla-q",
        &["M1"],
        "the weight of q_a_layernorm is left out",
        no_weight!(MlaQ),
    ),
    mutant(
        "norm-weight-dropped-mla-kv",
        &["M2"],
        "the weight of kv_a_layernorm is left out",
        no_weight!(MlaKv),
    ),
    mutant(
        "norm-weight-dropped-kda-output",
        &["K12"],
        "the weight of o_norm is left out",
        no_weight!(KdaOutput),
    ),
    mutant(
        "norm-weight-dropped-latent",
        &["E8"],
        "the weight of routed_expert_norm is left out",
        no_weight!(Latent),
    ),
];
