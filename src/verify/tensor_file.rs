//! Answer files: safetensors read as f64 or as ids.
//!
//! Evidence, dumps and fixtures are read by this module. F64, F32, F16 and BF16 widen exactly to
//! f64; I32 and I64 become ids; U8 is kept as ids too. What else a file has is left and listed.
//! Checkpoints are not read with this module.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Read as _};
use std::path::Path;

use safetensors::tensor::{Metadata, TensorView};
use safetensors::{Dtype, SafeTensors};
use thiserror::Error;

use k3_checkpoint::json::Raw;
use k3_checkpoint::{Malformed, Problem};
use k3_core::Precision;
use k3_core::stages::{StageDump, StageKey, StageValues};

/// Name of the tensor that holds the ids a dump was made from, I32 \[T\].
pub const IDS: &str = "ids";

/// The longest header that the crate reads.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Why an answer file cannot be read.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct TensorFileError(#[from] pub Malformed);

/// The values of one tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorValues {
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Row-major values.
    pub values: StageValues,
    /// Whether the file held F32 (or narrower) rather than F64.
    pub is_f32: bool,
    /// The floating-point precision in which the file held it; none for integers.
    pub stored: Option<Precision>,
    /// The dtype in the file.
    pub dtype: Dtype,
}

/// A file's tensors with the texts of its header.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorFile {
    /// The tensors by name.
    pub tensors: BTreeMap<String, TensorValues>,
    /// `__metadata__` of the header; empty without one.
    pub metadata: BTreeMap<String, String>,
    /// Tensors that are neither numbers nor ids and have no name of ours: name and why.
    pub left: BTreeMap<String, String>,
}

/// Reads every tensor of the file.
///
/// # Errors
///
/// [`TensorFileError`] for a file that is missing, damaged, names a tensor twice, or has a stage or
/// ids of another kind of data.
pub fn read_tensors(path: &Path) -> Result<BTreeMap<String, TensorValues>, TensorFileError> {
    read_file(path).map(|file| file.tensors)
}

/// Reads every tensor of the file and the texts of its header.
///
/// # Errors
///
/// As [`read_tensors`].
pub fn read_file(path: &Path) -> Result<TensorFile, TensorFileError> {
    let bytes = read_whole(path).map_err(|error| Malformed::unreadable(path, &error))?;
    parse_file(path, &bytes)
}

