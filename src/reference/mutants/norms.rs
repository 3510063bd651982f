//! Mutants of RMSNorm and of its ε, all places together and each place alone (N1 to N3).

use super::super::formulas::{Formulas, NormSite, Released, product};
use super::super::rows::dot;
use super::ReferenceMutant;

mutants! {
    WeightFirst "norm-weight-before" [N1]
    "the weight is multiplied in before the mean square is taken" {
        fn rms_norm(&self, site: NormSite, x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
            self.normalise(site, &product(x, weight), eps)
        }
    }

    WeightPlusOne "norm-weight-plus-one" [N1]
    "the weight is taken as an offset from one" {
        fn rms_norm(&self, site: NormSite, x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
            let normed = self.normalise(site, x, eps);
            normed.iter().zip(weight).map(|(x, w)| x * (1.0 + w)).collect()
        }
    }

    SumOfSquares "norm-sum-of-squares" [N1]
    "the sum of squares is taken instead of their mean" {
        fn normalise(&self, _site: NormSite, x: &[f64], eps: f64) -> Vec<f64> {
            let root = (dot(x, x) + eps).sqrt();
            x.iter().map(|x| x / root).collect()
        }
    }

    LayerNorm "norm-mean-subtracted" [N1]
    "the mean is subtracted first, as LayerNorm does" {
        fn normalise(&self, site: NormSite, x: &[f64], eps: f64) -> Vec<f64> {
            let mean = x.iter().sum::<f64>() / x.len() as f64;
            let centred: Vec<f64> = x.iter().map(|x| x - mean).collect();
            Released.normalise(site, &centred, eps)
        }
    }

    NoEps "norm-eps-dropped" [N1 N2]
    "ε is left out of every norm" {
        fn normalise(&self, site: NormSite, x: &[f64], _eps: f64) -> Vec<f64> {
            Released.normalise(site, x, 0.0)
        }
    }

    MlaSlip "norm-eps-mla-both-rms-norm-eps" [N3]
    "rms_norm_eps is used in both low-rank norms of MLA, as several engines do" {
        fn norm_eps(&self, _site: NormSite, rms_norm_eps: f64, _mla_norm_eps: f64) -> f64 {
            rms_norm_eps
        }
    }

    ClassDefault "norm-eps-class-default-everywhere" [N2]
    "the class default 1e-6 is used in every norm" {
        fn norm_eps(&self, _site: NormSite, _rms_norm_eps: f64, _mla_norm_eps: f64) -> f64 {
            1e-6
        }
    }

    LiteralEps "norm-eps-literal" [N2]
    "the released 1e-5 stands in the code instead of the config's rms_norm_eps" {
        fn norm_eps(&self, site: NormSite, _rms_norm_eps: f64, mla_norm_eps: f64) -> f64 {
            Released.norm_eps(site, 1e-5, mla_norm_eps)
        }
    }
}

/// ε added to the root instead of under it, in one place.
#[derive(Debug)]
struct OutsideRoot(NormSite);

impl Formulas for OutsideRoot {
    fn normalise(&self, site: NormSite, x: &[f64], eps: f64) -> Vec<f64> {
        if site != self.0 {
            return Released.normalise(site, x, eps);
        }
        let divisor = (dot(x, x) / x.len() as f64).sqrt() + eps;
        x.iter().map(|x| x / divisor).collect()
    }
}

/// Another ε in one place: 1e-6 instead of `rms_norm_eps`, and the other way round in MLA.
#[derive(Debug)]
struct OtherEps(NormSite);

impl Formulas for OtherEps {
    fn norm_eps(&self, site: NormSite, rms_norm_eps: f64, mla_norm_eps: f64) -> f64 {
        match site {
            site if site != self.0 => Released.norm_eps(site, rms_norm_eps, mla_norm_eps),
            NormSite::MlaQ | NormSite::MlaKv => rms_norm_eps,
            _ => 1e-6,
        }
    }
}

