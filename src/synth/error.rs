//! The ways a synthetic checkpoint cannot be made, one variant per exit code and hint.

use std::fmt::Display;
use std::path::Path;

use thiserror::Error;

use k3_checkpoint::config::ConfigError;
use k3_checkpoint::{Malformed, Problem};

/// One way a synthetic checkpoint cannot be made.
#[derive(Debug, Error)]
pub enum SynthError {
    /// A size that was asked for is out of range, or all of them together.
    #[error("{0}")]
    Size(String),
    /// The config that follows is refused by the reader.
    #[error("the config of this shape is refused: {0}")]
    Config(#[from] ConfigError),
    /// A header cannot be laid out.
    #[error(transparent)]
    Layout(Malformed),
    /// OUT is no folder, or holds files that this command did not make.
    #[error(transparent)]
    Taken(Malformed),
    /// A file of that name is there and is not what would be written.
    #[error(transparent)]
    OtherCheckpoint(Malformed),
    /// Another run is writing there.
    #[error(transparent)]
    Busy(Malformed),
    /// The disk is too full, found before anything is written.
    #[error(transparent)]
    NoSpace(Malformed),
    /// The system refused.
    #[error(transparent)]
    Io(Malformed),
    /// The generator drew nothing but zeros where a scale has to be found.
    #[error("{0}")]
    ZeroBlock(Problem),
    /// Threads cannot be started.
    #[error("worker threads: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
}

impl SynthError {
    /// An error of the system at a path.
    pub(super) fn io(path: impl AsRef<Path>, doing: &str, reason: impl Display) -> Self {
        Self::Io(Problem::new(doing, reason.to_string()).in_file(path.as_ref()))
    }
}
