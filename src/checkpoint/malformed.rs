//! The errors of files: what is wrong, where, and in which file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// One thing that is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where: a byte, a tensor, a field by its full path, a line; empty for the whole file.
    pub at: String,
    /// What: expected and got, as far as there is such.
    pub what: String,
}

impl Problem {
    /// Something wrong at a place.
    pub fn new(at: impl Into<String>, what: impl Into<String>) -> Self {
        Self { at: at.into(), what: what.into() }
    }

    /// Something wrong with one tensor.
    pub fn in_tensor(tensor: &str, what: impl Into<String>) -> Self {
        Self::new(format!("tensor {tensor:?}"), what)
    }

    /// Something wrong with the whole file.
    pub fn whole(what: impl ToString) -> Self {
        Self::new("", what.to_string())
    }

    /// The error for a file that has this problem.
    #[must_use]
    pub fn in_file(self, path: &Path) -> Malformed {
        Malformed { path: path.to_owned(), problem: self }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colon = if self.at.is_empty() { "" } else { ": " };
        write!(f, "{}{colon}{}", self.at, self.what)
    }
}

/// A file that cannot be read or is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}: {problem}", path.display())]
pub struct Malformed {
    /// The file.
    pub path: PathBuf,
    /// Where and what.
    pub problem: Problem,
}

impl Malformed {
    /// A file that the system refuses to open or read; a link that is the trouble is named.
    #[must_use]
    pub fn unreadable(path: &Path, reason: &io::Error) -> Self {
        let target = std::fs::read_link(path).unwrap_or_default();
        let (is_link, target) = (target != Path::new(""), target.display());
        let is_loop = reason.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
        let what = match reason.kind() {
            _ if is_link && is_loop => format!("link loop, it points to {target}"),
            io::ErrorKind::NotFound if is_link => {
                format!("dangling link, its target {target} does not exist")
            }
            io::ErrorKind::NotFound => "no such file".to_owned(),
            _ => format!("cannot be read: {reason}"),
        };
        Problem::whole(what).in_file(path)
    }
}
