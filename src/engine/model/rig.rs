//! A rig that runs one layer, or one part of a layer, on given inputs: for op fixtures and for
//! single layers of a partial checkpoint.
//!
//! It calls the same functions as the forward pass; nothing is computed here.

use super::forward::{self, Pass};
use super::stage_output::StageOutput;
use super::{
    EngineError, EngineOptions, ExpertSource, KdaWeights, LayerWeights, MlaWeights, MoeWeights,
    Shape, State, Weights, Workspace, decoder, kda, mla, moe,
};
use crate::kernels::table::Kernels;
use crate::kernels::threads::Threads;
use k3_core::stages::{NoStages, StageSink};

/// Buffers, state and threads to run parts of a model with.
#[derive(Debug)]
pub struct Rig {
    kernels: Kernels,
    shape: Shape,
    threads: Threads,
    experts: Box<dyn ExpertSource>,
    work: Workspace,
    /// The carried state; reset or replace it at will.
    pub state: State,
}

/// The residual stream of a chunk, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Residual {
    /// s \[T, E\].
    pub running: Vec<f32>,
    /// b₀, b₁, … each \[T, E\].
    pub banks: Vec<Vec<f32>>,
}

impl Rig {
    /// A rig for chunks of at most `options.chunk_tokens` tokens.
    ///
    /// # Errors
    /// The threads cannot be started.
    pub fn new(
        kernels: Kernels,
        shape: Shape,
        experts: Box<dyn ExpertSource>,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        let threads = Threads::new(options.threads)?;
        let (work, state) = (Workspace::new(&shape, options.chunk_tokens), State::new(&shape));
        Ok(Self { kernels, shape, threads, experts, work, state })
    }

    /// What every call ends with; after the last layer of a chunk of `tokens`.
    pub fn end_chunk(&mut self, tokens: usize) {
        self.state.position += tokens;
    }

    /// Embedding rows of at most a chunk of ids \[T, E\].
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn embed(
        &mut self,
        weights: &Weights,
        ids: &[u32],
        sink: &mut dyn StageSink,
    ) -> Result<Vec<f32>, EngineError> {
        let vocabulary = self.shape.vocab;
        for (position, &id) in ids.iter().enumerate() {
            if id as usize >= vocabulary {
                return Err(EngineError::TokenId { id, position, vocabulary });
            }
        }
        let mut stages = StageOutput { sink, layer: None };
        let work = &mut self.work;
        forward::embed(&self.kernels, weights, ids, work, &mut stages)?;
        Ok(work.residual.running.first(ids.len()).to_vec())
    }

    /// Output mix, final norm and head on a residual stream; logits \[T, V\].
    ///
    /// # Errors
    /// Logits that are not finite.
    ///
    /// # Panics
    /// More banks than the shape has.
    pub fn closing(
        &mut self,
        weights: &Weights,
        residual: &Residual,
        sink: &mut dyn StageSink,
    ) -> Result<Vec<f32>, EngineError> {
        let tokens = self.enter(residual);
        let pass = Pass {
            kernels: self.kernels,
            shape: &self.shape,
            threads: &self.threads,
            experts: &*self.experts,
            tokens,
            position: self.state.position,
            layer: 0,
        };
        let mut stages = StageOutput { sink: &mut *sink, layer: None };
        forward::close(&pass, weights, &mut self.work, &mut stages);
        let mut logits = vec![0.0; tokens * self.shape.vocab];
        let rows = 0..tokens;
        forward::head(&pass, weights, &self.work, rows, &mut logits, sink)?;
        Ok(logits)
    }

    /// Copies a residual stream into the buffers; its tokens.
    fn enter(&mut self, residual: &Residual) -> usize {
        let tokens = residual.running.len() / self.shape.hidden;
        let buffers = &mut self.work.residual;
        buffers.running.first_mut(tokens).copy_from_slice(&residual.running);
        for (index, bank) in residual.banks.iter().enumerate() {
            buffers.banks[index].first_mut(tokens).copy_from_slice(bank);
        }
        buffers.filled = residual.banks.len();
        tokens
    }

    /// Runs `part` at `layer` on `x` \[T, E\] as the normed input; its output \[T, E\].
    fn run(
        &mut self,
        layer: usize,
        x: &[f32],
        part: impl FnOnce(&Pass<'_>, &mut State, &mut Workspace) -> Result<(), EngineError>,
    ) -> Result<Vec<f32>, EngineError> {
        let tokens = x.len() / self.shape.hidden;
        self.work.residual.normed.first_mut(tokens).copy_from_slice(x);
        self.work.residual.mixed.first_mut(tokens).copy_from_slice(x);
        let Self { kernels, shape, threads, experts, work, state } = self;
        let pass = Pass {
            kernels: *kernels,
            shape,
            threads,
            experts: &**experts,
            tokens,
            position: state.position,
            layer,
        };
        part(&pass, state, work)?;
        Ok(self.work.residual.output.first(tokens).to_vec())
    }

    /// KDA, with the gate and output projection of `layer_weights`.
    ///
    /// # Errors
    /// None of its own.
    pub fn kda(
        &mut self,
        layer: usize,
        layer_weights: &LayerWeights,
        weights: &KdaWeights,
        x: &[f32],
    ) -> Result<Vec<f32>, EngineError> {
        self.run(layer, x, |pass, state, work| {
            let mut stages = StageOutput { sink: &mut NoStages, layer: Some(layer) };
            kda::forward(pass, layer_weights, weights, state, work, &mut stages)
        })
    }

    /// MLA, with the gate and output projection of `layer_weights`.
    ///
    /// # Errors
    /// None of its own.
    pub fn mla(
        &mut self,
        layer: usize,
        layer_weights: &LayerWeights,
        weights: &MlaWeights,
        x: &[f32],
    ) -> Result<Vec<f32>, EngineError> {
        self.run(layer, x, |pass, state, work| {
            let mut stages = StageOutput { sink: &mut NoStages, layer: Some(layer) };
            mla::forward(pass, layer_weights, weights, state, work, &mut stages)
        })
    }

    /// LatentMoE.
    ///
    /// # Errors
    /// A NaN router score, or a failing source of experts.
    pub fn moe(
        &mut self,
        layer: usize,
        weights: &MoeWeights,
        x: &[f32],
    ) -> Result<Vec<f32>, EngineError> {
        self.run(layer, x, |pass, _, work| {
            let mut stages = StageOutput { sink: &mut NoStages, layer: Some(layer) };
            moe::forward(pass, weights, work, &mut stages)
        })
    }

    /// A whole decoder layer on a residual stream, in place; its stages go to `sink`. The state's
    /// position is the caller's to advance, after the last layer of a chunk.
    ///
    /// # Errors
    /// As for its parts.
    ///
    /// # Panics
    /// More banks than the shape has.
    pub fn layer(
        &mut self,
        layer: usize,
        weights: &LayerWeights,
        residual: &mut Residual,
        sink: &mut dyn StageSink,
    ) -> Result<(), EngineError> {
        let tokens = self.enter(residual);
        let x = residual.running.clone();
        self.run(layer, &x, |pass, state, work| {
            let mut stages = StageOutput { sink, layer: Some(layer) };
            decoder::forward(pass, weights, state, work, &mut stages)
        })?;
        let buffers = &self.work.residual;
        residual.running.copy_from_slice(buffers.running.first(tokens));
        let banks = &buffers.banks[..buffers.filled];
        residual.banks = banks.iter().map(|bank| bank.first(tokens).to_vec()).collect();
        Ok(())
    }
}
