//! Gated multi-head latent attention without rotation (MODEL.md section 2.4, clauses M1 to M8).
//!
//! Computed in the expanded form (keys and values of every head), which the engine's absorbed form
//! must agree with. The cache keeps the expansion along with latent and rope part so that a decoded
//! token does not expand the past again; memory is no concern here.

use ndarray::{Axis, s};

use super::arithmetic::weighted_sum;
use super::error::ReferenceError;
use super::formulas::NormSite;
use super::layer::Pass;
use super::reader::Reader;
use super::rows::{Matrix, Rows, map_rows, row, slices, stack, values_mut};
use super::stage_hook::Stages;
use k3_core::config::RawConfig;
use k3_core::stages::Stage;

/// Widths of one MLA head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MlaWidths {
    /// Query heads; every one has keys and values of its own.
    pub heads: usize,
    /// Per-head query and key width without the shared part.
    pub nope: usize,
    /// Width of the shared key part.
    pub rope: usize,
    /// Per-head value width.
    pub value: usize,
}

impl MlaWidths {
    /// The widths the config states.
    #[must_use]
    pub fn new(config: &RawConfig) -> Self {
        Self {
            heads: config.num_attention_heads,
            nope: config.qk_nope_head_dim,
            rope: config.qk_rope_head_dim,
            value: config.v_head_dim,
        }
    }
}

/// Weights of one MLA layer.
#[derive(Debug, Clone)]
pub struct MlaWeights {
    /// `q_a_proj` \[q_lora, E\].
    pub q_a: Matrix,
    /// `q_a_layernorm` \[q_lora\].
    pub q_a_norm: Vec<f64>,
    /// `q_b_proj` \[heads·(nope+rope), q_lora\].
    pub q_b: Matrix,
    /// `kv_a_proj_with_mqa` \[kv_lora+rope, E\].
    pub kv_a: Matrix,
    /// `kv_a_layernorm` \[kv_lora\].
    pub kv_a_norm: Vec<f64>,
    /// `kv_b_proj` \[heads·(nope+v), kv_lora\].
    pub kv_b: Matrix,
    /// `g_proj` \[heads·v, E\].
    pub gate: Matrix,
    /// `o_proj` \[E, heads·v\].
    pub output: Matrix,
}

/// What MLA carries between calls: one row per position (clause M8).
#[derive(Debug, Clone, PartialEq)]
pub struct MlaCache {
    /// Latents after their norm \[positions, kv_lora\].
    pub latent: Rows,
    /// Shared key parts \[positions, rope\].
    pub k_rope: Rows,
    /// kv_b(latent) \[positions, heads·(nope+v)\]: follows from `latent`.
    pub key_value: Rows,
}

impl MlaWeights {
    /// Reads the `self_attn.*` tensors below `prefix` (`…layers.N.`).
    ///
    /// # Errors
    /// A tensor is missing or not as the config implies.
    pub fn load(reader: &Reader, config: &RawConfig, prefix: &str) -> Result<Self, ReferenceError> {
        let width = config.hidden_size;
        let (q_lora, kv_lora) = (config.q_lora_rank, config.kv_lora_rank);
        let w = MlaWidths::new(config);
        let name = |rest: &str| format!("{prefix}self_attn.{rest}.weight");
        let matrix = |rest: &str, rows, columns| reader.bf16_matrix(&name(rest), rows, columns);
        Ok(Self {
            q_a: matrix("q_a_proj", q_lora, width)?,
            q_a_norm: reader.bf16_vector(&name("q_a_layernorm"), &[q_lora])?,
            q_b: matrix("q_b_proj", w.heads * (w.nope + w.rope), q_lora)?,
            kv_a: matrix("kv_a_proj_with_mqa", kv_lora + w.rope, width)?,
            kv_a_norm: reader.bf16_vector(&name("kv_a_layernorm"), &[kv_lora])?,
            kv_b: matrix("kv_b_proj", w.heads * (w.nope + w.value), kv_lora)?,
            gate: matrix("g_proj", w.heads * w.value, width)?,
            output: matrix("o_proj", width, w.heads * w.value)?,
        })
    }
}

impl MlaCache {
    /// An empty cache.
    #[must_use]
    pub fn new(config: &RawConfig) -> Self {
        let w = MlaWidths::new(config);
        Self {
            latent: Rows::zeros((0, config.kv_lora_rank)),
            k_rope: Rows::zeros((0, w.rope)),
            key_value: Rows::zeros((0, w.heads * (w.nope + w.value))),
        }
    }

    /// Number of positions held.
    #[must_use]
    pub fn positions(&self) -> usize {
        self.latent.nrows()
    }

