//! The operations the model is composed of: the seam between composition and arithmetic.
//!
//! Every method has a default, the rule of MODEL.md section 2 or a kernel of the contract, named by
//! its clause; what is more than a line stands in `compositions`. Production is [`Contract`], which
//! says which kernel path it uses and has the composed operations in its own type: `Engine` is
//! compiled for it alone and carries no switch. A wrong variant (a mutant of the gates) is a type
//! that overrides one method; it runs the same model code through `Engine<dyn Operations>`.
//!
//! The trait also covers where things are put (state slots, cache rows, convolution histories,
//! experts): a correct formula on the wrong operand is the commoner mistake.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use super::mla::{self, HeadAttention};
use super::{
    AttentionKind, EngineError, Expert, ExpertSource, KdaState, LatentCache, Shape, State,
};
use super::{compositions, shape};
use crate::kernels::contract::round_to_f32;
use crate::kernels::kda::StepInputs;
use crate::kernels::path::KernelPath;
use crate::kernels::products;
use crate::kernels::products::Product;
use crate::kernels::router;
use crate::kernels::router::{NanScore, Weighting};
use crate::kernels::rows;
use crate::kernels::rows::Row;
use crate::kernels::simd::compiled;
use crate::kernels::situ::Caps;
use crate::kernels::sums::Vectors;
use crate::kernels::threads::Threads;
use crate::kernels::{convolution, norm, residual};
use k3_core::config::RawConfig;

/// Where an RMSNorm stands (N2, N3): each has its own weight, and two have their own ε.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormSite {
    /// `input_layernorm`.
    Input,
    /// `post_attention_layernorm`.
    PostAttention,
    /// `norm`, after the output mix.
    Final,
    /// Keys of the attention-side mix.
    AttentionMix,
    /// Keys of the MLP-side mix.
    MlpMix,
    /// Keys of the output mix.
    OutputMix,
    /// `o_norm`, per KDA head.
    KdaOutput,
    /// `routed_expert_norm`.
    RoutedExperts,
    /// `q_a_layernorm`.
    MlaQuery,
    /// `kv_a_layernorm`.
    MlaLatent,
}

/// KDA's three convolved projections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projection {
    /// Query.
    Query,
    /// Key.
    Key,
    /// Value.
    Value,
}

impl Projection {
    /// In the order of every buffer.
    pub const ALL: [Self; 3] = [Self::Query, Self::Key, Self::Value];
}

/// Production: the contract as it stands, on a kernel path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Contract {
    /// Which instructions to use; changes no bit.
    pub path: KernelPath,
}

impl Contract {
    /// The contract on the fastest path of this processor.
    #[must_use]
    pub fn fastest() -> Self {
        Self { path: KernelPath::detect() }
    }
}

impl Operations for Contract {
    fn as_dyn(&self) -> &dyn Operations {
        self
    }

    fn path(&self) -> KernelPath {
        self.path
    }

    // The compositions again, in this type: no call of production goes through a table.

    fn softmax_sum(&self, scores: &mut [f32], vectors: Vectors<'_>, out: &mut [f32]) {
        compositions::softmax_sum(self, scores, vectors, out);
    }

    fn residual_mix(
        &self,
        sources: &[&[f32]],
        folded: &[f32],
        epsilon: f64,
        keys: &mut [f32],
        out: &mut [f32],
    ) {
        compositions::residual_mix(self, sources, folded, epsilon, keys, out);
    }

    fn silu_all(&self, values: &mut [f32]) {
        compositions::silu_all(self, values);
    }

    fn condition_head(&self, projection: Projection, head: &mut [f32]) {
        compositions::condition_head(self, projection, head);
    }

    fn log_decay(
        &self,
        head: usize,
        z: &[f32],
        dt_bias: &[f32],
        gate: (&[f32], f32),
        out: &mut [f32],
    ) {
        compositions::log_decay(self, head, z, dt_bias, gate, out);
    }

    fn kda_head_output(&self, o: &mut [f32], weight: &[f32], epsilon: f64, gate: &mut [f32]) {
        compositions::kda_head_output(self, o, weight, epsilon, gate);
    }

