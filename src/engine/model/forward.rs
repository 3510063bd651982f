//! The engine and its one forward pass: embed, every layer, output mix, final norm, head.
//!
//! Ids are fed in chunks; a single token is a chunk of one. Chunk size, thread count and whether
//! a prefix was carried or recomputed change no bit of the logits (A11).

use std::ops::Range;
use std::sync::Arc;

use super::stage_output::StageOutput;
use super::{
    Contract, EngineError, ExpertSource, LayerSource, NormSite, Operations, ResidentExperts,
    ResidentLayers, Shape, State, WeightSource, Weights, Workspace, decoder, residual,
};
use crate::kernels::matrix::MatrixRef;
use crate::kernels::products::Product;
use crate::kernels::rows::Row;
use crate::kernels::threads::Threads;
use k3_core::config::{MLA_NORM_EPS, RawConfig};
use k3_core::stages::{NoStages, Stage, StageSink};

/// How the engine runs; only `mla_norm_eps` changes results, and every report prints it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineOptions {
    /// Worker threads (0 counts as 1).
    pub threads: usize,
    /// Tokens that go through a layer together.
    pub chunk_tokens: usize,
    /// ε of MLA's two low-rank norms (N3).
    pub mla_norm_eps: f64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { threads: 1, chunk_tokens: 32, mla_norm_eps: MLA_NORM_EPS }
    }
}

/// For which of the fed positions logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitRows {
    /// All of them \[n, V\].
    All,
    /// The last one \[1, V\].
    Last,
}

/// The model, ready to run. Shared by any number of sequences; each has its own [`State`].
#[derive(Debug)]
pub struct Engine<O: Operations + ?Sized = Contract> {
    shape: Shape,
    weights: Weights,
    layers: Box<dyn LayerSource>,
    experts: Box<dyn ExpertSource>,
    threads: Threads,
    options: EngineOptions,
    operations: Arc<O>,
}

/// What every part of a pass over one chunk needs to know.
#[derive(Debug)]
pub(super) struct Pass<'a, O: ?Sized> {
    pub operations: &'a O,
    pub shape: &'a Shape,
    pub threads: &'a Threads,
    pub experts: &'a dyn ExpertSource,
    pub mla_norm_eps: f64,
    /// Tokens of the chunk.
    pub tokens: usize,
    /// Position of its first token.
    pub position: usize,
    /// The layer at work.
    pub layer: usize,
}

impl<O: Operations + ?Sized> Pass<'_, O> {
    /// ε of a norm.
    pub fn epsilon(&self, site: NormSite) -> f64 {
        self.operations.norm_epsilon(site, self.shape.rms_norm_eps, self.mla_norm_eps)
    }
}

impl<O: Operations + ?Sized> Engine<O> {
    /// An engine with all weights in memory.
    ///
    /// # Errors
    /// A configuration that contradicts itself, or a tensor that the source refuses.
    pub fn resident(
        operations: Arc<O>,
        raw: &RawConfig,
        source: &dyn WeightSource,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        let shape = Shape::derive(&*operations, raw)?;
        let layers = Box::new(ResidentLayers::load(&*operations, &shape, source)?);
        let experts = Box::new(ResidentExperts::load(&*operations, &shape, source)?);
        let weights = Weights::load(&*operations, &shape, source)?;
        Self::new(operations, shape, weights, (layers, experts), options)
    }

    /// An engine over any source of layers and experts.
    ///
    /// # Errors
    /// The threads cannot be started.
    pub fn new(
        operations: Arc<O>,
        shape: Shape,
        weights: Weights,
        sources: (Box<dyn LayerSource>, Box<dyn ExpertSource>),
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        let threads = Threads::new(options.threads)?;
        let (layers, experts) = sources;
        Ok(Self { shape, weights, layers, experts, threads, options, operations })
    }

    /// Widths and layers.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// How it runs.
    #[must_use]
    pub fn options(&self) -> EngineOptions {
        self.options
    }

    /// The operations it is composed of.
    #[must_use]
    pub fn operations(&self) -> &O {
        &self.operations
    }

    /// A fresh state.
    #[must_use]
    pub fn state(&self) -> State {
        State::new(&self.shape)
    }

    /// Buffers for this engine's chunks.
    #[must_use]
    pub fn workspace(&self) -> Workspace {
        Workspace::new(&self.shape, self.options.chunk_tokens)
    }

