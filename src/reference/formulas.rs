//! The table of formulas that the forward pass uses, and their argument types.
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

/// The places of an RMSNorm (clauses N2, N3).
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
    /// q: normed and scaled.
    Query,
    /// k: normed.
    Key,
    /// v: as the convolution and SiLU leave it.
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

/// What has to be read from the checkpoint first.
pub type Read<T> = Result<T, ReferenceError>;

/// Writes a table with a row per equation: its clauses, its name in [`released`], its type.
macro_rules! table {
    ($($clauses:literal $name:ident: $signature:ty,)+) => {
        /// Every formula and choice of the forward pass, by clause. What an entry takes and gives
        /// is told at its function in [`released`].
        #[derive(Debug, Clone, Copy)]
        pub struct Formulas {
            $(
                #[doc = concat!($clauses, ": [`released::", stringify!($name), "`].")]
                pub $name: $signature,
            )+
        }

        /// The formulas of the released model.
        pub const RELEASED: Formulas = Formulas { $($name: released::$name,)+ };
    };
}

table! {
    // ---- the model: L1 to L3
    "L1" layer_kind: fn(index: usize, config: &RawConfig) -> AttentionKind,
    "L2" is_dense: fn(index: usize, config: &RawConfig) -> bool,
    "L3" embedding: fn(table: &EmbeddingTable<'_>, id: usize) -> Read<Vec<f64>>,
    "L3" head: fn(reader: &Reader, config: &RawConfig) -> Read<Matrix>,
    "L3" logits: fn(head: &Matrix, normed: &Rows) -> Rows,
    // ---- norms: N1 to N3
    "N2, N3" norm_eps: fn(site: NormSite, rms_norm_eps: f64, mla_norm_eps: f64) -> f64,
    "N1" normalise: fn(site: NormSite, x: &[f64], eps: f64) -> Vec<f64>,
    "N1" rms_norm:
        fn(formulas: &Formulas, site: NormSite, x: &[f64], weight: &[f64], eps: f64) -> Vec<f64>,
    // ---- residual mixes: R1 to R7
    "R1" mix_sources: for<'a> fn(banks: &[&'a [f64]], sum: &'a [f64]) -> Vec<&'a [f64]>,
    "R1, R2" mix:
        fn(formulas: &Formulas, site: NormSite, sources: &[&[f64]], fold: &[f64], eps: f64)
            -> Vec<f64>,
    "R2" mix_score:
        fn(formulas: &Formulas, site: NormSite, source: &[f64], fold: &[f64], eps: f64) -> f64,
    "R1" mix_weights: fn(scores: &[f64]) -> Vec<f64>,
    "R3" fold: fn(norm: &[f64], proj: &[f64]) -> Vec<f64>,
    "R3, R4" attention_input:
        fn(pass: &Pass<'_>, layer: &LayerWeights, banks: &[Rows], sum: &Rows) -> Rows,
    "R5" opens_block: fn(index: usize, block: usize) -> bool,
    "R5" bank: fn(pass: &Pass<'_>, layer: &LayerWeights, residual: &mut Residual),
    "R6" sum_after_attention: fn(opens_block: bool, sum: &Rows, attention: &Rows) -> Rows,
    "R3, R7" mlp_input:
        fn(pass: &Pass<'_>, layer: &LayerWeights, banks: &[Rows], sum: &Rows) -> Rows,
    "R7" output_input:
        fn(pass: &Pass<'_>, closing: &ClosingWeights, banks: &[Rows], sum: &Rows) -> Rows,
    // ---- KDA: K1 to K13
    "K1" convolve: fn(part: Part, history: &Rows, input: &Rows, taps: &Array2<f64>) -> Rows,
    "K2" convolution_activation: fn(part: Part, x: f64) -> f64,
    "K3" l2_norm: fn(head: &[f64]) -> Vec<f64>,
    "K3" kda_head: fn(formulas: &Formulas, part: Part, head: &[f64]) -> Vec<f64>,
    "K4" kda_query_scale: fn(head_dim: usize) -> f64,
    "K5" beta: fn(logits: &[f64], head: usize) -> f64,
    "K6" decay_input: fn(weights: &KdaWeights, x: &Rows) -> Rows,
    "K6, K7" log_decay: fn(d: &DecayInputs<'_>) -> f64,
    "K8" decay_rates: fn(stored: &[f64], heads: usize) -> Result<Vec<f64>, (usize, f64)>,
    "K9 to K11" delta_step: fn(state: &mut ArrayViewMut2<'_, f64>, s: &StepInputs<'_>) -> Vec<f64>,
    "K13" recurrence:
        fn(pass: &Pass<'_>, inputs: &RecurrenceInputs, memory: &mut Array3<f64>,
            stages: &Stages<'_>) -> Rows,
    "K12" kda_output:
        fn(formulas: &Formulas, o: &[f64], o_norm: &[f64], gate: &[f64], eps: f64) -> Vec<f64>,
    "K13" carried_inputs: fn(history: &Rows, input: &Rows) -> Rows,
    // ---- MLA: M1 to M8
    "M1" split_query: fn(q: &[f64], head: usize, w: MlaWidths) -> (&[f64], &[f64]),
    "M2" latent: fn(formulas: &Formulas, compressed: &[f64], weight: &[f64], eps: f64) -> Vec<f64>,
    "M3" shared_key: fn(compressed: &[f64], kv_lora: usize, position: usize) -> Vec<f64>,
    "M3" attention_dot: fn(q: (&[f64], &[f64]), k: (&[f64], &[f64]), position: usize) -> f64,
    "M4" attention_scale: fn(widths: MlaWidths) -> f64,
    "M5" sees: fn(query_position: usize, key_position: usize) -> bool,
    "M5" attention_weights: fn(scores: &[f64]) -> Vec<f64>,
    "M6" split_key_value: fn(kv: &[f64], head: usize, w: MlaWidths) -> (&[f64], &[f64]),
    "M7" mla_output: fn(o: &[f64], gate: &[f64]) -> Vec<f64>,
    "M8" extend_cache: fn(cache: &mut MlaCache, entries: &MlaCache),
    // ---- MLP and SiTU: S1, S2
    "S1, S2" situ: fn(gate: f64, up: f64, beta: f64, linear_beta: f64) -> f64,
    "N1, E1, E10" mlp:
        fn(pass: &Pass<'_>, layer: &LayerWeights, h: &Rows, stages: &mut Stages<'_>) -> Read<Rows>,
    // ---- LatentMoE: E1 to E10
    "E1" router_scores: fn(logits: &[f64]) -> Vec<f64>,
    "E2" select: fn(scores: &[f64], bias: &[f64], k: usize) -> Vec<usize>,
    "E3 to E5" routing_weights:
        fn(scores: &[f64], bias: &[f64], chosen: &[usize], config: &RawConfig) -> Vec<f64>,
    "E6" expert_input: fn(weights: &MoeWeights, x: &Rows) -> Rows,
    "E7" expert: fn(formulas: &Formulas, weights: &MoeWeights, id: usize) -> Read<ExpertWeights>,
    "E8" routed_sum:
        fn(pass: &Pass<'_>, weights: &MoeWeights, z: &Rows, routing: &Routing) -> Read<Rows>,
    "E8" combine: fn(outputs: &[Vec<f64>], weights: &[f64], width: usize) -> Vec<f64>,
    "E9" project_up: fn(up: &Matrix, normed: &Rows) -> Rows,
    "E10" add_shared: fn(routed: &Rows, shared: &Rows, routing: &Routing) -> Rows,
    // ---- MXFP4: Q1 to Q4
    "Q1" e2m1: fn(code: u8) -> f64,
    "Q2" nibble_columns: fn(index: usize, row_bytes: usize) -> [usize; 2],
    "Q3, Q4" scale: fn(byte: u8) -> Option<f64>,
    "Q3" scale_group: fn(column: usize, groups: usize) -> usize,
}