/// The bytes of a file that is as long as its header says: a terabyte of holes is not read.
fn read_whole(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = k3_core::host::files::open(path)?;
    let got = file.metadata()?.len();
    let mut bytes = Vec::new();
    (&file).take(8).read_to_end(&mut bytes)?;
    let length = bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    if length <= MAX_HEADER_BYTES {
        (&file).take(length).read_to_end(&mut bytes)?;
        // A header that cannot be read is for the parser to refuse: the rest makes no difference.
        let Ok(header) = serde_json::from_slice::<Metadata>(&bytes[bytes.len().min(8)..]) else {
            return Ok(bytes);
        };
        let expected = 8 + length + header.data_len() as u64;
        if got != expected {
            return Err(io::Error::other(format!("expected {expected} bytes, got {got}")));
        }
        file.read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// [`read_file`] on bytes that have been read already; `path` is for messages.
///
/// # Errors
///
/// As [`read_tensors`].
pub fn parse_file(path: &Path, bytes: &[u8]) -> Result<TensorFile, TensorFileError> {
    let damaged = |error: safetensors::SafeTensorError| Problem::whole(error).in_file(path);
    let file = SafeTensors::deserialize(bytes).map_err(damaged)?;
    let (length, header) = SafeTensors::read_metadata(bytes).map_err(damaged)?;
    refuse_duplicates(&bytes[8..8 + length]).map_err(|problem| problem.in_file(path))?;
    let (mut tensors, mut left) = (BTreeMap::new(), BTreeMap::new());
    for (name, view) in file.iter() {
        let values = match decode(view.dtype(), view.data()) {
            Ok(values) => values,
            Err(what) if name == IDS || StageKey::parse(name).is_some() => {
                return Err(Problem::new(format!("tensor {name}"), what).in_file(path).into());
            }
            Err(what) => {
                left.insert(name.to_owned(), what);
                continue;
            }
        };
        let stored = match view.dtype() {
            Dtype::F64 => Some(Precision::F64),
            Dtype::F32 => Some(Precision::F32),
            Dtype::F16 => Some(Precision::F16),
            Dtype::BF16 => Some(Precision::Bf16),
            _ => None,
        };
        let tensor = TensorValues {
            shape: view.shape().to_vec(),
            values,
            is_f32: view.dtype() != Dtype::F64,
            stored,
            dtype: view.dtype(),
        };
        tensors.insert(name.to_owned(), tensor);
    }
    let texts = header.metadata().iter().flatten();
    let metadata = texts.map(|(k, v)| (k.clone(), v.clone())).collect();
    Ok(TensorFile { tensors, metadata, left })
}

/// The crate keeps the last of two tensors of one name, other readers the first.
fn refuse_duplicates(header: &[u8]) -> Result<(), Problem> {
    let mut seen = HashSet::new();
    Raw::document(header.trim_ascii_end())?.members(|name, _| {
        let twice = format!("tensor {name}");
        if seen.insert(name) { Ok(()) } else { Err(Problem::new(twice, "is there twice")) }
    })
}

/// A tensor to write: name, shape and values. Real values are written as F64 or F32.
#[derive(Debug, Clone, Copy)]
pub struct TensorOut<'a> {
    /// Full name.
    pub name: &'a str,
    /// Dimensions, outermost first.
    pub shape: &'a [usize],
    /// Row-major values, as many as the shape says.
    pub values: &'a StageValues,
    /// F32 rather than F64 for real values; the values must fit, as those of an f32 engine do.
    pub as_f32: bool,
}

/// Encodes tensors as a safetensors file.
///
/// # Errors
///
/// The crate's message, when a shape does not hold its values.
pub fn encode(
    tensors: &[TensorOut<'_>],
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>, safetensors::SafeTensorError> {
    let mut data = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        data.push(match tensor.values {
            StageValues::Ids(ids) => {
                let bytes = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
                (Dtype::I32, bytes)
            }
            StageValues::Real(values) if tensor.as_f32 => {
                let word = |value: &f64| (*value as f32).to_le_bytes();
                (Dtype::F32, values.iter().flat_map(word).collect())
            }
            StageValues::Real(values) => {
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                (Dtype::F64, bytes)
            }
        });
    }
    let views = tensors.iter().zip(&data).map(|(tensor, (dtype, bytes))| {
        let view = TensorView::new(*dtype, tensor.shape.to_vec(), bytes)?;
        Ok((tensor.name, view))
    });
    let views = views.collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    let metadata = metadata.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    safetensors::serialize(views, Some(metadata))
}

/// Encodes stage tensors with the ids they were made from: the tensor `ids` I32 \[T\], and texts.
///
/// # Errors
///
/// As [`encode`].
pub fn encode_stages(
    dump: &StageDump,
    ids: &[u32],
    as_f32: bool,
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>, safetensors::SafeTensorError> {
    // Ids are below the vocabulary's size, which fits i32 by far.
    let ids = StageValues::Ids(ids.iter().map(|id| *id as i32).collect());
    let count = match &ids {
        StageValues::Ids(ids) => [ids.len()],
        StageValues::Real(_) => [0],
    };
    let names: Vec<String> = dump.tensors.keys().map(ToString::to_string).collect();
    let mut tensors = vec![TensorOut { name: IDS, shape: &count, values: &ids, as_f32 }];
    for (name, tensor) in names.iter().zip(dump.tensors.values()) {
        tensors.push(TensorOut { name, shape: &tensor.shape, values: &tensor.values, as_f32 });
    }
    encode(&tensors, metadata)
}

/// The values, or what is wrong with their kind.
fn decode(dtype: Dtype, bytes: &[u8]) -> Result<StageValues, String> {
    let real = |values: Vec<f64>| Ok(StageValues::Real(values));
    match dtype {
        Dtype::F64 => real(words(bytes, f64::from_le_bytes)),
        Dtype::F32 => real(words(bytes, |word| f64::from(f32::from_le_bytes(word)))),
        Dtype::F16 => real(words(bytes, |word| half::f16::from_le_bytes(word).to_f64())),
        Dtype::BF16 => real(words(bytes, |word| half::bf16::from_le_bytes(word).to_f64())),
        Dtype::I32 => Ok(StageValues::Ids(words(bytes, i32::from_le_bytes))),
        Dtype::U8 => Ok(StageValues::Ids(bytes.iter().map(|byte| i32::from(*byte)).collect())),
        Dtype::I64 => {
            let narrow = |value: i64| {
                i32::try_from(value).map_err(|_| format!("expected ids below 2^31, got {value}"))
            };
            let ids: Result<Vec<i32>, _> =
                words(bytes, i64::from_le_bytes).into_iter().map(narrow).collect();
            Ok(StageValues::Ids(ids?))
        }
        other => Err(format!("expected a float or integer dtype, got {other:?}")),
    }
}

fn words<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|word| read(*word)).collect()
}