/// The released ε 1e-5 as a literal in one place.
#[derive(Debug)]
struct LiteralEpsAt(NormSite);

impl Formulas for LiteralEpsAt {
    fn norm_eps(&self, site: NormSite, rms_norm_eps: f64, mla_norm_eps: f64) -> f64 {
        let eps = if site == self.0 { 1e-5 } else { rms_norm_eps };
        Released.norm_eps(site, eps, mla_norm_eps)
    }
}

/// One norm's weight left out.
#[derive(Debug)]
struct NoWeight(NormSite);

impl Formulas for NoWeight {
    fn rms_norm(&self, site: NormSite, x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
        if site == self.0 {
            self.normalise(site, x, eps)
        } else {
            Released.rms_norm(site, x, weight, eps)
        }
    }
}

/// One norm left out.
#[derive(Debug)]
struct NoNorm(NormSite);

impl Formulas for NoNorm {
    fn rms_norm(&self, site: NormSite, x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
        if site == self.0 {
            x.to_vec()
        } else {
            Released.rms_norm(site, x, weight, eps)
        }
    }
}

/// A mutant of one place.
macro_rules! at {
    ($formulas:ident $site:ident [$($clause:ident)+] $id:expr, $what:expr) => {
        ReferenceMutant {
            id: $id,
            clauses: &[$(stringify!($clause)),+],
            what: $what,
            formulas: &$formulas(NormSite::$site),
        }
    };
}

/// The slips of ε in the places of the norms that take `rms_norm_eps`, one place at a time.
macro_rules! eps_slips {
    ($($site:ident $place:literal)+) => {
        &[$(
            at!(OutsideRoot $site [N1] concat!("norm-eps-outside-root-", $place),
                concat!("ε is added outside the root, in the norm: ", $place)),
            at!(OtherEps $site [N2] concat!("norm-eps-other-", $place),
                concat!("1e-6 is used instead of rms_norm_eps, in the norm: ", $place)),
            at!(LiteralEpsAt $site [N2] concat!("norm-eps-literal-", $place),
                concat!("a literal 1e-5 stands for rms_norm_eps, in the norm: ", $place)),
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
    at!(OutsideRoot MlaQ [N1 N3] "norm-eps-outside-root-mla-q",
        "ε is added outside the root, in q_a_layernorm"),
    at!(OutsideRoot MlaKv [N1 N3] "norm-eps-outside-root-mla-kv",
        "ε is added outside the root, in kv_a_layernorm"),
    at!(OtherEps MlaQ [N3] "norm-eps-mla-q-rms-norm-eps",
        "rms_norm_eps is used in q_a_layernorm"),
    at!(OtherEps MlaKv [N3] "norm-eps-mla-kv-rms-norm-eps",
        "rms_norm_eps is used in kv_a_layernorm"),
    at!(NoNorm Input [N1] "norm-skipped-input", "input_layernorm is left out"),
    at!(NoNorm PostAttention [N1] "norm-skipped-post-attention",
        "post_attention_layernorm is left out"),
    at!(NoNorm MlaQ [M1] "norm-skipped-mla-q", "q_a_layernorm is left out"),
    at!(NoNorm MlaKv [M2] "norm-skipped-mla-kv", "kv_a_layernorm is left out"),
    at!(NoNorm KdaOutput [K12] "norm-skipped-kda-output", "o_norm is left out"),
    at!(NoNorm Latent [E8] "norm-skipped-latent", "routed_expert_norm is left out"),
    at!(NoWeight MlaQ [M1] "norm-weight-dropped-mla-q", "the weight of q_a_layernorm is left out"),
    at!(NoWeight MlaKv [M2] "norm-weight-dropped-mla-kv",
        "the weight of kv_a_layernorm is left out"),
    at!(NoWeight KdaOutput [K12] "norm-weight-dropped-kda-output",
        "the weight of o_norm is left out"),
    at!(NoWeight Latent [E8] "norm-weight-dropped-latent",
        "the weight of routed_expert_norm is left out"),
];
