//! One decoder layer: its weights, its carried state, and the steps of MODEL.md section 2.
//!
//! A layer can be loaded and run alone ([`LayerWeights::load`], [`LayerWeights::forward`]), which
//! is how a checkpoint of any size is judged layer by layer.

use std::sync::Arc;

use super::error::ReferenceError;
use super::formulas::{AttentionKind, Formulas, NormSite};
use super::kda::{KdaState, KdaWeights, kda};
use super::mla::{MlaCache, MlaWeights, mla};
use super::moe::{MlpWeights, MoeWeights};
use super::reader::Reader;
use super::residual::Residual;
use super::rows::{Rows, map_rows};
use super::stage_hook::{StageHook, Stages};
use k3_core::config::RawConfig;
use k3_core::stages::{Stage, StageSink};

/// What every step needs to know.
#[derive(Debug, Clone, Copy)]
pub struct Pass<'a> {
    /// The raw fields of the config.
    pub config: &'a RawConfig,
    /// ε of `q_a_layernorm` and `kv_a_layernorm` (clause N3).
    pub mla_norm_eps: f64,
    /// The formulas.
    pub formulas: &'a Formulas,
    /// What happens to stage values before they are read; [`super::AsComputed`] for the reference.
    pub hook: &'a dyn StageHook,
}

impl Pass<'_> {
    /// The ε of a norm.
    #[must_use]
    pub fn norm_eps(&self, site: NormSite) -> f64 {
        let (eps, mla_eps) = (self.config.rms_norm_eps, self.mla_norm_eps);
        (self.formulas.norm_eps)(site, eps, mla_eps)
    }

    /// RMSNorm of every row.
    #[must_use]
    pub fn norm(&self, site: NormSite, rows: &Rows, weight: &[f64]) -> Rows {
        let (formulas, eps) = (self.formulas, self.norm_eps(site));
        map_rows(rows, rows.ncols(), |x| (formulas.rms_norm)(formulas, site, x, weight, eps))
    }
}

/// The attention of a layer.
#[derive(Debug, Clone)]
pub enum Attention {
    /// Kimi Delta Attention.
    Kda(Box<KdaWeights>),
    /// Gated MLA.
    Mla(Box<MlaWeights>),
}

/// The MLP of a layer.
#[derive(Debug, Clone)]
pub enum Mlp {
    /// Dense.
    Dense(Box<MlpWeights>),
    /// LatentMoE.
    Moe(Box<MoeWeights>),
}

/// Weights of one decoder layer.
#[derive(Debug, Clone)]
pub struct LayerWeights {
    /// Zero-based index.
    pub index: usize,
    /// Folded weights of the attention-side mix \[E\]. `None` for layer 0, which never mixes: the
    /// checkpoint ships `self_attention_res_*` for it all the same.
    pub attention_fold: Option<Vec<f64>>,
    /// Folded weights of the MLP-side mix \[E\].
    pub mlp_fold: Vec<f64>,
    /// `input_layernorm` \[E\].
    pub input_norm: Vec<f64>,
    /// `post_attention_layernorm` \[E\].
    pub post_attention_norm: Vec<f64>,
    /// KDA or MLA.
    pub attention: Attention,
    /// Dense or LatentMoE.
    pub mlp: Mlp,
}

/// What a layer carries between calls.
#[derive(Debug, Clone, PartialEq)]
pub enum LayerState {
    /// Of a KDA layer.
    Kda(KdaState),
    /// Of an MLA layer.
    Mla(MlaCache),
}

