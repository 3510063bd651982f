//! Runs: the tensors of a layer, or of an expert, as they are read together.
//!
//! A run is one stretch of a file where the tensors are contiguous (as in every layer and expert of
//! the release), several stretches where they do not. Each stretch is read from the block it starts
//! in to the block it ends in; a tensor keeps its place within its block, so nothing is copied.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::NOT_IN_RUN;
use super::blocks::{BLOCK_BYTES, Slot, whole_blocks};
use super::read::{BlockFile, ReadJob};
use crate::kernels::matrix::SharedBytes;
use crate::model::{EngineError, TensorSpec, WeightSource};
use k3_checkpoint::{Checkpoint, Dtype, ReadError, TensorId};

/// Bytes of one request: large enough for the device, small enough for several at a time.
const PIECE_BYTES: usize = 16 << 20;

/// Consecutive bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    /// Index of the file.
    pub file: usize,
    /// Absolute offset of the first byte.
    pub offset: u64,
    /// Bytes.
    pub length: usize,
    /// Start of its first block in the buffer; a multiple of 4096.
    pub base: usize,
}

impl Stretch {
    /// Bytes of its first block that precede it.
    #[must_use]
    pub fn lead(&self) -> usize {
        (self.offset % BLOCK_BYTES as u64) as usize
    }

    /// Bytes of all its blocks.
    fn block_bytes(&self) -> usize {
        whole_blocks(self.lead() + self.length)
    }
}

/// A tensor in the buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Full name.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Its bytes in the buffer.
    pub range: Range<usize>,
}

/// What is read together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Run {
    /// Stretches, by file and offset.
    pub stretches: Vec<Stretch>,
    /// Tensors, by place.
    pub tensors: Vec<Placed>,
    /// Digest of its bytes, where a pack states one.
    pub digest: Option<String>,
}

impl Run {
    /// The run of some tensors of a checkpoint; files are its shards.
    #[must_use]
    pub fn of(checkpoint: &Checkpoint, ids: &[TensorId]) -> Self {
        let mut run = Self::default();
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        for info in ids.iter().map(|&id| checkpoint.info(id)) {
            let length = info.byte_len as usize;
            let behind = |last: &&mut Stretch| {
                last.file == info.shard && last.offset + last.length as u64 == info.offset
            };
            if let Some(last) = run.stretches.last_mut().filter(behind) {
                last.length += length;
            } else {
                let base = run.buffer_bytes();
                run.stretches.push(Stretch { file: info.shard, offset: info.offset, length, base });
            }
            let last = &run.stretches[run.stretches.len() - 1];
            let start = last.base + last.lead() + last.length - length;
            run.tensors.push(Placed {
                name: info.name.to_owned(),
                dtype: info.dtype,
                shape: info.shape.to_vec(),
                range: start..start + length,
            });
        }
        run
    }

    /// Bytes of the buffer it needs; a multiple of 4096.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.stretches.last().map_or(0, |last| last.base + last.block_bytes())
    }

    /// Bytes of its tensors.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.range.len() as u64).sum()
    }

    /// Bytes of tensors that must be copied out because their place is not a multiple of 8.
    #[must_use]
    pub fn copied_bytes(&self) -> usize {
        let crooked = |tensor: &&Placed| !tensor.range.start.is_multiple_of(8);
        let tensors = self.tensors.iter().filter(crooked);
        tensors.map(|tensor| tensor.range.len()).sum()
    }

    /// File and offset by which requests are sorted.
    #[must_use]
    pub fn place(&self) -> (usize, u64) {
        self.stretches.first().map_or((0, 0), |first| (first.file, first.offset))
    }

    /// The requests that fill `buffer`, in pieces, by place.
    pub fn jobs<'a>(&self, files: &'a [BlockFile], mut buffer: &'a mut [u8]) -> Vec<ReadJob<'a>> {
        let mut jobs = Vec::new();
        for stretch in &self.stretches {
            let (blocks, rest) = buffer.split_at_mut(stretch.block_bytes());
            buffer = rest;
            let mut offset = stretch.offset - stretch.lead() as u64;
            let mut wanted = stretch.lead() + stretch.length;
            for piece in blocks.chunks_mut(PIECE_BYTES) {
                let length = piece.len();
                jobs.push(ReadJob {
                    file: &files[stretch.file],
                    offset,
                    wanted: wanted.min(length),
                    buffer: piece,
                });
                offset += length as u64;
                wanted = wanted.saturating_sub(length);
            }
        }
        jobs
    }
}

/// Opens every shard of a checkpoint for reads of whole blocks.
///
/// # Errors
/// One that cannot be opened.
pub fn open_shards(checkpoint: &Checkpoint, direct: bool) -> Result<Vec<BlockFile>, ReadError> {
    let shards = checkpoint.shards().iter();
    shards.map(|shard| BlockFile::open(shard.path(), direct)).collect()
}

/// The tensors of a run that has been read.
#[derive(Debug)]
pub struct RunSource<'a> {
    /// Where they are stored.
    pub run: &'a Run,
    /// The files of its stretches.
    pub files: &'a [BlockFile],
    /// The bytes.
    pub slot: Arc<Slot>,
}

impl WeightSource for RunSource<'_> {
    fn tensor(&self, spec: &TensorSpec) -> Result<SharedBytes, EngineError> {
        let found = self.run.tensors.iter().find(|tensor| tensor.name == spec.name);
        let Some(tensor) = found else {
            return Err(EngineError::source(&spec.name, NOT_IN_RUN));
        };
        if (tensor.dtype, &tensor.shape) != (spec.dtype, &spec.shape) {
            let expected = format!("{} {:?}", spec.dtype.name(), spec.shape);
            let got = format!("{} {:?}", tensor.dtype.name(), tensor.shape);
            return Err(EngineError::source(&spec.name, format!("expected {expected}, got {got}")));
        }
        let owner: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::clone(&self.slot) as _;
        Ok(SharedBytes::new(owner, tensor.range.clone()))
    }

    fn file(&self, name: &str) -> Option<&Path> {
        let tensor = self.run.tensors.iter().find(|tensor| tensor.name == name)?;
        let mut stretches = self.run.stretches.iter().rev();
        let stretch = stretches.find(|stretch| stretch.base <= tensor.range.start)?;
        Some(self.files.get(stretch.file)?.path())
    }
}
