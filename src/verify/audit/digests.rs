//! Whole files against a list of SHA-256, in the format of `sha256sum`: a digest, a space, a space
//! or a star, a file name.

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
    /// Lower-case hex.
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
    let mut entries = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        entries.push(entry(line).ok_or_else(|| {
            let got: String = line.chars().take(80).collect();
            let what = "expected 64 hex digits, two blanks and a plain file name, got";
            Problem::new(format!("line {}", number + 1), format!("{what} {got:?}")).in_file(path)
        })?);
    }
    if entries.is_empty() {
        return Err(Problem::whole("contains no digest").in_file(path).into());
    }
    Ok(entries)
}

fn entry(line: &str) -> Option<Entry> {
    let (digest, file) = line.split_once(' ')?;
    let file = file.strip_prefix([' ', '*'])?.trim_end();
    let is_hex = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    // Never a path out of the folder.
    let is_plain = Path::new(file).file_name() == Some(file.as_ref());
    (is_hex && is_plain)
        .then(|| Entry { digest: digest.to_ascii_lowercase(), file: file.to_owned() })
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
        if got != entry.digest {
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
