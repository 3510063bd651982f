//! One decoder layer, stage by stage, each from the subject's own inputs to it.

use ndarray::{Axis, concatenate};

use super::arithmetic::Rounding;
use super::bounded::Bounded;
use super::rows::{BoundedRows, zip};
use super::subject::{Found, Obstacle, Subject, SubjectResidual};
use super::{Basis, Local, LocalValues, kda, mla, mlp, residual};
use crate::error::ReferenceError;
use crate::formulas::{NormSite, Part};
use crate::kda::{KdaState, KdaWeights};
use crate::layer::{Attention, LayerState, LayerWeights, Mlp};
use crate::mla::{MlaCache, MlaWeights, MlaWidths};
use crate::moe::MoeWeights;
use crate::released::opens_block;
use crate::rows::{Rows, from_values, map_rows, slices, stack, values};
use k3_core::stages::{Stage, StageDump};

/// Recomputes every stage of a layer that the dump has. `before` and `state` are what the layer
/// found: the subject's running sum and banks, and the state carried from earlier calls
/// ([`LayerWeights::new_state`] for a sequence fed from nothing).
///
/// # Errors
/// A routed expert cannot be read.
///
/// # Panics
/// When `state` is of the other kind of attention.
pub fn recompute_layer(
    basis: &Basis<'_>,
    weights: &LayerWeights,
    before: &SubjectResidual,
    state: &LayerState,
    dump: &StageDump,
) -> Result<Local, ReferenceError> {
    let mut layer = Layer {
        basis,
        rounding: Rounding::new(basis.arithmetic),
        weights,
        before,
        subject: Subject::new(dump, Some(weights.index), before.rows),
    };
    layer.before_attention()?;
    match (&weights.attention, state) {
        (Attention::Kda(weights), LayerState::Kda(state)) => layer.kda(weights, state)?,
        (Attention::Mla(weights), LayerState::Mla(cache)) => layer.mla(weights, cache)?,
        _ => panic!("the state of layer {} is of the other kind", weights.index),
    }
    layer.before_mlp()?;
    match &weights.mlp {
        Mlp::Dense(dense) => {
            let roles = mlp::roles(dense);
            let shape = layer.shape();
            layer.subject.real(Stage::MlpOut, &shape, |subject| {
                let x = subject.exact(Stage::MlpNorm, shape[1])?;
                let config = basis.config;
                Ok(mlp::gated_mlp(&layer.rounding, config, roles, &x))
            })?;
        }
        Mlp::Moe(moe) => {
            layer.router(moe)?;
            layer.experts(moe)?;
        }
    }
    layer.after_mlp()?;
    Ok(layer.subject.local)
}

struct Layer<'a> {
    basis: &'a Basis<'a>,
    rounding: Rounding,
    weights: &'a LayerWeights,
    before: &'a SubjectResidual,
    subject: Subject<'a>,
}

const PARTS: [(Part, Stage); 3] =
    [(Part::Query, Stage::KdaQ), (Part::Key, Stage::KdaK), (Part::Value, Stage::KdaV)];