    fn output_gate(&self, values: &mut [f32], gate: &mut [f32]) {
        compositions::output_gate(self, values, gate);
    }

    fn cache_row(&self, compressed: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
        compositions::cache_row(self, compressed, weight, epsilon, out);
    }

    fn absorbed_query(&self, head: &HeadAttention<'_>, out: &mut [f32]) {
        mla::absorbed_query(self, head, out);
    }

    fn attend(&self, head: &HeadAttention<'_>, out: &mut [f32]) {
        mla::attend_absorbed(self, head, out);
    }

    fn situ(&self, gate: &[f32], up: &[f32], caps: Caps, out: &mut [f32]) {
        compositions::situ(self, gate, up, caps, out);
    }
}

/// What the model is made of. T tokens, E hidden width, H heads of width D, as in MODEL.md.
pub trait Operations: Send + Sync + Debug {
    /// Itself behind a table of methods. The defaults that are made of other operations go
    /// through it, so that all wrong variants share one compiled copy of them.
    fn as_dyn(&self) -> &dyn Operations;

    /// The kernels' instructions (A11).
    fn path(&self) -> KernelPath {
        KernelPath::detect()
    }

    // ---- Carrying ----

    /// K13, M8: what happens to the carried state before a chunk, besides the layers: nothing.
    fn before_chunk(&self, _state: &mut State) {}

    /// The same after a chunk.
    fn after_chunk(&self, _state: &mut State) {}

    // ---- Shape ----

    /// L1: the kind of a zero-based layer.
    ///
    /// # Errors
    /// The lists are not a partition.
    fn attention_kind(&self, raw: &RawConfig, layer: usize) -> Result<AttentionKind, EngineError> {
        shape::attention_kind(raw, layer)
    }

    /// L2: dense iff the index is below `first_k_dense_replace`.
    fn is_dense(&self, raw: &RawConfig, layer: usize) -> bool {
        layer < raw.first_k_dense_replace
    }

    /// R5: whether the sum is banked and cleared at this layer.
    fn banks_at(&self, raw: &RawConfig, layer: usize) -> bool {
        layer.is_multiple_of(raw.attn_res_block_size)
    }

    /// N2, N3: ε of a norm; `mla_norm_eps` is the two low-rank norms' own.
    fn norm_epsilon(&self, site: NormSite, rms_norm_eps: f64, mla_norm_eps: f64) -> f64 {
        match site {
            NormSite::MlaQuery | NormSite::MlaLatent => mla_norm_eps,
            _ => rms_norm_eps,
        }
    }

    // ---- Loading ----

    /// R3: norm.w ⊙ proj.w, once at load.
    fn fold(&self, norm: &[f32], projection: &[f32]) -> Vec<f32> {
        residual::fold(norm, projection)
    }

    /// K7, K8: the first `heads` values of `A_log`; the rest must be zero.
    ///
    /// # Errors
    /// Index and value of the first non-zero padding.
    fn a_log(&self, stored: &[f32], heads: usize) -> Result<Vec<f32>, (usize, f32)> {
        compositions::a_log(stored, heads)
    }

    /// Q4: a NaN scale in an expert is an error.
    ///
    /// # Errors
    /// [`EngineError::NanScale`] with its place.
    fn check_expert(&self, layer: usize, id: usize, expert: &Expert) -> Result<(), EngineError> {
        expert.check_scales(layer, id)
    }

    // ---- Numbers (A10) ----

    /// e^x of every element.
    fn exp_all(&self, values: &mut [f32]) {
        compiled::exp_all(self.path(), values);
    }

    /// σ of every element.
    fn sigmoid_all(&self, values: &mut [f32]) {
        compiled::sigmoid_all(self.path(), values);
    }

    /// tanh of every element.
    fn tanh_all(&self, values: &mut [f32]) {
        compiled::tanh_all(self.path(), values);
    }

    // ---- Sums (A1…A4) ----

    /// A1: the exact values of a stored row.
    fn widen_row(&self, row: Row<'_>, out: &mut [f64]) {
        row.widen(0, out);
    }

