//! The ways a vocabulary's files, or an id, can be wrong.

use thiserror::Error;

use k3_checkpoint::{Malformed, Problem};

/// One way text cannot be read or written.
#[derive(Debug, Error)]
pub enum TextError {
    /// A file that cannot be read or is not what it should be.
    #[error(transparent)]
    File(#[from] Malformed),
    /// An id that stands for nothing, or a crate that carries another vocabulary than K3's.
    #[error("{0}")]
    Vocabulary(Problem),
}
