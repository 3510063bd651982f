//! The whole model and a sequence running through it.

use std::path::Path;
use std::sync::Arc;

use super::config::read_config;
use super::error::ReferenceError;
use super::formulas::{Formulas, NormSite, RELEASED};
use super::layer::{LayerState, LayerWeights, Pass, load_fold};
use super::reader::Reader;
use super::residual::Residual;
use super::rows::{Matrix, Rows, stack};
use super::stage_hook::{AsComputed, StageHook, Stages};
use k3_core::config::RawConfig;
use k3_core::stages::{Stage, StageSink};

/// The tensor of the embedding table.
pub const EMBEDDING: &str = "language_model.model.embed_tokens.weight";

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

/// The weights after the last layer.
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
    /// T, tokens of the call.
    pub rows: usize,
    /// V, rows of the head.
    pub vocabulary: usize,
    /// \[T, V\], row-major.
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
    /// Opens a checkpoint folder and reads its config itself. `mla_norm_eps` is 1e-6 in the
    /// released model.
    ///
    /// # Errors
    /// A file cannot be read, a config field is not as it should be, or a tensor is missing or not
    /// as the config implies.
    pub fn open(folder: &Path, mla_norm_eps: f64) -> Result<Self, ReferenceError> {
        Self::open_with(folder, mla_norm_eps, &RELEASED)
    }

    /// Opens a checkpoint folder with other formulas: a mutant.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn open_with(
        folder: &Path,
        mla_norm_eps: f64,
        formulas: &Formulas,
    ) -> Result<Self, ReferenceError> {
        Self::open_as(folder, read_config(folder)?, mla_norm_eps, formulas)
    }

    /// Opens a checkpoint folder as if its config were another one.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn open_as(
        folder: &Path,
        config: RawConfig,
        mla_norm_eps: f64,
        formulas: &Formulas,
    ) -> Result<Self, ReferenceError> {
        let reader = Arc::new(Reader::open(folder)?);
        let pass = Pass { config: &config, mla_norm_eps, formulas, hook: &AsComputed };
        let table = [config.vocab_size, config.hidden_size];
        reader.check(EMBEDDING, safetensors::Dtype::BF16, &table)?;
        let layers = (0..config.num_hidden_layers)
            .map(|index| LayerWeights::load(&reader, &pass, index))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            closing: ClosingWeights::load(&reader, &config, formulas)?,
            config,
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

    /// The weights after the last layer.
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
        let width = config.hidden_size;
        let mixer = "language_model.model.output_attn_res";
        Ok(Self {
            output_fold: load_fold(reader, formulas, mixer, width)?,
            norm: reader.bf16_vector("language_model.model.norm.weight", &[width])?,
            head: (formulas.head)(reader, config)?,
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
        let mut h = (formulas.output_input)(pass, self, &residual.banks, &residual.sum);
        stages.put_rows(Stage::FinalMix, &mut h);
        let mut normed = pass.norm(NormSite::Final, &h, &self.norm);
        stages.put_rows(Stage::FinalNorm, &mut normed);
        let mut logits = (formulas.logits)(&self.head, &normed);
        stages.put_rows(Stage::Logits, &mut logits);
        let (rows, vocabulary) = logits.dim();
        Logits { rows, vocabulary, values: logits.into_raw_vec_and_offset().0 }
    }
}

/// The embedding rows of the ids \[T, E\], each read from the file.
///
/// # Errors
/// No ids, an id outside the vocabulary, or a read fails.
pub fn embed(reader: &Reader, pass: &Pass<'_>, ids: &[u32]) -> Result<Rows, ReferenceError> {
    let (vocabulary, width) = (pass.config.vocab_size, pass.config.hidden_size);
    if ids.is_empty() {
        let what = "no input ids: a forward pass needs at least one";
        return Err(ReferenceError::Call(what.to_owned()));
    }
    for (index, id) in ids.iter().enumerate() {
        if *id as usize >= vocabulary {
            return Err(ReferenceError::Call(format!(
                "input id {id} at position {index}: expected below the vocabulary size {vocabulary}"
            )));
        }
    }
    let table = EmbeddingTable { reader, vocabulary, width };
    let rows = ids.iter().map(|id| (pass.formulas.embedding)(&table, *id as usize));
    Ok(stack(width, rows.collect::<Result<Vec<_>, _>>()?))
}

/// The embedding table \[V, E\], whose rows stay in the file.
#[derive(Debug, Clone, Copy)]
pub struct EmbeddingTable<'a> {
    /// Where the rows are read from.
    pub reader: &'a Reader,
    /// V, rows of the table.
    pub vocabulary: usize,
    /// E, values of a row.
    pub width: usize,
}

impl EmbeddingTable<'_> {
    /// Row `index`, below V, widened.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn row(&self, index: usize) -> Result<Vec<f64>, ReferenceError> {
        self.reader.bf16_matrix_row(EMBEDDING, [self.vocabulary, self.width], index)
    }
}
