//! Embedding rows and head from the disk: for machines where 4.7 GB of vocabulary do not fit.
//!
//! A token needs one row of the embedding and all of the head once; the head goes through in
//! chunks of rows. Each logit is one row product, so cutting the head changes no bit.

use std::ops::Range;
use std::sync::Arc;

use super::blocks::{BLOCK_BYTES, Pool, Slot, whole_blocks};
use super::read::{BlockFile, read_all};
use super::runs::{Run, Stretch};
use super::{NOT_IN_RUN, StreamError};
use crate::kernels::matrix::{Matrix, MatrixRef, SharedBytes};
use crate::kernels::rows::Row;
use crate::kernels::threads::Threads;
use crate::model::{EngineError, Shape, TensorSpec, VocabularySource};
use k3_checkpoint::{Checkpoint, ReadError, Role};

/// Bytes of a chunk of the head: large enough for the device, small compared with everything else.
const CHUNK_BYTES: usize = 16 << 20;

/// Rows of a chunk of the head.
fn chunk_rows(shape: &Shape) -> usize {
    (CHUNK_BYTES / (2 * shape.hidden)).clamp(1, shape.vocab)
}

/// Bytes of the buffers: one row, and one chunk of the head.
#[must_use]
pub fn buffer_bytes(shape: &Shape) -> usize {
    let row = 2 * shape.hidden;
    // A row may begin anywhere in a block.
    whole_blocks(row + BLOCK_BYTES) + whole_blocks(chunk_rows(shape) * row + BLOCK_BYTES)
}

/// One of the two tables on the disk.
#[derive(Debug)]
struct Table {
    file: usize,
    offset: u64,
    pool: Arc<Pool>,
}

/// The vocabulary, read at run time.
#[derive(Debug)]
pub struct StreamedVocabulary {
    hidden: usize,
    vocabulary: usize,
    rows: usize,
    files: Vec<BlockFile>,
    threads: Threads,
    embedding: Table,
    head: Table,
}

impl StreamedVocabulary {
    /// Finds both tables and takes the buffers.
    ///
    /// # Errors
    /// A table that is missing or has not the shape of the configuration.
    pub fn open(
        shape: &Shape,
        checkpoint: &Checkpoint,
        files: Vec<BlockFile>,
        io_threads: usize,
    ) -> Result<Self, EngineError> {
        let rows = chunk_rows(shape);
        let table = |role: Role, rows: usize| {
            let spec = TensorSpec::of(shape, role, 0, 0);
            let missing = || EngineError::source(&spec.name, NOT_IN_RUN);
            let info = checkpoint.tensor(&spec.name).ok_or_else(missing)?;
            if (info.dtype, info.shape) != (spec.dtype, &spec.shape) {
                let expected = format!("{} {:?}", spec.dtype.name(), spec.shape);
                let got = format!("{} {:?}", info.dtype.name(), info.shape);
                let what = format!("expected {expected}, got {got}");
                return Err(EngineError::source(&spec.name, what));
            }
            let pool = Pool::new(1, rows * 2 * shape.hidden + BLOCK_BYTES);
            Ok(Table { file: info.shard, offset: info.offset, pool })
        };
        Ok(Self {
            hidden: shape.hidden,
            vocabulary: shape.vocab,
            rows,
            embedding: table(Role::EmbedTokens, 1)?,
            head: table(Role::LmHead, rows)?,
            files,
            threads: Threads::new(io_threads)?,
        })
    }

    /// Rows of a table, as a matrix.
    fn read(&self, table: &Table, rows: &Range<usize>) -> Result<Matrix, StreamError> {
        let row_bytes = 2 * self.hidden;
        let run = Run {
            stretches: vec![Stretch {
                file: table.file,
                offset: table.offset + (rows.start * row_bytes) as u64,
                length: rows.len() * row_bytes,
                base: 0,
            }],
            ..Run::default()
        };
        let mut buffer = table.pool.take().ok_or(StreamError::Stopped)?;
        let read: Result<(), ReadError> =
            read_all(&self.threads, run.jobs(&self.files, buffer.bytes_mut()));
        let slot = Arc::new(Slot::pooled(buffer, &table.pool));
        read?;
        let lead = run.stretches[0].lead();
        let bytes = SharedBytes::new(slot, lead..lead + rows.len() * row_bytes);
        // The lengths agree by the lines above.
        Matrix::bf16(rows.len(), self.hidden, bytes)
            .map_err(|error| StreamError::at("rows of the vocabulary", error))
    }
}

impl VocabularySource for StreamedVocabulary {
    fn embed(&self, id: usize, take: &mut dyn FnMut(Row<'_>)) -> Result<(), EngineError> {
        let row = self.read(&self.embedding, &(id..id + 1));
        let row = row.map_err(|error| EngineError::source("embedding", error))?;
        take(row.view().row(0));
        Ok(())
    }

    fn head(&self, take: &mut dyn FnMut(Range<usize>, MatrixRef<'_>)) -> Result<(), EngineError> {
        for first in (0..self.vocabulary).step_by(self.rows) {
            let rows = first..(first + self.rows).min(self.vocabulary);
            let chunk = self.read(&self.head, &rows);
            let chunk = chunk.map_err(|error| EngineError::source("head", error))?;
            take(rows, chunk.view());
        }
        Ok(())
    }
}