impl LayerWeights {
    /// Reads layer `index` (zero-based) alone.
    ///
    /// # Errors
    /// No such layer, or a tensor is missing or not as the config implies.
    pub fn load(
        reader: &Arc<Reader>,
        pass: &Pass<'_>,
        index: usize,
    ) -> Result<Self, ReferenceError> {
        let (config, formulas) = (pass.config, pass.formulas);
        let (width, layers) = (config.hidden_size, config.num_hidden_layers);
        if index >= layers {
            return Err(ReferenceError::Call(format!(
                "layer {index}: expected 0 to {}",
                layers - 1
            )));
        }
        let prefix = format!("language_model.model.layers.{index}.");
        let attention = match (formulas.layer_kind)(index, config) {
            AttentionKind::Kda => {
                let weights = KdaWeights::load(reader, config, formulas, index, &prefix)?;
                Attention::Kda(Box::new(weights))
            }
            AttentionKind::Mla => {
                Attention::Mla(Box::new(MlaWeights::load(reader, config, &prefix)?))
            }
        };
        let mlp = if (formulas.is_dense)(index, config) {
            let inner = config.intermediate_size;
            Mlp::Dense(Box::new(MlpWeights::load(reader, &format!("{prefix}mlp."), width, inner)?))
        } else {
            Mlp::Moe(Box::new(MoeWeights::load(reader, config, index, &prefix)?))
        };
        let norm = |name: &str| reader.bf16_vector(&format!("{prefix}{name}.weight"), &[width]);
        let fold = |mixer: &str| load_fold(reader, formulas, &format!("{prefix}{mixer}"), width);
        Ok(Self {
            index,
            attention_fold: (index > 0).then(|| fold("self_attention_res")).transpose()?,
            mlp_fold: fold("mlp_res")?,
            input_norm: norm("input_layernorm")?,
            post_attention_norm: norm("post_attention_layernorm")?,
            attention,
            mlp,
        })
    }

    /// The state before the first token.
    #[must_use]
    pub fn new_state(&self, config: &RawConfig) -> LayerState {
        match self.attention {
            Attention::Kda(_) => LayerState::Kda(KdaState::new(config)),
            Attention::Mla(_) => LayerState::Mla(MlaCache::new(config)),
        }
    }

    /// The layer over T tokens at positions `position`, `position`+1, …: the running sum and the
    /// banks of `residual` \[T, E\] become those after the layer, `state` is carried on.
    ///
    /// # Errors
    /// A routed expert cannot be read. `residual` and `state` are then half advanced: drop them.
    pub fn forward(
        &self,
        pass: &Pass<'_>,
        residual: &mut Residual,
        position: usize,
        state: &mut LayerState,
        sink: &mut dyn StageSink,
    ) -> Result<(), ReferenceError> {
        let (formulas, block) = (pass.formulas, pass.config.attn_res_block_size);
        let mut stages = Stages::new(Some(self.index), pass.hook, sink);
        let stages = &mut stages;

        // 1. what attention reads
        let mut h = (formulas.attention_input)(pass, self, &residual.banks, &residual.sum);
        stages.put_rows(Stage::AttnMix, &mut h);

        // 2. a new block banks the un-mixed sum
        let opens_block = (formulas.opens_block)(self.index, block);
        if opens_block {
            (formulas.bank)(pass, self, residual);
        }
        let Residual { sum, banks } = residual;

        // 3. attention
        let mut x = pass.norm(NormSite::Input, &h, &self.input_norm);
        stages.put_rows(Stage::AttnNorm, &mut x);
        let mut a = match (&self.attention, state) {
            (Attention::Kda(weights), LayerState::Kda(state)) => {
                kda(pass, weights, &x, state, stages)
            }
            (Attention::Mla(weights), LayerState::Mla(cache)) => {
                mla(pass, weights, &x, position, cache, stages)
            }
            _ => unreachable!("a state is made by its own layer's `new_state`"),
        };
        stages.put_rows(Stage::AttnOut, &mut a);
        *sum = (formulas.sum_after_attention)(opens_block, sum, &a);

        // 4. what the MLP reads
        let mut h = (formulas.mlp_input)(pass, self, banks, sum);
        stages.put_rows(Stage::MlpMix, &mut h);

        // 5. the MLP
        let mut m = (formulas.mlp)(pass, self, &h, stages)?;
        stages.put_rows(Stage::MlpOut, &mut m);
        *sum += &m;
        stages.put_rows(Stage::Out, sum);
        Ok(())
    }
}

/// The folded weights of the mixer `prefix` (`…_res`): `_norm` \[E\] and `_proj` \[1, E\].
pub fn load_fold(
    reader: &Reader,
    formulas: &Formulas,
    prefix: &str,
    width: usize,
) -> Result<Vec<f64>, ReferenceError> {
    let norm = reader.bf16_vector(&format!("{prefix}_norm.weight"), &[width])?;
    let proj = reader.bf16_vector(&format!("{prefix}_proj.weight"), &[1, width])?;
    Ok((formulas.fold)(&norm, &proj))
}
