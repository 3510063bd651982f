//! The files that a run of layers reads, with their digests: a run over a part of a checkpoint
//! needs only the shards of its layers, so identity goes by shard.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::fixtures::hex_sha256;
use k3_checkpoint::identity::shard_identity;
use k3_checkpoint::plan::{visit_layer, visit_model};
use k3_checkpoint::{Checkpoint, Malformed, ModelShape, Problem, ReadError};

/// The files read, by digest. What a shard's digest covers is described in
/// [`k3_checkpoint::identity`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sources {
    /// SHA-256 of config.json.
    pub config: String,
    /// Digest of each shard that holds a tensor of the layers, by file name.
    pub shards: BTreeMap<String, String>,
}

/// Files that cannot be read.
#[derive(Debug, Error)]
pub enum SourcesError {
    /// config.json.
    #[error(transparent)]
    Config(#[from] Malformed),
    /// A shard.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// The shards (by number) that hold tensors of the layers, and of the model where asked.
#[must_use]
pub fn shards_of(
    checkpoint: &Checkpoint,
    shape: &ModelShape,
    layers: &[usize],
    with_model: bool,
) -> BTreeSet<usize> {
    let mut shards = BTreeSet::new();
    for &layer in layers {
        visit_layer(shape, layer, |tensor| {
            shards.extend(checkpoint.tensor(tensor.name).map(|info| info.shard));
        });
    }
    if with_model {
        visit_model(shape, |tensor| {
            shards.extend(checkpoint.tensor(tensor.name).map(|info| info.shard));
        });
    }
    shards
}

/// The digests of what a run over these layers reads.
///
/// # Errors
/// Every variant of [`SourcesError`].
pub fn sources(
    checkpoint: &Checkpoint,
    shape: &ModelShape,
    layers: &[usize],
    with_model: bool,
) -> Result<Sources, SourcesError> {
    let path = checkpoint.config_path();
    let config = k3_core::host::files::read(&path)
        .map_err(|reason| Problem::new("cannot be read", reason.to_string()).in_file(&path))?;
    let mut shards = BTreeMap::new();
    for number in shards_of(checkpoint, shape, layers, with_model) {
        let shard = &checkpoint.shards()[number];
        let name = shard.path().file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        shards.insert(name, shard_identity(shard)?.to_string());
    }
    Ok(Sources { config: hex_sha256(&config), shards })
}

/// Tensors of a layer, or of what opens and closes the model, that are not there, of how many.
#[must_use]
pub fn absent_of(checkpoint: &Checkpoint, shape: &ModelShape, layer: Option<usize>) -> (u64, u64) {
    let (mut absent, mut all) = (0, 0);
    let mut count = |name: &str| {
        all += 1;
        absent += u64::from(checkpoint.find(name).is_none());
    };
    match layer {
        Some(layer) => visit_layer(shape, layer, |tensor| count(tensor.name)),
        None => visit_model(shape, |tensor| count(tensor.name)),
    }
    (absent, all)
}
