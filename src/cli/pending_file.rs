//! An output file of a long run. It is created at once, so that an unwritable path is found before
//! the work, and renamed at the end, so that a run that dies leaves nothing half-written.

use std::fs::File;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::output::{CommandError, unwritable};
use k3_core::host::files;

/// A file under a temporary name.
#[derive(Debug)]
pub struct PendingFile {
    file: NamedTempFile,
    path: PathBuf,
}

impl PendingFile {
    /// Creates it in the folder of `path`.
    pub fn create(path: &Path) -> Result<Self, CommandError> {
        let file = files::temporary_beside(path).map_err(|reason| unwritable(path, &reason))?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// The path it will have.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A handle to write with.
    pub fn writer(&self) -> Result<File, CommandError> {
        let file = self.file.reopen();
        file.map_err(|reason| unwritable(&self.path, &reason))
    }

    /// Renames it to its path.
    pub fn finish(self) -> Result<(), CommandError> {
        files::finish(self.file, &self.path).map_err(|reason| unwritable(&self.path, &reason))
    }
}
