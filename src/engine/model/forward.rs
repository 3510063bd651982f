//! The engine and its one forward pass: embed, every layer, output mix, final norm, head.
//!
//! Ids are fed in chunks; a single token is a chunk of one. Chunk size, thread count and whether
//! a prefix was carried or recomputed change no bit of the logits (A11).

use std::ops::Range;
use std::sync::Arc;

use super::stage_output::StageOutput;
use super::{
    EngineError, ExpertSource, LayerSource, ResidentExperts, ResidentLayers, Shape, State,
    WeightSource, Weights, Workspace, decoder, residual,
};
use crate::kernels::contract::round_to_f32;
use crate::kernels::matrix::{Matrix, MatrixRef};
use crate::kernels::products::Product;
use crate::kernels::rows::Row;
use crate::kernels::table::Kernels;
use crate::kernels::threads::Threads;
use k3_core::stages::{NoStages, Stage, StageSink};

/// How the engine runs; changes no bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// Worker threads (0 counts as 1).
    pub threads: usize,
    /// Tokens that go through a layer together.
    pub chunk_tokens: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { threads: 1, chunk_tokens: 32 }
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
pub struct Engine {
    shape: Shape,
    weights: Weights,
    layers: Box<dyn LayerSource>,
    experts: Box<dyn ExpertSource>,
    threads: Threads,
    options: EngineOptions,
    kernels: Kernels,
}

/// What every part of a pass over one chunk needs to know.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    pub kernels: Kernels,
    pub shape: &'a Shape,
    pub threads: &'a Threads,
    pub experts: &'a dyn ExpertSource,
    /// Tokens of the chunk.
    pub tokens: usize,
    /// Position of its first token.
    pub position: usize,
    /// The current layer.
    pub layer: usize,
}

impl Pass<'_> {
    /// `out` = W·x for one matrix.
    pub fn product(&self, matrix: &Matrix, vectors: &[f32], out: &mut [f32]) {
        self.products(vec![Product { matrix: matrix.view(), vectors, out }]);
    }

    /// The same for several matrices at once.
    pub fn products(&self, products: Vec<Product<'_>>) {
        (self.kernels.products)(&self.kernels, self.threads, products);
    }

    /// SiTU of any number of elements, which is worth several threads from some thousands on.
    pub fn situ(&self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        const BLOCK: usize = 4096;
        let blocks = gate.chunks(BLOCK).zip(up.chunks(BLOCK)).zip(out.chunks_mut(BLOCK));
        self.threads.for_each(blocks.collect(), &|((gate, up), out)| {
            (self.kernels.situ)(&self.kernels, gate, up, self.shape.caps, out);
        });
    }
}

impl Engine {
    /// An engine with all weights in memory.
    ///
    /// # Errors
    /// A tensor that the source refuses; the threads cannot be started.
    pub fn resident(
        kernels: Kernels,
        shape: Shape,
        source: &dyn WeightSource,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        let layers = Box::new(ResidentLayers::load(&shape, source)?);
        let experts = Box::new(ResidentExperts::load(&shape, source)?);
        let weights = Weights::load(&shape, source)?;
        Self::new(kernels, shape, weights, (layers, experts), options)
    }

    /// An engine over any source of layers and experts.
    ///
    /// # Errors
    /// The threads cannot be started.
    pub fn new(
        kernels: Kernels,
        shape: Shape,
        weights: Weights,
        sources: (Box<dyn LayerSource>, Box<dyn ExpertSource>),
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        let threads = Threads::new(options.threads)?;
        let (layers, experts) = sources;
        Ok(Self { shape, weights, layers, experts, threads, options, kernels })
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
        let vocabulary = self.shape.vocab;
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
            state.interrupted = false;
            first = last;
        }
        Ok(logits)
    }

    fn pass(&self, tokens: usize, position: usize, layer: usize) -> Pass<'_> {
        Pass {
            kernels: self.kernels,
            shape: &self.shape,
            threads: &self.threads,
            experts: &*self.experts,
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
        embed(&self.kernels, &self.weights, ids, work, &mut stages)?;
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
pub(super) fn embed(
    kernels: &Kernels,
    weights: &Weights,
    ids: &[u32],
    work: &mut Workspace,
    stages: &mut StageOutput<'_>,
) -> Result<(), EngineError> {
    let mut wide = vec![0.0; work.residual.running.width()];
    for (token, &id) in ids.iter().enumerate() {
        let out = work.residual.running.row_mut(token);
        let mut take = |row: Row<'_>| {
            (kernels.widen)(row, &mut wide);
            out.iter_mut().zip(&wide).for_each(|(out, wide)| *out = round_to_f32(*wide));
        };
        weights.vocabulary.embed(id as usize, &mut take)?;
    }
    work.residual.filled = 0;
    let running = work.residual.running.first(ids.len());
    let width = running.len() / ids.len().max(1);
    stages.put(Stage::Embed, &[ids.len(), width], running);
    Ok(())
}

/// The output mix and the final norm; leaves the normed mix in `work`.
pub(super) fn close(
    pass: &Pass<'_>,
    weights: &Weights,
    work: &mut Workspace,
    stages: &mut StageOutput<'_>,
) {
    let (t, hidden) = (pass.tokens, pass.shape.hidden);
    let stream = &mut work.residual;
    residual::mix(pass, &weights.output_mixer, stream);
    residual::norm(pass, &weights.final_norm, &stream.mixed, &mut stream.normed);
    stages.put(Stage::FinalMix, &[t, hidden], stream.mixed.first(t));
    stages.put(Stage::FinalNorm, &[t, hidden], stream.normed.first(t));
}

/// Logits \[tokens, V\] of some tokens of the chunk that [`close`] left in `work`; refuses any
/// that are not finite.
pub(super) fn head(
    pass: &Pass<'_>,
    weights: &Weights,
    work: &Workspace,
    tokens: Range<usize>,
    out: &mut [f32],
    sink: &mut dyn StageSink,
) -> Result<(), EngineError> {
    if tokens.is_empty() {
        return Ok(());
    }
    let (hidden, vocabulary) = (pass.shape.hidden, pass.shape.vocab);
    let vectors = &work.residual.normed.first(tokens.end)[tokens.start * hidden..];
    let mut take = |rows: Range<usize>, matrix: MatrixRef<'_>| {
        let mut part = vec![0.0; tokens.len() * rows.len()];
        let whole = tokens.len() == 1 || rows.len() == vocabulary;
        let target =
            if whole { &mut out[rows.start..][..tokens.len() * rows.len()] } else { &mut part };
        let product = Product { matrix, vectors, out: target };
        pass.products(vec![product]);
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
pub struct EngineSequence {
    engine: Arc<Engine>,
    work: Workspace,
    /// The carried state; may be cloned out and put back between calls.
    pub state: State,
}

impl EngineSequence {
    /// A sequence at position 0.
    #[must_use]
    pub fn new(engine: Arc<Engine>) -> Self {
        let (work, state) = (engine.workspace(), engine.state());
        Self { engine, work, state }
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &Engine {
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
