//! The run: the rows in order, their input, and the position of a chain.

use std::sync::Arc;

use thiserror::Error;

use super::input::{in_f32, synthetic};
use super::judge::Judge;
use super::repeat;
use super::sources::absent_of;
use super::subject::{DumpSubject, EngineSubject, complete};
use crate::report::layers::LayerRow;
use k3_checkpoint::{Checkpoint, ModelShape};
use k3_core::random::SplitMix64;
use k3_core::stages::{NoStages, StageDump};
use k3_engine::model::EngineError;
use k3_reference::layer::LayerWeights;
use k3_reference::local::SubjectResidual;
use k3_reference::model::embed;
use k3_reference::{AsComputed, ClosingWeights, RELEASED, Reader, ReferenceError, Residual};

/// One row to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The embedding rows.
    Embed,
    /// A layer.
    Layer(usize),
    /// Output mix, final norm, logits.
    Closing,
}

impl Step {
    /// Its name in journals and reports.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Embed => "embed".to_owned(),
            Self::Layer(layer) => layer.to_string(),
            Self::Closing => "closing".to_owned(),
        }
    }
}

/// The rows of a selection; embedding and closing stages only where they are asked for, and the
/// embedding only where there are ids.
#[must_use]
pub fn steps(selected: &[usize], layers: usize, [whole_model, has_ids]: [bool; 2]) -> Vec<Step> {
    let mut steps = Vec::new();
    if whole_model && has_ids && selected.first() == Some(&0) {
        steps.push(Step::Embed);
    }
    steps.extend(selected.iter().map(|&layer| Step::Layer(layer)));
    if whole_model && selected.last() == Some(&(layers - 1)) {
        steps.push(Step::Closing);
    }
    steps
}

/// What the layers are fed.
#[derive(Debug)]
pub enum Input {
    /// Drawn from a seed.
    Synthetic {
        /// The seed.
        seed: u64,
        /// Tokens.
        rows: usize,
    },
    /// Real activations: the reference's own, from the embedding of ids on.
    Chain {
        /// The ids.
        ids: Vec<u32>,
        /// The position of the chain.
        chain: Chain,
    },
    /// The running sums of a dump.
    Dump(DumpSubject),
}

/// The reference's stream before layer `next`, once it has begun.
#[derive(Debug, Default)]
pub struct Chain {
    /// The layer that comes next.
    pub next: usize,
    /// The stream before it.
    pub residual: Option<Residual>,
}

/// Who is judged.
#[derive(Debug)]
pub enum Subject {
    /// Our engine.
    Engine(Box<EngineSubject>),
    /// A dump of another, which is its own input.
    Dump(Box<DumpSubject>),
}

/// A run that cannot continue.
#[derive(Debug, Error)]
pub enum RunError {
    /// The engine cannot load or run a layer.
    #[error("engine: {0}")]
    Engine(#[from] EngineError),
    /// Recomputing a layer failed, though the engine computed it.
    #[error("recomputing a layer: {0}")]
    Repeat(EngineError),
    /// The reference cannot.
    #[error("reference: {0}")]
    Reference(#[from] ReferenceError),
}

/// Everything a run needs.
#[derive(Debug)]
pub struct Run<'a> {
    /// How it is judged.
    pub judge: Judge<'a>,
    /// Kinds and widths, the engine's derivation.
    pub shape: &'a ModelShape,
    /// What the engine reads.
    pub checkpoint: Arc<Checkpoint>,
    /// What the reference reads, the same or a copy.
    pub reader: Arc<Reader>,
    /// Who is judged.
    pub subject: Subject,
    /// What it is fed.
    pub input: Input,
    /// Tokens of each call.
    pub calls: Vec<usize>,
}

impl Run<'_> {
    fn layers(&self) -> usize {
        self.shape.layers.len()
    }

    fn block(&self) -> usize {
        self.judge.config.attn_res_block_size
    }

    /// The subject's single operations on the shipped fixtures; a dump has none.
    #[must_use]
    pub fn kernels(&self) -> Option<LayerRow> {
        match &self.subject {
            Subject::Engine(engine) => Some(super::kernels::judge(engine.kernels())),
            Subject::Dump(_) => None,
        }
    }

