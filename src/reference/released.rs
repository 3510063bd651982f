//! The formulas of the released model, one function per clause or finer.
//!
//! What is here: MODEL.md section 2 in small pieces, each with its clause. Why so small: a mutant
//! replaces one of them in the table [`Formulas`], so a mistake is a value and the forward pass
//! has no switch. A formula that another one is part of takes the table, so that both can be
//! replaced. Deliberately not here: the order of the steps (that is `layer`, `kda`, `mla`, `moe`
//! and `residual`), and how a file is read (`reader`).

use ndarray::{Array2, ArrayViewMut2, Axis, concatenate, s};

use super::arithmetic::{
    decay_rows, divided, largest, product, read, sigmoid, silu, softmax, weighted_sum, write,
};
use super::error::ReferenceError;
use super::formulas::{AttentionKind, Formulas, NormSite, Part};
use super::kda::{DecayInputs, KdaWeights, StepInputs};
use super::layer::{LayerWeights, Mlp, Pass};
use super::mla::{MlaCache, MlaWidths};
use super::model::{ClosingWeights, EmbeddingTable};
use super::moe::{ExpertWeights, MoeInputs, MoeWeights, Routing, gated_mlp, moe, sum_of_experts};
use super::reader::Reader;
use super::residual::{Residual, mix_rows};
use super::rows::{Matrix, Rows, dot, row, stack};
use super::stage_hook::Stages;
use k3_core::config::RawConfig;
use k3_core::stages::Stage;

pub use super::kda::recurrence;

/// ε inside the l2norm of q and k, always this value (clause K3).
pub const L2_NORM_EPS: f64 = 1e-6;
/// What keeps the renormalised weights finite (clause E4).
pub const RENORMALISE_EPS: f64 = 1e-20;
/// E2M1 magnitudes by the lower three bits of a code (clause Q1).
pub const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
/// Columns per MXFP4 scale byte (clause Q3).
pub const GROUP_COLUMNS: usize = 32;

// ---- the model: L1 to L3

/// L1: KDA iff index + 1 is in `kda_layers`, MLA else: the two lists hold every layer once.
pub fn layer_kind(index: usize, config: &RawConfig) -> AttentionKind {
    match config.kda_layers.contains(&(index + 1)) {
        true => AttentionKind::Kda,
        false => AttentionKind::Mla,
    }
}

/// L2: whether the layer's MLP is dense.
pub fn is_dense(index: usize, config: &RawConfig) -> bool {
    index < config.first_k_dense_replace
}

/// L3: the embedding row \[E\] of an id, as it is stored.
///
/// # Errors
/// It cannot be read.
pub fn embedding(table: &EmbeddingTable<'_>, id: usize) -> Result<Vec<f64>, ReferenceError> {
    table.row(id)
}

/// L3: the head \[V, E\]: a tensor of its own, not the embedding table.
///
/// # Errors
/// It is missing or not as the config implies.
pub fn head(reader: &Reader, config: &RawConfig) -> Result<Matrix, ReferenceError> {
    let tensor = "language_model.lm_head.weight";
    reader.bf16_matrix(tensor, config.vocab_size, config.hidden_size)
}

/// L3: the logits \[T, V\] of the normed last mix.
pub fn logits(head: &Matrix, normed: &Rows) -> Rows {
    head.apply(normed)
}

// ---- norms: N1 to N3

/// N2, N3: `rms_norm_eps` everywhere but in the two low-rank norms of MLA.
pub fn norm_eps(site: NormSite, rms_norm_eps: f64, mla_norm_eps: f64) -> f64 {
    match site {
        NormSite::MlaQ | NormSite::MlaKv => mla_norm_eps,
        _ => rms_norm_eps,
    }
}

/// N1: x / sqrt(mean(x²) + ε).
pub fn normalise(_site: NormSite, x: &[f64], eps: f64) -> Vec<f64> {
    let mean = dot(x, x) / x.len() as f64;
    divided(x, (mean + eps).sqrt())
}

/// N1: RMSNorm(x; w, ε), the weight after the norm.
pub fn rms_norm(
    formulas: &Formulas,
    site: NormSite,
    x: &[f64],
    weight: &[f64],
    eps: f64,
) -> Vec<f64> {
    product(&(formulas.normalise)(site, x, eps), weight)
}

// ---- residual mixes: R1 to R7