impl Layer<'_> {
    /// \[T, E\].
    fn shape(&self) -> [usize; 2] {
        [self.subject.rows, self.basis.config.hidden_size]
    }

    fn opens_block(&self) -> bool {
        opens_block(self.weights.index, self.basis.config.attn_res_block_size)
    }

    fn before_attention(&mut self) -> Result<(), ReferenceError> {
        let (basis, rounding, weights, before) =
            (self.basis, self.rounding, self.weights, self.before);
        let shape = self.shape();
        self.subject.real(Stage::AttnMix, &shape, |_| {
            let sum = before.sum.clone()?;
            let banks = before.all_banks()?;
            let eps = basis.norm_eps(NormSite::AttnMix);
            match &weights.attention_fold {
                Some(fold) if !banks.is_empty() => {
                    Ok(residual::mix(&rounding, &banks, &sum, fold, eps))
                }
                _ => Ok(sum),
            }
        })?;
        self.norm([Stage::AttnMix, Stage::AttnNorm], NormSite::Input, &weights.input_norm)
    }

    /// `to` is the RMSNorm of `from`.
    fn norm(
        &mut self,
        [from, to]: [Stage; 2],
        site: NormSite,
        weight: &[f64],
    ) -> Result<(), ReferenceError> {
        let (eps, shape, rounding) = (self.basis.norm_eps(site), self.shape(), self.rounding);
        self.subject.real(to, &shape, |subject| {
            let x = subject.exact(from, weight.len())?;
            Ok(map_rows(&x, x.ncols(), |row| rounding.rms_norm(row, weight, eps)))
        })
    }

    fn kda(&mut self, weights: &KdaWeights, state: &KdaState) -> Result<(), ReferenceError> {
        let (config, rounding) = (self.basis.config, self.rounding);
        let (heads, head_dim) = (config.kda_num_heads, config.kda_head_dim);
        let [tokens, width] = self.shape();
        let per_channel = [tokens, heads, head_dim];

        let series = self.convolution_inputs(weights, state);
        for (index, (part, stage)) in PARTS.into_iter().enumerate() {
            self.subject.real(stage, &per_channel, |_| {
                let series = series.as_ref().map_err(|key| *key)?;
                let taps = &weights.taps[index];
                Ok(kda::part(&rounding, part, &series[index], taps, head_dim))
            })?;
        }
        self.subject.real(Stage::KdaZ, &per_channel, |subject| {
            let x = subject.exact(Stage::AttnNorm, width)?;
            let hidden = rounding.apply(&weights.f_a, &x);
            Ok(rounding.apply(&weights.f_b, &hidden))
        })?;
        self.subject.real(Stage::KdaG, &per_channel, |subject| {
            let z = subject.exact(Stage::KdaZ, heads * head_dim)?;
            let bound = config.gate_lower_bound;
            Ok(kda::log_decay(&rounding, weights, &z, bound))
        })?;
        self.subject.real(Stage::KdaBeta, &[tokens, heads], |subject| {
            let x = subject.exact(Stage::AttnNorm, width)?;
            let logits = rounding.apply(&weights.b, &x);
            Ok(logits.mapv(|logit| rounding.sigmoid(logit)))
        })?;
        self.recurrence(state)?;
        let kernel_less_one = config.short_conv_kernel_size - 1;
        let shape = [3, kernel_less_one, heads * head_dim];
        self.subject.real(Stage::KdaConv, &shape, |_| {
            let series = series.as_ref().map_err(|key| *key)?;
            let kept = |s: &BoundedRows| {
                let first = (s.nrows() - kernel_less_one) * s.ncols();
                values(s)[first..].to_vec()
            };
            Ok(stack(heads * head_dim, series.iter().map(kept)))
        })?;
        let eps = self.basis.norm_eps(NormSite::KdaOutput);
        self.attn_out([Stage::KdaO, Stage::AttnOut], heads * head_dim, |o, x| {
            kda::output(&rounding, weights, o, x, eps)
        })
    }

    /// The inputs of the three convolutions, which four stages need.
    fn convolution_inputs(
        &self,
        weights: &KdaWeights,
        state: &KdaState,
    ) -> Found<Vec<BoundedRows>> {
        let subject = &self.subject;
        let stages = [Stage::KdaQ, Stage::KdaK, Stage::KdaV, Stage::KdaConv];
        if !stages.into_iter().any(|stage| subject.has(stage)) {
            return Err(subject.key(Stage::KdaConv));
        }
        let x = subject.exact(Stage::AttnNorm, self.shape()[1])?;
        let series = |index: usize| {
            let history = &state.inputs[index];
            kda::convolution_inputs(&self.rounding, weights, index, history, &x)
        };
        Ok((0..3).map(series).collect())
    }

    /// `kda.o` and `kda.state`, out of one pass over all tokens.
    fn recurrence(&mut self, state: &KdaState) -> Result<(), ReferenceError> {
        let config = self.basis.config;
        let (heads, head_dim) = (config.kda_num_heads, config.kda_head_dim);
        let tokens = self.subject.rows;
        let memory = state.memory.as_slice().expect("made row-major");
        let mut result =
            self.recurrence_inputs().map(|inputs| kda::recurrence(&self.rounding, &inputs, memory));
        let shape = [tokens, heads, head_dim];
        self.subject.real(Stage::KdaO, &shape, |_| match &mut result {
            Ok((o, _)) => Ok(std::mem::take(o)),
            Err(key) => Err(Obstacle::Lacking(*key)),
        })?;
        let shape = [heads, head_dim, head_dim];
        self.subject.real(Stage::KdaState, &shape, |_| Ok(from_values(head_dim, result?.1)))
    }

    fn recurrence_inputs(&self) -> Found<kda::RecurrenceInputs<'_>> {
        let (config, subject) = (self.basis.config, &self.subject);
        let (heads, head_dim) = (config.kda_num_heads, config.kda_head_dim);
        if !subject.has(Stage::KdaO) && !subject.has(Stage::KdaState) {
            return Err(subject.key(Stage::KdaO));
        }
        let channels = |stage| subject.values(stage, subject.rows * heads * head_dim);
        Ok(kda::RecurrenceInputs {
            q: channels(Stage::KdaQ)?,
            k: channels(Stage::KdaK)?,
            v: channels(Stage::KdaV)?,
            log_decay: channels(Stage::KdaG)?,
            beta: subject.values(Stage::KdaBeta, subject.rows * heads)?,
            heads,
            head_dim,
        })
    }

    fn mla(&mut self, weights: &MlaWeights, cache: &MlaCache) -> Result<(), ReferenceError> {
        let (config, rounding) = (self.basis.config, self.rounding);
        let w = MlaWidths::new(config);
        let [tokens, width] = self.shape();
        let kv_lora = config.kv_lora_rank;

        let eps = self.basis.norm_eps(NormSite::MlaQ);
        let shape = [tokens, w.heads, w.nope + w.rope];
        self.subject.real(Stage::MlaQ, &shape, |subject| {
            let x = subject.exact(Stage::AttnNorm, width)?;
            Ok(mla::query(&rounding, weights, &x, eps))
        })?;
        let compressed = self.compressed(weights);
        let eps = self.basis.norm_eps(NormSite::MlaKv);
        let shape = [tokens, kv_lora];
        self.subject.real(Stage::MlaLatent, &shape, |_| {
            let compressed = compressed.as_ref().map_err(|key| *key)?;
            let norm = &weights.kv_a_norm;
            Ok(map_rows(compressed, kv_lora, |c| rounding.rms_norm(&c[..kv_lora], norm, eps)))
        })?;
        self.subject.real(Stage::MlaKRope, &[tokens, w.rope], |_| {
            let compressed = compressed.as_ref().map_err(|key| *key)?;
            Ok(map_rows(compressed, w.rope, |c| c[kv_lora..].to_vec()))
        })?;
        let shape = [tokens, w.heads, w.value];
        self.subject.real(Stage::MlaO, &shape, |subject| {
            let with_cache = |stage, cached: &Rows| -> Found<BoundedRows> {
                let new = subject.exact(stage, cached.ncols())?;
                Ok(concatenate![Axis(0), cached.mapv(Bounded::exact), new])
            };
            let inputs = mla::AttentionInputs {
                q: subject.exact(Stage::MlaQ, w.heads * (w.nope + w.rope))?,
                latent: with_cache(Stage::MlaLatent, &cache.latent)?,
                k_rope: with_cache(Stage::MlaKRope, &cache.k_rope)?,
                cached: cache.positions(),
            };
            Ok(mla::attention(&rounding, weights, w, &inputs))
        })?;
        self.attn_out([Stage::MlaO, Stage::AttnOut], w.heads * w.value, |o, x| {
            mla::output(&rounding, weights, o, x)
        })
    }

    /// kv_a x \[T, kv_lora+rope\], rounded, which two stages need.
    fn compressed(&self, weights: &MlaWeights) -> Found<BoundedRows> {
        let subject = &self.subject;
        if !subject.has(Stage::MlaLatent) && !subject.has(Stage::MlaKRope) {
            return Err(subject.key(Stage::MlaLatent));
        }
        let x = subject.exact(Stage::AttnNorm, self.shape()[1])?;
        Ok(self.rounding.apply(&weights.kv_a, &x))
    }

    /// `attn_out` from the attention output `o` and the normed input, which the gate reads.
    fn attn_out(
        &mut self,
        [from, to]: [Stage; 2],
        o_width: usize,
        output: impl FnOnce(&BoundedRows, &BoundedRows) -> BoundedRows,
    ) -> Result<(), ReferenceError> {
        let shape = self.shape();
        self.subject.real(to, &shape, |subject| {
            let o = subject.exact(from, o_width)?;
            let x = subject.exact(Stage::AttnNorm, shape[1])?;
            Ok(output(&o, &x))
        })
    }

    /// R5, R6: the sum after attention. It is no stage: its one rounding is carried along.
    fn sum_after_attention(&self, subject: &Subject<'_>) -> Found<BoundedRows> {
        let attention = subject.exact(Stage::AttnOut, self.shape()[1])?;
        if self.opens_block() {
            return Ok(attention);
        }
        let step = self.rounding.step;
        let sum = self.before.sum.clone()?;
        Ok(zip(&sum, &attention, |a, b| step.add(a, b)))
    }

    fn before_mlp(&mut self) -> Result<(), ReferenceError> {
        let (weights, rounding, shape) = (self.weights, self.rounding, self.shape());
        let sources = self.mlp_sources();
        let eps = self.basis.norm_eps(NormSite::MlpMix);
        self.subject.real(Stage::MlpMix, &shape, |_| {
            let (banks, sum) = sources?;
            let fold = &weights.mlp_fold;
            Ok(residual::mix(&rounding, &banks, &sum, fold, eps))
        })?;
        self.norm(
            [Stage::MlpMix, Stage::MlpNorm],
            NormSite::PostAttention,
            &weights.post_attention_norm,
        )
    }

    /// The banks of the MLP-side mix, a new one included, and the running sum.
    fn mlp_sources(&self) -> Found<(Vec<BoundedRows>, BoundedRows)> {
        let mut banks = self.before.all_banks()?;
        if self.opens_block() {
            banks.push(self.before.sum.clone()?);
        }
        Ok((banks, self.sum_after_attention(&self.subject)?))
    }

    fn router(&mut self, weights: &MoeWeights) -> Result<(), ReferenceError> {
        let (config, rounding) = (self.basis.config, self.rounding);
        let (experts, k) = (config.num_experts, config.num_experts_per_token);
        let [tokens, width] = self.shape();
        self.subject.real(Stage::RouterScores, &[tokens, experts], |subject| {
            let x = subject.exact(Stage::MlpNorm, width)?;
            let logits = rounding.apply(&weights.router, &x);
            // A narrow subject may store the logits; the logistic is f32's.
            Ok(logits.mapv(|logit| rounding.single().sigmoid(logit)))
        })?;
        let shape = [tokens, k];
        self.subject.stage(Stage::RouterIds, &shape, |subject| {
            let scores = subject.exact(Stage::RouterScores, experts)?;
            let theirs = subject.ids(Stage::RouterIds, tokens * k).unwrap_or_default();
            let choice = mlp::choose(&rounding, &scores, &weights.bias, k, theirs);
            Ok(LocalValues::Ids { expected: choice.expected, ties: choice.ties })
        })?;
        let chosen = self.chosen();
        self.subject.real(Stage::RouterWeights, &shape, |subject| {
            let scores = subject.exact(Stage::RouterScores, experts)?;
            let weights = slices(&scores)
                .zip(chosen?)
                .map(|(scores, chosen)| mlp::routing_weights(&rounding, config, scores, &chosen));
            Ok(stack(k, weights))
        })
    }

    /// The subject's choice of every token; ids that are no choice count as lacking.
    fn chosen(&self) -> Found<Vec<Vec<usize>>> {
        let (config, subject) = (self.basis.config, &self.subject);
        let k = config.num_experts_per_token;
        let ids = subject.ids(Stage::RouterIds, subject.rows * k)?;
        let rows = ids.chunks_exact(k);
        let rows: Option<Vec<_>> =
            rows.map(|ids| mlp::as_experts(ids, config.num_experts)).collect();
        rows.ok_or(subject.key(Stage::RouterIds))
    }

    fn experts(&mut self, weights: &MoeWeights) -> Result<(), ReferenceError> {
        let (config, rounding, shape) = (self.basis.config, self.rounding, self.shape());
        let latent = weights.norm.len();
        let latent_shape = [shape[0], latent];
        self.subject.real(Stage::MoeLatent, &latent_shape, |subject| {
            let x = subject.exact(Stage::MlpNorm, shape[1])?;
            Ok(rounding.apply(&weights.down, &x))
        })?;
        let chosen = self.chosen();
        self.subject.real(Stage::MoeSum, &latent_shape, |subject| {
            let z = subject.exact(Stage::MoeLatent, latent)?;
            let chosen = chosen?;
            let k = config.num_experts_per_token;
            let routing = subject.exact(Stage::RouterWeights, k)?;
            let sum = mlp::expert_sum(&rounding, config, weights, &z, &chosen, &routing)?;
            Ok(sum)
        })?;
        self.subject.real(Stage::MoeShared, &shape, |subject| {
            let x = subject.exact(Stage::MlpNorm, shape[1])?;
            let roles = mlp::roles(&weights.shared);
            Ok(mlp::gated_mlp(&rounding, config, roles, &x))
        })?;
        let eps = self.basis.norm_eps(NormSite::Latent);
        self.subject.real(Stage::MlpOut, &shape, |subject| {
            let sum = subject.exact(Stage::MoeSum, latent)?;
            let shared = subject.exact(Stage::MoeShared, shape[1])?;
            Ok(mlp::moe_output(&rounding, weights, &sum, &shared, eps))
        })
    }

    fn after_mlp(&mut self) -> Result<(), ReferenceError> {
        let (step, shape) = (self.rounding.step, self.shape());
        let sum = self.sum_after_attention(&self.subject);
        self.subject.real(Stage::Out, &shape, |subject| {
            let mlp = subject.exact(Stage::MlpOut, shape[1])?;
            Ok(zip(&sum?, &mlp, |a, b| step.add(a, b)))
        })
    }
}
