//! Symbolic links that lead nowhere: hub caches are made of links, and "no such file" about a file
//! that a listing shows helps nobody.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// What is wrong with a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkTrouble {
    /// Its target does not exist.
    Dangling {
        /// What it points to.
        target: PathBuf,
    },
    /// It leads back to itself.
    Loop {
        /// What it points to.
        target: PathBuf,
    },
}

impl LinkTrouble {
    /// Whether a link is why the system refused to open `path`.
    #[must_use]
    pub fn of(path: &Path, error: &io::Error) -> Option<Self> {
        let target = std::fs::read_link(path).ok()?;
        if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) {
            return Some(Self::Loop { target });
        }
        (error.kind() == io::ErrorKind::NotFound).then_some(Self::Dangling { target })
    }
}

impl fmt::Display for LinkTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dangling { target } => {
                write!(f, "dangling link, its target {} does not exist", target.display())
            }
            Self::Loop { target } => write!(f, "link loop, it points to {}", target.display()),
        }
    }
}
