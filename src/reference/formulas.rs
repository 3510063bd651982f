//! The small formulas and choices of SPEC section 2, one method per clause or finer.
//!
//! [`Formulas`] holds the right ones as default methods; the forward pass is written over it. The
//! reference proper is [`Released`], which changes nothing. A mutant is a struct that overrides
//! one of them, so a mistake is a type and the forward pass has no switch. Deliberately not here:
//! the order of the steps (that is `layer`, `kda`, `mla` and `moe`) and any input or output.

use std::fmt::Debug;

use super::error::ReferenceError;
use super::kda::{DecayInputs, StepInputs};
use super::mla::{MlaCache, MlaWidths};
use super::moe::{ExpertWeights, MoeWeights};
use super::rows::{Matrix, Rows, add, dot};
use crate::config::RawConfig;
use crate::stages::StageKey;

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

/// ε inside the l2norm of q and k, always this value (clause K3).
pub const L2_NORM_EPS: f64 = 1e-6;
/// What keeps the renormalised weights finite (clause E4).
pub const RENORMALISE_EPS: f64 = 1e-20;
/// E2M1 magnitudes by the lower three bits of a code (clause Q1).
pub const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
/// Columns per MXFP4 scale byte (clause Q3).
pub const GROUP_COLUMNS: usize = 32;

/// The logistic function.
#[must_use]
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// x·σ(x).
#[must_use]
pub fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// exp(s − max) / Σ exp(s − max), summed in rising order. All −inf gives NaN.
#[must_use]
pub fn softmax(scores: &[f64]) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exponentials: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    exponentials.iter().map(|e| e / sum).collect()
}

/// a ⊙ b.
#[must_use]
pub fn product(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}

/// Every formula of the forward pass. The defaults are the released model's.
pub trait Formulas: Debug + Send + Sync {
    // ---- the model: L1 to L3

    /// L1: KDA iff index + 1 is in `kda_layers`, MLA iff it is in `full_attn_layers`.
    ///
    /// # Errors
    /// The layer is in both lists or in none.
    fn layer_kind(
        &self,
        index: usize,
        config: &RawConfig,
    ) -> Result<AttentionKind, ReferenceError> {
        let layer_one_based = index + 1;
        let kda = config.kda_layers.contains(&layer_one_based);
        let mla = config.full_attn_layers.contains(&layer_one_based);
        let refuse = |got| ReferenceError::LayerKinds {
            layer_one_based,
            got,
        };
        match (kda, mla) {
            (true, false) => Ok(AttentionKind::Kda),
            (false, true) => Ok(AttentionKind::Mla),
            (true, true) => Err(refuse("both")),
            (false, false) => Err(refuse("neither")),
        }
    }

    /// L2: whether the layer's MLP is dense.
    fn is_dense(&self, index: usize, config: &RawConfig) -> bool {
        index < config.first_k_dense_replace
    }

    /// L3: the row of the embedding table for an id.
    fn embedding_row(&self, id: usize, _vocabulary: usize) -> usize {
        id
    }

    /// L3: the row of the head for a logit.
    fn head_row(&self, logit: usize, _vocabulary: usize) -> usize {
        logit
    }

