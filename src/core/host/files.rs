//! Files that appear whole or not at all.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tempfile::NamedTempFile;

/// A temporary file in the folder of `path`, to be renamed to it when it is whole. It may be read
/// by whom the umask allows, as any new file.
///
/// # Errors
/// The folder cannot be written, or `path` is there and is no regular file: renaming over a device
/// would replace it.
pub fn temporary_beside(path: &Path) -> io::Result<NamedTempFile> {
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(io::Error::other("is there and is not a regular file"));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder.unwrap_or(Path::new(".")))
}
