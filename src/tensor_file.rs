//! Answer files: safetensors whose values are wanted as f64 or as ids.
//!
//! Evidence, dumps and fixtures come in through here. F64, F32, F16 and BF16 widen exactly to f64;
//! I32 and I64 become ids; U8 is kept as ids too. Checkpoints are not read with this module.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use thiserror::Error;

use crate::stages::StageValues;

/// Why an answer file cannot be read.
#[derive(Debug, Error)]
pub enum TensorFileError {
    /// Missing or unreadable.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Not a sound safetensors file.
    #[error("{path}: {message}")]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// A tensor whose dtype is not one that answers come in.
    #[error("{path}: tensor {name}: expected a float or integer dtype, got {got}")]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its dtype.
        got: String,
    },
    /// An integer that is not an id.
    #[error("{path}: tensor {name}: expected ids below 2^31, got {got}")]
    Id {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The value.
        got: i64,
    },
}

/// The values of one tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorValues {
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Row-major values.
    pub values: StageValues,
    /// Whether the file held F32 (or narrower) rather than F64.
    pub is_f32: bool,
}

/// Reads every tensor of the file.
///
/// # Errors
///
/// [`TensorFileError`] for a file that is missing, damaged or holds another kind of data.
pub fn read_tensors(path: &Path) -> Result<BTreeMap<String, TensorValues>, TensorFileError> {
    let bytes = std::fs::read(path).map_err(|source| TensorFileError::Read {
        path: path.to_owned(),
        source,
    })?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| TensorFileError::Header {
        path: path.to_owned(),
        message: error.to_string(),
    })?;
    let mut tensors = BTreeMap::new();
    for (name, view) in file.iter() {
        let values = decode(path, name, view.dtype(), view.data())?;
        let is_f32 = view.dtype() != Dtype::F64;
        let tensor = TensorValues {
            shape: view.shape().to_vec(),
            values,
            is_f32,
        };
        tensors.insert(name.to_owned(), tensor);
    }
    Ok(tensors)
}

fn decode(
    path: &Path,
    name: &str,
    dtype: Dtype,
    bytes: &[u8],
) -> Result<StageValues, TensorFileError> {
    let real = |values: Vec<f64>| Ok(StageValues::Real(values));
    match dtype {
        Dtype::F64 => real(words(bytes, f64::from_le_bytes)),
        Dtype::F32 => real(words(bytes, |word| f64::from(f32::from_le_bytes(word)))),
        Dtype::F16 => real(words(bytes, |word| half::f16::from_le_bytes(word).to_f64())),
        Dtype::BF16 => real(words(bytes, |word| {
            half::bf16::from_le_bytes(word).to_f64()
        })),
        Dtype::I32 => Ok(StageValues::Ids(words(bytes, i32::from_le_bytes))),
        Dtype::U8 => Ok(StageValues::Ids(
            bytes.iter().map(|byte| i32::from(*byte)).collect(),
        )),
        Dtype::I64 => {
            let narrow = |value: i64| {
                i32::try_from(value).map_err(|_| TensorFileError::Id {
                    path: path.to_owned(),
                    name: name.to_owned(),
                    got: value,
                })
            };
            let ids: Result<Vec<i32>, _> = words(bytes, i64::from_le_bytes)
                .into_iter()
                .map(narrow)
                .collect();
            Ok(StageValues::Ids(ids?))
        }
        other => Err(TensorFileError::Dtype {
            path: path.to_owned(),
            name: name.to_owned(),
            got: format!("{other:?}"),
        }),
    }
}

fn words<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes
        .as_chunks::<N>()
        .0
        .iter()
        .map(|word| read(*word))
        .collect()
}