/// R1: the sources of a mix, the banks in order, then the running sum. One row \[E\] each.
pub fn mix_sources<'a>(banks: &[&'a [f64]], sum: &'a [f64]) -> Vec<&'a [f64]> {
    let mut sources = banks.to_vec();
    sources.push(sum);
    sources
}

/// R1, R2: the mix \[E\] of some sources: softmax of their scores over the RAW sources.
pub fn mix(
    formulas: &Formulas,
    site: NormSite,
    sources: &[&[f64]],
    fold: &[f64],
    eps: f64,
) -> Vec<f64> {
    let score = |source: &&[f64]| (formulas.mix_score)(formulas, site, source, fold, eps);
    let scores: Vec<f64> = sources.iter().map(score).collect();
    weighted_sum(sources, &(formulas.mix_weights)(&scores), fold.len())
}

/// R2: the score of a source: its normed row with the folded vector.
pub fn mix_score(
    formulas: &Formulas,
    site: NormSite,
    source: &[f64],
    fold: &[f64],
    eps: f64,
) -> f64 {
    dot(&(formulas.normalise)(site, source, eps), fold)
}

/// R1: the weights of the sources.
pub fn mix_weights(scores: &[f64]) -> Vec<f64> {
    softmax(scores)
}

/// R3: the folded vector norm.w ⊙ proj.w of one mixer.
pub fn fold(norm: &[f64], proj: &[f64]) -> Vec<f64> {
    product(norm, proj)
}

/// R3, R4: what attention reads: the mix with its own folded vector, or the running sum while there
/// is no bank.
pub fn attention_input(pass: &Pass<'_>, layer: &LayerWeights, banks: &[Rows], sum: &Rows) -> Rows {
    match &layer.attention_fold {
        Some(fold) if !banks.is_empty() => mix_rows(pass, NormSite::AttnMix, banks, sum, fold),
        _ => sum.clone(),
    }
}

/// R5: whether the layer pushes a bank and restarts the sum.
pub fn opens_block(index: usize, block: usize) -> bool {
    index.is_multiple_of(block)
}

/// R5: banks the un-mixed sum.
pub fn bank(_pass: &Pass<'_>, _layer: &LayerWeights, residual: &mut Residual) {
    residual.banks.push(residual.sum.clone());
}

/// R6: the running sum after attention.
pub fn sum_after_attention(opens_block: bool, sum: &Rows, attention: &Rows) -> Rows {
    if opens_block { attention.clone() } else { sum + attention }
}

/// R3, R7: what the MLP reads: always the mix, the new bank among its sources.
pub fn mlp_input(pass: &Pass<'_>, layer: &LayerWeights, banks: &[Rows], sum: &Rows) -> Rows {
    mix_rows(pass, NormSite::MlpMix, banks, sum, &layer.mlp_fold)
}

/// R7: what the final norm reads: the mix with all banks.
pub fn output_input(pass: &Pass<'_>, closing: &ClosingWeights, banks: &[Rows], sum: &Rows) -> Rows {
    mix_rows(pass, NormSite::OutputMix, banks, sum, &closing.output_fold)
}

// ---- KDA: K1 to K13

/// K1: the causal depthwise convolution. `history` \[kernel−1, P\] are the inputs before
/// `input` \[T, P\], oldest first; `taps` is \[P, kernel\], oldest to newest.
pub fn convolve(_part: Part, history: &Rows, input: &Rows, taps: &Array2<f64>) -> Rows {
    let series = concatenate![Axis(0), *history, *input];
    let (kernel, channels) = (history.nrows() + 1, input.ncols());
    let of_token = |token: usize| {
        let window: Vec<&[f64]> = (token..token + kernel).map(|t| row(&series, t)).collect();
        let channel = |p: usize| {
            let taps = row(taps, p).iter();
            taps.zip(&window).map(|(tap, inputs)| tap * inputs[p]).sum()
        };
        (0..channels).map(channel).collect()
    };
    stack(channels, (0..input.nrows()).map(of_token))
}

/// K2: SiLU after each convolution.
pub fn convolution_activation(_part: Part, x: f64) -> f64 {
    silu(x)
}

/// K3: t / sqrt(Σ t² + 1e-6), ε on the sum.
pub fn l2_norm(head: &[f64]) -> Vec<f64> {
    divided(head, (dot(head, head) + L2_NORM_EPS).sqrt())
}

