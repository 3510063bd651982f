//! Writes the trace (v1) of a run: steps as the run declares them, chunks as the layers see them.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::StreamError;
use k3_cache::shape::ModelShape;
use k3_cache::slot_table::Served;
use k3_cache::trace::Phase;
use k3_cache::trace::v1::{Header, TraceWriter};

type Sink = BufWriter<Box<dyn Write + Send>>;

/// A trace being written.
pub struct Recorder {
    path: PathBuf,
    writer: TraceWriter<Sink>,
    sizes: ModelShape,
    /// Layer that asked last in this chunk; none where the next demand opens a chunk.
    layer: Option<usize>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recorder({})", self.path.display())
    }
}

impl Recorder {
    /// Begins a trace in `sink`; `path` is for messages.
    ///
    /// # Errors
    /// The sink cannot be written.
    pub fn create(
        path: &Path,
        sink: Box<dyn Write + Send>,
        header: &Header,
    ) -> Result<Self, StreamError> {
        let writer = TraceWriter::create(BufWriter::new(sink), header);
        let writer = writer.map_err(|reason| cannot_write(path, &reason))?;
        Ok(Self { path: path.to_owned(), writer, sizes: header.shape, layer: None })
    }

    fn written(&self, result: std::io::Result<()>) -> Result<(), StreamError> {
        result.map_err(|reason| cannot_write(&self.path, &reason))
    }

    /// A forward pass begins.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn step(&mut self, phase: Phase, first: usize, count: usize) -> Result<(), StreamError> {
        self.layer = None;
        let result = self.writer.step(phase, first as u32, count as u32);
        self.written(result)
    }

    /// A layer is asked by the positions of a chunk, in order; a new chunk where the layers start
    /// again.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn demands(
        &mut self,
        layer: usize,
        position: usize,
        demands: &[&[usize]],
    ) -> Result<(), StreamError> {
        if self.layer.is_none_or(|last| layer <= last) {
            let result = self.writer.chunk(position as u32, demands.len() as u32);
            self.written(result)?;
        }
        self.layer = Some(layer);
        for (offset, ids) in demands.iter().enumerate() {
            let ids: Vec<u32> = ids.iter().map(|&id| id as u32).collect();
            let at = (position + offset) as u32;
            let result = self.writer.demand(layer as u32, at, &ids);
            self.written(result)?;
        }
        Ok(())
    }

    /// What the cache did with one request.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn decision(&mut self, served: Served) -> Result<(), StreamError> {
        let key = self.sizes.key(served.expert);
        let result = self.writer.decision(key, served.outcome);
        self.written(result)
    }

    /// Ends the trace; the file is whole only then.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn finish(self) -> Result<(), StreamError> {
        let finished = self.writer.finish().and_then(|mut sink| sink.flush());
        finished.map_err(|reason| cannot_write(&self.path, &reason))
    }
}

fn cannot_write(path: &Path, reason: &std::io::Error) -> StreamError {
    StreamError::at(path.display().to_string(), format!("cannot write: {reason}"))
}