    /// L3: the tensor of the head: its own, not the embedding table.
    fn head_tensor(&self) -> &'static str {
        "language_model.lm_head.weight"
    }

    /// L3: what the head reads, out of the last mix before and after `norm`.
    fn head_input(&self, _mixed: &Rows, normed: Rows) -> Rows {
        normed
    }

    // ---- norms: N1 to N3

    /// N2, N3: `rms_norm_eps` everywhere but in the two low-rank norms of MLA.
    fn norm_eps(&self, site: NormSite, rms_norm_eps: f64, mla_norm_eps: f64) -> f64 {
        match site {
            NormSite::MlaQ | NormSite::MlaKv => mla_norm_eps,
            _ => rms_norm_eps,
        }
    }

    /// N1: x / sqrt(mean(x²) + ε).
    fn normalise(&self, _site: NormSite, x: &[f64], eps: f64) -> Vec<f64> {
        let mean = dot(x, x) / x.len() as f64;
        let root = (mean + eps).sqrt();
        x.iter().map(|x| x / root).collect()
    }

    /// N1: RMSNorm(x; w, ε), the weight after the norm.
    fn rms_norm(&self, site: NormSite, x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
        product(&self.normalise(site, x, eps), weight)
    }

    // ---- residual mixes: R1 to R7

    /// R1: the sources of a mix, the banks in order, then the running sum. One row \[E\] each.
    fn mix_sources<'a>(&self, banks: &[&'a [f64]], sum: &'a [f64]) -> Vec<&'a [f64]> {
        let mut sources = banks.to_vec();
        sources.push(sum);
        sources
    }

    /// R2: the score of a source: its normed row with the folded vector.
    fn mix_score(&self, site: NormSite, source: &[f64], fold: &[f64], eps: f64) -> f64 {
        dot(&self.normalise(site, source, eps), fold)
    }

    /// R2: what a source contributes: its raw row.
    fn mix_value(&self, _site: NormSite, source: &[f64], _eps: f64) -> Vec<f64> {
        source.to_vec()
    }

    /// R1: the weights of the sources.
    fn mix_weights(&self, scores: &[f64]) -> Vec<f64> {
        softmax(scores)
    }

    /// R3: the folded vector norm.w ⊙ proj.w of one mixer.
    fn fold(&self, norm: &[f64], proj: &[f64]) -> Vec<f64> {
        product(norm, proj)
    }

    /// R3: which folded vector a mixer of a layer uses: its own.
    fn fold_of<'a>(&self, site: NormSite, folds: Folds<'a>) -> Option<&'a [f64]> {
        match site {
            NormSite::AttnMix => folds.attention,
            _ => Some(folds.mlp),
        }
    }

    /// R4: the attention-side mix is left out only while there is no bank.
    fn mixes_before_attention(&self, _index: usize, _block: usize, banks: usize) -> bool {
        banks > 0
    }

    /// R5: whether the layer pushes a bank and restarts the sum.
    fn opens_block(&self, index: usize, block: usize) -> bool {
        index.is_multiple_of(block)
    }

    /// R5: what is pushed: the un-mixed sum.
    fn banked(&self, sum: &Rows, _mixed: &Rows) -> Rows {
        sum.clone()
    }

    /// R6: the running sum after attention.
    fn sum_after_attention(&self, opens_block: bool, sum: &Rows, attention: &Rows) -> Rows {
        if opens_block {
            attention.clone()
        } else {
            add(sum, attention)
        }
    }

    /// R7: the banks of the MLP-side mix, the new one included.
    fn banks_before_mlp<'a>(&self, _opens_block: bool, banks: &'a [Rows]) -> &'a [Rows] {
        banks
    }

    /// R7: the banks of the mix after the last layer.
    fn banks_before_output<'a>(&self, banks: &'a [Rows]) -> &'a [Rows] {
        banks
    }

    // ---- KDA: K1 to K13

    /// K1: the causal depthwise convolution. `history` \[kernel−1, P\] are the inputs before
    /// `input` \[T, P\], oldest first; `taps` is \[P, kernel\], oldest to newest.
    fn convolve(&self, _part: Part, history: &Rows, input: &Rows, taps: &[f64]) -> Rows {
        let kernel = history.count() + 1;
        let series: Vec<&[f64]> = history.iter().chain(input.iter()).collect();
        let mut out = Rows::empty(input.width);
        for window in series.windows(kernel) {
            let channel = |p: usize| {
                let taps = &taps[p * kernel..][..kernel];
                taps.iter().zip(window).map(|(tap, row)| tap * row[p]).sum()
            };
            out.push(&(0..input.width).map(channel).collect::<Vec<f64>>());
        }
        out
    }

    /// K2: SiLU after each convolution.
    fn convolution_activation(&self, _part: Part, x: f64) -> f64 {
        silu(x)
    }

    /// K3: t / sqrt(Σ t² + 1e-6), ε on the sum.
    fn l2_norm(&self, head: &[f64]) -> Vec<f64> {
        let root = (dot(head, head) + L2_NORM_EPS).sqrt();
        head.iter().map(|t| t / root).collect()
    }

    /// K3: one head \[D\] after the activation: q and k are normed, v is not.
    fn kda_head(&self, part: Part, head: &[f64]) -> Vec<f64> {
        match part {
            Part::Query | Part::Key => self.l2_norm(head),
            Part::Value => head.to_vec(),
        }
    }

    /// K4: the factor on q, D^−½.
    fn kda_query_scale(&self, head_dim: usize) -> f64 {
        (head_dim as f64).sqrt().recip()
    }

    /// K5: β of a head, σ of its own logit. `logits` is \[H\].
    fn beta(&self, logits: &[f64], head: usize) -> f64 {
        sigmoid(logits[head])
    }

    /// K6: what stands between f_a and f_b: nothing. `hidden` is \[D\].
    fn decay_hidden(&self, hidden: Vec<f64>) -> Vec<f64> {
        hidden
    }

    /// K6, K7: the log decay of one channel, bound · σ(exp(A_log\[h\]) · (z + dt_bias)).
    fn log_decay(&self, d: &DecayInputs<'_>) -> f64 {
        let rate = d.a_log[d.head].exp();
        let channel = d.head * d.head_dim + d.channel;
        d.lower_bound * sigmoid(rate * (d.z[channel] + d.dt_bias[channel]))
    }

    /// K8: the first H of the stored D values of `A_log`; the rest must be exactly zero.
    ///
    /// # Errors
    /// The padding is not zero.
    fn decay_rates(
        &self,
        layer: usize,
        stored: &[f64],
        heads: usize,
    ) -> Result<Vec<f64>, ReferenceError> {
        let (rates, padding) = stored.split_at(heads);
        // `!=` also catches NaN.
        if let Some(index) = padding.iter().position(|v| *v != 0.0) {
            return Err(ReferenceError::DecayPadding {
                layer,
                index: heads + index,
                got: padding[index],
            });
        }
        Ok(rates.to_vec())
    }

    /// K9 to K11: one token, one head. `state` is S \[D, D\], rows = key index: S_i· *= α_i;
    /// u = Sᵀk; S += k ⊗ β(v − u); o = Sᵀq from the updated S. Gives o \[D\].
    fn delta_step(&self, state: &mut [f64], s: &StepInputs<'_>) -> Vec<f64> {
        decay_rows(state, s.log_decay);
        let u = read(state, s.k);
        let delta: Vec<f64> = s.v.iter().zip(&u).map(|(v, u)| s.beta * (v - u)).collect();
        write(state, s.k, &delta);
        read(state, s.q)
    }

    /// K12: per head RMSNorm(o; o_norm), then · σ(gate). `o` and `gate` are \[P\].
    fn kda_output(&self, o: &[f64], o_norm: &[f64], gate: &[f64], eps: f64) -> Vec<f64> {
        let heads = o.chunks_exact(o_norm.len());
        let normed = heads.flat_map(|o| self.rms_norm(NormSite::KdaOutput, o, o_norm, eps));
        normed.zip(gate).map(|(o, g)| o * sigmoid(*g)).collect()
    }

    /// K13: the state as a new call finds it: as the last one left it. All heads \[H, D, D\].
    fn carried_memory(&self, _memory: &mut [f64]) {}

    /// K13: the convolution inputs to carry: the last kernel−1 of `history`, then `input`.
    fn carried_inputs(&self, history: &Rows, input: &Rows) -> Rows {
        let series: Vec<&[f64]> = history.iter().chain(input.iter()).collect();
        let mut kept = Rows::empty(input.width);
        for row in &series[series.len() - history.count()..] {
            kept.push(row);
        }
        kept
    }

    // ---- MLA: M1 to M8

    /// M1: a head's \[nope\] and \[rope\] parts out of the q_b output of all heads.
    fn split_query<'a>(&self, q: &'a [f64], head: usize, w: MlaWidths) -> (&'a [f64], &'a [f64]) {
        let width = w.nope + w.rope;
        q[head * width..][..width].split_at(w.nope)
    }

    /// M2: the latent: the norm over the first kv_lora values of `kv_a` x.
    fn latent(&self, compressed: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
        self.rms_norm(NormSite::MlaKv, &compressed[..weight.len()], weight, eps)
    }

    /// M3: the key part shared by all heads: the rest of `kv_a` x as it is.
    fn shared_key(&self, compressed: &[f64], kv_lora: usize) -> Vec<f64> {
        compressed[kv_lora..].to_vec()
    }

    /// M3: the rope part of a query or of the shared key at a position: never rotated.
    fn positioned(&self, part: &[f64], _position: usize) -> Vec<f64> {
        part.to_vec()
    }

    /// M3: the raw score of a query head with a cached position.
    fn attention_dot(&self, q: (&[f64], &[f64]), k: (&[f64], &[f64])) -> f64 {
        dot(q.0, k.0) + dot(q.1, k.1)
    }

    /// M4: the factor on the scores, (nope + rope)^−½.
    fn attention_scale(&self, widths: MlaWidths) -> f64 {
        ((widths.nope + widths.rope) as f64).sqrt().recip()
    }

    /// M5: whether a query sees a key; positions count from the start of the sequence.
    fn sees(&self, query_position: usize, key_position: usize) -> bool {
        key_position <= query_position
    }

    /// M5: the weights of the seen positions.
    fn attention_weights(&self, scores: &[f64]) -> Vec<f64> {
        softmax(scores)
    }

    /// M6: a head's \[k_nope\] and \[v\] out of the kv_b output of all heads.
    fn split_key_value<'a>(
        &self,
        kv: &'a [f64],
        head: usize,
        w: MlaWidths,
    ) -> (&'a [f64], &'a [f64]) {
        let width = w.nope + w.value;
        kv[head * width..][..width].split_at(w.nope)
    }

    /// M7: o · σ(gate), no norm.
    fn mla_output(&self, o: &[f64], gate: &[f64]) -> Vec<f64> {
        o.iter().zip(gate).map(|(o, g)| o * sigmoid(*g)).collect()
    }

    /// M8: appends the entries of the call's positions to the cache.
    fn extend_cache(&self, cache: &mut MlaCache, entries: &MlaCache) {
        cache.append(entries);
    }

    // ---- MLP and SiTU: S1, S2

    /// S1, S2: β·tanh(gate/β) · σ(gate) · linβ·tanh(up/linβ), σ on the uncapped gate.
    fn situ(&self, gate: f64, up: f64, beta: f64, linear_beta: f64) -> f64 {
        let capped_gate = beta * (gate / beta).tanh();
        let capped_up = linear_beta * (up / linear_beta).tanh();
        capped_gate * sigmoid(gate) * capped_up
    }

    // ---- LatentMoE: E1 to E10

    /// E1: what the router reads: the normed input at full width (`mixed` is it before its norm).
    fn router_input(&self, x: &Rows, _mixed: &Rows, _weights: &MoeWeights) -> Rows {
        x.clone()
    }

    /// E1: the score of each expert.
    fn router_scores(&self, logits: &[f64]) -> Vec<f64> {
        logits.iter().map(|l| sigmoid(*l)).collect()
    }

    /// E2: the k experts with the largest score + bias, ties to the lower index; ids ascending.
    fn select(&self, scores: &[f64], bias: &[f64], k: usize) -> Vec<usize> {
        let ranked: Vec<f64> = scores.iter().zip(bias).map(|(s, b)| s + b).collect();
        let mut chosen = largest(&ranked, k);
        chosen.sort_unstable();
        chosen
    }

    /// E3 to E5: the weights of the chosen: their unbiased scores, renormalised when there is
    /// more than one, times the scaling factor.
    fn routing_weights(
        &self,
        scores: &[f64],
        _bias: &[f64],
        chosen: &[usize],
        config: &RawConfig,
    ) -> Vec<f64> {
        let unbiased: Vec<f64> = chosen.iter().map(|e| scores[*e]).collect();
        let sum = unbiased.iter().sum::<f64>() + RENORMALISE_EPS;
        let renormalise = chosen.len() > 1 && config.moe_renormalize;
        let divisor = if renormalise { sum } else { 1.0 };
        let scaling = config.routed_scaling_factor;
        unbiased.iter().map(|w| w / divisor * scaling).collect()
    }

    /// E6: what the experts read \[T, L\]: the latent down·x.
    fn expert_input(&self, _x: &Rows, latent: &Rows) -> Rows {
        latent.clone()
    }

    /// E7: the roles of an expert's matrices: gate, up, down.
    fn expert_roles<'a>(&self, expert: &'a ExpertWeights) -> [&'a Matrix; 3] {
        [&expert.w1, &expert.w3, &expert.w2]
    }

    /// E7: the id under which the checkpoint holds a chosen expert: its own.
    fn expert_id(&self, chosen: usize, _experts: usize) -> usize {
        chosen
    }

    /// E8: what an expert's output \[L\] enters the weighted sum as: itself, without a norm.
    fn expert_share(&self, output: Vec<f64>, _norm: &[f64], _eps: f64) -> Vec<f64> {
        output
    }

    /// E8: Σ w·output over the chosen experts, rising id. Gives \[width\].
    fn combine(&self, outputs: &[Vec<f64>], weights: &[f64], width: usize) -> Vec<f64> {
        weighted_sum(outputs, weights, width)
    }

    /// E8: RMSNorm(y; routed_expert_norm) on the weighted sum.
    fn norm_of_sum(&self, sum: &[f64], norm: &[f64], eps: f64) -> Vec<f64> {
        self.rms_norm(NormSite::Latent, sum, norm, eps)
    }

    /// E9: back to the full width.
    fn project_up(&self, up: &Matrix, normed: &Rows) -> Rows {
        up.apply(normed)
    }

    /// E10: what the shared MLP reads: the normed input at full width.
    fn shared_input(&self, x: &Rows, _mixed: &Rows, _weights: &MoeWeights) -> Rows {
        x.clone()
    }

    /// E10: the factor on a token's shared output, given its routing weights.
    fn shared_weight(&self, _routing_weights: &[f64]) -> f64 {
        1.0
    }

    // ---- MXFP4: Q1 to Q4

    /// Q1: the value of a four-bit code; bit 3 is the sign (code 8 is −0).
    fn e2m1(&self, code: u8) -> f64 {
        let magnitude = E2M1[usize::from(code & 7)];
        if code & 8 == 0 { magnitude } else { -magnitude }
    }

    /// Q2: the codes of the even and the odd column of a byte: low nibble first.
    fn nibbles(&self, byte: u8) -> [u8; 2] {
        [byte & 15, byte >> 4]
    }

    /// Q3, Q4: 2^(byte − 127); `None` for byte 255, which is NaN and means a damaged file.
    fn scale(&self, byte: u8) -> Option<f64> {
        // The exponent field of an f64; exact for every byte, 2^−127 included.
        (byte != 255).then(|| f64::from_bits((u64::from(byte) + 1023 - 127) << 52))
    }

    /// Q3: the group whose scale a column takes.
    fn scale_group(&self, column: usize, _groups: usize) -> usize {
        column / GROUP_COLUMNS
    }

    /// Q1 to Q4: one packed row. `packed` is \[columns/2\], `scales` \[columns/32\].
    ///
    /// # Errors
    /// The group whose scale byte is 255.
    fn decode_row(&self, packed: &[u8], scales: &[u8], row: &mut [f64]) -> Result<(), usize> {
        let mut factors = Vec::with_capacity(scales.len());
        for (group, byte) in scales.iter().enumerate() {
            factors.push(self.scale(*byte).ok_or(group)?);
        }
        let values: [f64; 16] = std::array::from_fn(|code| self.e2m1(code as u8));
        for (pair, byte) in packed.iter().enumerate() {
            for (odd, code) in self.nibbles(*byte).into_iter().enumerate() {
                let column = 2 * pair + odd;
                let factor = factors[self.scale_group(column, factors.len())];
                row[column] = values[usize::from(code)] * factor;
            }
        }
        Ok(())
    }

    // ---- no clause

    /// Called with every stage value before anything reads it: what is left in `values` is what
    /// the steps after it use. The reference keeps its full f64. A variant that rounds here
    /// measures the noise floor of a storage precision; one that puts a subject's own values here
    /// computes every stage from the subject's inputs. `kda.state` comes here head by head after
    /// every token, and whole at the end of a call.
    fn stored(&self, _key: StageKey, _values: &mut [f64]) {}

    /// The same for the chosen experts of each token, ascending.
    fn stored_ids(&self, _key: StageKey, _chosen: &mut [Vec<usize>]) {}
}