/// K3: one head \[D\] after the activation: q and k are normed, v is not.
pub fn kda_head(formulas: &Formulas, part: Part, head: &[f64]) -> Vec<f64> {
    match part {
        Part::Query | Part::Key => (formulas.l2_norm)(head),
        Part::Value => head.to_vec(),
    }
}

/// K4: the factor on q, D^−½.
pub fn kda_query_scale(head_dim: usize) -> f64 {
    (head_dim as f64).sqrt().recip()
}

/// K5: β of a head, σ of its own logit. `logits` is \[H\].
pub fn beta(logits: &[f64], head: usize) -> f64 {
    sigmoid(logits[head])
}

/// K6: z = f_b(f_a x) \[T, P\], one low-rank pair for all heads and nothing in between.
pub fn decay_input(weights: &KdaWeights, x: &Rows) -> Rows {
    weights.f_b.apply(&weights.f_a.apply(x))
}

/// K6, K7: the log decay of one channel, bound · σ(exp(A_log\[h\]) · (z + dt_bias)).
pub fn log_decay(d: &DecayInputs<'_>) -> f64 {
    let rate = d.a_log[d.head].exp();
    let channel = d.head * d.head_dim + d.channel;
    d.lower_bound * sigmoid(rate * (d.z[channel] + d.dt_bias[channel]))
}

/// K8: the first H of the stored D values of `A_log`; the rest must be exactly zero.
///
/// # Errors
/// Place and value of padding that is not zero.
pub fn decay_rates(stored: &[f64], heads: usize) -> Result<Vec<f64>, (usize, f64)> {
    let (rates, padding) = stored.split_at(heads);
    // `!=` also catches NaN.
    match padding.iter().position(|v| *v != 0.0) {
        Some(place) => Err((heads + place, padding[place])),
        None => Ok(rates.to_vec()),
    }
}

/// K9 to K11: one token, one head. `state` is S \[D, D\], rows = key index: S_i· *= α_i;
/// u = Sᵀk; S += k ⊗ β(v − u); o = Sᵀq from the updated S. Gives o \[D\].
pub fn delta_step(state: &mut ArrayViewMut2<'_, f64>, s: &StepInputs<'_>) -> Vec<f64> {
    decay_rows(state, s.log_decay);
    let u = read(state.view(), s.k);
    let delta: Vec<f64> = s.v.iter().zip(&u).map(|(v, u)| s.beta * (v - u)).collect();
    write(state, s.k, &delta);
    read(state.view(), s.q)
}

/// K12: per head RMSNorm(o; o_norm), then · σ(gate). `o` and `gate` are \[P\].
pub fn kda_output(
    formulas: &Formulas,
    o: &[f64],
    o_norm: &[f64],
    gate: &[f64],
    eps: f64,
) -> Vec<f64> {
    let normed = norm_heads(formulas, o, o_norm, eps);
    normed.iter().zip(gate).map(|(o, g)| o * sigmoid(*g)).collect()
}

/// RMSNorm(o; o_norm) of each head of `o` \[P\], a step of [`kda_output`].
pub fn norm_heads(formulas: &Formulas, o: &[f64], o_norm: &[f64], eps: f64) -> Vec<f64> {
    let norm = |head| (formulas.rms_norm)(formulas, NormSite::KdaOutput, head, o_norm, eps);
    o.chunks_exact(o_norm.len()).flat_map(norm).collect()
}

/// K13: the convolution inputs to carry: the last kernel−1 of `history`, then `input`.
pub fn carried_inputs(history: &Rows, input: &Rows) -> Rows {
    let series = concatenate![Axis(0), *history, *input];
    series.slice(s![input.nrows().., ..]).to_owned()
}

// ---- MLA: M1 to M8

/// M1: a head's \[nope\] and \[rope\] parts out of the q_b output of all heads.
pub fn split_query(q: &[f64], head: usize, w: MlaWidths) -> (&[f64], &[f64]) {
    let width = w.nope + w.rope;
    q[head * width..][..width].split_at(w.nope)
}

/// M2: the latent: the norm over the first kv_lora values of `kv_a` x.
pub fn latent(formulas: &Formulas, compressed: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    (formulas.rms_norm)(formulas, NormSite::MlaKv, &compressed[..weight.len()], weight, eps)
}

/// M3: the key part shared by all heads: the rest of `kv_a` x, never rotated by its position.
pub fn shared_key(compressed: &[f64], kv_lora: usize, _position: usize) -> Vec<f64> {
    compressed[kv_lora..].to_vec()
}

