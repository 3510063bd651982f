//! The ways a vocabulary's files, or an id, can be wrong.

use thiserror::Error;

use super::K3_VOCABULARY;
use k3_checkpoint::Malformed;

/// One way text cannot be read or written.
#[derive(Debug, Error)]
pub enum TextError {
    /// A file that cannot be read or is not what it should be.
    #[error(transparent)]
    File(#[from] Malformed),
    /// An id that stands for nothing.
    #[error(
        "token id {id}: expected an id of the vocabulary ({ranks} ranks from 0 on, markers up to \
         {}), got {id}", K3_VOCABULARY - 1
    )]
    NoSuchId {
        /// The id.
        id: u32,
        /// Ranks of the vocabulary.
        ranks: usize,
    },
    /// The crate carries another vocabulary than K3's.
    #[error("the built-in vocabulary: expected {expected} ranks, got {got}")]
    BuiltIn {
        /// Ranks of K3.
        expected: usize,
        /// Ranks of the crate's.
        got: usize,
    },
}
