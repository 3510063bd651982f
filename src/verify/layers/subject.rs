//! The judged subject: our engine, one layer at a time on given input, or the dump of another
//! engine.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::repeat::{Extent, Repeater};
use crate::tensor_file::read_tensors;
use k3_checkpoint::Checkpoint;
use k3_checkpoint::{Malformed, Problem};
use k3_core::Precision;
use k3_core::stages::{NoStages, Stage, StageDump, StageKey, StageTensor, StageValues};
use k3_engine::kernels::table::Kernels;
use k3_engine::model::{
    EngineError, EngineOptions, ExpertSource, LayerKind, LayerWeights, OnDemand,
    Residual as EngineResidual, Rig, Shape, State, Weights,
};
use k3_reference::local::SubjectResidual;
use k3_reference::local::rows::{BoundedRows, exact};
use k3_reference::rounding::kept_in;
use k3_reference::rows::values;
use k3_reference::{Residual, Rows};

/// The engine, on any table of kernels.
#[derive(Debug)]
pub struct EngineSubject {
    kernels: Kernels,
    checkpoint: Arc<Checkpoint>,
    shape: Shape,
    rig: Rig,
    options: EngineOptions,
    again: Repeater,
}

/// The stages of a subject, and some or all of them computed another way.
#[derive(Debug)]
pub struct Computed {
    /// What is judged.
    pub stages: StageDump,
    /// What its bits are held to, or why that could not be computed.
    pub again: Result<StageDump, EngineError>,
}

impl EngineSubject {
    /// An engine that reads `checkpoint` a layer at a time; chunks of at most
    /// `options.chunk_tokens`.
    ///
    /// # Errors
    /// The threads cannot be started.
    pub fn new(
        kernels: Kernels,
        shape: Shape,
        checkpoint: Arc<Checkpoint>,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        let experts = OnDemand { shape: shape.clone(), source: Arc::clone(&checkpoint) };
        Self::with_experts(kernels, shape, checkpoint, options, Box::new(experts))
    }

    /// The same with experts from elsewhere.
    ///
    /// # Errors
    /// The threads cannot be started.
    pub fn with_experts(
        kernels: Kernels,
        shape: Shape,
        checkpoint: Arc<Checkpoint>,
        options: EngineOptions,
        experts: Box<dyn ExpertSource>,
    ) -> Result<Self, EngineError> {
        let rig = Rig::new(kernels, shape.clone(), experts, options)?;
        let way = (kernels.path, options);
        let extent = Extent::of(&shape);
        let again = Repeater::new(shape.clone(), Arc::clone(&checkpoint), way, extent)?;
        Ok(Self { kernels, checkpoint, shape, rig, options, again })
    }

    /// What it computes with.
    #[must_use]
    pub fn kernels(&self) -> Kernels {
        self.kernels
    }

    /// How it runs.
    #[must_use]
    pub fn options(&self) -> EngineOptions {
        self.options
    }

    /// Computes another part of each layer again than its width asks for.
    ///
    /// # Errors
    /// The threads cannot be started.
    pub fn repeat(&mut self, extent: Extent) -> Result<(), EngineError> {
        let way = (self.kernels.path, self.options);
        let (shape, checkpoint) = (self.shape.clone(), Arc::clone(&self.checkpoint));
        self.again = Repeater::new(shape, checkpoint, way, extent)?;
        Ok(())
    }

    /// What is computed again, and how.
    #[must_use]
    pub fn again(&self) -> &str {
        self.again.way()
    }

