//! The engine with one value off by a relative δ: how small an error do the gates still see?
//!
//! A [`Site`] is a place where a clause forms a value (a product, an ε, a scale, a weight). The
//! engine with that site perturbed by δ computes value·(1+δ) there, in f64 and rounded once, and
//! everything else as in production; with δ = 0 it is production, bit for bit. Clauses without a
//! number of their own have a site only where right and wrong can be blended by δ.

use std::sync::Arc;

use crate::model::{Contract, NormSite, Operations};

/// Makes the operations with a perturbation in them.
type Make = fn(Delta) -> Arc<dyn Operations>;

/// Sites without data: id, clause, sentence, overridden methods. `self.0` is the [`Delta`].
macro_rules! sites {
    ($($id:literal $clause:literal $what:literal { $($methods:tt)* })*) => {
        /// The sites of this file.
        #[allow(clippy::too_many_lines, reason = "a table")]
        pub(super) fn list() -> Vec<super::Site> {
            vec![$({
                #[derive(Debug)]
                struct Perturbed(super::Delta);
                impl $crate::model::Operations for Perturbed {
                    fn as_dyn(&self) -> &dyn $crate::model::Operations {
                        self
                    }
                    $($methods)*
                }
                super::Site {
                    id: $id,
                    clause: $clause,
                    what: $what,
                    make: super::Maker::Plain(|delta| std::sync::Arc::new(Perturbed(delta))),
                }
            }),*]
        }
    };
}

mod arithmetic;
mod kda;
mod mla;
mod moe;
mod stream;

/// A place where a clause forms a value.
#[derive(Debug, Clone, Copy)]
pub struct Site {
    /// Unique name, clause first: `k4-query-scale`.
    pub id: &'static str,
    /// The clause that forms the value.
    pub clause: &'static str,
    /// What is multiplied by 1+δ, or blended.
    pub what: &'static str,
    make: Maker,
}

#[derive(Debug, Clone, Copy)]
enum Maker {
    Plain(Make),
    Epsilon(NormSite),
}

impl Site {
    /// The engine's operations with this site off by the relative error `delta`.
    #[must_use]
    pub fn operations(&self, delta: f64) -> Arc<dyn Operations> {
        let delta = Delta(delta);
        match self.make {
            Maker::Plain(make) => make(delta),
            Maker::Epsilon(site) => Arc::new(Epsilon { site, delta }),
        }
    }
}

/// A relative error.
#[derive(Debug, Clone, Copy)]
struct Delta(f64);

impl Delta {
    /// value·(1+δ). The sum is formed of value and value·δ: 1+δ itself would lose a δ below 2⁻⁵³.
    fn of(self, value: f64) -> f64 {
        if value.is_finite() { value + value * self.0 } else { value }
    }

    /// The same, rounded to f32 once.
    fn single(self, value: f32) -> f32 {
        self.of(f64::from(value)) as f32
    }

    fn all(self, values: &mut [f32]) {
        for value in values {
            *value = self.single(*value);
        }
    }

    fn copy(self, values: &[f32]) -> Vec<f32> {
        values.iter().map(|value| self.single(*value)).collect()
    }

    /// right + δ·(wrong − right), rounded to f32 once; an infinite wrong value has no share.
    fn blend(self, right: f32, wrong: f32) -> f32 {
        if !wrong.is_finite() {
            return right;
        }
        let (right, wrong) = (f64::from(right), f64::from(wrong));
        (right + self.0 * (wrong - right)) as f32
    }
}

/// N2, N3: ε of one norm.
#[derive(Debug)]
struct Epsilon {
    site: NormSite,
    delta: Delta,
}

impl Operations for Epsilon {
    fn as_dyn(&self) -> &dyn Operations {
        self
    }

    fn norm_epsilon(&self, site: NormSite, rms_norm_eps: f64, mla_norm_eps: f64) -> f64 {
        let right = Contract::default().norm_epsilon(site, rms_norm_eps, mla_norm_eps);
        if site == self.site { self.delta.of(right) } else { right }
    }
}

fn epsilons() -> Vec<Site> {
    let sites = [
        ("n2-input-epsilon", "N2", NormSite::Input, "epsilon of input_layernorm"),
        (
            "n2-post-attention-epsilon",
            "N2",
            NormSite::PostAttention,
            "epsilon of post_attention_layernorm",
        ),
        ("n2-final-epsilon", "N2", NormSite::Final, "epsilon of the final norm"),
        (
            "n2-attention-mix-epsilon",
            "N2",
            NormSite::AttentionMix,
            "epsilon of the attention-side mix's keys",
        ),
        ("n2-mlp-mix-epsilon", "N2", NormSite::MlpMix, "epsilon of the MLP-side mix's keys"),
        ("n2-output-mix-epsilon", "N2", NormSite::OutputMix, "epsilon of the output mix's keys"),
        ("n2-kda-output-epsilon", "N2", NormSite::KdaOutput, "epsilon of o_norm"),
        (
            "n2-routed-experts-epsilon",
            "N2",
            NormSite::RoutedExperts,
            "epsilon of routed_expert_norm",
        ),
        ("n3-query-epsilon", "N3", NormSite::MlaQuery, "epsilon of q_a_layernorm"),
        ("n3-latent-epsilon", "N3", NormSite::MlaLatent, "epsilon of kv_a_layernorm"),
    ];
    let site = |(id, clause, norm, what)| Site { id, clause, what, make: Maker::Epsilon(norm) };
    sites.into_iter().map(site).collect()
}

/// Every site: the model's clauses in the order of MODEL.md section 2, then the arithmetic's.
#[must_use]
pub fn sites() -> Vec<Site> {
    [
        vec![arithmetic::head()],
        stream::list(),
        epsilons(),
        kda::list(),
        mla::list(),
        moe::list(),
        arithmetic::list(),
    ]
    .concat()
}
