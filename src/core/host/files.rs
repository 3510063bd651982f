//! Files that appear whole or not at all.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tempfile::NamedTempFile;

/// How the name of a file begins that is not whole yet.
pub const UNFINISHED: &str = ".writing-";

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
        .prefix(UNFINISHED)
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder.unwrap_or(Path::new(".")))
}

/// Gives a file from [`temporary_beside`] its name once its bytes are on the disk.
///
/// # Errors
/// It cannot be written to the end or renamed.
pub fn finish(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.as_file().sync_all()?;
    file.persist(path).map(|_| ()).map_err(|error| error.error)
}

/// Writes a file by `fill`: until it is whole, `path` is what it was.
///
/// # Errors
/// Those of [`temporary_beside`], [`finish`] and `fill`.
pub fn replace_file_by(
    path: &Path,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = temporary_beside(path)?;
    // The file itself: its wrapper would put the temporary name into every error.
    fill(file.as_file_mut())?;
    finish(file, path)
}

/// Writes a file of these bytes, as [`replace_file_by`] does.
///
/// # Errors
/// It cannot be written; then `path` is what it was.
pub fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_file_by(path, |file| file.write_all(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("report");
        replace_file(&path, b"old").expect("the file");
        let failed = replace_file_by(&path, |file| {
            file.write_all(b"half")?;
            Err(io::Error::other("the disk is full"))
        });
        assert_eq!(failed.expect_err("no file").to_string(), "the disk is full");
        assert_eq!(fs::read(&path).expect("the old one"), b"old");
        assert_eq!(fs::read_dir(folder.path()).expect("its entries").count(), 1);
    }

    #[test]
    fn what_is_no_regular_file_is_not_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = replace_file(folder.path(), b"").expect_err("a folder is no file");
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }
}