    /// All stages of layer `layer` on `input`, fed in calls of the given numbers of tokens from
    /// the empty state. After the first call another sequence takes a turn.
    ///
    /// # Errors
    /// A tensor that is missing or damaged, or what the layer itself refuses.
    pub fn layer(
        &mut self,
        layer: usize,
        input: &Residual,
        calls: &[usize],
    ) -> Result<Computed, EngineError> {
        let weights = LayerWeights::load(&self.shape, &*self.checkpoint, layer)?;
        self.reset(layer);
        let mut dump = StageDump::default();
        let (mut first, repeated) = (0, self.again.first_call(calls));
        for (call, &tokens) in calls.iter().enumerate() {
            if call == repeated {
                self.again.carry(layer, &self.rig.state);
            }
            let mut residual = rows_of(input, first..first + tokens);
            self.rig.layer(layer, &weights, &mut residual, &mut dump)?;
            self.fill_foreign_caches(layer, first + tokens);
            self.rig.end_chunk(tokens);
            if first == 0 && calls.len() > 1 {
                self.other_sequence(layer, &weights, input)?;
            }
            first += tokens;
        }
        let rows = calls[..repeated].iter().sum()..first;
        Ok(Computed { stages: dump, again: self.again.layer(layer, &weights, (input, rows)) })
    }

    /// Feeds the last row of `input` to an empty state of its own, which must leave no trace in the
    /// sequence that is judged.
    fn other_sequence(
        &mut self,
        layer: usize,
        weights: &LayerWeights,
        input: &Residual,
    ) -> Result<(), EngineError> {
        let kept = std::mem::replace(&mut self.rig.state, State::new(&self.shape));
        let rows = input.sum.nrows();
        let mut residual = rows_of(input, rows - 1..rows);
        let fed = self.rig.layer(layer, weights, &mut residual, &mut NoStages);
        self.rig.end_chunk(1);
        self.rig.state = kept;
        fed
    }

    /// The embedding rows of ids.
    ///
    /// # Errors
    /// A tensor that is missing, or an id outside the vocabulary.
    pub fn embed(&mut self, ids: &[u32], calls: &[usize]) -> Result<StageDump, EngineError> {
        let weights = Weights::load(&self.shape, &*self.checkpoint)?;
        let mut dump = StageDump::default();
        let mut first = 0;
        for &tokens in calls {
            self.rig.embed(&weights, &ids[first..first + tokens], &mut dump)?;
            first += tokens;
        }
        Ok(dump)
    }

    /// Output mix, final norm and logits on `input`.
    ///
    /// # Errors
    /// A tensor that is missing, or logits that are not finite.
    pub fn closing(&mut self, input: &Residual, calls: &[usize]) -> Result<Computed, EngineError> {
        let weights = Weights::load(&self.shape, &*self.checkpoint)?;
        let mut dump = StageDump::default();
        let mut first = 0;
        for &tokens in calls {
            let residual = rows_of(input, first..first + tokens);
            self.rig.closing(&weights, &residual, &mut dump)?;
            first += tokens;
        }
        let repeated = calls[..self.again.first_call(calls)].iter().sum();
        Ok(Computed { stages: dump, again: self.again.closing(&weights, (input, repeated..first)) })
    }

    /// The empty state for this layer. Other layers' slots are never looked at by a right engine;
    /// they hold numbers, so that one that does look shows.
    fn reset(&mut self, layer: usize) {
        let place = self.shape.layers[layer];
        let state = &mut self.rig.state;
        (state.position, state.interrupted) = (0, false);
        for (slot, kda) in state.kda.iter_mut().enumerate() {
            let own = place.kind == LayerKind::Kda && slot == place.slot;
            let foreign = if own { 0.0 } else { FOREIGN };
            // Filled once: a released model has 440 MB of it.
            if kda.recurrent.first() != Some(&foreign) || own {
                kda.recurrent.fill(foreign);
                kda.convolution.fill(foreign);
            }
        }
        for cache in &mut state.mla {
            cache.rows.clear();
        }
    }

    /// Other layers' caches have a row for each position too, as a whole model's have after a call.
    fn fill_foreign_caches(&mut self, layer: usize, positions: usize) {
        let place = self.shape.layers[layer];
        for (slot, cache) in self.rig.state.mla.iter_mut().enumerate() {
            if !(place.kind == LayerKind::Mla && slot == place.slot) {
                let values = positions * self.shape.mla.cache_width;
                cache.rows.resize(values, FOREIGN);
            }
        }
    }
}

/// The state of layers that are not being run.
const FOREIGN: f32 = 0.75;