/// The formulas of the released model: every default.
#[derive(Debug, Clone, Copy, Default)]
pub struct Released;

impl Formulas for Released {}

/// S_i· *= exp(g_i).
pub fn decay_rows(state: &mut [f64], log_decay: &[f64]) {
    for (row, g) in state.chunks_exact_mut(log_decay.len()).zip(log_decay) {
        let alpha = g.exp();
        row.iter_mut().for_each(|s| *s *= alpha);
    }
}

/// Sᵀx: Σ_i S_i·x_i, rising i.
#[must_use]
pub fn read(state: &[f64], x: &[f64]) -> Vec<f64> {
    let mut out = vec![0.0; x.len()];
    for (row, x) in state.chunks_exact(x.len()).zip(x) {
        for (out, s) in out.iter_mut().zip(row) {
            *out += s * x;
        }
    }
    out
}

/// S += k ⊗ δ.
pub fn write(state: &mut [f64], k: &[f64], delta: &[f64]) {
    for (row, k) in state.chunks_exact_mut(delta.len()).zip(k) {
        for (s, delta) in row.iter_mut().zip(delta) {
            *s += k * delta;
        }
    }
}

/// Σ w·x over equally long vectors, in the order given.
#[must_use]
pub fn weighted_sum(vectors: &[Vec<f64>], weights: &[f64], width: usize) -> Vec<f64> {
    let mut out = vec![0.0; width];
    for (vector, weight) in vectors.iter().zip(weights) {
        for (out, x) in out.iter_mut().zip(vector) {
            *out += weight * x;
        }
    }
    out
}