    /// Feeds ids and returns the logits of all their positions, row-major \[n, V\].
    ///
    /// # Errors
    /// See [`Engine::feed_rows`].
    pub fn feed(
        &self,
        work: &mut Workspace,
        state: &mut State,
        ids: &[u32],
        sink: &mut dyn StageSink,
    ) -> Result<Vec<f32>, EngineError> {
        self.feed_rows(work, state, ids, LogitRows::All, sink)
    }

    /// Feeds ids and returns the wanted logits. Stage values go to `sink` in execution order,
    /// once per chunk.
    ///
    /// # Errors
    /// An id outside the vocabulary or a state of another model (nothing has happened then); a
    /// source that fails, a NaN router score, or non-finite logits (the state stays marked as
    /// interrupted and cannot be continued).
    pub fn feed_rows(
        &self,
        work: &mut Workspace,
        state: &mut State,
        ids: &[u32],
        rows: LogitRows,
        sink: &mut dyn StageSink,
    ) -> Result<Vec<f32>, EngineError> {
        let vocabulary = self.shape.vocabulary;
        state.check(&self.shape)?;
        for (offset, &id) in ids.iter().enumerate() {
            if id as usize >= vocabulary {
                let position = state.position + offset;
                return Err(EngineError::TokenId { id, position, vocabulary });
            }
        }
        let wanted = if rows == LogitRows::All { ids.len() } else { ids.len().min(1) };
        let mut logits = vec![0.0; wanted * vocabulary];
        let mut first = 0;
        for chunk in ids.chunks(work.chunk_tokens) {
            state.interrupted = true;
            self.operations.before_chunk(state);
            self.forward(work, state, chunk, sink)?;
            let last = first + chunk.len();
            let tokens = match rows {
                LogitRows::All => 0..chunk.len(),
                LogitRows::Last if last == ids.len() => chunk.len() - 1..chunk.len(),
                LogitRows::Last => 0..0,
            };
            let out = if rows == LogitRows::All { first * vocabulary } else { 0 };
            let out = &mut logits[out..out + tokens.len() * vocabulary];
            self.head(work, state.position, tokens, out, sink)?;
            state.position += chunk.len();
            self.operations.after_chunk(state);
            state.interrupted = false;
            first = last;
        }
        Ok(logits)
    }

    fn pass(&self, tokens: usize, position: usize, layer: usize) -> Pass<'_, O> {
        Pass {
            operations: &*self.operations,
            shape: &self.shape,
            threads: &self.threads,
            experts: &*self.experts,
            mla_norm_eps: self.options.mla_norm_eps,
            tokens,
            position,
            layer,
        }
    }

    /// One chunk through embedding and layers; leaves the normed output mix in `work`.
    fn forward(
        &self,
        work: &mut Workspace,
        state: &mut State,
        ids: &[u32],
        sink: &mut dyn StageSink,
    ) -> Result<(), EngineError> {
        let t = ids.len();
        let mut stages = StageOutput { sink, layer: None };
        embed(&*self.operations, &self.weights, ids, work, &mut stages)?;
        for layer in 0..self.shape.layers.len() {
            let weights = self.layers.layer(layer)?;
            let pass = self.pass(t, state.position, layer);
            stages.layer = Some(layer);
            decoder::forward(&pass, &weights, state, work, &mut stages)?;
        }
        stages.layer = None;
        let pass = self.pass(t, state.position, 0);
        close(&pass, &self.weights, work, &mut stages);
        Ok(())
    }

    /// Logits of some tokens of the chunk in `work`; refuses any that are not finite.
    fn head(
        &self,
        work: &mut Workspace,
        position: usize,
        tokens: Range<usize>,
        out: &mut [f32],
        sink: &mut dyn StageSink,
    ) -> Result<(), EngineError> {
        let pass = self.pass(tokens.len(), position, 0);
        head(&pass, &self.weights, work, tokens, out, sink)
    }
}

/// Embedding rows of the ids as the running sum, no bank.
///
/// # Errors
/// Whatever the vocabulary's source reports.
pub(super) fn embed<O: Operations + ?Sized>(
    operations: &O,
    weights: &Weights,
    ids: &[u32],
    work: &mut Workspace,
    stages: &mut StageOutput<'_>,
) -> Result<(), EngineError> {
    for (token, &id) in ids.iter().enumerate() {
        let out = work.residual.running.row_mut(token);
        let mut take = |row: Row<'_>| operations.embed(row, out);
        weights.vocabulary.embed(id as usize, &mut take)?;
    }
    (work.residual.filled, work.residual.cleared) = (0, false);
    let running = work.residual.running.first(ids.len());
    let width = running.len() / ids.len().max(1);
    stages.put(Stage::Embed, &[ids.len(), width], running);
    Ok(())
}