/// Rows of a residual stream in the engine's form; the values are f32 already.
pub(super) fn rows_of(input: &Residual, range: Range<usize>) -> EngineResidual {
    let part = |rows: &Rows| {
        let values = &values(rows)[range.start * rows.ncols()..range.end * rows.ncols()];
        values.iter().map(|value| *value as f32).collect()
    };
    EngineResidual { running: part(&input.sum), banks: input.banks.iter().map(part).collect() }
}

/// A dump of named stages, by any engine.
#[derive(Debug, Clone)]
pub struct DumpSubject {
    /// The stages, in the names of [`k3_core::stages`].
    pub dump: StageDump,
    /// What it is kept in: the narrowest dtype of a stage that is not always kept in f32.
    pub precision: Precision,
    /// Tokens.
    pub rows: usize,
    /// Names that are no stage.
    pub unknown: Vec<String>,
}

impl DumpSubject {
    /// Reads a dump.
    ///
    /// # Errors
    /// A file that cannot be read, without a stage, or with different numbers of tokens.
    pub fn read(path: &Path) -> Result<Self, Malformed> {
        let (mut dump, mut unknown) = (StageDump::default(), Vec::new());
        let mut precision = Precision::F64;
        for (name, tensor) in read_tensors(path).map_err(|error| error.0)? {
            let Some(key) = StageKey::parse(&name) else {
                unknown.push(name);
                continue;
            };
            if let Some(stored) = tensor.stored {
                // A stage that stays in f32 says nothing of a BF16 engine's other stages.
                let stored = match kept_in(key.stage, Precision::Bf16) {
                    Precision::Bf16 => stored,
                    _ => stored.at_least_single(),
                };
                precision = precision.min(stored);
            }
            let (shape, values) = (tensor.shape, tensor.values);
            dump.tensors.insert(key, StageTensor { shape, values });
        }
        let mut rows: Option<(usize, StageKey)> = None;
        for (key, tensor) in dump.tensors.iter().filter(|(key, _)| !key.stage.is_state()) {
            let got = tensor.shape.first().copied().unwrap_or(0);
            let (expected, first) = *rows.get_or_insert((got, *key));
            if got != expected {
                let what = format!("{key} has {got} rows, {first} has {expected}");
                return Err(Problem::whole(what).in_file(path));
            }
        }
        let Some((rows, _)) = rows else {
            let what = "no tensor with the name of a stage, such as layers.0.out";
            return Err(Problem::whole(what).in_file(path));
        };
        Ok(Self { dump, precision, rows, unknown })
    }

    /// The stages of one layer, or of the model.
    #[must_use]
    pub fn layer(&self, layer: Option<usize>) -> StageDump {
        let of_layer = self.dump.tensors.iter().filter(|(key, _)| key.layer == layer);
        StageDump { tensors: of_layer.map(|(key, tensor)| (*key, tensor.clone())).collect() }
    }

    /// The running sum and the banks before layer `layer` (or before the closing stages, for the
    /// number of layers), as the dump has them.
    #[must_use]
    pub fn before(&self, layer: usize, block: usize, width: usize) -> SubjectResidual {
        let sum_before = |layer: usize| {
            let key = match layer.checked_sub(1) {
                Some(before) => StageKey::layer(before, Stage::Out),
                None => StageKey::model(Stage::Embed),
            };
            match self.dump.tensors.get(&key).map(|tensor| &tensor.values) {
                Some(StageValues::Real(values)) if values.len() == self.rows * width => {
                    Ok(exact(width, values))
                }
                _ => Err(key),
            }
        };
        SubjectResidual {
            rows: self.rows,
            sum: sum_before(layer),
            banks: (0..layer).step_by(block).map(sum_before).collect(),
        }
    }
}

/// A stream of which nothing is lacking.
#[must_use]
pub fn complete(before: &SubjectResidual) -> Option<Residual> {
    let rows = |rows: &BoundedRows| rows.mapv(|item| item.value);
    let banks: Option<Vec<Rows>> =
        before.banks.iter().map(|bank| bank.as_ref().ok().map(rows)).collect();
    Some(Residual { sum: rows(before.sum.as_ref().ok()?), banks: banks? })
}
