//! What can go wrong with a pack.

use thiserror::Error;

use k3_checkpoint::{Malformed, ReadError};

/// One way a pack cannot be made or used.
#[derive(Debug, Error)]
pub enum PackError {
    /// A file that cannot be read or written, a manifest that is none, data that was changed, or a
    /// checkpoint that cannot be packed.
    #[error(transparent)]
    File(#[from] Malformed),
    /// A pack of another checkpoint.
    #[error(transparent)]
    OtherCheckpoint(Malformed),
    /// Somebody asked to stop; what is packed so far is kept.
    #[error("interrupted: {0}")]
    Interrupted(String),
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}
