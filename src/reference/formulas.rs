//! The table of formulas that the forward pass is written over, and what they speak about.
//!
//! [`RELEASED`] is the released model's: every entry is the function of the same name in
//! [`released`]. A mutant is the same table with one entry replaced.

use super::error::ReferenceError;
use super::kda::{DecayInputs, StepInputs};
use super::mla::{MlaCache, MlaWidths};
use super::moe::{ExpertWeights, MoeWeights};
use super::released;
use super::rows::{Matrix, Rows};
use k3_core::config::RawConfig;

/// The places where an RMSNorm stands (clauses N2, N3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NormSite {
    /// `input_layernorm`.
    Input,
    /// `post_attention_layernorm`.
    PostAttention,
    /// `norm`, after the last layer.
    Final,
    /// The keys of the attention-side mix.
    AttnMix,
    /// The keys of the MLP-side mix.
    MlpMix,
    /// The keys of the mix after the last layer.
    OutputMix,
    /// `o_norm`, per KDA head.
    KdaOutput,
    /// `routed_expert_norm`.
    Latent,
    /// `q_a_layernorm`.
    MlaQ,
    /// `kv_a_layernorm`.
    MlaKv,
}

/// The three projections of KDA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// q.
    Query,
    /// k.
    Key,
    /// v.
    Value,
}

/// Which attention a layer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttentionKind {
    /// Kimi Delta Attention.
    Kda,
    /// Gated multi-head latent attention.
    Mla,
}

/// The folded residual weights norm.w ⊙ proj.w \[E\] of one layer.
#[derive(Debug, Clone, Copy)]
pub struct Folds<'a> {
    /// Of the attention-side mix; layer 0 has none in use.
    pub attention: Option<&'a [f64]>,
    /// Of the MLP-side mix.
    pub mlp: &'a [f64],
}

