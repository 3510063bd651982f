//! Family (b): shape, norms and the residual stream (L1…L3, N1…N3, R1…R7).

use crate::kernels::norm;
use crate::kernels::rows::{Row, row_sum_f32};
use crate::kernels::sums::Vectors;
use crate::model::{AttentionKind, EngineError, NormSite, Operations};
use k3_core::config::RawConfig;

/// rms_norm_eps replaced by 1e-6 at one site.
fn epsilon_at(site: NormSite, wrong: NormSite, rms: f64, mla: f64) -> f64 {
    match site {
        site if site == wrong => 1e-6,
        NormSite::MlaQuery | NormSite::MlaLatent => mla,
        _ => rms,
    }
}

/// A mix whose keys or values may be wrong.
fn mix_of(
    operations: &dyn Operations,
    keys: &[Vec<f32>],
    values: &[&[f32]],
    folded: &[f32],
    out: &mut [f32],
) {
    let score = |key: &Vec<f32>| operations.row_product(Row::F32(folded), key);
    let mut scores: Vec<f32> = keys.iter().map(score).collect();
    operations.softmax_sum(&mut scores, Vectors::List(values), out);
}

/// Every source under RMSNorm with weight 1.
fn normed(operations: &dyn Operations, sources: &[&[f32]], epsilon: f64) -> Vec<Vec<f32>> {
    let norm = |source: &&[f32]| {
        let mut out = vec![0.0; source.len()];
        operations.rms_norm_unit(source, epsilon, &mut out);
        out
    };
    sources.iter().map(norm).collect()
}

