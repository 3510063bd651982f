//! Reads of whole blocks, past the page cache where the file system allows it.
//!
//! A weight is read once per token and never twice in a row: the page cache would only evict more
//! useful pages. Direct reads want aligned addresses, offsets and lengths, and the last block of a
//! file is partial; where they are refused (tmpfs, overlays, network file systems) the file is read
//! through the cache and a note says so. Nothing is mapped: a file cut while it is mapped kills the
//! process with a signal, a positioned read reports it.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::blocks::BLOCK_BYTES;
use crate::kernels::threads::Threads;
use k3_checkpoint::ReadError;
use k3_checkpoint::shard::READ_CALL_BYTES;

/// Something that is read by position.
pub trait ReadAt: Send + Sync + std::fmt::Debug {
    /// Reads some bytes at `offset`; 0 only at the end.
    ///
    /// # Errors
    /// Whatever the system says.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl ReadAt for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }
}

/// A file read in whole blocks.
#[derive(Debug)]
pub struct BlockFile {
    path: PathBuf,
    cached: Box<dyn ReadAt>,
    direct: Option<Box<dyn ReadAt>>,
    direct_refused: AtomicBool,
}

impl BlockFile {
    /// Opens a file; `direct` asks for reads past the page cache.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path, direct: bool) -> Result<Self, ReadError> {
        let cached = k3_core::host::files::open(path).map_err(|reason| ReadError::Io {
            path: path.to_owned(),
            offset: 0,
            wanted_bytes: 0,
            reason,
        })?;
        let flag = rustix::fs::OFlags::DIRECT.bits() as i32;
        let direct = direct
            .then(|| File::options().read(true).custom_flags(flag).open(path))
            .and_then(Result::ok)
            .map(|file| Box::new(file) as Box<dyn ReadAt>);
        Ok(Self::of(path, Box::new(cached), direct))
    }

    /// A file with readers supplied by the caller: `cached` takes any request, `direct` aligned
    /// ones.
    #[must_use]
    pub fn of(path: &Path, cached: Box<dyn ReadAt>, direct: Option<Box<dyn ReadAt>>) -> Self {
        let direct_refused = AtomicBool::new(direct.is_none());
        Self { path: path.to_owned(), cached, direct, direct_refused }
    }

    /// The file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether reads go past the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        !self.direct_refused.load(Ordering::Relaxed)
    }

    /// Fills `buffer` (whole blocks, aligned) from `offset` (a multiple of 4096). The first
    /// `wanted` bytes must arrive; the rest may be past the end of the file.
    ///
    /// # Errors
    /// [`ReadError::EarlyEnd`], [`ReadError::Io`].
    pub fn read_blocks(
        &self,
        offset: u64,
        wanted: usize,
        buffer: &mut [u8],
    ) -> Result<(), ReadError> {
        let mut done = 0;
        while done < wanted {
            let end = buffer.len().min(done + READ_CALL_BYTES);
            let (part, at) = (&mut buffer[done..end], offset + done as u64);
            match self.read_some(part, at) {
                Ok(0) => {
                    return Err(ReadError::EarlyEnd {
                        path: self.path.clone(),
                        offset,
                        wanted_bytes: wanted,
                        got_bytes: done,
                    });
                }
                Ok(count) => done += count,
                Err(reason) if reason.kind() == io::ErrorKind::Interrupted => {}
                Err(reason) => {
                    return Err(ReadError::Io {
                        path: self.path.clone(),
                        offset,
                        wanted_bytes: wanted,
                        reason,
                    });
                }
            }
        }
        Ok(())
    }

    /// One call. After a short direct read the next place is not aligned: the rest of that
    /// request goes through the cache.
    fn read_some(&self, part: &mut [u8], at: u64) -> io::Result<usize> {
        let aligned = at.is_multiple_of(BLOCK_BYTES as u64)
            && part.len().is_multiple_of(BLOCK_BYTES)
            && part.as_ptr().align_offset(BLOCK_BYTES) == 0;
        match &self.direct {
            Some(direct) if aligned && self.is_direct() => match direct.read_at(part, at) {
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    // Refused at the first read rather than at open; the cache takes over.
                    self.direct_refused.store(true, Ordering::Relaxed);
                    self.cached.read_at(part, at)
                }
                other => other,
            },
            _ => self.cached.read_at(part, at),
        }
    }
}

/// One request.
#[derive(Debug)]
pub struct ReadJob<'a> {
    /// The file.
    pub file: &'a BlockFile,
    /// Where: a multiple of 4096.
    pub offset: u64,
    /// Bytes that must arrive.
    pub wanted: usize,
    /// Whole blocks to fill.
    pub buffer: &'a mut [u8],
}

/// Reads everything, several requests at a time, taken in the order of `jobs`; of several
/// failures the first in that order is told.
///
/// # Errors
/// See [`BlockFile::read_blocks`].
pub fn read_all(threads: &Threads, jobs: Vec<ReadJob<'_>>) -> Result<(), ReadError> {
    let workers = threads.count().min(jobs.len());
    let jobs: Vec<Mutex<Option<ReadJob<'_>>>> =
        jobs.into_iter().map(|job| Mutex::new(Some(job))).collect();
    let next = AtomicUsize::new(0);
    let failure: Mutex<Option<(usize, ReadError)>> = Mutex::new(None);
    threads.for_each((0..workers).collect(), &|_| {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(place) else { break };
            let job = job.lock().unwrap_or_else(PoisonError::into_inner).take();
            let Some(job) = job else { continue };
            if let Err(error) = job.file.read_blocks(job.offset, job.wanted, job.buffer) {
                let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                if failure.as_ref().is_none_or(|(first, _)| place < *first) {
                    *failure = Some((place, error));
                }
            }
        }
    });
    let failure = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
    failure.map_or(Ok(()), |(_, error)| Err(error))
}

