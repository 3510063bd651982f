//! A layer computed once more, another way: every bit has to be equal (A11).
//!
//! The budgets of a layer admit any right order of a sum, so a kernel path, a number of threads or
//! a chunk that changes bits is within all of them. Here the operations of the contract go through
//! the layer again, on the same input and weights, by another path and with other threads. Narrow
//! layers are repeated whole, by the scalar definitions and a token at a time. Of a wide layer it
//! is the last call alone, from the state that the subject carried into it, by another vector path
//! if the processor has one: the scalar definitions would take longer than the reference.

use std::ops::Range;
use std::sync::Arc;

use super::judge::element_of;
use super::subject::rows_of;
use crate::checkpoint::Checkpoint;
use crate::compare::{Budget, Comparison, compare};
use crate::kernels::path::KernelPath;
use crate::model::{
    AttentionKind, Bench, Contract, EngineError, EngineOptions, KdaState, LayerWeights, OnDemand,
    Shape, State, Weights,
};
use crate::reference::Residual;
use crate::report::layers::{LayerRow, Repeated, StageRow, Verdict};
use crate::stages::{Stage, StageDump, StageKey, StageTensor, StageValues};

/// The widest hidden width of a layer that is repeated whole: 2²⁰ weights in a square matrix.
const NARROW: usize = 1024;

/// The other way to compute.
#[derive(Debug)]
pub struct Again {
    bench: Bench<Contract>,
    shape: Shape,
    way: String,
}

impl Again {
    /// Another way than `path` with `options`, reading `checkpoint`.
    ///
    /// # Errors
    /// The config contradicts itself, or the threads cannot be started.
    pub fn new(
        shape: Shape,
        checkpoint: Arc<Checkpoint>,
        (path, options): (KernelPath, EngineOptions),
    ) -> Result<Self, EngineError> {
        let is_narrow = shape.hidden <= NARROW;
        let other = KernelPath::available().into_iter().rev();
        let other = other
            .filter(|other| *other != KernelPath::SCALAR)
            .find(|other| *other != path);
        let (path, threads, chunk_tokens) = if is_narrow {
            (KernelPath::SCALAR, 1, 1)
        } else {
            let threads = options.threads.max(1) + 1;
            (other.unwrap_or(path), threads, options.chunk_tokens)
        };
        let operations = Arc::new(Contract { path });
        let experts = OnDemand {
            shape: shape.clone(),
            source: checkpoint,
            operations: Arc::clone(&operations),
        };
        let options = EngineOptions {
            threads,
            chunk_tokens,
            mla_norm_eps: options.mla_norm_eps,
        };
        let bench = Bench::new(operations, shape.clone(), Box::new(experts), options)?;
        let what = if is_narrow {
            "every token by itself"
        } else {
            "the last call"
        };
        let plural = if threads == 1 { "" } else { "s" };
        let way = format!("{what}, {} path, {threads} thread{plural}", path.name());
        Ok(Self { bench, shape, way })
    }

    /// What is repeated and how, in words.
    #[must_use]
    pub fn way(&self) -> &str {
        &self.way
    }

    fn is_narrow(&self) -> bool {
        self.shape.hidden <= NARROW
    }

    /// Index of the first call that is repeated.
    #[must_use]
    pub fn first_call(&self, calls: &[usize]) -> usize {
        if self.is_narrow() { 0 } else { calls.len() - 1 }
    }

    /// Takes over what `state` carries for layer `layer`; other layers' slots stay empty.
    pub fn carry(&mut self, layer: usize, state: &State) {
        let place = self.shape.layers[layer];
        let own = &mut self.bench.state;
        (own.position, own.interrupted) = (state.position, false);
        match place.attention {
            AttentionKind::Kda => own.kda[place.slot] = state.kda[place.slot].clone(),
            AttentionKind::Mla => own.mla[place.slot] = state.mla[place.slot].clone(),
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
            self.bench.begin_chunk();
            self.bench.layer(layer, weights, &mut residual, &mut dump)?;
            self.bench.end_chunk(rows.len());
        }
        let place = self.shape.layers[layer];
        let state = &mut self.bench.state;
        match place.attention {
            AttentionKind::Kda => state.kda[place.slot] = KdaState::new(&self.shape),
            AttentionKind::Mla => state.mla[place.slot].rows = Vec::new(),
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
            self.bench.closing(weights, &residual, &mut dump)?;
        }
        Ok(dump)
    }

    fn chunks(&self, rows: Range<usize>) -> Vec<Range<usize>> {
        if self.is_narrow() {
            rows.map(|row| row..row + 1).collect()
        } else {
            vec![rows]
        }
    }
}

/// Holds a row to the bits of the other computation. The first stage with others fails; what comes
/// after it is made from it.
pub fn judge(row: &mut LayerRow, dump: &StageDump, again: &StageDump) {
    let mut repeated = Repeated::default();
    for stage in Stage::ALL {
        let layer = row.layer;
        let key = StageKey { layer, stage };
        let judged = row.stages.iter_mut().find(|row| row.stage == stage.name());
        let both = dump.tensors.get(&key).zip(again.tensors.get(&key));
        let (Some(judged), Some((got, right))) = (judged, both) else {
            continue;
        };
        let record = compare_tails(stage, got, right);
        if repeated.differing == 0 && !record.passed {
            mark(judged, &record);
            row.verdict = Verdict::Fail;
        }
        repeated.values += record.count;
        repeated.differing += record.mismatches;
    }
    row.repeated = Some(repeated);
}

/// The last rows, as many as were computed again.
fn compare_tails(stage: Stage, got: &StageTensor, right: &StageTensor) -> Comparison {
    let (all, right_values) = (numbers(got), numbers(right));
    let first = all.len().saturating_sub(right_values.len());
    let mut record = compare(&all[first..], &right_values, &right.shape, &Budget::Bits);
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
        let other = || "other bits than the same computed another way".to_owned();
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
