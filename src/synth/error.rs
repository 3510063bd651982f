//! The ways a synthetic checkpoint cannot be made.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::quantise::AllZeroBlock;
use k3_checkpoint::Problem;
use k3_checkpoint::config::ConfigError;

/// One way a synthetic checkpoint cannot be made.
#[derive(Debug, Error)]
pub enum SynthError {
    /// A size that was asked for is out of range.
    #[error("--{option} {got}: expected {expected}")]
    Size {
        /// The option's name.
        option: &'static str,
        /// What was asked for.
        got: usize,
        /// What would do.
        expected: String,
    },
    /// Sizes that are each in range, but not together.
    #[error("{tensors} tensors: expected {limit} at most")]
    TooManyTensors {
        /// How many there would be.
        tensors: u64,
        /// How many there may be.
        limit: u64,
    },
    /// The config that follows is refused by the reader.
    #[error("the config of this shape is refused: {0}")]
    Config(#[from] ConfigError),
    /// A header cannot be laid out.
    #[error("{file}: {reason}")]
    Layout {
        /// The shard.
        file: String,
        /// Why.
        reason: Problem,
    },
    /// OUT is something else than a folder.
    #[error("{}: exists and is no folder", path.display())]
    NotAFolder {
        /// OUT.
        path: PathBuf,
    },
    /// OUT holds files that this command did not make and would have to live beside.
    #[error("{}: holds {file:?}, which is no part of this checkpoint", path.display())]
    ForeignFile {
        /// OUT.
        path: PathBuf,
        /// The first such file, by name.
        file: String,
    },
    /// A file of that name is there and is not what would be written.
    #[error("{}: is there already and belongs to another checkpoint: {difference}", path.display())]
    OtherCheckpoint {
        /// The file.
        path: PathBuf,
        /// Where it differs.
        difference: String,
    },
    /// Another run is writing there.
    #[error("{}: another process is writing a checkpoint there", path.display())]
    Busy {
        /// OUT.
        path: PathBuf,
    },
    /// The disk is too full, found before anything is written.
    #[error(
        "{}: {needed_bytes} bytes are to be written, {free_bytes} are free on that file system",
        path.display()
    )]
    NoSpace {
        /// OUT.
        path: PathBuf,
        /// What the missing files need.
        needed_bytes: u64,
        /// What an ordinary user may still write there.
        free_bytes: u64,
    },
    /// The system refused.
    #[error("{}: {doing}: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        reason: io::Error,
    },
    /// The generator drew nothing but zeros where a scale has to be found.
    #[error("{tensor}, row {row}: {reason}")]
    ZeroBlock {
        /// The matrix.
        tensor: String,
        /// Its row.
        row: usize,
        /// Which group.
        reason: AllZeroBlock,
    },
    /// Threads cannot be started.
    #[error("worker threads: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
}

impl SynthError {
    /// An error of the system at a path.
    pub(super) fn io(path: impl Into<PathBuf>, doing: &'static str, reason: io::Error) -> Self {
        let path = path.into();
        Self::Io { path, doing, reason }
    }
}
