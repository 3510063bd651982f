//! Recomputes a layer another way: every bit has to be equal (A11).
//!
//! The tolerances of a layer admit any right order of a sum, so a kernel path, a number of threads
//! or a chunk that changes bits is within all of them. Here the layer is recomputed by the
//! operations of the contract, on the same input and weights. Narrow layers are repeated whole, by
//! the scalar definitions and a token at a time. Of a wide layer it is the last call alone, from
//! the state that the subject carried into it, with another number of threads and by another vector
//! path if the processor has two: the scalar definitions would take longer than the reference.

use std::ops::Range;
use std::sync::Arc;

use super::judge::{element_of, verdict};
use super::subject::rows_of;
use crate::outcome::Verdict;
use crate::report::layers::{LayerRow, Repeated, StageRow};
use k3_checkpoint::Checkpoint;
use k3_core::compare::{Comparison, Tolerance, compare};
use k3_core::stages::{Stage, StageDump, StageKey, StageTensor, StageValues};
use k3_engine::kernels::path::KernelPath;
use k3_engine::kernels::table::Kernels;
use k3_engine::model::{
    EngineError, EngineOptions, KdaState, LayerKind, LayerWeights, OnDemand, Rig, Shape, State,
    Weights,
};
use k3_reference::Residual;

/// How much of a layer is recomputed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Every call, by the scalar definitions, a token at a time.
    Whole,
    /// The last call, as one chunk.
    LastCall,
}

impl Extent {
    /// The widest hidden width of a layer that is repeated whole: 2²⁰ weights in a square matrix.
    const NARROW: usize = 1024;

    /// As much as time allows.
    #[must_use]
    pub fn of(shape: &Shape) -> Self {
        if shape.hidden <= Self::NARROW { Self::Whole } else { Self::LastCall }
    }
}

/// Recomputes layers another way.
#[derive(Debug)]
pub struct Repeater {
    rig: Rig,
    shape: Shape,
    extent: Extent,
    way: String,
}

impl Repeater {
    /// Another way than `path` with `options`, reading `checkpoint`.
    ///
    /// # Errors
    /// The threads cannot be started.
    pub fn new(
        shape: Shape,
        checkpoint: Arc<Checkpoint>,
        (path, options): (KernelPath, EngineOptions),
        extent: Extent,
    ) -> Result<Self, EngineError> {
        let (what, path, threads, chunk_tokens) = match extent {
            Extent::Whole => ("every token by itself", KernelPath::SCALAR, 1, 1),
            Extent::LastCall => {
                let others = KernelPath::available().into_iter().rev();
                let mut vectors = others.filter(|other| *other != KernelPath::SCALAR);
                let other = vectors.find(|other| *other != path).unwrap_or(path);
                let threads = options.threads.max(1) + 1;
                ("the last call", other, threads, options.chunk_tokens)
            }
        };
        let experts = OnDemand { shape: shape.clone(), source: checkpoint };
        let options = EngineOptions { threads, chunk_tokens };
        let rig = Rig::new(Kernels::on(path), shape.clone(), Box::new(experts), options)?;
        let plural = if threads == 1 { "" } else { "s" };
        let way = format!("{what}, {} path, {threads} thread{plural}", path.name());
        Ok(Self { rig, shape, extent, way })
    }

    /// A description of what is repeated and how.
    #[must_use]
    pub fn way(&self) -> &str {
        &self.way
    }

    /// Index of the first call that is repeated.
    #[must_use]
    pub fn first_call(&self, calls: &[usize]) -> usize {
        match self.extent {
            Extent::Whole => 0,
            Extent::LastCall => calls.len().saturating_sub(1),
        }
    }

    /// Takes over what `state` carries for layer `layer`; other layers' slots stay empty.
    pub fn carry(&mut self, layer: usize, state: &State) {
        let place = self.shape.layers[layer];
        let own = &mut self.rig.state;
        (own.position, own.interrupted) = (state.position, false);
        match place.kind {
            LayerKind::Kda => own.kda[place.slot] = state.kda[place.slot].clone(),
            LayerKind::Mla => own.mla[place.slot] = state.mla[place.slot].clone(),
        }
    }

    /// Stages of layer `layer` on rows `rows` of `input`, from the state that was taken over, which
    /// is given up.
    ///
    /// # Errors
    /// A routed expert that cannot be read.
    pub fn layer(
        &mut self,
        layer: usize,
        weights: &LayerWeights,
        (input, rows): (&Residual, Range<usize>),
    ) -> Result<StageDump, EngineError> {
        let mut dump = StageDump::default();
        for rows in self.chunks(rows) {
            let mut residual = rows_of(input, rows.clone());
            self.rig.layer(layer, weights, &mut residual, &mut dump)?;
            self.rig.end_chunk(rows.len());
        }
        let place = self.shape.layers[layer];
        let state = &mut self.rig.state;
        match place.kind {
            LayerKind::Kda => state.kda[place.slot] = KdaState::new(&self.shape),
            LayerKind::Mla => state.mla[place.slot].rows = Vec::new(),
        }
        Ok(dump)
    }

