//! A run of layers over several machines: what each part has to download, and a script that runs
//! it. The work itself is `layers --part i/N` and `merge`; nothing here runs anything.
//!
//! With a checkpoint folder (its shards, or only its index and config), files are looked up there.
//! Without one the release is planned: its 96 files, worked out from names, dtypes, shapes and the
//! order in which they are stored.

pub mod script;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;
use thiserror::Error;

use crate::layers::merge::places;
use crate::report::layers::Part;
use k3_checkpoint::index::{INDEX_FILE, ShardIndex};
use k3_checkpoint::plan::{visit_layer, visit_model};
use k3_checkpoint::{Checkpoint, CheckpointError, LayerKind, Malformed, MlpKind, ModelShape};
use k3_synth::{Layout, Overrides, Preset, SynthError, SynthModel};

/// Why there is no plan.
#[derive(Debug, Error)]
pub enum PlanError {
    /// The folder's shards.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The folder's index.
    #[error(transparent)]
    Index(#[from] Malformed),
    /// The release's own layout.
    #[error(transparent)]
    Release(#[from] SynthError),
}

/// One part.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PartPlan {
    /// From 1.
    pub index: usize,
    /// Its layers, zero-based.
    pub layers: Vec<usize>,
    /// Files to download, config and index aside.
    pub files: Vec<String>,
    /// Their bytes; absent where a size is not known before the download.
    pub bytes: Option<u64>,
    /// Largest memory of the run, in bytes: see [`memory_bytes`].
    pub memory_bytes: u64,
    /// Weights that all tokens pass, times tokens: what the time is proportional to.
    pub weight_tokens: u64,
}

/// Where the tensors of a layer are stored.
#[derive(Debug)]
pub struct Files {
    /// By layer.
    layers: Vec<BTreeSet<String>>,
    /// Embedding, head, last norm, last mix.
    model: BTreeSet<String>,
    /// Bytes of each file, where known.
    sizes: BTreeMap<String, u64>,
}

impl Files {
    /// From a folder: its shards, or its index alone.
    ///
    /// # Errors
    /// Neither can be read.
    pub fn of_folder(folder: &Path, shape: &ModelShape) -> Result<Self, PlanError> {
        match Checkpoint::open_partial(folder) {
            Ok(checkpoint) => {
                let index = if checkpoint.missing_shards().is_empty() {
                    None
                } else {
                    ShardIndex::read(&folder.join(INDEX_FILE)).ok()
                };
                let name = |shard: usize| crate::audit::census::file_name(&checkpoint, shard);
                let sizes = (0..checkpoint.shards().len())
                    .map(|shard| (name(shard), checkpoint.shards()[shard].file_bytes()));
                Ok(Self::collect(shape, sizes.collect(), |tensor| {
                    let there = checkpoint.tensor(tensor).map(|info| name(info.shard));
                    there.or_else(|| Some(index.as_ref()?.shard_of(tensor)?.to_owned()))
                }))
            }
            Err(error) if !folder.join(INDEX_FILE).exists() => Err(error.into()),
            Err(CheckpointError::ShardsMissing { .. }) => {
                let index = ShardIndex::read(&folder.join(INDEX_FILE))?;
                let find = |tensor: &str| index.shard_of(tensor).map(str::to_owned);
                Ok(Self::collect(shape, BTreeMap::new(), find))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Of the release: layer n is in file n+1, tensors outside the layers in the file after.
    ///
    /// # Errors
    /// None for the released model.
    pub fn of_release() -> Result<(Self, ModelShape), PlanError> {
        let model = SynthModel::new(Preset::K3, Overrides::default(), 0)?;
        let layout = Layout { model: &model, vision: true };
        let layers = model.shape.layers.len();
        let mut sizes = BTreeMap::new();
        // Layers of one kind differ in the digits of their number alone, which the sizes show.
        for index in 0..=layers {
            let plan = layout.shard(index)?;
            sizes.insert(plan.file, plan.layout.file_bytes);
        }
        let file = |index| BTreeSet::from([layout.file_name(index)]);
        let files = Self { layers: (0..layers).map(file).collect(), model: file(layers), sizes };
        Ok((files, model.shape))
    }

    fn collect(
        shape: &ModelShape,
        sizes: BTreeMap<String, u64>,
        find: impl Fn(&str) -> Option<String>,
    ) -> Self {
        let of_layer = |layer| {
            let mut files = BTreeSet::new();
            visit_layer(shape, layer, |tensor| files.extend(find(tensor.name)));
            files
        };
        let mut model = BTreeSet::new();
        visit_model(shape, |tensor| model.extend(find(tensor.name)));
        Self { layers: (0..shape.layers.len()).map(of_layer).collect(), model, sizes }
    }
}

/// Plans the parts of a run over `layers`, `tokens` to each.
#[must_use]
pub fn plan(
    files: &Files,
    shape: &ModelShape,
    layers: &[usize],
    parts: usize,
    tokens: usize,
) -> Vec<PartPlan> {
    let whole_model = layers.len() == shape.layers.len();
    let part = |index: usize| {
        let chosen = layers[places(layers.len(), Part { index, of: parts })].to_vec();
        let mut names: BTreeSet<&String> = BTreeSet::new();
        for &layer in &chosen {
            names.extend(&files.layers[layer]);
        }
        let ends = [0, shape.layers.len() - 1];
        let has_ends = whole_model && chosen.iter().any(|layer| ends.contains(layer));
        if has_ends {
            names.extend(&files.model);
        }
        let bytes: Option<Vec<u64>> = names.iter().map(|n| files.sizes.get(*n).copied()).collect();
        let weights = chosen.iter().map(|&layer| weights_of(shape, layer));
        PartPlan {
            index,
            files: names.into_iter().cloned().collect(),
            bytes: bytes.map(|bytes| bytes.iter().sum()),
            memory_bytes: memory_bytes(shape, &chosen, has_ends, tokens),
            weight_tokens: weights.sum::<u64>() * tokens as u64,
            layers: chosen,
        }
    };
    (1..=parts).map(part).collect()
}

/// Weights a token passes in a layer.
fn weights_of(shape: &ModelShape, layer: usize) -> u64 {
    let expert = 3 * shape.moe.latent as u64 * shape.moe.inner as u64;
    let routed = match shape.layers[layer].mlp {
        MlpKind::Moe => expert * shape.moe.top_k as u64,
        MlpKind::Dense => 0,
    };
    trunk_bytes(shape, layer) / 2 + routed
}

/// Bytes of a layer's tensors but its routed experts.
fn trunk_bytes(shape: &ModelShape, layer: usize) -> u64 {
    let mut bytes = 0;
    let mut shape = shape.clone();
    shape.moe.experts = shape.moe.experts.min(1);
    visit_layer(&shape, layer, |tensor| {
        if tensor.expert.is_none() {
            bytes += tensor.byte_len();
        }
    });
    bytes
}

/// What `layers` needs at most: the trunk of one layer as stored (of the two sides one is in memory
/// at a time), the experts of one token, the engine's state of all layers, and the stages of all
/// tokens in f64 four times (subject, local, exact, rounded, each with bounds). Embedding and head
/// count together as one layer where they are judged.
#[must_use]
pub fn memory_bytes(shape: &ModelShape, layers: &[usize], has_ends: bool, tokens: usize) -> u64 {
    let trunk = layers.iter().map(|&layer| trunk_bytes(shape, layer)).max();
    let mut largest = trunk.unwrap_or(0) + shape.moe.top_k as u64 * shape.moe.expert_bytes();
    if has_ends {
        largest = largest.max(2 * 2 * (shape.vocab * shape.hidden) as u64);
    }
    let kda = shape.layers_of(LayerKind::Kda).count() as u64;
    let state = 4 * kda * (shape.kda.width * shape.kda.head_dim) as u64;
    let (kda, mla) = (&shape.kda, &shape.mla);
    let rows = 12 * shape.hidden
        + 8 * kda.width
        + 2 * (mla.query_width + mla.kv_width + mla.width)
        + 4 * shape.moe.latent
        + 2 * shape.moe.experts
        + if has_ends { shape.vocab } else { 0 };
    let head_state = 8 * 2 * 4 * (kda.width * kda.head_dim) as u64;
    largest + state + 4 * 16 * (rows * tokens) as u64 + head_state
}
