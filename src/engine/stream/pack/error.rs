//! What can go wrong with a pack, one variant per way.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use k3_checkpoint::ReadError;

/// One way a pack cannot be made or used.
#[derive(Debug, Error)]
pub enum PackError {
    /// A file that cannot be read or written.
    #[error("{}: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// A manifest that is no manifest.
    #[error("{}: {reason}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A pack of another checkpoint.
    #[error("{}: made from checkpoint {found}, this is {expected}", path.display())]
    OtherCheckpoint {
        /// The manifest.
        path: PathBuf,
        /// Identity of the checkpoint at hand.
        expected: String,
        /// Identity in the manifest.
        found: String,
    },
    /// Tensors of a layer that do not lie behind one another.
    #[error(
        "layer {layer}: its {tensors} tensors ({bytes} bytes) lie in {pieces} pieces, expected 1"
    )]
    Scattered {
        /// The layer.
        layer: usize,
        /// Its tensors.
        tensors: usize,
        /// Their bytes.
        bytes: u64,
        /// Stretches.
        pieces: usize,
    },
    /// What was written is not what was read.
    #[error("{}: layer {layer}: sha256 {found}, expected {expected}", path.display())]
    Damaged {
        /// The data file.
        path: PathBuf,
        /// The layer.
        layer: usize,
        /// In the manifest.
        expected: String,
        /// Of the file.
        found: String,
    },
    /// Somebody asked to stop.
    #[error("interrupted: {done_layers} of {layers} layers are packed{}", if *verifying {
        ", not verified"
    } else {
        ""
    })]
    Interrupted {
        /// Layers that are packed, to be gone on from.
        done_layers: usize,
        /// Layers to pack.
        layers: usize,
        /// Whether all were packed and were being read again.
        verifying: bool,
    },
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}
