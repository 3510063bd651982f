//! Files that are read only if they are regular, and files that appear whole or not at all.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tempfile::{NamedTempFile, TempDir};

/// How the name of a file begins that is not whole yet.
pub const UNFINISHED: &str = ".writing-";

/// Opens a regular file to read. A FIFO or a device would keep the program waiting.
///
/// # Errors
/// It cannot be opened, or is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    // Opening a FIFO would wait for a writer: the flag keeps it from that.
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a regular file")) }
}

/// `O_NONBLOCK` of Linux.
const O_NONBLOCK: i32 = 0o4000;

/// The bytes of a regular file.
///
/// # Errors
/// As [`open`], or it cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The bytes of a regular file of at most so many; of a larger one none are read.
///
/// # Errors
/// As [`read`], or it is larger.
pub fn read_at_most(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let mut got = file.metadata()?.len();
    let mut bytes = Vec::new();
    if got <= limit {
        // It may grow while it is read.
        got = file.take(limit + 1).read_to_end(&mut bytes)? as u64;
    }
    if got > limit {
        return Err(io::Error::other(format!("expected at most {limit} bytes, got {got}")));
    }
    Ok(bytes)
}

/// The text of a regular file.
///
/// # Errors
/// As [`read`], or it is not UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    let text = String::from_utf8(read(path)?);
    text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Random letters and digits at the end of the name of a temporary file or folder.
const RANDOM_CHARS: usize = 12;

/// Temporary files and folders of this process, some of them gone by now. Their names are random,
/// so that none of them is anybody else's.
static LEFTOVERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes every temporary file and folder of this process, which is about to end: no other thread
/// makes one after this.
pub fn remove_leftovers() {
    // A thread that makes one at this moment takes no longer, unless it is stuck.
    let held = (0..100).find_map(|_| {
        let held = LEFTOVERS.try_lock();
        if held.is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        held.ok()
    });
    let Some(leftovers) = held else { return };
    let remove = |path: &PathBuf| match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path).is_ok(),
        Ok(_) => fs::remove_file(path).is_ok(),
        Err(_) => true,
    };
    // Other threads may still write into a folder that is being removed.
    for _ in 0..100 {
        if leftovers.iter().filter(|path| !remove(path)).count() == 0 {
            break;
        }
    }
    std::mem::forget(leftovers);
}

/// Makes something temporary by `make`, which gives its path and a handle to lock it with. The lock
/// tells the next run that it is in use: it ends with the process, however that ends.
fn temporary<T>(
    make: impl Fn() -> io::Result<T>,
    of: impl Fn(&T) -> io::Result<(&Path, File)>,
) -> io::Result<(T, File)> {
    loop {
        let mut leftovers = LEFTOVERS.lock().unwrap_or_else(PoisonError::into_inner);
        let made = make()?;
        let (path, handle) = of(&made)?;
        leftovers.push(std::path::absolute(path)?);
        // Where there are no locks, nobody takes one to remove it either.
        let _ = handle.lock();
        // Between its making and its lock it looked abandoned, and may have been removed.
        let own = handle.metadata()?;
        if fs::metadata(path).is_ok_and(|found| id(&found) == id(&own)) {
            return Ok((made, handle));
        }
    }
}

/// What tells a file from all others: links to it have the same.
pub(super) fn id(of: &Metadata) -> (u64, u64) {
    (of.dev(), of.ino())
}

/// Removes what dead processes left in a folder under names that begin with `prefix`.
pub fn remove_abandoned(folder: &Path, prefix: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let random = name.to_str().and_then(|name| name.strip_prefix(prefix));
        let is_ours = |random: &str| {
            random.len() == RANDOM_CHARS && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        let path = entry.path();
        let kind = entry.file_type().ok().filter(|kind| kind.is_dir() || kind.is_file());
        let (true, Some(kind)) = (random.is_some_and(is_ours), kind) else { continue };
        let Ok(handle) = File::open(&path) else { continue };
        if handle.try_lock().is_ok() {
            // What cannot be removed does no harm.
            let _ = if kind.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
    }
}

/// A temporary folder, removed when it is dropped.
#[derive(Debug)]
pub struct Scratch {
    folder: TempDir,
    _lock: File,
}

impl Scratch {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Leaves it where it is, or was: it may have been renamed.
    pub fn keep(self) {
        let _ = self.folder.keep();
    }
}

/// A temporary folder in the system's place for them, or in `parent`.
///
/// # Errors
/// It cannot be made.
pub fn scratch_folder(prefix: &str, parent: Option<&Path>) -> io::Result<Scratch> {
    let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
    remove_abandoned(&parent, prefix);
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix(prefix).rand_bytes(RANDOM_CHARS);
    let make = || builder.tempdir_in(&parent);
    let (folder, lock) = temporary(make, |folder| Ok((folder.path(), File::open(folder.path())?)))?;
    Ok(Scratch { folder, _lock: lock })
}

/// Bytes that can still be written to the file system of a path.
///
/// # Errors
/// The system does not say.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let space = rustix::fs::statvfs(path)?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

/// The folder that a path is in.
#[must_use]
pub fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// What a path leads to: a symlink is followed, so that what is written replaces the file and not
/// the link to it.
pub(super) fn followed(path: &Path) -> io::Result<PathBuf> {
    if !path.is_symlink() {
        return Ok(path.to_owned());
    }
    fs::canonicalize(path).map_err(|_| io::Error::other("is a symlink that leads nowhere"))
}

/// A temporary file in the folder of `path`, to be renamed to it when it is whole. It may be read
/// by whom the umask allows, as any new file.
///
/// # Errors
/// The folder cannot be written, or `path` is there and is no regular file: renaming over a device
/// would replace it.
pub fn temporary_beside(path: &Path) -> io::Result<NamedTempFile> {
    let path = followed(path)?;
    if fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
        return Err(io::Error::other("is there and is not a regular file"));
    }
    let folder = folder_of(&path);
    remove_abandoned(folder, UNFINISHED);
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix(UNFINISHED).rand_bytes(RANDOM_CHARS);
    let builder = builder.permissions(Permissions::from_mode(0o666));
    let make = || builder.tempfile_in(folder);
    let (file, _) = temporary(make, |file| Ok((file.path(), file.as_file().try_clone()?)))?;
    Ok(file)
}

/// Gives a file from [`temporary_beside`] its name once its bytes are on the disk.
///
/// # Errors
/// It cannot be written to the end or renamed.
pub fn finish(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.as_file().sync_all()?;
    file.persist(followed(path)?).map(|_| ()).map_err(|error| error.error)
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
    fn a_symlink_is_followed_and_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        replace_file(&file, b"old").expect("the file");
        std::os::unix::fs::symlink("file", &link).expect("the link");
        replace_file(&link, b"new").expect("its target");
        assert!(link.is_symlink());
        assert_eq!(read(&file).expect("the file"), b"new");
        fs::remove_file(&file).expect("the file");
        assert!(replace_file(&link, b"").is_err());
    }

    #[test]
    fn a_folder_is_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = read(folder.path()).expect_err("a folder is no file");
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }

    #[test]
    fn what_is_no_regular_file_is_not_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = replace_file(folder.path(), b"").expect_err("a folder is no file");
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }
}
