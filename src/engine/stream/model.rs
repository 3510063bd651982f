//! A checkpoint opened for streaming: what a run over it needs, and the engine over ring and
//! cache.
//!
//! Opening reads headers and names only. The memory of the run follows from it
//! ([`ModelFiles::demand`]); weights are read when an engine is made.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use super::experts::{ExpertCache, ExpertStore, slot_bytes};
use super::fault_hooks::{FaultHooks, NoFaults};
use super::layers::{StreamedLayers, Trunk};
use super::pack::{Pack, PackError};
use super::read::BlockFile;
use super::runs::{Run, open_shards};
use super::vocabulary::StreamedVocabulary;
use crate::kernels::table::Kernels;
use crate::memory::{Demand, MemoryPlan};
use crate::model::{Engine, EngineError, EngineOptions, Shape, Weights};
use k3_cache::policy::PolicyName;
use k3_checkpoint::BindError;
use k3_checkpoint::config::ConfigError;
use k3_checkpoint::identity::{Identity, identity};
use k3_checkpoint::plan::visit_layer;
use k3_checkpoint::{Binding, Checkpoint, CheckpointError, Malformed, Problem, ReadError};
use k3_core::config::RawConfig;
use k3_core::host::interrupt::Interrupt;
use k3_core::listing::listed;

/// Requests that are at the disk together.
pub const IO_THREADS: usize = 4;

/// The program's own memory is measured and rounded up to this: it differs by kilobytes from run to
/// run, and the same limit must give the same plan.
const BASELINE_STEP_BYTES: u64 = 16_000_000;

/// Why a model cannot be opened.
#[derive(Debug, Error)]
pub enum ModelError {
    /// Its config.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its shards or their index.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Its tensors.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Tensors of the layers asked for are missing.
    #[error(transparent)]
    Missing(Malformed),
    /// More layers than there are, or none.
    #[error("layers {asked}: the model has {layers}, expected 1 to {layers}")]
    Layers {
        /// Asked for.
        asked: usize,
        /// There are.
        layers: usize,
    },
    /// The engine's own check of the shape.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A pack.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// A file.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// A checkpoint and what follows from its headers.
#[derive(Debug)]
pub struct ModelFiles {
    /// The checkpoint.
    pub checkpoint: Arc<Checkpoint>,
    /// Its config.
    pub config: RawConfig,
    /// Where its tensors are.
    pub binding: Arc<Binding>,
    /// The engine's shape, cut to the layers asked for.
    pub shape: Shape,
    /// Runs of those layers, in the pack or in the shards.
    runs: Vec<Run>,
    /// The packed trunk, where there is one.
    pack: Option<PathBuf>,
    /// Slot of an expert, and what is copied out of it on binding.
    expert_bytes: (usize, usize),
}

/// How an engine streams; changes no result.
#[derive(Debug, Clone)]
pub struct StreamOptions {
    /// Layers in memory, ascending.
    pub pinned: Vec<usize>,
    /// Slots of the ring for the others.
    pub ring_slots: usize,
    /// Expert slots.
    pub expert_slots: usize,
    /// Policy of the expert cache.
    pub policy: PolicyName,
    /// Whether embedding rows and head are read when they are needed.
    pub streams_vocabulary: bool,
    /// Whether to read past the page cache where that is possible.
    pub direct: bool,
    /// As it should be, but for mutants.
    pub hooks: Arc<dyn FaultHooks>,
    /// Ends a pass between two layers once it is set.
    pub stop: Interrupt,
}

impl StreamOptions {
    /// What a plan says.
    #[must_use]
    pub fn of_plan(plan: &MemoryPlan, policy: PolicyName, streams_vocabulary: bool) -> Self {
        Self {
            pinned: plan.pinned_layers.clone(),
            ring_slots: plan.ring_slots,
            expert_slots: plan.expert_slots,
            policy,
            streams_vocabulary,
            direct: true,
            hooks: Arc::new(NoFaults),
            stop: Interrupt::default(),
        }
    }
}

/// An engine that streams, with its meters.
#[derive(Debug)]
pub struct StreamedEngine {
    /// The engine.
    pub engine: Arc<Engine>,
    /// Its layers.
    pub layers: Arc<StreamedLayers>,
    /// Its experts.
    pub experts: Arc<ExpertCache>,
}

impl ModelFiles {
    /// Opens a checkpoint; `layers` cuts the stack to a prefix, `trunk` is a packed trunk.
    ///
    /// # Errors
    /// Every variant of [`ModelError`].
    pub fn open(
        folder: &Path,
        layers: Option<usize>,
        trunk: Option<&Path>,
    ) -> Result<Self, ModelError> {
        let checkpoint = Checkpoint::open(folder)?;
        let config = k3_checkpoint::config::read(&checkpoint.config_path())?;
        let mut shape = Shape::derive(&config)?;
        let all = shape.layers.len();
        let asked = layers.unwrap_or(all);
        if asked == 0 || asked > all {
            return Err(ModelError::Layers { asked, layers: all });
        }
        shape.layers.truncate(asked);
        let binding = if layers.is_none() {
            Binding::bind(&checkpoint, &config)?
        } else {
            bind_prefix(&checkpoint, &config, asked)?
        };
        let pack = trunk.map(Pack::open).transpose()?;
        let runs = match &pack {
            Some(pack) => pack.runs_for(&checkpoint, asked)?,
            None => shard_runs(&checkpoint, &binding, asked),
        };
        let expert_bytes = slot_bytes(&checkpoint, &binding, asked);
        let pack = pack.map(|pack| pack.data_path());
        Ok(Self {
            checkpoint: Arc::new(checkpoint),
            config,
            binding: Arc::new(binding),
            shape,
            runs,
            pack,
            expert_bytes,
        })
    }