/// The output mix and the final norm; leaves the normed mix in `work`.
pub(super) fn close<O: Operations + ?Sized>(
    pass: &Pass<'_, O>,
    weights: &Weights,
    work: &mut Workspace,
    stages: &mut StageOutput<'_>,
) {
    let (t, hidden) = (pass.tokens, pass.shape.hidden);
    if pass.operations.output_mixes() {
        let banks = work.residual.filled;
        let mixer = &weights.output_mixer;
        residual::mix(pass, NormSite::OutputMix, mixer, banks, &mut work.residual);
    } else {
        residual::copy_running(t, &mut work.residual);
    }
    residual::norm(pass, NormSite::Final, &weights.final_norm, &mut work.residual);
    stages.put(Stage::FinalMix, &[t, hidden], work.residual.mixed.first(t));
    stages.put(Stage::FinalNorm, &[t, hidden], work.residual.normed.first(t));
}

/// Logits \[tokens, V\] of some tokens of the chunk that [`close`] left in `work`; refuses any
/// that are not finite.
pub(super) fn head<O: Operations + ?Sized>(
    pass: &Pass<'_, O>,
    weights: &Weights,
    work: &Workspace,
    tokens: Range<usize>,
    out: &mut [f32],
    sink: &mut dyn StageSink,
) -> Result<(), EngineError> {
    if tokens.is_empty() {
        return Ok(());
    }
    let (hidden, vocabulary) = (pass.shape.hidden, pass.shape.vocabulary);
    let buffers = &work.residual;
    let (normed, mixed) = (buffers.normed.first(tokens.end), buffers.mixed.first(tokens.end));
    let vectors = &pass.operations.head_input(normed, mixed)[tokens.start * hidden..];
    let mut take = |rows: Range<usize>, matrix: MatrixRef<'_>| {
        let mut part = vec![0.0; tokens.len() * rows.len()];
        let whole = tokens.len() == 1 || rows.len() == vocabulary;
        let target =
            if whole { &mut out[rows.start..][..tokens.len() * rows.len()] } else { &mut part };
        let product = Product { matrix, vectors, out: target };
        pass.operations.products(pass.threads, vec![product]);
        if !whole {
            let rows_of = out.chunks_exact_mut(vocabulary);
            for (out, part) in rows_of.zip(part.chunks_exact(rows.len())) {
                out[rows.clone()].copy_from_slice(part);
            }
        }
    };
    weights.vocabulary.head(&mut take)?;
    let mut stages = StageOutput { sink, layer: None };
    stages.put(Stage::Logits, &[tokens.len(), vocabulary], out);
    for (token, row) in tokens.zip(out.chunks_exact(vocabulary)) {
        let count = row.iter().filter(|logit| !logit.is_finite()).count();
        if count > 0 {
            let position = pass.position + token;
            return Err(EngineError::NonFiniteLogits { position, count, vocabulary });
        }
    }
    Ok(())
}

/// A sequence: an engine, a state, and buffers of its own.
#[derive(Debug)]
pub struct EngineSequence<O: Operations + ?Sized = Contract> {
    engine: Arc<Engine<O>>,
    work: Workspace,
    /// The carried state; may be cloned out and put back between calls.
    pub state: State,
}

impl<O: Operations + ?Sized> EngineSequence<O> {
    /// A sequence at position 0.
    #[must_use]
    pub fn new(engine: Arc<Engine<O>>) -> Self {
        let (work, state) = (engine.workspace(), engine.state());
        Self { engine, work, state }
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &Engine<O> {
        &self.engine
    }

    /// Feeds ids, stage values included; logits \[n, V\].
    ///
    /// # Errors
    /// See [`Engine::feed_rows`].
    pub fn feed_with(
        &mut self,
        ids: &[u32],
        sink: &mut dyn StageSink,
    ) -> Result<Vec<f32>, EngineError> {
        self.engine.feed(&mut self.work, &mut self.state, ids, sink)
    }

    /// Feeds ids; logits \[n, V\].
    ///
    /// # Errors
    /// See [`Engine::feed_rows`].
    pub fn feed(&mut self, ids: &[u32]) -> Result<Vec<f32>, EngineError> {
        self.feed_with(ids, &mut NoStages)
    }

    /// Feeds ids; the logits of the last \[V\].
    ///
    /// # Errors
    /// See [`Engine::feed_rows`].
    pub fn feed_last(&mut self, ids: &[u32]) -> Result<Vec<f32>, EngineError> {
        let Self { engine, work, state } = self;
        engine.feed_rows(work, state, ids, LogitRows::Last, &mut NoStages)
    }
}