    /// A2, A3: Σ w·x of one row, before its rounding.
    fn row_sum(&self, row: Row<'_>, x: &[f32]) -> f64 {
        rows::row_sum_on(self.path(), row, x)
    }

    /// The row product: the sum above, rounded once.
    fn row_product(&self, row: Row<'_>, x: &[f32]) -> f32 {
        round_to_f32(self.row_sum(row, x))
    }

    /// Many row products: W·x for several matrices and tokens. Must equal
    /// [`Operations::row_product`] per element in bits.
    fn products(&self, threads: &Threads, products: Vec<Product<'_>>) {
        products::products(self.path(), threads, products);
    }

    /// A4: f32(Σ weights·vectors), rising index.
    fn weighted_sum(&self, weights: &[f32], vectors: Vectors<'_>, out: &mut [f32]) {
        compiled::weighted_sum_over(self.path(), weights, vectors, 1.0, out);
    }

    /// A6: softmax over `scores` (overwritten), applied to the vectors.
    fn softmax_sum(&self, scores: &mut [f32], vectors: Vectors<'_>, out: &mut [f32]) {
        compositions::softmax_sum(self.as_dyn(), scores, vectors, out);
    }

    // ---- Norms (A5) ----

    /// N1: RMSNorm with weight.
    fn rms_norm(&self, x: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
        norm::rms_norm(x, weight, epsilon, out);
    }

    /// N1 with weight 1, for the keys of a mix.
    fn rms_norm_unit(&self, x: &[f32], epsilon: f64, out: &mut [f32]) {
        norm::rms_norm_unit(x, epsilon, out);
    }

    /// K3: l2norm of one head.
    fn l2_norm(&self, head: &mut [f32]) {
        norm::l2_norm(head);
    }

    // ---- Residual stream ----

    /// L3: the embedding row of an id, widened.
    fn embed(&self, row: Row<'_>, out: &mut [f32]) {
        compositions::embed(row, out);
    }

