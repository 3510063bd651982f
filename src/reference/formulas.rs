//! The table of formulas that the forward pass is written over, and what they speak about.
//!
//! [`RELEASED`] is the released model's: every entry is the equation of the same name in
//! [`released`]. A mutant is the same table with one entry replaced. Where an equation takes
//! something that it does not use, that is what its clause forbids to use.

use ndarray::{Array2, Array3, ArrayViewMut2};

use super::error::ReferenceError;
use super::kda::{DecayInputs, KdaWeights, RecurrenceInputs, StepInputs};
use super::layer::{LayerWeights, Pass};
use super::mla::{MlaCache, MlaWidths};
use super::model::{ClosingWeights, EmbeddingTable};
use super::moe::{ExpertWeights, MoeWeights, Routing};
use super::reader::Reader;
use super::released;
use super::residual::Residual;
use super::rows::{Matrix, Rows};
use super::stage_hook::Stages;
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

/// Every formula and choice of the forward pass, by clause. What an entry takes and gives is told
/// at its function in [`released`].
#[derive(Debug, Clone, Copy)]
#[expect(clippy::type_complexity, reason = "an entry's type is its function's signature")]
pub struct Formulas {
    // ---- the model: L1 to L3
    /// L1: [`released::layer_kind`].
    pub layer_kind: fn(index: usize, config: &RawConfig) -> AttentionKind,
    /// L2: [`released::is_dense`].
    pub is_dense: fn(index: usize, config: &RawConfig) -> bool,
    /// L3: [`released::embedding`].
    pub embedding: fn(table: &EmbeddingTable<'_>, id: usize) -> Result<Vec<f64>, ReferenceError>,
    /// L3: [`released::head`].
    pub head: fn(reader: &Reader, config: &RawConfig) -> Result<Matrix, ReferenceError>,
    /// L3: [`released::logits`].
    pub logits: fn(head: &Matrix, normed: &Rows) -> Rows,
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
    /// R1, R2: [`released::mix`].
    pub mix: fn(
        formulas: &Formulas,
        site: NormSite,
        sources: &[&[f64]],
        fold: &[f64],
        eps: f64,
    ) -> Vec<f64>,
    /// R2: [`released::mix_score`].
    pub mix_score:
        fn(formulas: &Formulas, site: NormSite, source: &[f64], fold: &[f64], eps: f64) -> f64,
    /// R1: [`released::mix_weights`].
    pub mix_weights: fn(scores: &[f64]) -> Vec<f64>,
    /// R3: [`released::fold`].
    pub fold: fn(norm: &[f64], proj: &[f64]) -> Vec<f64>,
    /// R3, R4: [`released::attention_input`].
    pub attention_input:
        fn(pass: &Pass<'_>, layer: &LayerWeights, banks: &[Rows], sum: &Rows) -> Rows,
    /// R5: [`released::opens_block`].
    pub opens_block: fn(index: usize, block: usize) -> bool,
    /// R5: [`released::bank`].
    pub bank: fn(pass: &Pass<'_>, layer: &LayerWeights, residual: &mut Residual),
    /// R6: [`released::sum_after_attention`].
    pub sum_after_attention: fn(opens_block: bool, sum: &Rows, attention: &Rows) -> Rows,
    /// R3, R7: [`released::mlp_input`].
    pub mlp_input: fn(pass: &Pass<'_>, layer: &LayerWeights, banks: &[Rows], sum: &Rows) -> Rows,
    /// R7: [`released::output_input`].
    pub output_input:
        fn(pass: &Pass<'_>, closing: &ClosingWeights, banks: &[Rows], sum: &Rows) -> Rows,
    // ---- KDA: K1 to K13
    /// K1: [`released::convolve`].
    pub convolve: fn(part: Part, history: &Rows, input: &Rows, taps: &Array2<f64>) -> Rows,
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
    /// K6: [`released::decay_input`].
    pub decay_input: fn(weights: &KdaWeights, x: &Rows) -> Rows,
    /// K6, K7: [`released::log_decay`].
    pub log_decay: fn(d: &DecayInputs<'_>) -> f64,
    /// K8: [`released::decay_rates`].
    pub decay_rates: fn(stored: &[f64], heads: usize) -> Result<Vec<f64>, (usize, f64)>,
    /// K9 to K11: [`released::delta_step`].
    pub delta_step: fn(state: &mut ArrayViewMut2<'_, f64>, s: &StepInputs<'_>) -> Vec<f64>,
    /// K13: [`released::recurrence`].
    pub recurrence: fn(
        pass: &Pass<'_>,
        inputs: &RecurrenceInputs,
        memory: &mut Array3<f64>,
        stages: &Stages<'_>,
    ) -> Rows,
    /// K12: [`released::kda_output`].
    pub kda_output:
        fn(formulas: &Formulas, o: &[f64], o_norm: &[f64], gate: &[f64], eps: f64) -> Vec<f64>,
    /// K13: [`released::carried_inputs`].
    pub carried_inputs: fn(history: &Rows, input: &Rows) -> Rows,
    // ---- MLA: M1 to M8
    /// M1: [`released::split_query`].
    pub split_query: fn(q: &[f64], head: usize, w: MlaWidths) -> (&[f64], &[f64]),
    /// M2: [`released::latent`].
    pub latent: fn(formulas: &Formulas, compressed: &[f64], weight: &[f64], eps: f64) -> Vec<f64>,
    /// M3: [`released::shared_key`].
    pub shared_key: fn(compressed: &[f64], kv_lora: usize, position: usize) -> Vec<f64>,
    /// M3: [`released::attention_dot`].
    pub attention_dot: fn(q: (&[f64], &[f64]), k: (&[f64], &[f64]), position: usize) -> f64,
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
    /// N1, E1, E10: [`released::mlp`].
    pub mlp: fn(
        pass: &Pass<'_>,
        layer: &LayerWeights,
        h: &Rows,
        stages: &mut Stages<'_>,
    ) -> Result<Rows, ReferenceError>,
    // ---- LatentMoE: E1 to E10
    /// E1: [`released::router_scores`].
    pub router_scores: fn(logits: &[f64]) -> Vec<f64>,
    /// E2: [`released::select`].
    pub select: fn(scores: &[f64], bias: &[f64], k: usize) -> Vec<usize>,
    /// E3 to E5: [`released::routing_weights`].
    pub routing_weights:
        fn(scores: &[f64], bias: &[f64], chosen: &[usize], config: &RawConfig) -> Vec<f64>,
    /// E6: [`released::expert_input`].
    pub expert_input: fn(weights: &MoeWeights, x: &Rows) -> Rows,
    /// E7: [`released::expert`].
    pub expert: fn(
        formulas: &Formulas,
        weights: &MoeWeights,
        id: usize,
    ) -> Result<ExpertWeights, ReferenceError>,
    /// E8: [`released::routed_sum`].
    pub routed_sum: fn(
        pass: &Pass<'_>,
        weights: &MoeWeights,
        z: &Rows,
        routing: &Routing,
    ) -> Result<Rows, ReferenceError>,
    /// E8: [`released::combine`].
    pub combine: fn(outputs: &[Vec<f64>], weights: &[f64], width: usize) -> Vec<f64>,
    /// E9: [`released::project_up`].
    pub project_up: fn(up: &Matrix, normed: &Rows) -> Rows,
    /// E10: [`released::add_shared`].
    pub add_shared: fn(routed: &Rows, shared: &Rows, routing: &Routing) -> Rows,
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
    embedding: released::embedding,
    head: released::head,
    logits: released::logits,
    norm_eps: released::norm_eps,
    normalise: released::normalise,
    rms_norm: released::rms_norm,
    mix_sources: released::mix_sources,
    mix: released::mix,
    mix_score: released::mix_score,
    mix_weights: released::mix_weights,
    fold: released::fold,
    attention_input: released::attention_input,
    opens_block: released::opens_block,
    bank: released::bank,
    sum_after_attention: released::sum_after_attention,
    mlp_input: released::mlp_input,
    output_input: released::output_input,
    convolve: released::convolve,
    convolution_activation: released::convolution_activation,
    l2_norm: released::l2_norm,
    kda_head: released::kda_head,
    kda_query_scale: released::kda_query_scale,
    beta: released::beta,
    decay_input: released::decay_input,
    log_decay: released::log_decay,
    decay_rates: released::decay_rates,
    delta_step: released::delta_step,
    recurrence: released::recurrence,
    kda_output: released::kda_output,
    carried_inputs: released::carried_inputs,
    split_query: released::split_query,
    latent: released::latent,
    shared_key: released::shared_key,
    attention_dot: released::attention_dot,
    attention_scale: released::attention_scale,
    sees: released::sees,
    attention_weights: released::attention_weights,
    split_key_value: released::split_key_value,
    mla_output: released::mla_output,
    extend_cache: released::extend_cache,
    situ: released::situ,
    mlp: released::mlp,
    router_scores: released::router_scores,
    select: released::select,
    routing_weights: released::routing_weights,
    expert_input: released::expert_input,
    expert: released::expert,
    routed_sum: released::routed_sum,
    combine: released::combine,
    project_up: released::project_up,
    add_shared: released::add_shared,
    e2m1: released::e2m1,
    nibble_columns: released::nibble_columns,
    scale: released::scale,
    scale_group: released::scale_group,
};