    /// How the subject's layers are computed again; a dump's are not.
    #[must_use]
    pub fn again(&self) -> &str {
        match &self.subject {
            Subject::Engine(engine) => engine.again(),
            Subject::Dump(_) => "",
        }
    }

    /// Does one step.
    ///
    /// # Errors
    /// A tensor that is there and damaged, or a file that cannot be read. What is merely absent is
    /// a row that says NOT RUN.
    pub fn step(&mut self, step: Step) -> Result<LayerRow, RunError> {
        match step {
            Step::Embed => self.embed(),
            Step::Layer(layer) => self.layer(layer),
            Step::Closing => self.closing(),
        }
    }

    /// Why a layer, or what opens and closes the model, cannot be run on a part of a checkpoint.
    fn absent(&self, layer: Option<usize>) -> Option<String> {
        absent(&self.checkpoint, self.shape, layer)
    }

    fn embed(&mut self) -> Result<LayerRow, RunError> {
        if let Some(problem) = self.absent(None) {
            return Ok(LayerRow::not_run("embed", None, problem));
        }
        let ids = match &self.input {
            Input::Chain { ids, .. } => ids.clone(),
            Input::Synthetic { seed, rows } => {
                let mut draws = SplitMix64::new(*seed);
                let vocabulary = self.judge.config.vocab_size as u64;
                // A vocabulary is checked to be far below 2^32.
                (0..*rows).map(|_| draws.below(vocabulary) as u32).collect()
            }
            Input::Dump(_) => {
                let problem = "the ids of the dump are unknown".to_owned();
                return Ok(LayerRow::not_run("embed", None, problem));
            }
        };
        let right = embed(&self.reader, &self.judge.pass(&AsComputed), &ids)?;
        let dump = match &mut self.subject {
            Subject::Engine(engine) => engine.embed(&ids, &self.calls)?,
            Subject::Dump(dump) => dump.layer(None),
        };
        Ok(self.judge.embed(&right, &dump))
    }

    fn layer(&mut self, layer: usize) -> Result<LayerRow, RunError> {
        if let Some(problem) = self.absent(Some(layer)) {
            return Ok(LayerRow::not_run("layer", Some(layer), problem));
        }
        let before = match self.before(layer)? {
            Ok(before) => before,
            Err(problem) => return Ok(LayerRow::not_run("layer", Some(layer), problem)),
        };
        // The engine's weights are gone before the reference's are read.
        let (dump, again) = match self.computed(&before, Some(layer))? {
            Ok(computed) => computed,
            Err(problem) => return Ok(LayerRow::not_run("layer", Some(layer), problem)),
        };
        let pass = self.judge.pass(&AsComputed);
        let weights = LayerWeights::load(&self.reader, &pass, layer)?;
        let (mut row, after) = self.judge.layer(&weights, &before, &dump)?;
        judge_repeated(&mut row, &dump, again)?;
        if let (Input::Chain { chain, .. }, Some(after)) = (&mut self.input, after) {
            *chain = Chain { next: layer + 1, residual: Some(after) };
        }
        Ok(row)
    }

    fn closing(&mut self) -> Result<LayerRow, RunError> {
        if let Some(problem) = self.absent(None) {
            return Ok(LayerRow::not_run("closing", None, problem));
        }
        let before = match self.before(self.layers())? {
            Ok(before) => before,
            Err(problem) => return Ok(LayerRow::not_run("closing", None, problem)),
        };
        let (dump, again) = match self.computed(&before, None)? {
            Ok(computed) => computed,
            Err(problem) => return Ok(LayerRow::not_run("closing", None, problem)),
        };
        let weights = ClosingWeights::load(&self.reader, self.judge.config, &RELEASED)?;
        let mut row = self.judge.closing(&weights, &before, &dump)?;
        judge_repeated(&mut row, &dump, again)?;
        Ok(row)
    }