    /// What closes the model, on rows `rows` of `input`.
    ///
    /// # Errors
    /// Logits that are not finite.
    pub fn closing(
        &mut self,
        weights: &Weights,
        (input, rows): (&Residual, Range<usize>),
    ) -> Result<StageDump, EngineError> {
        let mut dump = StageDump::default();
        for rows in self.chunks(rows) {
            let residual = rows_of(input, rows);
            self.rig.closing(weights, &residual, &mut dump)?;
        }
        Ok(dump)
    }

    fn chunks(&self, rows: Range<usize>) -> Vec<Range<usize>> {
        match self.extent {
            Extent::Whole => rows.map(|row| row..row + 1).collect(),
            Extent::LastCall => vec![rows],
        }
    }
}

/// Holds a row to the bits of the other computation. The first stage with others fails; what comes
/// after it is made from it. A stage of the row that was not computed again is NOT RUN.
pub fn judge(row: &mut LayerRow, dump: &StageDump, again: &StageDump) {
    let mut repeated = Repeated::default();
    for stage in Stage::ALL {
        let layer = row.layer;
        let key = StageKey { layer, stage };
        let judged = row.stages.iter_mut().find(|row| row.stage == stage.name());
        let (Some(judged), Some(got)) = (judged, dump.tensors.get(&key)) else {
            continue;
        };
        let Some(right) = again.tensors.get(&key) else {
            if judged.verdict == Verdict::Pass {
                judged.verdict = Verdict::NotRun;
                judged.problem = Some("it was not recomputed".to_owned());
            }
            continue;
        };
        let record = compare_tails(stage, got, right);
        if repeated.differing == 0 && !record.passed {
            mark(judged, &record);
        }
        repeated.values += record.count;
        repeated.differing += record.mismatches;
    }
    if row.verdict != Verdict::NotSelected {
        row.verdict = verdict(&row.stages);
    }
    row.repeated = Some(repeated);
}

/// Whether an error of the other computation is its result: numbers that no right computation
/// has, where the subject had others.
#[must_use]
pub fn is_disagreement(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::RouterNan { .. }
            | EngineError::NonFiniteLogits { .. }
            | EngineError::LatentCache { .. }
    )
}

/// The row of a subject that came to an end where the other computation did not.
pub fn fail(row: &mut LayerRow, error: &EngineError) {
    row.verdict = Verdict::Fail;
    row.problem = Some(format!("recomputing it failed: {error}"));
}

/// The last rows, as many as were computed again.
fn compare_tails(stage: Stage, got: &StageTensor, right: &StageTensor) -> Comparison {
    let (all, right_values) = (numbers(got), numbers(right));
    let first = all.len().saturating_sub(right_values.len());
    let mut record = compare(&all[first..], &right_values, &right.shape, &Tolerance::Bits);
    let rows = |tensor: &StageTensor| tensor.shape.first().copied().unwrap_or(0);
    let skipped = rows(got).saturating_sub(rows(right));
    let token = record.first_mismatch.as_mut();
    if let Some(token) = token.and_then(|first| first.index.first_mut())
        && !stage.is_state()
    {
        *token += skipped;
    }
    record
}

fn mark(stage: &mut StageRow, record: &Comparison) {
    if stage.verdict == Verdict::Pass {
        stage.mismatches = record.mismatches;
        stage.first = record.first_mismatch.as_ref().map(element_of);
        let problem = record.problem.clone();
        let other = || "different bits when computed another way".to_owned();
        stage.problem = Some(problem.unwrap_or_else(other));
    }
    stage.verdict = Verdict::Fail;
}

fn numbers(tensor: &StageTensor) -> Vec<f64> {
    match &tensor.values {
        StageValues::Real(values) => values.clone(),
        StageValues::Ids(ids) => ids.iter().copied().map(f64::from).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn real(shape: &[usize], values: &[f64]) -> StageTensor {
        let (shape, values) = (shape.to_vec(), StageValues::Real(values.to_vec()));
        StageTensor { shape, values }
    }

    /// Of three tokens the last two were computed again: the token that differs is counted from
    /// the first of all, the value of a state from its own beginning.
    #[test]
    fn the_last_rows_are_compared_and_counted_from_the_first() {
        let got = real(&[3, 2], &[9.0, 9.0, 1.0, 2.0, 3.0, 4.0]);
        let right = real(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
        assert!(compare_tails(Stage::Out, &got, &right).passed);
        let wrong = real(&[2, 2], &[1.0, 2.0, 3.0, 4.5]);
        let record = compare_tails(Stage::Out, &got, &wrong);
        assert!(!record.passed);
        assert_eq!(record.mismatches, 1);
        assert_eq!(record.first_mismatch.unwrap().index, [2, 1]);
        let (got, wrong) = (real(&[2, 1], &[1.0, 2.0]), real(&[2, 1], &[1.0, -2.0]));
        let record = compare_tails(Stage::KdaState, &got, &wrong);
        assert_eq!(record.first_mismatch.unwrap().index, [1, 0]);
        let zero = real(&[1], &[0.0]);
        assert!(!compare_tails(Stage::Out, &zero, &real(&[1], &[-0.0])).passed);
    }
}