/// M3: the raw score of a query head with a cached position: over both parts, the query's rope part
/// never rotated by its position.
pub fn attention_dot(q: (&[f64], &[f64]), k: (&[f64], &[f64]), _position: usize) -> f64 {
    dot(q.0, k.0) + dot(q.1, k.1)
}

/// M4: the factor on the scores, (nope + rope)^−½.
pub fn attention_scale(widths: MlaWidths) -> f64 {
    ((widths.nope + widths.rope) as f64).sqrt().recip()
}

/// M5: whether a query sees a key; positions count from the start of the sequence.
pub fn sees(query_position: usize, key_position: usize) -> bool {
    key_position <= query_position
}

/// M5: the weights of the seen positions.
pub fn attention_weights(scores: &[f64]) -> Vec<f64> {
    softmax(scores)
}

/// M6: a head's \[k_nope\] and \[v\] out of the kv_b output of all heads.
pub fn split_key_value(kv: &[f64], head: usize, w: MlaWidths) -> (&[f64], &[f64]) {
    let width = w.nope + w.value;
    kv[head * width..][..width].split_at(w.nope)
}

/// M7: o · σ(gate), no norm.
pub fn mla_output(o: &[f64], gate: &[f64]) -> Vec<f64> {
    o.iter().zip(gate).map(|(o, g)| o * sigmoid(*g)).collect()
}

/// M8: appends the entries of the call's positions to the cache.
pub fn extend_cache(cache: &mut MlaCache, entries: &MlaCache) {
    cache.append(entries);
}

// ---- MLP and SiTU: S1, S2

/// S1, S2: β·tanh(gate/β) · σ(gate) · linβ·tanh(up/linβ), σ on the uncapped gate.
pub fn situ(gate: f64, up: f64, beta: f64, linear_beta: f64) -> f64 {
    let capped_gate = beta * (gate / beta).tanh();
    let capped_up = linear_beta * (up / linear_beta).tanh();
    capped_gate * sigmoid(gate) * capped_up
}

/// N1, E1, E10: the MLP of a layer over RMSNorm(h): dense, or LatentMoE whose three parts all read
/// the normed input at full width.
///
/// # Errors
/// A routed expert cannot be read.
pub fn mlp(
    pass: &Pass<'_>,
    layer: &LayerWeights,
    h: &Rows,
    stages: &mut Stages<'_>,
) -> Result<Rows, ReferenceError> {
    let mut x = pass.norm(NormSite::PostAttention, h, &layer.post_attention_norm);
    stages.put_rows(Stage::MlpNorm, &mut x);
    match &layer.mlp {
        Mlp::Dense(w) => Ok(gated_mlp(pass, [&w.gate, &w.up, &w.down], &x)),
        Mlp::Moe(weights) => {
            let inputs = MoeInputs { router: &x, experts: &x, shared: &x };
            moe(pass, weights, inputs, stages)
        }
    }
}

// ---- LatentMoE: E1 to E10

/// E1: the score of each expert.
pub fn router_scores(logits: &[f64]) -> Vec<f64> {
    logits.iter().map(|l| sigmoid(*l)).collect()
}

/// E2: the k experts with the largest score + bias, ties to the lower index; ids ascending.
pub fn select(scores: &[f64], bias: &[f64], k: usize) -> Vec<usize> {
    let ranked: Vec<f64> = scores.iter().zip(bias).map(|(s, b)| s + b).collect();
    let mut chosen = largest(&ranked, k);
    chosen.sort_unstable();
    chosen
}