/// Every formula and choice of the forward pass, by clause. What an entry takes and gives is told
/// at its function in [`released`].
#[derive(Debug, Clone, Copy)]
#[expect(clippy::type_complexity, reason = "an entry's type is its function's signature")]
pub struct Formulas {
    // ---- the model: L1 to L3
    /// L1: [`released::layer_kind`].
    pub layer_kind: fn(index: usize, config: &RawConfig) -> Result<AttentionKind, ReferenceError>,
    /// L2: [`released::is_dense`].
    pub is_dense: fn(index: usize, config: &RawConfig) -> bool,
    /// L3: [`released::embedding_row`].
    pub embedding_row: fn(id: usize, vocabulary: usize) -> usize,
    /// L3: [`released::embedding_scale`].
    pub embedding_scale: fn(width: usize) -> f64,
    /// L3: [`released::head_row`].
    pub head_row: fn(logit: usize, vocabulary: usize) -> usize,
    /// L3: [`released::head_tensor`].
    pub head_tensor: fn() -> &'static str,
    /// L3: [`released::head_input`].
    pub head_input: fn(mixed: &Rows, normed: Rows) -> Rows,
    // ---- norms: N1 to N3
    /// N2, N3: [`released::norm_eps`].
    pub norm_eps: fn(site: NormSite, rms_norm_eps: f64, mla_norm_eps: f64) -> f64,
    /// N1: [`released::normalise`].
    pub normalise: fn(site: NormSite, x: &[f64], eps: f64) -> Vec<f64>,
    /// N1: [`released::rms_norm`].
    pub rms_norm:
        fn(formulas: &Formulas, site: NormSite, x: &[f64], weight: &[f64], eps: f64) -> Vec<f64>,
    // ---- residual mixes: R1 to R7
    /// R1: [`released::mix_sources`].
    pub mix_sources: for<'a> fn(banks: &[&'a [f64]], sum: &'a [f64]) -> Vec<&'a [f64]>,
    /// R2: [`released::mix_score`].
    pub mix_score:
        fn(formulas: &Formulas, site: NormSite, source: &[f64], fold: &[f64], eps: f64) -> f64,
    /// R2: [`released::mix_value`].
    pub mix_value: fn(site: NormSite, source: &[f64], eps: f64) -> Vec<f64>,
    /// R1: [`released::mix_weights`].
    pub mix_weights: fn(scores: &[f64]) -> Vec<f64>,
    /// R3: [`released::fold`].
    pub fold: fn(norm: &[f64], proj: &[f64]) -> Vec<f64>,
    /// R3: [`released::fold_of`].
    pub fold_of: for<'a> fn(site: NormSite, folds: Folds<'a>) -> Option<&'a [f64]>,
    /// R4: [`released::mixes_before_attention`].
    pub mixes_before_attention: fn(index: usize, block: usize, banks: usize) -> bool,
    /// R5: [`released::opens_block`].
    pub opens_block: fn(index: usize, block: usize) -> bool,
    /// R5: [`released::banked`].
    pub banked: fn(sum: &Rows, mixed: &Rows) -> Rows,
    /// R6: [`released::sum_after_attention`].
    pub sum_after_attention: fn(opens_block: bool, sum: &Rows, attention: &Rows) -> Rows,
    /// R7: [`released::banks_before_mlp`].
    pub banks_before_mlp: fn(opens_block: bool, banks: &[Rows]) -> &[Rows],
    /// R7: [`released::banks_before_output`].
    pub banks_before_output: fn(banks: &[Rows]) -> &[Rows],
    // ---- KDA: K1 to K13
    /// K1: [`released::convolve`].
    pub convolve: fn(part: Part, history: &Rows, input: &Rows, taps: &[f64]) -> Rows,
    /// K2: [`released::convolution_activation`].
    pub convolution_activation: fn(part: Part, x: f64) -> f64,
    /// K3: [`released::l2_norm`].
    pub l2_norm: fn(head: &[f64]) -> Vec<f64>,
    /// K3: [`released::kda_head`].
    pub kda_head: fn(formulas: &Formulas, part: Part, head: &[f64]) -> Vec<f64>,
    /// K4: [`released::kda_query_scale`].
    pub kda_query_scale: fn(head_dim: usize) -> f64,
    /// K5: [`released::beta`].
    pub beta: fn(logits: &[f64], head: usize) -> f64,
    /// K6: [`released::decay_hidden`].
    pub decay_hidden: fn(hidden: Vec<f64>) -> Vec<f64>,
    /// K6, K7: [`released::log_decay`].
    pub log_decay: fn(d: &DecayInputs<'_>) -> f64,
    /// K8: [`released::decay_rates`].
    pub decay_rates:
        fn(layer: usize, stored: &[f64], heads: usize) -> Result<Vec<f64>, ReferenceError>,
    /// K9 to K11: [`released::delta_step`].
    pub delta_step: fn(state: &mut [f64], s: &StepInputs<'_>) -> Vec<f64>,
    /// K12: [`released::kda_output`].
    pub kda_output:
        fn(formulas: &Formulas, o: &[f64], o_norm: &[f64], gate: &[f64], eps: f64) -> Vec<f64>,
    /// K13: [`released::carried_memory`].
    pub carried_memory: fn(memory: &mut [f64]),
    /// K13: [`released::carried_inputs`].
    pub carried_inputs: fn(history: &Rows, input: &Rows) -> Rows,
    // ---- MLA: M1 to M8
    /// M1: [`released::split_query`].
    pub split_query: fn(q: &[f64], head: usize, w: MlaWidths) -> (&[f64], &[f64]),
    /// M2: [`released::latent`].
    pub latent: fn(formulas: &Formulas, compressed: &[f64], weight: &[f64], eps: f64) -> Vec<f64>,
    /// M3: [`released::shared_key`].
    pub shared_key: fn(compressed: &[f64], kv_lora: usize) -> Vec<f64>,
    /// M3: [`released::positioned`].
    pub positioned: fn(part: &[f64], position: usize) -> Vec<f64>,
    /// M3: [`released::attention_dot`].
    pub attention_dot: fn(q: (&[f64], &[f64]), k: (&[f64], &[f64])) -> f64,
    /// M4: [`released::attention_scale`].
    pub attention_scale: fn(widths: MlaWidths) -> f64,
    /// M5: [`released::sees`].
    pub sees: fn(query_position: usize, key_position: usize) -> bool,
    /// M5: [`released::attention_weights`].
    pub attention_weights: fn(scores: &[f64]) -> Vec<f64>,
    /// M6: [`released::split_key_value`].
    pub split_key_value: fn(kv: &[f64], head: usize, w: MlaWidths) -> (&[f64], &[f64]),
    /// M7: [`released::mla_output`].
    pub mla_output: fn(o: &[f64], gate: &[f64]) -> Vec<f64>,
    /// M8: [`released::extend_cache`].
    pub extend_cache: fn(cache: &mut MlaCache, entries: &MlaCache),
    // ---- MLP and SiTU: S1, S2
    /// S1, S2: [`released::situ`].
    pub situ: fn(gate: f64, up: f64, beta: f64, linear_beta: f64) -> f64,
    // ---- LatentMoE: E1 to E10
    /// E1: [`released::router_input`].
    pub router_input: fn(x: &Rows, mixed: &Rows, weights: &MoeWeights) -> Rows,
    /// E1: [`released::router_scores`].
    pub router_scores: fn(logits: &[f64]) -> Vec<f64>,
    /// E2: [`released::select`].
    pub select: fn(scores: &[f64], bias: &[f64], k: usize) -> Vec<usize>,
    /// E3 to E5: [`released::routing_weights`].
    pub routing_weights:
        fn(scores: &[f64], bias: &[f64], chosen: &[usize], config: &RawConfig) -> Vec<f64>,
    /// E6: [`released::expert_input`].
    pub expert_input: fn(x: &Rows, latent: &Rows) -> Rows,
    /// E7: [`released::expert_roles`].
    pub expert_roles: fn(expert: &ExpertWeights) -> [&Matrix; 3],
    /// E7: [`released::expert_id`].
    pub expert_id: fn(chosen: usize, experts: usize) -> usize,
    /// E8: [`released::expert_share`].
    pub expert_share: fn(output: Vec<f64>, norm: &[f64], eps: f64) -> Vec<f64>,
    /// E8: [`released::combine`].
    pub combine: fn(outputs: &[Vec<f64>], weights: &[f64], width: usize) -> Vec<f64>,
    /// E8: [`released::norm_of_sum`].
    pub norm_of_sum: fn(formulas: &Formulas, sum: &[f64], norm: &[f64], eps: f64) -> Vec<f64>,
    /// E9: [`released::project_up`].
    pub project_up: fn(up: &Matrix, normed: &Rows) -> Rows,
    /// E10: [`released::shared_input`].
    pub shared_input: fn(x: &Rows, mixed: &Rows, weights: &MoeWeights) -> Rows,
    /// E10: [`released::shared_weight`].
    pub shared_weight: fn(routing_weights: &[f64]) -> f64,
    // ---- MXFP4: Q1 to Q4
    /// Q1: [`released::e2m1`].
    pub e2m1: fn(code: u8) -> f64,
    /// Q2: [`released::nibble_columns`].
    pub nibble_columns: fn(index: usize, row_bytes: usize) -> [usize; 2],
    /// Q3, Q4: [`released::scale`].
    pub scale: fn(byte: u8) -> Option<f64>,
    /// Q3: [`released::scale_group`].
    pub scale_group: fn(column: usize, groups: usize) -> usize,
}

/// The formulas of the released model.
pub const RELEASED: Formulas = Formulas {
    layer_kind: released::layer_kind,
    is_dense: released::is_dense,
    embedding_row: released::embedding_row,
    embedding_scale: released::embedding_scale,
    head_row: released::head_row,
    head_tensor: released::head_tensor,
    head_input: released::head_input,
    norm_eps: released::norm_eps,
    normalise: released::normalise,
    rms_norm: released::rms_norm,
    mix_sources: released::mix_sources,
    mix_score: released::mix_score,
    mix_value: released::mix_value,
    mix_weights: released::mix_weights,
    fold: released::fold,
    fold_of: released::fold_of,
    mixes_before_attention: released::mixes_before_attention,
    opens_block: released::opens_block,
    banked: released::banked,
    sum_after_attention: released::sum_after_attention,
    banks_before_mlp: released::banks_before_mlp,
    banks_before_output: released::banks_before_output,
    convolve: released::convolve,
    convolution_activation: released::convolution_activation,
    l2_norm: released::l2_norm,
    kda_head: released::kda_head,
    kda_query_scale: released::kda_query_scale,
    beta: released::beta,
    decay_hidden: released::decay_hidden,
    log_decay: released::log_decay,
    decay_rates: released::decay_rates,
    delta_step: released::delta_step,
    kda_output: released::kda_output,
    carried_memory: released::carried_memory,
    carried_inputs: released::carried_inputs,
    split_query: released::split_query,
    latent: released::latent,
    shared_key: released::shared_key,
    positioned: released::positioned,
    attention_dot: released::attention_dot,
    attention_scale: released::attention_scale,
    sees: released::sees,
    attention_weights: released::attention_weights,
    split_key_value: released::split_key_value,
    mla_output: released::mla_output,
    extend_cache: released::extend_cache,
    situ: released::situ,
    router_input: released::router_input,
    router_scores: released::router_scores,
    select: released::select,
    routing_weights: released::routing_weights,
    expert_input: released::expert_input,
    expert_roles: released::expert_roles,
    expert_id: released::expert_id,
    expert_share: released::expert_share,
    combine: released::combine,
    norm_of_sum: released::norm_of_sum,
    project_up: released::project_up,
    shared_input: released::shared_input,
    shared_weight: released::shared_weight,
    e2m1: released::e2m1,
    nibble_columns: released::nibble_columns,
    scale: released::scale,
    scale_group: released::scale_group,
};