    /// The subject's stages of a layer, or of what closes the model, and what an engine's are held
    /// to; or why there are none.
    fn computed(
        &mut self,
        before: &SubjectResidual,
        layer: Option<usize>,
    ) -> Result<Result<(StageDump, OtherStages), String>, RunError> {
        let engine = match &mut self.subject {
            Subject::Dump(dump) => return Ok(Ok((dump.layer(layer), None))),
            Subject::Engine(engine) => engine,
        };
        let Some(input) = complete(before) else {
            return Ok(Err("the input dump lacks the running sum or a bank".to_owned()));
        };
        let computed = match layer {
            Some(layer) => engine.layer(layer, &input, &self.calls)?,
            None => engine.closing(&input, &self.calls)?,
        };
        Ok(Ok((computed.stages, Some(computed.again))))
    }

    /// What layer `layer` is fed, or why that cannot be had.
    fn before(&mut self, layer: usize) -> Result<Result<SubjectResidual, String>, RunError> {
        let width = self.judge.config.hidden_size;
        if let Subject::Dump(dump) = &self.subject {
            return Ok(Ok(dump.before(layer, self.block(), width)));
        }
        let (block, layers) = (self.block(), self.layers());
        match &self.input {
            Input::Synthetic { seed, rows } => {
                let residual = synthetic(*seed, layer, layers, block, [*rows, width]);
                return Ok(Ok(SubjectResidual::carried(&residual)));
            }
            Input::Dump(dump) => {
                let before = dump.before(layer, block, width);
                let in_f32 = complete(&before).map(|residual| in_f32(&residual));
                return Ok(Ok(in_f32.map_or(before, |r| SubjectResidual::carried(&r))));
            }
            Input::Chain { .. } => {}
        }
        self.advance(layer)
    }

    /// Brings the chain to layer `layer` with the reference alone.
    fn advance(&mut self, layer: usize) -> Result<Result<SubjectResidual, String>, RunError> {
        let Input::Chain { ids, chain } = &mut self.input else {
            return Ok(Err("no chain".to_owned()));
        };
        let pass = self.judge.pass(&AsComputed);
        if chain.residual.is_none() || chain.next > layer {
            if let Some(problem) = absent(&self.checkpoint, self.shape, None) {
                return Ok(Err(format!("the chain cannot begin: {problem}")));
            }
            let rows = embed(&self.reader, &pass, ids)?;
            (chain.next, chain.residual) = (0, Some(Residual::new(rows)));
        }
        while chain.next < layer {
            if let Some(problem) = absent(&self.checkpoint, self.shape, Some(chain.next)) {
                return Ok(Err(format!("the chain stops before layer {}: {problem}", chain.next)));
            }
            let weights = LayerWeights::load(&self.reader, &pass, chain.next)?;
            let mut state = weights.new_state(self.judge.config);
            // As where the layer is judged: the chain continues from the input of an f32 engine.
            let mut residual = in_f32(chain.residual.as_ref().unwrap_or(&Residual::default()));
            weights.forward(&pass, &mut residual, 0, &mut state, &mut NoStages)?;
            (chain.next, chain.residual) = (chain.next + 1, Some(residual));
        }
        let residual = chain.residual.as_ref().map(in_f32);
        let lost = || "the chain has not begun".to_owned();
        Ok(residual.map(|r| SubjectResidual::carried(&r)).ok_or_else(lost))
    }
}

/// Which tensors are absent with their shards, in words.
fn absent(checkpoint: &Checkpoint, shape: &ModelShape, layer: Option<usize>) -> Option<String> {
    let (absent, all) = absent_of(checkpoint, shape, layer);
    let is_partial = absent > 0 && !checkpoint.missing_shards().is_empty();
    is_partial.then(|| format!("{absent} of its {all} tensors are in shards that are absent"))
}

/// What an engine's bits are held to; none of a dump.
type OtherStages = Option<Result<StageDump, EngineError>>;

/// Judges a row by the bits of the repeated computation, if there is one.
fn judge_repeated(
    row: &mut LayerRow,
    dump: &StageDump,
    again: OtherStages,
) -> Result<(), RunError> {
    match again {
        None => {}
        Some(Ok(again)) => repeat::judge(row, dump, &again),
        Some(Err(error)) if repeat::is_disagreement(&error) => repeat::fail(row, &error),
        Some(Err(error)) => return Err(RunError::Repeat(error)),
    }
    Ok(())
}
