//! What can go wrong in the reference, one line per message.
//!
//! Messages name the file and the tensor, field or layer, what was expected and what was found. NaN
//! and infinity are not errors: they flow through the arithmetic to the logits.

use std::path::PathBuf;

/// An error of the reference's readers or of its forward pass.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceError {
    /// A file could not be opened or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file of the checkpoint is not what it should be.
    #[error("{}: {at}: {what}", path.display())]
    Malformed {
        /// The file, or the checkpoint folder where several are read for one value.
        path: PathBuf,
        /// The tensor, config field or place in the layer.
        at: String,
        /// What was expected and what was found.
        what: String,
    },
    /// A call asks for what the model does not have: an id, a layer, or nothing at all.
    #[error("{0}")]
    Call(String),
}
