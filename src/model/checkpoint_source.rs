//! The engine's tensors from a checkpoint on disk, through the strict reader.
//!
//! Dtype and shape are compared with what the configuration implies before anything is read.

use super::{EngineError, TensorSpec, WeightSource};
use crate::checkpoint::Checkpoint;
use crate::kernels::matrix::SharedBytes;

/// A tensor that is not what the configuration implies.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error("missing from {0}")]
    Missing(String),
    #[error("expected {expected}, got {got}")]
    Other { expected: String, got: String },
}

impl WeightSource for Checkpoint {
    fn tensor(&self, spec: &TensorSpec) -> Result<SharedBytes, EngineError> {
        let Some(info) = self.tensor(&spec.name) else {
            let folder = self.folder().display().to_string();
            return Err(EngineError::source(&spec.name, Unfit::Missing(folder)));
        };
        if (info.dtype, info.shape) != (spec.dtype, spec.shape.as_slice()) {
            let expected = format!("{} {:?}", spec.dtype.name(), spec.shape);
            let got = format!("{} {:?}", info.dtype.name(), info.shape);
            return Err(EngineError::source(
                &spec.name,
                Unfit::Other { expected, got },
            ));
        }
        let read = |buffer: &mut [u8]| self.read_into(&info, 0..info.byte_len, buffer);
        let bytes = SharedBytes::filled(info.byte_len as usize, read);
        bytes.map_err(|error| EngineError::source(&spec.name, error))
    }
}