    /// R1: the sources of a mix, in the order of their index.
    fn mix_sources<'a>(&self, banks: &[&'a [f32]], running: &'a [f32]) -> Vec<&'a [f32]> {
        compositions::mix_sources(banks, running)
    }

    /// R2: the mix of one token; `keys` is scratch of one row.
    fn residual_mix(
        &self,
        sources: &[&[f32]],
        folded: &[f32],
        epsilon: f64,
        keys: &mut [f32],
        out: &mut [f32],
    ) {
        compositions::residual_mix(self.as_dyn(), sources, folded, epsilon, keys, out);
    }

    /// R4: whether the attention-side mix happens, with this many banks.
    fn attention_mixes(&self, banks: usize) -> bool {
        banks > 0
    }

    /// R7: whether the MLP-side mix happens.
    fn mlp_mixes(&self) -> bool {
        true
    }

    /// R7: whether the output mix happens.
    fn output_mixes(&self) -> bool {
        true
    }

    /// R7: banks the MLP-side mix sees, of `filled`, in a layer that banks or not.
    fn mlp_mix_banks(&self, filled: usize, _layer_banked: bool) -> usize {
        filled
    }

    /// R3: which folded vector a mixer uses (`own`, or the other one of the layer).
    fn mixer<'a>(&self, _site: NormSite, own: &'a [f32], _other: &'a [f32]) -> &'a [f32] {
        own
    }

    /// R5: what is banked, the un-mixed running sum.
    fn banked<'a>(&self, running: &'a [f32], _mixed: &'a [f32]) -> &'a [f32] {
        running
    }

    /// R6: whether the sum restarts from the attention output after banking.
    fn clears_after_banking(&self) -> bool {
        true
    }

    /// running += addend, one f32 addition each.
    fn add(&self, running: &mut [f32], addend: &[f32]) {
        compositions::add(running, addend);
    }

    /// L3: what `lm_head` sees, the normed output mix.
    fn head_input<'a>(&self, normed: &'a [f32], _mixed: &'a [f32]) -> &'a [f32] {
        normed
    }

    // ---- KDA ----

    /// K13: the state slot of a layer.
    fn kda_slot<'a>(
        &self,
        slots: &'a mut [KdaState],
        slot: usize,
        _position: usize,
    ) -> &'a mut KdaState {
        &mut slots[slot]
    }

    /// K1: which history (0 q, 1 k, 2 v) belongs to a projection.
    fn history_of(&self, projection: Projection) -> usize {
        projection as usize
    }

    /// K1: the convolution of one token; `window` oldest first, `taps` \[P, kernel\].
    fn convolve(&self, window: &[&[f32]], taps: &[f32], out: &mut [f32]) {
        compiled::convolve(self.path(), window, taps, out);
    }

    /// K13: carries the newest input, dropping the oldest.
    fn shift_history(&self, history: &mut [f32], newest: &[f32]) {
        convolution::shift_history(history, newest);
    }

    /// K2: SiLU after each of the three convolutions.
    fn after_convolution(&self, _projection: Projection, values: &mut [f32]) {
        self.silu_all(values);
    }

    /// x·σ(x) of every element.
    fn silu_all(&self, values: &mut [f32]) {
        compositions::silu_all(self.as_dyn(), values);
    }

    /// K3, K4: q is normed and scaled by D^−½, k is normed, v is left alone.
    fn condition_head(&self, projection: Projection, head: &mut [f32]) {
        compositions::condition_head(self.as_dyn(), projection, head);
    }

    /// K4: D^−½ as f32.
    fn query_scale(&self, width: usize) -> f32 {
        norm::inverse_root(width)
    }

    /// K5: β = σ, one per head, in place.
    fn write_strength(&self, beta: &mut [f32]) {
        self.sigmoid_all(beta);
    }

    /// K6: nothing stands between f_a and f_b.
    fn between_low_rank(&self, _low_rank: &mut [f32]) {}

    /// K6, K7: log decay of head `head`; `z` and `dt_bias` are that head's.
    fn log_decay(
        &self,
        head: usize,
        z: &[f32],
        dt_bias: &[f32],
        gate: (&[f32], f32),
        out: &mut [f32],
    ) {
        compositions::log_decay(self.as_dyn(), head, z, dt_bias, gate, out);
    }

    /// K9, K10, K11 (A8): one step of one head; `state` \[key width, value width\].
    fn kda_step(&self, state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32]) {
        compiled::kda_step(self.path(), state, inputs, out);
    }

    /// K12: one head's output, normed, then gated.
    fn kda_head_output(&self, o: &mut [f32], weight: &[f32], epsilon: f64, gate: &mut [f32]) {
        compositions::kda_head_output(self.as_dyn(), o, weight, epsilon, gate);
    }

    /// K12, M7: values · σ(gate); `gate` is overwritten.
    fn output_gate(&self, values: &mut [f32], gate: &mut [f32]) {
        compositions::output_gate(self.as_dyn(), values, gate);
    }

    // ---- MLA ----

    /// M1: the norm between q_a and q_b.
    fn mla_query_norm(&self, x: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
        self.rms_norm(x, weight, epsilon, out);
    }

    /// M2, M3: the cached row, \[normed latent | raw rope part\].
    fn cache_row(&self, compressed: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
        compositions::cache_row(self.as_dyn(), compressed, weight, epsilon, out);
    }

    /// M8: the cache of a layer.
    fn latent_cache<'a>(&self, caches: &'a mut [LatentCache], slot: usize) -> &'a mut LatentCache {
        &mut caches[slot]
    }

    /// M8: appends one position's row.
    fn cache_append(&self, cache: &mut LatentCache, _position: usize, row: &[f32]) {
        cache.rows.extend_from_slice(row);
    }

    /// M1: one head's q split into nope and rope columns.
    fn query_parts(&self, nope: usize, rope: usize) -> (Range<usize>, Range<usize>) {
        (0..nope, nope..nope + rope)
    }

    /// M6: rows of kv_b with head `head`'s keys and values.
    fn kv_b_rows(&self, shape: &Shape, head: usize) -> (Range<usize>, Range<usize>) {
        let first = head * (shape.nope + shape.v_width);
        let middle = first + shape.nope;
        (first..middle, middle..middle + shape.v_width)
    }

    /// M4: (nope+rope)^−½ as f32.
    fn attention_scale(&self, nope: usize, rope: usize) -> f32 {
        norm::inverse_root(nope + rope)
    }

    /// M5: cached positions that the token at `position` sees, of `cached`.
    fn visible(&self, position: usize, _cached: usize) -> Range<usize> {
        0..position + 1
    }

    /// M3, A7: the absorbed query of one head, \[q' | q_rope\].
    fn absorbed_query(&self, head: &HeadAttention<'_>, out: &mut [f32]) {
        mla::absorbed_query(self.as_dyn(), head, out);
    }

    /// A7: one head and token in the absorbed form; `out` \[v\].
    fn attend(&self, head: &HeadAttention<'_>, out: &mut [f32]) {
        mla::attend_absorbed(self.as_dyn(), head, out);
    }

    /// M7: one token's gate, no norm before it.
    fn mla_gate(&self, values: &mut [f32], gate: &mut [f32]) {
        self.output_gate(values, gate);
    }

    // ---- MLP ----

    /// S1, S2 (A9): SiTU in f32 steps.
    fn situ(&self, gate: &[f32], up: &[f32], caps: Caps, out: &mut [f32]) {
        compositions::situ(self.as_dyn(), gate, up, caps, out);
    }

    /// E1: the router reads the normed input at full width.
    fn router_input<'a>(&self, normed: &'a [f32], _mixed: &'a [f32]) -> &'a [f32] {
        normed
    }

    /// E2: scores from logits, in place.
    fn router_scores(&self, logits: &mut [f32]) {
        self.sigmoid_all(logits);
    }

    /// E2: the chosen experts, ascending and distinct.
    ///
    /// # Errors
    /// A NaN among score + bias.
    fn select(&self, scores: &[f32], bias: &[f32], k: usize) -> Result<Vec<usize>, NanScore> {
        router::select(scores, bias, k)
    }

    /// E3, E4, E5: weights of the chosen, in the order of `ids`.
    fn routing_weights(
        &self,
        scores: &[f32],
        _bias: &[f32],
        ids: &[usize],
        weighting: Weighting,
    ) -> Vec<f32> {
        router::weights(scores, ids, weighting)
    }

    /// The experts themselves, in the order of `ids`.
    ///
    /// # Errors
    /// Whatever the source reports.
    fn experts(
        &self,
        source: &dyn ExpertSource,
        layer: usize,
        ids: &[usize],
    ) -> Result<Vec<Arc<Expert>>, EngineError> {
        source.experts(layer, ids)
    }

    /// E6: what the experts work on, the latent; mutants look elsewhere.
    fn expert_input<'a>(&self, latent: &'a [f32], _normed: &'a [f32]) -> &'a [f32] {
        latent
    }

    /// E7: w1 is the gate, w3 the linear part.
    fn expert_activation(&self, w1: &[f32], w3: &[f32], caps: Caps, out: &mut [f32]) {
        self.situ(w1, w3, caps, out);
    }

    /// A9: the weighted sum of expert outputs, in rising id.
    fn expert_sum(&self, ids: &[usize], weights: &[f32], outputs: Vectors<'_>, out: &mut [f32]) {
        compiled::expert_sum(self.path(), ids, weights, outputs, out);
    }

    /// E8: the norm on the weighted SUM.
    fn routed_norm(&self, sum: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
        self.rms_norm(sum, weight, epsilon, out);
    }

    /// E10: the shared MLP reads the normed input at full width.
    fn shared_input<'a>(&self, normed: &'a [f32], _mixed: &'a [f32]) -> &'a [f32] {
        normed
    }

    /// E9, E10: up·y plus the shared MLP's output, unweighted.
    fn combine_moe(&self, routed: &[f32], shared: &[f32], out: &mut [f32]) {
        compositions::combine_moe(routed, shared, out);
    }
}