engine_mutants! { Composition
    "l1-zero-based" ["L1"] "the one-based layer lists are read as zero-based" {
        fn attention_kind(&self, raw: &RawConfig, n: usize) -> Result<AttentionKind, EngineError> {
            let mla = raw.full_attn_layers.contains(&n);
            Ok(if mla { AttentionKind::Mla } else { AttentionKind::Kda })
        }
    }
    "l2-one-dense-layer-too-many" ["L2"] "layers up to and including the limit are dense" {
        fn is_dense(&self, raw: &RawConfig, layer: usize) -> bool {
            layer <= raw.first_k_dense_replace
        }
    }
    "l3-embedding-scaled" ["L3"] "embedding rows are multiplied by the root of the width" {
        fn embed(&self, row: Row<'_>, out: &mut [f32]) {
            let scale = (out.len() as f64).sqrt();
            for (column, out) in out.iter_mut().enumerate() {
                *out = (row.value(column) * scale) as f32;
            }
        }
    }
    "l3-head-without-norm" ["L3"] "lm_head reads the output mix before the final norm" {
        fn head_input<'a>(&self, _normed: &'a [f32], mixed: &'a [f32]) -> &'a [f32] {
            mixed
        }
    }
    "n1-epsilon-outside-the-root" ["N1"] "RMSNorm adds its epsilon after the root" {
        fn rms_norm(&self, x: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
            let root = (row_sum_f32(x, x) / x.len() as f64).sqrt();
            for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                *out = (f64::from(*x) / (root + epsilon) * f64::from(*weight)) as f32;
            }
        }
    }
    "n1-no-epsilon" ["N1"] "RMSNorm has no epsilon" {
        fn rms_norm(&self, x: &[f32], weight: &[f32], _epsilon: f64, out: &mut [f32]) {
            norm::rms_norm(x, weight, 0.0, out);
        }
    }
    "n1-weight-plus-one" ["N1"] "RMSNorm multiplies by 1 + weight" {
        fn rms_norm(&self, x: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
            let weight: Vec<f32> = weight.iter().map(|weight| 1.0 + weight).collect();
            norm::rms_norm(x, &weight, epsilon, out);
        }
    }
    "n1-centred" ["N1"] "RMSNorm subtracts the mean first, as LayerNorm does" {
        fn rms_norm(&self, x: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
            let mean = (x.iter().map(|&x| f64::from(x)).sum::<f64>() / x.len() as f64) as f32;
            let centred: Vec<f32> = x.iter().map(|x| x - mean).collect();
            norm::rms_norm(&centred, weight, epsilon, out);
        }
    }
    "n1-sum-for-mean" ["N1"] "RMSNorm divides by the root of the sum of squares" {
        fn rms_norm(&self, x: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
            let inverse = 1.0 / (row_sum_f32(x, x) + epsilon).sqrt();
            for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                *out = (f64::from(*x) * inverse * f64::from(*weight)) as f32;
            }
        }
    }
    "n2-epsilon-input" ["N2"] "input_layernorm has epsilon 1e-6" {
        fn norm_epsilon(&self, site: NormSite, rms: f64, mla: f64) -> f64 {
            epsilon_at(site, NormSite::Input, rms, mla)
        }
    }
    "n2-epsilon-post-attention" ["N2"] "post_attention_layernorm has epsilon 1e-6" {
        fn norm_epsilon(&self, site: NormSite, rms: f64, mla: f64) -> f64 {
            epsilon_at(site, NormSite::PostAttention, rms, mla)
        }
    }
    "n2-epsilon-final" ["N2"] "the final norm has epsilon 1e-6" {
        fn norm_epsilon(&self, site: NormSite, rms: f64, mla: f64) -> f64 {
            epsilon_at(site, NormSite::Final, rms, mla)
        }
    }
    "n2-epsilon-attention-mix" ["N2"] "the attention-side mix has epsilon 1e-6" {
        fn norm_epsilon(&self, site: NormSite, rms: f64, mla: f64) -> f64 {
            epsilon_at(site, NormSite::AttentionMix, rms, mla)
        }
    }
    "n2-epsilon-mlp-mix" ["N2"] "the MLP-side mix has epsilon 1e-6" {
        fn norm_epsilon(&self, site: NormSite, rms: f64, mla: f64) -> f64 {
            epsilon_at(site, NormSite::MlpMix, rms, mla)
        }
    }
    "n2-epsilon-output-mix" ["N2"] "the output mix has epsilon 1e-6" {
        fn norm_epsilon(&self, site: NormSite, rms: f64, mla: f64) -> f64 {
            epsilon_at(site, NormSite::OutputMix, rms, mla)
        }
    }
    "n2-epsilon-kda-output" ["N2" "K12"] "o_norm has epsilon 1e-6" {
        fn norm_epsilon(&self, site: NormSite, rms: f64, mla: f64) -> f64 {
            epsilon_at(site, NormSite::KdaOutput, rms, mla)
        }
    }
    "n2-epsilon-routed-experts" ["N2" "E8"] "routed_expert_norm has epsilon 1e-6" {
        fn norm_epsilon(&self, site: NormSite, rms: f64, mla: f64) -> f64 {
            epsilon_at(site, NormSite::RoutedExperts, rms, mla)
        }
    }
    "n3-epsilon-query" ["N3"] "q_a_layernorm takes rms_norm_eps" {
        fn norm_epsilon(&self, site: NormSite, rms: f64, mla: f64) -> f64 {
            if site == NormSite::MlaLatent { mla } else { rms }
        }
    }
    "n3-epsilon-latent" ["N3"] "kv_a_layernorm takes rms_norm_eps" {
        fn norm_epsilon(&self, site: NormSite, rms: f64, mla: f64) -> f64 {
            if site == NormSite::MlaQuery { mla } else { rms }
        }
    }
    "r1-oldest-bank-missing" ["R1"] "mixes leave out the oldest bank once there are two" {
        fn mix_sources<'a>(&self, banks: &[&'a [f32]], running: &'a [f32]) -> Vec<&'a [f32]> {
            let skipped = usize::from(banks.len() > 1);
            banks.iter().skip(skipped).copied().chain([running]).collect()
        }
    }
    "r1-running-sum-missing" ["R1"] "mixes leave out the running sum" {
        fn mix_sources<'a>(&self, banks: &[&'a [f32]], running: &'a [f32]) -> Vec<&'a [f32]> {
            if banks.is_empty() { vec![running] } else { banks.to_vec() }
        }
    }
    "r2-values-normed" ["R2"] "the mix sums the normed sources" {
        fn residual_mix(
            &self, sources: &[&[f32]], folded: &[f32], epsilon: f64, _: &mut [f32], out: &mut [f32],
        ) {
            let keys = normed(self, sources, epsilon);
            let values: Vec<&[f32]> = keys.iter().map(Vec::as_slice).collect();
            mix_of(self, &keys, &values, folded, out);
        }
    }
    "r2-keys-raw" ["R2"] "the mix scores the raw sources" {
        fn residual_mix(
            &self, sources: &[&[f32]], folded: &[f32], _: f64, _: &mut [f32], out: &mut [f32],
        ) {
            let keys: Vec<Vec<f32>> = sources.iter().map(|source| source.to_vec()).collect();
            mix_of(self, &keys, sources, folded, out);
        }
    }
    "r2-uniform" ["R2"] "the mix is a plain mean of its sources" {
        fn residual_mix(
            &self, sources: &[&[f32]], _: &[f32], _: f64, _: &mut [f32], out: &mut [f32],
        ) {
            let weights = vec![1.0 / sources.len() as f32; sources.len()];
            self.weighted_sum(&weights, Vectors::List(sources), out);
        }
    }
    "r3-norm-weight-missing" ["R3"] "the folded vector is the projection alone" {
        fn fold(&self, _norm: &[f32], projection: &[f32]) -> Vec<f32> {
            projection.to_vec()
        }
    }
    "r3-projection-missing" ["R3"] "the folded vector is the norm's weight alone" {
        fn fold(&self, norm: &[f32], _projection: &[f32]) -> Vec<f32> {
            norm.to_vec()
        }
    }
    "r3-attention-mixer-for-both" ["R3"] "the MLP side uses the attention side's mixer" {
        fn mixer<'a>(&self, site: NormSite, own: &'a [f32], other: &'a [f32]) -> &'a [f32] {
            if site == NormSite::MlpMix { other } else { own }
        }
    }
    "r3-mlp-mixer-for-both" ["R3"] "the attention side uses the MLP side's mixer" {
        fn mixer<'a>(&self, site: NormSite, own: &'a [f32], other: &'a [f32]) -> &'a [f32] {
            if site == NormSite::AttentionMix { other } else { own }
        }
    }
    "r4-no-mix-with-one-bank" ["R4"] "the attention-side mix is left out with one bank too" {
        fn attention_mixes(&self, banks: usize) -> bool {
            banks > 1
        }
    }
    "r5-mixed-sum-banked" ["R5"] "the mix is banked instead of the running sum" {
        fn banked<'a>(&self, _running: &'a [f32], mixed: &'a [f32]) -> &'a [f32] {
            mixed
        }
    }
    "r5-banked-one-layer-early" ["R5"] "banks are pushed at the last layer of a block" {
        fn banks_at(&self, raw: &RawConfig, layer: usize) -> bool {
            (layer + 1).is_multiple_of(raw.attn_res_block_size)
        }
    }
    "r5-only-the-embedding-banked" ["R5"] "only layer 0 pushes a bank" {
        fn banks_at(&self, _raw: &RawConfig, layer: usize) -> bool {
            layer == 0
        }
    }
    "r6-sum-not-cleared" ["R5" "R6"] "the sum goes on after it was banked" {
        fn clears_after_banking(&self) -> bool {
            false
        }
    }
    "r7-mlp-mix-before-banking" ["R7"] "the MLP-side mix does not see the layer's new bank" {
        fn mlp_mix_banks(&self, filled: usize, layer_banked: bool) -> usize {
            filled - usize::from(layer_banked)
        }
    }
    "r7-no-mlp-mix" ["R7"] "the MLP reads the running sum itself" {
        fn mlp_mixes(&self) -> bool {
            false
        }
    }
    "r7-no-output-mix" ["R7"] "the final norm reads the running sum itself" {
        fn output_mixes(&self) -> bool {
            false
        }
    }
}