/// Indices of the k largest values, largest first; of equals the lower index. Distinct always.
#[must_use]
pub fn largest(values: &[f64], k: usize) -> Vec<usize> {
    let mut chosen: Vec<usize> = Vec::with_capacity(k);
    for _ in 0..k.min(values.len()) {
        let left = (0..values.len()).filter(|i| !chosen.contains(i));
        let best = left.reduce(|best, i| if values[i] > values[best] { i } else { best });
        chosen.extend(best);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decay(input: f64) -> f64 {
        Released.log_decay(&DecayInputs {
            z: &[input],
            dt_bias: &[0.0],
            a_log: &[0.0],
            head: 0,
            channel: 0,
            head_dim: 1,
            lower_bound: -5.0,
        })
    }

    /// The older softplus decay gives −0.313262, −0.693147, −1.313262.
    #[test]
    fn decay_is_bound_times_logistic() {
        for (input, right) in [(-1.0, -1.344707), (0.0, -2.5), (1.0, -3.655293)] {
            assert!(
                (decay(input) - right).abs() < 1e-6,
                "{input}: {}",
                decay(input)
            );
        }
    }

    /// SiLU in place of the logistic gives 0 and −0.142278.
    #[test]
    fn output_gate_of_kda_is_a_logistic() {
        for (gate, right) in [(0.0, 0.5), (-3.0, 0.047426)] {
            let out = Released.kda_output(&[1.0], &[1.0], &[gate], 0.0);
            assert!((out[0] - right).abs() < 1e-6, "{gate}: {out:?}");
        }
    }

    /// A bias that leaks into the weights gives 0.3 and 0.7; all equal scores take the lowest ids;
    /// and no expert is chosen twice when only −inf is left.
    #[test]
    fn bias_selects_and_does_not_weigh() {
        let scores = [0.5; 4];
        let bias = [0.0, 0.0, 3.0, 1.0];
        let chosen = Released.select(&scores, &bias, 2);
        assert_eq!(chosen, [2, 3]);
        assert_eq!(Released.select(&[0.5; 8], &[0.0; 8], 2), [0, 1]);
        let low = f64::NEG_INFINITY;
        assert_eq!(
            Released.select(&scores, &[low, low, 0.0, low], 3),
            [0, 1, 2]
        );
    }

    /// bfloat16 logits would prefer expert 8 for its bias.
    #[test]
    fn close_scores_are_told_apart() {
        let mut logits = [-9.0; 16];
        logits[7] = 1.0 + 1.0 / 512.0;
        logits[8] = 1.0;
        let mut bias = [0.0; 16];
        bias[8] = 1.0 / 8192.0;
        let scores = Released.router_scores(&logits);
        assert_eq!(Released.select(&scores, &bias, 1), [7]);
    }

    /// Overflow in the exponentials; −inf everywhere is documented to give NaN.
    #[test]
    fn softmax_of_extremes() {
        assert_eq!(softmax(&[1e30, -1e30]), [1.0, 0.0]);
        assert_eq!(softmax(&[-7.0]), [1.0]);
        let low = f64::NEG_INFINITY;
        assert_eq!(softmax(&[low, 0.0]), [0.0, 1.0]);
        assert!(softmax(&[low, low]).iter().all(|p| p.is_nan()));
    }

    /// Subnormal codes, the sign of zero, nibble order, scale bias.
    #[test]
    fn mxfp4_codes_and_scales() {
        let right = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        for (code, right) in right.into_iter().enumerate() {
            let code = code as u8;
            assert_eq!(Released.e2m1(code).to_bits(), f64::to_bits(right));
            assert_eq!(Released.e2m1(code | 8).to_bits(), f64::to_bits(-right));
        }
        for (byte, right) in [(126, 0.5), (127, 1.0), (128, 2.0), (134, 128.0)] {
            assert_eq!(Released.scale(byte), Some(right));
        }
        assert_eq!(Released.scale(0), Some(2f64.powi(-127)));
        assert_eq!(Released.scale(254), Some(2f64.powi(127)));
        assert_eq!(Released.scale(255), None);
        let mut row = [0.0; 32];
        let mut packed = [0u8; 16];
        packed[0] = 0x21;
        Released.decode_row(&packed, &[127], &mut row).unwrap();
        assert_eq!(row[..3], [0.5, 1.0, 0.0]);
        assert_eq!(Released.decode_row(&packed, &[255], &mut row), Err(0));
    }

    /// A group that takes its neighbour's scale.
    #[test]
    fn mxfp4_scales_are_per_32_columns() {
        let mut row = [0.0; 96];
        Released
            .decode_row(&[0x22; 48], &[127, 0, 130], &mut row)
            .unwrap();
        for (column, value) in row.into_iter().enumerate() {
            assert_eq!(value, [1.0, 2f64.powi(-127), 8.0][column / 32]);
        }
    }

    /// A channel's bias must move its own row of the state and no other.
    #[test]
    fn decay_acts_on_rows() {
        let mut state = [1.0; 9];
        decay_rows(&mut state, &[0.0, 2f64.ln(), 0.0]);
        assert_eq!(state, [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0]);
        let mut state = [0.0; 4];
        write(&mut state, &[1.0, 2.0], &[3.0, 5.0]);
        assert_eq!(state, [3.0, 5.0, 6.0, 10.0]);
        assert_eq!(read(&state, &[1.0, 10.0]), [63.0, 105.0]);
    }
}
