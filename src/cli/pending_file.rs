//! An output file of a long run: made at once, so that what cannot be written is found before the
//! work, and given its name at the end, so that a run that dies leaves nothing half-written.

use std::fs::File;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::output::{CommandError, unwritable};
use k3_core::host::files;

/// A file that has no name yet.
#[derive(Debug)]
pub struct PendingFile {
    file: NamedTempFile,
    path: PathBuf,
}

impl PendingFile {
    /// Makes it beside `path`.
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

    /// Gives it its name.
    pub fn finish(self) -> Result<(), CommandError> {
        files::finish(self.file, &self.path).map_err(|reason| unwritable(&self.path, &reason))
    }
}