#[cfg(test)]
mod tests {
    use super::super::blocks::Buffer;
    use super::*;

    /// Answers by a script; the data is byte i = i mod 251.
    #[derive(Debug)]
    struct Scripted {
        length: u64,
        script: Mutex<Vec<Answer>>,
        strict: bool,
    }

    #[derive(Debug)]
    enum Answer {
        AtMost(usize),
        Interrupted,
        Broken,
        Refused,
    }

    impl ReadAt for Scripted {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
            if self.strict {
                let aligned = offset.is_multiple_of(4096)
                    && buffer.len().is_multiple_of(4096)
                    && buffer.as_ptr().align_offset(4096) == 0;
                assert!(aligned, "a request that a device refuses");
            }
            let most = match self.script.lock().unwrap().pop() {
                Some(Answer::AtMost(most)) => most,
                Some(Answer::Interrupted) => return Err(io::ErrorKind::Interrupted.into()),
                Some(Answer::Broken) => return Err(io::Error::other("broken")),
                Some(Answer::Refused) => return Err(io::ErrorKind::InvalidInput.into()),
                None => usize::MAX,
            };
            let left = self.length.saturating_sub(offset) as usize;
            let count = left.min(buffer.len()).min(most);
            for (index, byte) in buffer[..count].iter_mut().enumerate() {
                *byte = ((offset + index as u64) % 251) as u8;
            }
            Ok(count)
        }
    }

    fn scripted(length: u64, mut answers: Vec<Answer>, strict: bool) -> Box<dyn ReadAt> {
        answers.reverse();
        let script = Mutex::new(answers);
        Box::new(Scripted { length, script, strict })
    }

    fn read(file: &BlockFile, offset: u64, wanted: usize) -> Result<Buffer, ReadError> {
        let mut buffer = Buffer::zeroed(wanted);
        file.read_blocks(offset, wanted, buffer.bytes_mut())?;
        for (index, &byte) in buffer.bytes()[..wanted].iter().enumerate() {
            assert_eq!(byte, ((offset + index as u64) % 251) as u8, "byte {index}");
        }
        Ok(buffer)
    }

    /// E03: the last block is partial, reads come in pieces and are interrupted; the direct reader
    /// never sees a request that a device would refuse (E02).
    #[test]
    fn e03_pieces_interruptions_and_a_partial_last_block() {
        let length = 4096 * 5 + 17;
        let pieces = || {
            vec![Answer::AtMost(1), Answer::AtMost(511), Answer::Interrupted, Answer::AtMost(4095)]
        };
        let cached = BlockFile::of(Path::new("t"), scripted(length, pieces(), false), None);
        read(&cached, 0, length as usize).unwrap();
        let (rest, direct) = (scripted(length, pieces(), false), scripted(length, pieces(), true));
        let both = BlockFile::of(Path::new("t"), rest, Some(direct));
        read(&both, 0, length as usize).unwrap();
        read(&both, 8192, length as usize - 8192).unwrap();
        assert!(both.is_direct());
    }

    /// E03: a reader that ends early is an error with place and counts, never stale bytes.
    #[test]
    fn e03_an_early_end_is_told_with_offset_and_counts() {
        let file = BlockFile::of(Path::new("t"), scripted(5000, vec![], false), None);
        let error = read(&file, 4096, 4096).unwrap_err();
        let ReadError::EarlyEnd { offset, wanted_bytes, got_bytes, .. } = error else {
            panic!("{error}")
        };
        assert_eq!((offset, wanted_bytes, got_bytes), (4096, 4096, 904));
    }

    /// E04: refused at the first read and not at open: the cache takes over, bytes and all.
    #[test]
    fn e04_a_refused_direct_read_falls_back() {
        let direct = scripted(9000, vec![Answer::Refused], true);
        let file = BlockFile::of(Path::new("t"), scripted(9000, vec![], false), Some(direct));
        read(&file, 0, 9000).unwrap();
        assert!(!file.is_direct());
    }

    /// A failing device is an error, and of several failures the first place is told.
    #[test]
    fn the_first_failure_by_place_is_told() {
        let threads = Threads::new(3).unwrap();
        let good = BlockFile::of(Path::new("good"), scripted(9000, vec![], false), None);
        let bad = |name: &str| {
            let answers = vec![Answer::Broken, Answer::Broken];
            BlockFile::of(Path::new(name), scripted(9000, answers, false), None)
        };
        let (first, second) = (bad("first"), bad("second"));
        let mut buffers: Vec<Buffer> = (0..3).map(|_| Buffer::zeroed(4096)).collect();
        let files = [&good, &first, &second];
        let jobs = buffers.iter_mut().zip(files).map(|(buffer, file)| ReadJob {
            file,
            offset: 0,
            wanted: 4096,
            buffer: buffer.bytes_mut(),
        });
        let error = read_all(&threads, jobs.collect()).unwrap_err();
        assert!(error.to_string().starts_with("first:"), "{error}");
    }
}
