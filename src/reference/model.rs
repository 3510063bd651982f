//! The whole model and a sequence running through it.

use std::path::Path;
use std::sync::Arc;

use super::error::ReferenceError;
use super::formulas::{Formulas, NormSite, RELEASED};
use super::layer::{LayerState, LayerWeights, Pass, load_fold};
use super::reader::Reader;
use super::released::GROUP_COLUMNS;
use super::residual::{Residual, mix};
use super::rows::{Matrix, Rows};
use super::stage_hook::{AsComputed, StageHook, Stages};
use k3_core::config::RawConfig;
use k3_core::stages::{Stage, StageSink};

const EMBEDDING: &str = "language_model.model.embed_tokens.weight";

/// The reference model: every weight but the routed experts and the embedding table in memory, as
/// the checkpoint encodes it.
#[derive(Debug)]
pub struct Model {
    config: RawConfig,
    mla_norm_eps: f64,
    formulas: Formulas,
    reader: Arc<Reader>,
    layers: Vec<LayerWeights>,
    closing: ClosingWeights,
}

/// What stands after the last layer.
#[derive(Debug, Clone)]
pub struct ClosingWeights {
    /// Folded `output_attn_res_*` \[E\].
    pub output_fold: Vec<f64>,
    /// `norm` \[E\].
    pub norm: Vec<f64>,
    /// `lm_head` \[V, E\].
    pub head: Matrix,
}

/// Logits of the tokens of one call.
#[derive(Debug, Clone, PartialEq)]
pub struct Logits {
    /// T.
    pub rows: usize,
    /// V.
    pub vocabulary: usize,
    /// \[T, V\].
    pub values: Vec<f64>,
}

impl Logits {
    /// The logits \[V\] of token `index` of the call.
    #[must_use]
    pub fn row(&self, index: usize) -> &[f64] {
        &self.values[index * self.vocabulary..][..self.vocabulary]
    }

    /// The id of the largest logit of token `index`; of equals the lower id.
    #[must_use]
    pub fn argmax(&self, index: usize) -> u32 {
        let row = self.row(index);
        let best = (0..row.len()).reduce(|best, i| if row[i] > row[best] { i } else { best });
        // A vocabulary of more than 2^32 rows is no vocabulary.
        best.unwrap_or(0) as u32
    }
}

/// A run of tokens through a model, with the state carried from call to call.
#[derive(Debug, Clone)]
pub struct Sequence<'m> {
    model: &'m Model,
    states: Vec<LayerState>,
    position: usize,
    hook: &'m dyn StageHook,
}

impl Model {
    /// Opens a checkpoint folder. `mla_norm_eps` is [`k3_core::config::MLA_NORM_EPS`] in the
    /// released model.
    ///
    /// # Errors
    /// A tensor is missing or not as the config implies, or a file cannot be read.
    pub fn open(
        folder: &Path,
        config: &RawConfig,
        mla_norm_eps: f64,
    ) -> Result<Self, ReferenceError> {
        Self::open_with(folder, config, mla_norm_eps, &RELEASED)
    }

    /// Opens a checkpoint folder with other formulas: a mutant.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn open_with(
        folder: &Path,
        config: &RawConfig,
        mla_norm_eps: f64,
        formulas: &Formulas,
    ) -> Result<Self, ReferenceError> {
        check_config(config)?;
        let reader = Arc::new(Reader::open(folder)?);
        let pass = Pass { config, mla_norm_eps, formulas, hook: &AsComputed };
        let table = [config.vocab_size, config.hidden_size];
        reader.check(EMBEDDING, safetensors::Dtype::BF16, &table)?;
        let layers = (0..config.num_hidden_layers)
            .map(|index| LayerWeights::load(&reader, &pass, index))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            closing: ClosingWeights::load(&reader, config, formulas)?,
            config: config.clone(),
            mla_norm_eps,
            formulas: *formulas,
            reader,
            layers,
        })
    }

    /// The raw config the model was opened with.
    #[must_use]
    pub fn config(&self) -> &RawConfig {
        &self.config
    }

    /// ε of MLA's two low-rank norms the model was opened with (clause N3).
    #[must_use]
    pub fn mla_norm_eps(&self) -> f64 {
        self.mla_norm_eps
    }

    /// The checkpoint it reads from.
    #[must_use]
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// The weights of every layer, in order.
    #[must_use]
    pub fn layers(&self) -> &[LayerWeights] {
        &self.layers
    }

    /// What stands after the last layer.
    #[must_use]
    pub fn closing(&self) -> &ClosingWeights {
        &self.closing
    }

    /// A new sequence: no token yet.
    #[must_use]
    pub fn sequence(&self) -> Sequence<'_> {
        self.sequence_with(&AsComputed)
    }

    /// A new sequence whose stage values pass a hook before they are read.
    #[must_use]
    pub fn sequence_with<'m>(&'m self, hook: &'m dyn StageHook) -> Sequence<'m> {
        let states = self.layers.iter().map(|layer| layer.new_state(&self.config));
        Sequence { model: self, states: states.collect(), position: 0, hook }
    }
}

