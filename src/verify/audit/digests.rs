//! Whole files against SHA-256: those of a list, and those that the Hugging Face cache names its
//! blobs by.
//!
//! A line of a list is a digest, a space, a space or a star and a name (`sha256sum`), or
//! `SHA256 (name) = digest` (BSD, openssl). Lists are made in other places, so of a path only its
//! last part counts; it is looked for in the checkpoint's folder and nowhere else.

use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest, Sha256};
use thiserror::Error;

use super::{Finding, Findings};
use k3_checkpoint::{Malformed, Problem};

/// A list that is no list of digests, or a file that cannot be read.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct DigestError(#[from] Malformed);

fn unreadable(path: &Path, reason: &io::Error) -> Malformed {
    Problem::new("cannot be read", reason.to_string()).in_file(path)
}

/// What a list says of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Hex.
    pub digest: String,
    /// File name in the checkpoint folder.
    pub file: String,
}

/// Reads a list.
///
/// # Errors
/// [`DigestError`].
pub fn read_list(path: &Path) -> Result<Vec<Entry>, DigestError> {
    let text =
        k3_core::host::files::read_to_string(path).map_err(|reason| unreadable(path, &reason))?;
    let mut entries: Vec<Entry> = Vec::new();
    for (number, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let refused = |what| Problem::new(format!("line {}", number + 1), what).in_file(path);
        let entry = entry(line).ok_or_else(|| {
            let got: String = line.chars().take(80).collect();
            refused(format!("expected 64 hex digits, two blanks and a file name, got {got:?}"))
        })?;
        match entries.iter().find(|known| known.file == entry.file) {
            Some(known) if known.digest != entry.digest => {
                return Err(
                    refused(format!("another digest of {:?} than before", entry.file)).into()
                );
            }
            Some(_) => {}
            None => entries.push(entry),
        }
    }
    if entries.is_empty() {
        return Err(Problem::whole("contains no digest").in_file(path).into());
    }
    Ok(entries)
}

fn entry(line: &str) -> Option<Entry> {
    let line = line.trim_end();
    let (digest, path) = match line.split_once(' ') {
        Some((digest, path)) if is_sha256(digest) => (digest, path.strip_prefix([' ', '*'])?),
        _ => {
            let rest = line.strip_prefix("SHA256").or_else(|| line.strip_prefix("SHA2-256"))?;
            let (path, digest) = rest.trim_start().strip_prefix('(')?.rsplit_once(')')?;
            (digest.trim_start().strip_prefix('=')?.trim_start(), path)
        }
    };
    // Never a path out of the folder.
    let file = Path::new(path).file_name().filter(|_| !path.ends_with('/'))?.to_str()?;
    is_sha256(digest).then(|| Entry { digest: digest.to_ascii_lowercase(), file: file.to_owned() })
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The files of a folder that are links to blobs of the Hugging Face cache, each with the SHA-256
/// that its blob is named by. (Small files have the name that Git gives them, of 40 digits.)
///
/// # Errors
/// The folder cannot be listed.
pub fn blobs(folder: &Path) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        // A link that leads nowhere is told among the files.
        let target = std::fs::canonicalize(&path).ok().filter(|_| path.is_symlink());
        let names = target.as_ref().map(|target| (path.file_name(), target.file_name()));
        if let Some((Some(file), Some(digest))) = names {
            let (file, digest) = (file.to_string_lossy(), digest.to_string_lossy());
            if is_sha256(&digest) {
                entries.push(Entry { digest: digest.into_owned(), file: file.into_owned() });
            }
        }
    }
    entries.sort_by(|a, b| a.file.cmp(&b.file));
    Ok(entries)
}

/// Hashes every listed file of the folder; gives what differs, and what is not there.
///
/// # Errors
/// A file that is there and cannot be read.
pub fn compare(
    folder: &Path,
    entries: &[Entry],
    done: &dyn Fn(u64),
) -> Result<(Findings, Vec<String>), DigestError> {
    let (mut findings, mut absent) = (Findings::default(), Vec::new());
    for entry in entries {
        let path = folder.join(&entry.file);
        let got = match hash(&path, done) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                absent.push(entry.file.clone());
                continue;
            }
            other => other.map_err(|reason| unreadable(&path, &reason))?,
        };
        if !got.eq_ignore_ascii_case(&entry.digest) {
            findings.push(Finding {
                file: entry.file.clone(),
                tensor: None,
                what: format!("expected SHA-256 {}, got {got}", entry.digest),
            });
        }
    }
    Ok((findings, absent))
}

fn hash(path: &Path, done: &dyn Fn(u64)) -> io::Result<String> {
    let mut file = k3_core::host::files::open(path)?;
    let (mut hash, mut block) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut block) {
            Ok(0) => break,
            Ok(count) => {
                hash.update(&block[..count]);
                done(count as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(k3_core::hex(hash.finalize()))
}