/// E3 to E5: the weights of the chosen: their unbiased scores, renormalised when there is
/// more than one, times the scaling factor.
pub fn routing_weights(
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
pub fn expert_input(weights: &MoeWeights, x: &Rows) -> Rows {
    weights.down.apply(x)
}

/// E7: the weights of an expert: those under its own id, w1 as the gate, w3 as up, w2 as down.
///
/// # Errors
/// A read fails, or a scale byte is 255 (clause Q4).
pub fn expert(
    formulas: &Formulas,
    weights: &MoeWeights,
    id: usize,
) -> Result<ExpertWeights, ReferenceError> {
    weights.expert(formulas, id)
}

/// E8: the weighted sum \[T, L\] of the chosen experts' outputs, each taken as it is.
///
/// # Errors
/// A routed expert cannot be read.
pub fn routed_sum(
    pass: &Pass<'_>,
    weights: &MoeWeights,
    z: &Rows,
    routing: &Routing,
) -> Result<Rows, ReferenceError> {
    sum_of_experts(pass, weights, z, routing, |output| output)
}

/// E8: Σ w·output over the chosen experts, rising id. Gives \[width\].
pub fn combine(outputs: &[Vec<f64>], weights: &[f64], width: usize) -> Vec<f64> {
    weighted_sum(outputs, weights, width)
}

/// E9: back to the full width.
pub fn project_up(up: &Matrix, normed: &Rows) -> Rows {
    up.apply(normed)
}

/// E10: the routed part plus the shared MLP, which no routing weight touches.
pub fn add_shared(routed: &Rows, shared: &Rows, _routing: &Routing) -> Rows {
    routed + shared
}

// ---- MXFP4: Q1 to Q4

/// Q1: the value of a four-bit code; bit 3 is the sign (code 8 is −0).
pub fn e2m1(code: u8) -> f64 {
    let magnitude = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// Q2: the columns of the low and the high nibble of byte `index` of a row of `row_bytes` bytes:
/// the low one is the even column.
pub fn nibble_columns(index: usize, _row_bytes: usize) -> [usize; 2] {
    [2 * index, 2 * index + 1]
}

/// Q3, Q4: 2^(byte − 127); `None` for byte 255, which is NaN and means a damaged file.
pub fn scale(byte: u8) -> Option<f64> {
    // The exponent field of an f64; exact for every byte, 2^−127 included.
    (byte != 255).then(|| f64::from_bits((u64::from(byte) + 1023 - 127) << 52))
}

/// Q3: the group whose scale a column takes.
pub fn scale_group(column: usize, _groups: usize) -> usize {
    column / GROUP_COLUMNS
}

#[cfg(test)]
mod tests {
    use super::super::formulas::RELEASED;
    use super::*;

    fn decay(input: f64) -> f64 {
        log_decay(&DecayInputs {
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
            assert!((decay(input) - right).abs() < 1e-6, "{input}: {}", decay(input));
        }
    }

    /// SiLU in place of the logistic gives 0 and −0.142278.
    #[test]
    fn output_gate_of_kda_is_a_logistic() {
        for (gate, right) in [(0.0, 0.5), (-3.0, 0.047426)] {
            let out = kda_output(&RELEASED, &[1.0], &[1.0], &[gate], 0.0);
            assert!((out[0] - right).abs() < 1e-6, "{gate}: {out:?}");
        }
    }

    /// A bias that leaks into the weights gives 0.3 and 0.7; all equal scores take the lowest ids;
    /// and no expert is chosen twice when only −inf is left.
    #[test]
    fn bias_selects_and_does_not_weigh() {
        let scores = [0.5; 4];
        let bias = [0.0, 0.0, 3.0, 1.0];
        let chosen = select(&scores, &bias, 2);
        assert_eq!(chosen, [2, 3]);
        assert_eq!(select(&[0.5; 8], &[0.0; 8], 2), [0, 1]);
        let low = f64::NEG_INFINITY;
        assert_eq!(select(&scores, &[low, low, 0.0, low], 3), [0, 1, 2]);
    }

    /// bfloat16 logits would prefer expert 8 for its bias.
    #[test]
    fn close_scores_are_told_apart() {
        let mut logits = [-9.0; 16];
        logits[7] = 1.0 + 1.0 / 512.0;
        logits[8] = 1.0;
        let mut bias = [0.0; 16];
        bias[8] = 1.0 / 8192.0;
        let scores = router_scores(&logits);
        assert_eq!(select(&scores, &bias, 1), [7]);
    }

    /// Subnormal codes, the sign of zero, the scale's bias and its ends.
    #[test]
    fn mxfp4_codes_and_scales() {
        let right = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        for (code, right) in right.into_iter().enumerate() {
            let code = code as u8;
            assert_eq!(e2m1(code).to_bits(), f64::to_bits(right));
            assert_eq!(e2m1(code | 8).to_bits(), f64::to_bits(-right));
        }
        for (byte, right) in [(126, 0.5), (127, 1.0), (128, 2.0), (134, 128.0)] {
            assert_eq!(scale(byte), Some(right));
        }
        assert_eq!(scale(0), Some(2f64.powi(-127)));
        assert_eq!(scale(254), Some(2f64.powi(127)));
        assert_eq!(scale(255), None);
    }
}