impl Sequence<'_> {
    /// The number of tokens fed so far.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// Feeds the next tokens (a whole prompt, a part of one, or one token) and gives the logits of
    /// each. The bits do not depend on how a sequence is cut into calls.
    ///
    /// # Errors
    /// No ids, or an id outside the vocabulary: the sequence is as before. A routed expert that
    /// cannot be read: the sequence is half advanced and must be dropped.
    pub fn feed(
        &mut self,
        ids: &[u32],
        sink: &mut dyn StageSink,
    ) -> Result<Logits, ReferenceError> {
        let model = self.model;
        let pass = Pass {
            config: &model.config,
            mla_norm_eps: model.mla_norm_eps,
            formulas: &model.formulas,
            hook: self.hook,
        };
        let mut embedding = embed(&model.reader, &pass, ids)?;
        Stages::new(None, pass.hook, sink).put_rows(Stage::Embed, &mut embedding);
        let mut residual = Residual::new(embedding);
        for (layer, state) in model.layers.iter().zip(&mut self.states) {
            layer.forward(&pass, &mut residual, self.position, state, sink)?;
        }
        self.position += ids.len();
        Ok(model.closing.forward(&pass, &residual, sink))
    }
}

impl ClosingWeights {
    /// Reads `output_attn_res_*`, `norm` and `lm_head`.
    ///
    /// # Errors
    /// A tensor is missing or not as the config implies.
    pub fn load(
        reader: &Reader,
        config: &RawConfig,
        formulas: &Formulas,
    ) -> Result<Self, ReferenceError> {
        let (width, vocabulary) = (config.hidden_size, config.vocab_size);
        let mixer = "language_model.model.output_attn_res";
        Ok(Self {
            output_fold: load_fold(reader, formulas, mixer, width)?,
            norm: reader.bf16_vector("language_model.model.norm.weight", &[width])?,
            head: reader.bf16_matrix((formulas.head_tensor)(), vocabulary, width)?,
        })
    }

    /// h = mix(b, s), RMSNorm(h; norm), `lm_head`.
    pub fn forward(
        &self,
        pass: &Pass<'_>,
        residual: &Residual,
        sink: &mut dyn StageSink,
    ) -> Logits {
        let formulas = pass.formulas;
        let mut stages = Stages::new(None, pass.hook, sink);
        let banks = (formulas.banks_before_output)(&residual.banks);
        let fold = &self.output_fold;
        let mut h = mix(pass, NormSite::OutputMix, banks, &residual.sum, fold);
        stages.put_rows(Stage::FinalMix, &mut h);
        let normed = pass.norm(NormSite::Final, &h, &self.norm);
        let mut normed = (formulas.head_input)(&h, normed);
        stages.put_rows(Stage::FinalNorm, &mut normed);
        let vocabulary = self.head.rows();
        let row = |logit| (formulas.head_row)(logit, vocabulary);
        let mut logits = self.head.apply_rows(&normed, row);
        stages.put_rows(Stage::Logits, &mut logits);
        Logits { rows: logits.count(), vocabulary, values: logits.values }
    }
}

/// The embedding rows of the ids \[T, E\], each read from the file.
///
/// # Errors
/// No ids, an id outside the vocabulary, or a read fails.
pub fn embed(reader: &Reader, pass: &Pass<'_>, ids: &[u32]) -> Result<Rows, ReferenceError> {
    let (vocabulary, width) = (pass.config.vocab_size, pass.config.hidden_size);
    if ids.is_empty() {
        return Err(ReferenceError::NoTokens);
    }
    for (index, id) in ids.iter().enumerate() {
        if *id as usize >= vocabulary {
            return Err(ReferenceError::TokenId { id: *id, index, vocabulary });
        }
    }
    let scale = (pass.formulas.embedding_scale)(width);
    let mut rows = Rows::empty(width);
    for id in ids {
        let row = (pass.formulas.embedding_row)(*id as usize, vocabulary);
        let row = reader.bf16_matrix_row(EMBEDDING, [vocabulary, width], row)?;
        rows.push(&row.iter().map(|v| v * scale).collect::<Vec<f64>>());
    }
    Ok(rows)
}

/// Refuses sizes that the formulas cannot be written for.
///
/// # Errors
/// The field at fault.
pub fn check_config(config: &RawConfig) -> Result<(), ReferenceError> {
    let refuse =
        |field, expected: String, got| Err(ReferenceError::Config { field, expected, got });
    let (heads, head_dim) = (config.kda_num_heads, config.kda_head_dim);
    if heads > head_dim {
        let expected = format!("at most head_dim = {head_dim}: A_log holds head_dim values");
        return refuse("linear_attn_config.num_heads", expected, heads);
    }
    let (top_k, experts) = (config.num_experts_per_token, config.num_experts);
    if top_k == 0 || top_k > experts {
        return refuse("num_experts_per_token", format!("1..{experts}"), top_k);
    }
    for (field, width) in [
        ("routed_expert_hidden_size", config.routed_expert_hidden_size),
        ("moe_intermediate_size", config.moe_intermediate_size),
    ] {
        if width == 0 || !width.is_multiple_of(GROUP_COLUMNS) {
            return refuse(field, format!("a multiple of {GROUP_COLUMNS}"), width);
        }
    }
    for (field, value) in [
        ("hidden_size", config.hidden_size),
        ("linear_attn_config.short_conv_kernel_size", config.short_conv_kernel_size),
        ("attn_res_block_size", config.attn_res_block_size),
        ("num_attention_heads", config.num_attention_heads),
        ("vocab_size", config.vocab_size),
    ] {
        if value == 0 {
            return refuse(field, "at least 1".to_owned(), value);
        }
    }
    Ok(())
}
