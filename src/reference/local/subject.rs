//! What a subject's dump holds: values by stage, checked for their number, and the running sums.

use super::bounded::Bounded;
use super::rows::{BoundedRows, exact};
use super::{Local, LocalStage, LocalValues, Skipped};
use crate::error::ReferenceError;
use crate::residual::Residual;
use crate::rows::Rows;
use k3_core::stages::{Stage, StageDump, StageKey, StageValues};

/// A value out of the dump, or the stage that the dump lacks.
pub type Found<T> = Result<T, StageKey>;

/// Why a stage could not be recomputed.
pub(super) enum Obstacle {
    /// The dump lacks this input, or holds another number of values.
    Lacking(StageKey),
    /// The checkpoint cannot be read.
    Failed(ReferenceError),
}

impl From<StageKey> for Obstacle {
    fn from(key: StageKey) -> Self {
        Self::Lacking(key)
    }
}

impl From<ReferenceError> for Obstacle {
    fn from(error: ReferenceError) -> Self {
        Self::Failed(error)
    }
}

/// The running sum before a layer and the banks before it, the subject's own.
#[derive(Debug, Clone)]
pub struct SubjectResidual {
    /// T, tokens.
    pub rows: usize,
    /// s \[T, E\].
    pub sum: Found<BoundedRows>,
    /// b₀, b₁, … each \[T, E\].
    pub banks: Vec<Found<BoundedRows>>,
}

impl SubjectResidual {
    /// A given running sum and banks, for example carried from one layer to the next.
    #[must_use]
    pub fn carried(residual: &Residual) -> Self {
        let exact = |rows: &Rows| Ok(rows.mapv(Bounded::exact));
        Self {
            rows: residual.sum.nrows(),
            sum: exact(&residual.sum),
            banks: residual.banks.iter().map(exact).collect(),
        }
    }

    /// Every bank, if the dump has them all.
    pub(super) fn all_banks(&self) -> Found<Vec<BoundedRows>> {
        self.banks.iter().cloned().collect()
    }
}

/// The stages of one layer, or of the model, in a dump, and what has been recomputed of them.
pub(super) struct Subject<'a> {
    dump: &'a StageDump,
    layer: Option<usize>,
    pub(super) rows: usize,
    pub(super) local: Local,
}

impl<'a> Subject<'a> {
    pub(super) fn new(dump: &'a StageDump, layer: Option<usize>, rows: usize) -> Self {
        Self { dump, layer, rows, local: Local::default() }
    }

    pub(super) fn key(&self, stage: Stage) -> StageKey {
        let layer = self.layer;
        StageKey { layer, stage }
    }

    /// Whether the dump has the stage, so that it is worth recomputing.
    pub(super) fn has(&self, stage: Stage) -> bool {
        self.dump.tensors.contains_key(&self.key(stage))
    }

    /// The numbers of a stage, `count` of them.
    pub(super) fn values(&self, stage: Stage, count: usize) -> Found<&'a [f64]> {
        values(self.dump, self.key(stage), count)
    }

    /// A stage of one row per token.
    pub(super) fn exact(&self, stage: Stage, width: usize) -> Found<BoundedRows> {
        let values = self.values(stage, self.rows * width)?;
        Ok(exact(width, values))
    }

    /// The ids of a stage, `count` of them.
    pub(super) fn ids(&self, stage: Stage, count: usize) -> Found<&'a [i32]> {
        let key = self.key(stage);
        match self.dump.tensors.get(&key).map(|tensor| &tensor.values) {
            Some(StageValues::Ids(ids)) if ids.len() == count => Ok(ids),
            _ => Err(key),
        }
    }

    /// Recomputes a stage of numbers where the dump has it.
    ///
    /// # Errors
    /// The checkpoint cannot be read.
    pub(super) fn real(
        &mut self,
        stage: Stage,
        shape: &[usize],
        compute: impl FnOnce(&Self) -> Result<BoundedRows, Obstacle>,
    ) -> Result<(), ReferenceError> {
        self.stage(stage, shape, |subject| {
            let items = compute(subject)?;
            Ok(LocalValues::Real {
                expected: items.iter().map(|item| item.value).collect(),
                bound: items.iter().map(|item| item.error).collect(),
            })
        })
    }

    /// Recomputes a stage where the dump has it.
    ///
    /// # Errors
    /// The checkpoint cannot be read.
    pub(super) fn stage(
        &mut self,
        stage: Stage,
        shape: &[usize],
        compute: impl FnOnce(&Self) -> Result<LocalValues, Obstacle>,
    ) -> Result<(), ReferenceError> {
        let key = self.key(stage);
        let result = if self.has(stage) { compute(self) } else { Err(Obstacle::Lacking(key)) };
        match result {
            Ok(values) => self.local.stages.push(LocalStage { key, shape: shape.to_vec(), values }),
            Err(Obstacle::Lacking(lacking)) => self.local.skipped.push(Skipped { key, lacking }),
            Err(Obstacle::Failed(error)) => return Err(error),
        }
        Ok(())
    }
}

/// The numbers of a stage, `count` of them.
pub(super) fn values(dump: &StageDump, key: StageKey, count: usize) -> Found<&[f64]> {
    match dump.tensors.get(&key).map(|tensor| &tensor.values) {
        Some(StageValues::Real(values)) if values.len() == count => Ok(values),
        _ => Err(key),
    }
}
