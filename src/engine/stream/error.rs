//! What can go wrong while weights are streamed.

use thiserror::Error;

use k3_cache::slot_table::CacheError;
use k3_checkpoint::{Malformed, Problem, ReadError};

/// A tensor that the run of a layer does not hold.
pub(super) const NOT_IN_RUN: &str = "missing from what is read for it";

/// An error of streaming. Layers and experts are zero-based.
#[derive(Debug, Error)]
pub enum StreamError {
    /// Bytes that could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A cache that cannot serve.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A file whose bytes are not what they were.
    #[error(transparent)]
    File(#[from] Malformed),
    /// The reader ended.
    #[error("the reader of the trunk has stopped")]
    Stopped,
    /// A layer, experts, a file: where and what.
    #[error("{0}")]
    Malformed(Problem),
}

impl StreamError {
    pub(super) fn at(at: impl Into<String>, what: impl ToString) -> Self {
        Self::Malformed(Problem::new(at, what.to_string()))
    }
}