    /// Which checkpoint it is.
    ///
    /// # Errors
    /// A file that cannot be read, shards that are not there.
    pub fn identity(&self) -> Result<Identity, ModelError> {
        Ok(identity(&self.checkpoint)?)
    }

    /// Bytes of the trunk's tensors.
    #[must_use]
    pub fn trunk_bytes(&self) -> u64 {
        self.runs.iter().map(Run::tensor_bytes).sum()
    }

    /// What a run over up to `positions` positions needs.
    #[must_use]
    pub fn demand(&self, positions: usize, chunk_tokens: usize) -> Demand {
        self.demand_beside(positions, chunk_tokens, 0)
    }

    /// The same, where the process holds `held_bytes` already that have a line of their own.
    #[must_use]
    pub fn demand_beside(&self, positions: usize, chunk_tokens: usize, held_bytes: u64) -> Demand {
        let index = self.checkpoint.held_bytes() + self.binding.held_bytes();
        let resident = k3_core::host::memory::resident_bytes().unwrap_or(0);
        let (slot, copied) = self.expert_bytes;
        Demand {
            shape: self.shape.clone(),
            layer_bytes: self.runs.iter().map(|run| run.buffer_bytes() as u64).collect(),
            layer_copied_bytes: self.runs.iter().map(|run| run.copied_bytes() as u64).collect(),
            expert_slot_bytes: (slot + copied) as u64,
            positions,
            chunk_tokens,
            logit_rows: 1,
            baseline_bytes: resident
                .saturating_sub(index as u64 + held_bytes)
                .next_multiple_of(BASELINE_STEP_BYTES),
            index_bytes: index as u64,
            tokenizer_bytes: 0,
            streams_vocabulary: false,
        }
    }

    /// The engine: reads what is pinned and takes the memory of ring and cache.
    ///
    /// # Errors
    /// A tensor that cannot be read or bound.
    pub fn engine(
        &self,
        kernels: Kernels,
        stream: &StreamOptions,
        options: EngineOptions,
    ) -> Result<StreamedEngine, ModelError> {
        let shards = || open_shards(&self.checkpoint, stream.direct);
        let files = match &self.pack {
            Some(path) => vec![BlockFile::open(path, stream.direct)?],
            None => shards()?,
        };
        let shape = self.shape.clone();
        let weights = if stream.streams_vocabulary {
            let vocabulary =
                StreamedVocabulary::open(&shape, &self.checkpoint, shards()?, IO_THREADS)?;
            let vocabulary = Arc::new(vocabulary);
            Weights::load_beside(&shape, &*self.checkpoint, vocabulary)?
        } else {
            Weights::load(&shape, &*self.checkpoint)?
        };
        let trunk = Trunk {
            runs: self.runs.clone(),
            files,
            pinned: stream.pinned.clone(),
            ring_slots: stream.ring_slots,
            io_threads: IO_THREADS,
            stop: stream.stop.clone(),
        };
        let hooks = Arc::clone(&stream.hooks);
        let layers = StreamedLayers::open(shape.clone(), trunk, hooks)?;
        let store = ExpertStore {
            checkpoint: Arc::clone(&self.checkpoint),
            binding: Arc::clone(&self.binding),
            files: shards()?,
            slots: stream.expert_slots,
            slot_bytes: self.expert_bytes.0,
            policy: stream.policy,
            io_threads: IO_THREADS,
        };
        let hooks = Arc::clone(&stream.hooks);
        let experts = ExpertCache::open(shape.clone(), store, hooks)?;
        let (layers, experts) = (Arc::new(layers), Arc::new(experts));
        let sources = (
            Box::new(Arc::clone(&layers)) as Box<dyn crate::model::LayerSource>,
            Box::new(Arc::clone(&experts)) as Box<dyn crate::model::ExpertSource>,
        );
        let engine = Engine::new(kernels, shape, weights, sources, options)?;
        Ok(StreamedEngine { engine: Arc::new(engine), layers, experts })
    }
}

/// Binds the tensors present and refuses if the first `layers` layers lack any.
fn bind_prefix(
    checkpoint: &Checkpoint,
    config: &RawConfig,
    layers: usize,
) -> Result<Binding, ModelError> {
    let binding = Binding::bind_partial(checkpoint, config)?;
    for layer in 0..layers {
        let count = binding.missing_in_layer(layer);
        if count > 0 {
            let names = listed(binding.missing_names(layer), count as usize);
            let what = format!("{count} tensor(s) missing: {names}");
            let problem = Problem::new(format!("layer {layer}"), what);
            return Err(ModelError::Missing(problem.in_file(checkpoint.folder())));
        }
    }
    Ok(binding)
}

/// The trunk tensors of a layer, those included that no computation reads.
pub(super) fn trunk_run(checkpoint: &Checkpoint, binding: &Binding, layer: usize) -> Run {
    let mut ids = Vec::new();
    visit_layer(binding.shape(), layer, |expected| {
        if expected.expert.is_none() {
            ids.extend(checkpoint.find(expected.name));
        }
    });
    Run::of(checkpoint, &ids)
}

fn shard_runs(checkpoint: &Checkpoint, binding: &Binding, layers: usize) -> Vec<Run> {
    (0..layers).map(|layer| trunk_run(checkpoint, binding, layer)).collect()
}
