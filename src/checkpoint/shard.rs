//! One open shard: its header parsed and checked, its data read by position.
//!
//! Data is never mapped: a file cut while it is mapped kills the process with a signal, a
//! positioned read reports it. Short reads and interruptions are retried.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::foreign::{Foreign, SNIFF_BYTES};
use super::header::{Header, LENGTH_BYTES, NameResolver, header_length, parse_header};
use super::{Malformed, Problem};

/// Most bytes asked for in one call: systems cap a read at 0x7ffff000 bytes or fail above it.
pub const READ_CALL_BYTES: usize = 1 << 30;

/// Data that could not be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The file is shorter than it was when it was opened.
    #[error(
        "{}: file ends early: wanted {wanted_bytes} bytes at offset {offset}, got {got_bytes}",
        path.display()
    )]
    EarlyEnd {
        /// The file.
        path: PathBuf,
        /// Absolute offset of the request.
        offset: u64,
        /// Bytes asked for.
        wanted_bytes: usize,
        /// Bytes there were.
        got_bytes: usize,
    },
    /// The system refused.
    #[error("{}: reading {wanted_bytes} bytes at offset {offset} failed: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Absolute offset of the request.
        offset: u64,
        /// Bytes asked for.
        wanted_bytes: usize,
        /// What the system said.
        reason: io::Error,
    },
    /// A tensor that is not there, a range outside of it, or no memory for it.
    #[error(transparent)]
    File(#[from] Malformed),
}

/// An open shard.
#[derive(Debug)]
pub struct Shard {
    path: PathBuf,
    file: File,
    file_bytes: u64,
    header_bytes: u64,
    metadata: Vec<(String, String)>,
    unread_keys: BTreeSet<String>,
}

impl Shard {
    /// Opens the file and parses its header, naming tensors by `names`. The header's metadata
    /// moves into the shard, its entries are handed out.
    ///
    /// # Errors
    /// A file that cannot be read, and a header that is wrong.
    pub fn open(path: &Path, names: &mut dyn NameResolver) -> Result<(Self, Header), Malformed> {
        let in_file = |problem: Problem| problem.in_file(path);
        if let Some(what) = Foreign::of_name(path) {
            return Err(in_file(Problem::whole(format!("this is {what}"))));
        }
        let unreadable = |reason| Malformed::unreadable(path, &reason);
        // Looked at before it is opened: opening a pipe would wait for a writer.
        if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
            return Err(in_file(Problem::whole("not a regular file")));
        }
        let file = k3_core::host::files::open(path).map_err(unreadable)?;
        let file_bytes = file.metadata().map_err(unreadable)?.len();
        let read = |buffer: &mut [u8], offset| {
            read_full(buffer, offset, |part, at| file.read_at(part, at)).map_err(unreadable)
        };
        let mut first_bytes = [0; SNIFF_BYTES];
        let sniffed = read(&mut first_bytes, 0)?;
        let header_bytes = header_length(&first_bytes[..sniffed], file_bytes).map_err(in_file)?;
        // At most as long as the file and MAX_HEADER_BYTES.
        let mut header = vec![0; header_bytes as usize];
        let got = read(&mut header, LENGTH_BYTES)?;
        let data_bytes = file_bytes - LENGTH_BYTES - header_bytes;
        let mut header = parse_header(&header[..got], data_bytes, names).map_err(in_file)?;
        let metadata = std::mem::take(&mut header.metadata);
        let unread_keys = std::mem::take(&mut header.unread_keys);
        let path = path.to_owned();
        let shard = Self { path, file, file_bytes, header_bytes, metadata, unread_keys };
        Ok((shard, header))
    }

    /// The file's path, as opened (links not resolved).
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file, for readers with needs of their own (direct reads).
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Size of the file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Length of the header, padding included.
    #[must_use]
    pub fn header_bytes(&self) -> u64 {
        self.header_bytes
    }

    /// Absolute offset of the first data byte.
    #[must_use]
    pub fn data_start(&self) -> u64 {
        LENGTH_BYTES + self.header_bytes
    }

    /// `__metadata__`, in the order of the file.
    #[must_use]
    pub fn metadata(&self) -> &[(String, String)] {
        &self.metadata
    }

    /// Keys of the header's entries that the format does not have; the first few.
    #[must_use]
    pub fn unread_keys(&self) -> &BTreeSet<String> {
        &self.unread_keys
    }

    /// Fills `buffer` from absolute offset `offset`.
    ///
    /// # Errors
    /// [`ReadError::EarlyEnd`], [`ReadError::Io`].
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        let wanted_bytes = buffer.len();
        let path = || self.path.clone();
        match read_full(buffer, offset, |part, at| self.file.read_at(part, at)) {
            Ok(got_bytes) if got_bytes == wanted_bytes => Ok(()),
            Ok(got_bytes) => {
                Err(ReadError::EarlyEnd { path: path(), offset, wanted_bytes, got_bytes })
            }
            Err(reason) => Err(ReadError::Io { path: path(), offset, wanted_bytes, reason }),
        }
    }
}

/// Calls `read` until the buffer is full or the end is reached; gives the bytes read.
fn read_full(
    buffer: &mut [u8],
    offset: u64,
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        let end = buffer.len().min(done + READ_CALL_BYTES);
        match read(&mut buffer[done..end], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that takes one call for the whole answer loses bytes on a slow or busy disk.
    #[test]
    fn short_and_interrupted_reads_are_continued() {
        let data: Vec<u8> = (0..100).collect();
        let mut calls = 0;
        let mut buffer = [0; 50];
        let got = read_full(&mut buffer, 10, |part, at| {
            calls += 1;
            if calls % 2 == 0 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let count = part.len().min(7);
            part[..count].copy_from_slice(&data[at as usize..at as usize + count]);
            Ok(count)
        });
        assert_eq!(got.ok(), Some(50));
        assert_eq!(buffer[..], data[10..60]);
    }

    /// The end of a file and a failing disk are different things.
    #[test]
    fn an_early_end_and_a_failure_are_told_apart() {
        let mut buffer = [0; 8];
        let got = read_full(&mut buffer, 0, |_, at| Ok(if at < 3 { 1 } else { 0 }));
        assert_eq!(got.ok(), Some(3));
        let got = read_full(&mut buffer, 0, |_, _| Err(io::ErrorKind::Other.into()));
        assert!(got.is_err());
    }

    /// Two gigabytes at once fail on some systems and come back short on others.
    #[test]
    fn no_call_asks_for_more_than_the_cap() {
        const { assert!(READ_CALL_BYTES < 0x7FFF_F000) };
    }
}
