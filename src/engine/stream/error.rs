//! What can go wrong while weights are streamed, one variant per way.

use std::path::PathBuf;

use thiserror::Error;

use k3_cache::slot_table::CacheError;
use k3_checkpoint::ReadError;

/// An error of streaming. Layers and experts are zero-based.
#[derive(Debug, Error)]
pub enum StreamError {
    /// Bytes that could not be read.
    #[error("layer {layer}: {source}")]
    Layer {
        /// The layer.
        layer: usize,
        /// Why.
        source: ReadError,
    },
    /// Experts that could not be read.
    #[error("layer {layer}, experts {experts:?}: {source}")]
    Experts {
        /// The layer.
        layer: usize,
        /// The experts that were being read together.
        experts: Vec<usize>,
        /// Why.
        source: ReadError,
    },
    /// Any other read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A tensor that the run of a layer does not hold.
    #[error("missing from what is read for it")]
    NotInRun,
    /// A tensor of another type or shape than asked for.
    #[error("expected {expected}, got {got}")]
    Unfit {
        /// By the configuration.
        expected: String,
        /// By the file.
        got: String,
    },
    /// Tensors of a layer or expert that the checkpoint does not have.
    #[error("layer {layer}: tensors are missing: {}", names.join(", "))]
    Missing {
        /// The layer.
        layer: usize,
        /// Some of their names.
        names: Vec<String>,
    },
    /// A cache that cannot serve.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// An earlier read failed; what the cache says is resident may not be.
    #[error("an earlier expert read failed, the cache cannot go on: {0}")]
    Failed(String),
    /// The reader ended.
    #[error("the reader of the trunk has stopped")]
    Stopped,
    /// The trace cannot be written.
    #[error("{}: cannot write: {source}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// No thread could be started.
    #[error("cannot start the reader thread: {0}")]
    Thread(std::io::Error),
}