    /// Appends the positions of another cache.
    ///
    /// # Panics
    /// When its widths are others.
    pub fn append(&mut self, entries: &Self) {
        let theirs = [&entries.latent, &entries.k_rope, &entries.key_value];
        for (own, theirs) in self.parts().into_iter().zip(theirs) {
            own.append(Axis(0), theirs.view()).expect("caches of one layer");
        }
    }

    /// Keeps the first `positions` positions.
    pub fn truncate(&mut self, positions: usize) {
        for rows in self.parts() {
            *rows = rows.slice(s![..positions.min(rows.nrows()), ..]).to_owned();
        }
    }

    fn parts(&mut self) -> [&mut Rows; 3] {
        [&mut self.latent, &mut self.k_rope, &mut self.key_value]
    }
}

/// Gated MLA over `x` \[T, E\], the normed input at positions `position`, `position`+1, …; gives
/// \[T, E\] and leaves the positions in the cache.
pub fn mla(
    pass: &Pass<'_>,
    weights: &MlaWeights,
    x: &Rows,
    position: usize,
    cache: &mut MlaCache,
    stages: &mut Stages<'_>,
) -> Rows {
    let (formulas, w, tokens) = (pass.formulas, MlaWidths::new(pass.config), x.nrows());

    // queries
    let q_a = pass.norm(NormSite::MlaQ, &weights.q_a.apply(x), &weights.q_a_norm);
    let mut q = weights.q_b.apply(&q_a);
    stages.put(Stage::MlaQ, &[tokens, w.heads, w.nope + w.rope], values_mut(&mut q));

    // latent and shared key part of the new positions
    let entries = entries(pass, weights, x, position, stages);
    (formulas.extend_cache)(cache, &entries);

    // causal attention of every head
    let attend = |(token, q)| -> Vec<f64> {
        let position = position + token;
        (0..w.heads).flat_map(|head| attend(pass, q, head, position, cache)).collect()
    };
    let mut o = stack(w.heads * w.value, slices(&q).enumerate().map(attend));
    stages.put(Stage::MlaO, &[tokens, w.heads, w.value], values_mut(&mut o));

    // gate, then o_proj
    let gates = weights.gate.apply(x);
    let gated = slices(&o).zip(slices(&gates)).map(|(o, gate)| (formulas.mla_output)(o, gate));
    weights.output.apply(&stack(w.heads * w.value, gated))
}

/// What the cache keeps of each token of `x`.
fn entries(
    pass: &Pass<'_>,
    weights: &MlaWeights,
    x: &Rows,
    position: usize,
    stages: &mut Stages<'_>,
) -> MlaCache {
    let formulas = pass.formulas;
    let (kv_lora, rope) = (pass.config.kv_lora_rank, pass.config.qk_rope_head_dim);
    let eps = pass.norm_eps(NormSite::MlaKv);
    let compressed = weights.kv_a.apply(x);
    let latent = |c: &[f64]| (formulas.latent)(formulas, c, &weights.kv_a_norm, eps);
    let mut latent = map_rows(&compressed, kv_lora, latent);
    stages.put_rows(Stage::MlaLatent, &mut latent);
    let shared_key = |(token, c)| (formulas.shared_key)(c, kv_lora, position + token);
    let mut k_rope = stack(rope, slices(&compressed).enumerate().map(shared_key));
    stages.put_rows(Stage::MlaKRope, &mut k_rope);
    let key_value = weights.kv_b.apply(&latent);
    MlaCache { latent, k_rope, key_value }
}

/// One query head over the cached positions it sees; gives \[v\].
fn attend(pass: &Pass<'_>, q: &[f64], head: usize, position: usize, cache: &MlaCache) -> Vec<f64> {
    let (formulas, w) = (pass.formulas, MlaWidths::new(pass.config));
    let (q_nope, q_rope) = (formulas.split_query)(q, head, w);
    let scale = (formulas.attention_scale)(w);
    let mut scores = Vec::new();
    let mut values: Vec<&[f64]> = Vec::new();
    for key_position in (0..cache.positions()).filter(|key| (formulas.sees)(position, *key)) {
        let key_value = row(&cache.key_value, key_position);
        let (k_nope, value) = (formulas.split_key_value)(key_value, head, w);
        let k_rope = row(&cache.k_rope, key_position);
        let dot = (formulas.attention_dot)((q_nope, q_rope), (k_nope, k_rope), position);
        scores.push(dot * scale);
        values.push(value);
    }
    weighted_sum(&values, &(formulas.attention_weights)(&scores), w.value)
}
