//! The engine's tensors from a checkpoint on disk, through the strict reader.
//!
//! Dtype and shape are compared with what the configuration implies before anything is read.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use super::{EngineError, TensorSpec, WeightSource};
use crate::kernels::matrix::SharedBytes;
use k3_checkpoint::Checkpoint;

/// What is read in one piece.
const PART_BYTES: usize = 1 << 24;

/// A source that keeps the names of the tensors it gave.
#[derive(Debug)]
pub struct Recorded<S> {
    source: S,
    given: Mutex<BTreeSet<String>>,
}

impl<S: WeightSource> Recorded<S> {
    /// Of another source; nothing is given yet.
    pub fn new(source: S) -> Self {
        Self { source, given: Mutex::default() }
    }

    /// Full names of the tensors that were given.
    pub fn into_given(self) -> BTreeSet<String> {
        self.given.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: WeightSource> WeightSource for Recorded<S> {
    fn tensor(&self, spec: &TensorSpec) -> Result<SharedBytes, EngineError> {
        let bytes = self.source.tensor(spec)?;
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.insert(spec.name.clone());
        Ok(bytes)
    }

    fn file(&self, name: &str) -> Option<&Path> {
        self.source.file(name)
    }
}

impl<S: WeightSource + ?Sized> WeightSource for &S {
    fn tensor(&self, spec: &TensorSpec) -> Result<SharedBytes, EngineError> {
        (**self).tensor(spec)
    }

    fn file(&self, name: &str) -> Option<&Path> {
        (**self).file(name)
    }
}

impl WeightSource for Checkpoint {
    fn file(&self, name: &str) -> Option<&Path> {
        self.tensor(name).map(|info| self.shard_path(info.shard))
    }

    fn tensor(&self, spec: &TensorSpec) -> Result<SharedBytes, EngineError> {
        let Some(info) = self.tensor(&spec.name) else {
            let what = format!("missing from {}", self.folder().display());
            return Err(EngineError::source(&spec.name, what));
        };
        if (info.dtype, info.shape) != (spec.dtype, spec.shape.as_slice()) {
            let expected = format!("{} {:?}", spec.dtype.name(), spec.shape);
            let got = format!("{} {:?}", info.dtype.name(), info.shape);
            return Err(EngineError::source(&spec.name, format!("expected {expected}, got {got}")));
        }
        let read = |buffer: &mut [u8]| {
            // Side by side where the caller brings threads; nowhere is the global pool begun.
            if rayon::current_thread_index().is_none() {
                return self.read_into(&info, 0..info.byte_len, buffer);
            }
            let parts = buffer.par_chunks_mut(PART_BYTES).enumerate();
            parts.try_for_each(|(part, buffer)| {
                let first = (part * PART_BYTES) as u64;
                self.read_into(&info, first..first + buffer.len() as u64, buffer)
            })
        };
        let bytes = SharedBytes::filled(info.byte_len as usize, read);
        bytes.map_err(|error| EngineError::source(&spec.name, error))
    }
}
