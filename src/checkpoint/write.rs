//! A writer of safetensors files, for dumps, synthetic checkpoints and exports.
//!
//! Tensors are stored in the order given, without gaps; the header is padded with spaces to a
//! multiple of 8 bytes. Data can be streamed, so a file may be larger than memory. A file is
//! written under a temporary name in its folder and renamed when it is complete, so nobody ever
//! sees half of one. Whatever [`super::header`] would refuse is refused here first.

use std::collections::HashSet;
use std::fs::Permissions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::dtype::Dtype;
use super::header::{MAX_HEADER_BYTES, MAX_NAME_BYTES, MAX_RANK, METADATA_KEY};

/// The header's length is a multiple of this, so that data starts aligned.
const HEADER_ALIGN_BYTES: usize = 8;

/// A tensor to be written, without its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorSpec<'a> {
    /// Full name.
    pub name: &'a str,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: &'a [usize],
}

/// One way a file cannot be written.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The reserved name.
    #[error("a tensor cannot be named {METADATA_KEY:?}, the format reserves it")]
    ReservedName,
    /// Two tensors of one name.
    #[error("tensor {tensor:?} would be written twice")]
    DuplicateName {
        /// The name.
        tensor: String,
    },
    /// A metadata key twice.
    #[error("metadata key {key:?} would be written twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// Longer than readers accept.
    #[error("a tensor name of {name_bytes} bytes is above the limit of {MAX_NAME_BYTES}")]
    NameTooLong {
        /// Its length.
        name_bytes: usize,
    },
    /// More dimensions than readers accept.
    #[error("tensor {tensor:?}: {rank} dimensions are above the limit of {MAX_RANK}")]
    RankTooHigh {
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        rank: usize,
    },
    /// A shape whose bytes do not fit 64 bits or are no whole number.
    #[error("tensor {tensor:?}: shape {shape:?} of {dtype} has no byte length")]
    BadShape {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Its element type.
        dtype: Dtype,
    },
    /// A header larger than readers accept.
    #[error("a header of {header_bytes} bytes is above the limit of {MAX_HEADER_BYTES}")]
    HeaderTooLarge {
        /// Its length.
        header_bytes: usize,
    },
    /// Data of another length than the shape says.
    #[error("tensor {tensor:?}: {got_bytes} bytes of data, its shape needs {expected_bytes}")]
    DataLength {
        /// The tensor.
        tensor: String,
        /// Bytes by shape.
        expected_bytes: u64,
        /// Bytes there were.
        got_bytes: u64,
    },
    /// The system refused.
    #[error("{}: cannot be written: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
}

/// A file's head and the place of every tensor, before any data is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileLayout {
    /// Length prefix, header, padding: everything in front of the data.
    pub head: Vec<u8>,
    /// Bytes of each tensor, in order.
    pub tensor_bytes: Vec<u64>,
    /// Size of the whole file.
    pub file_bytes: u64,
}

impl FileLayout {
    /// Lays out the tensors in the order given; `metadata` may be empty.
    ///
    /// # Errors
    /// Every variant of [`WriteError`] but `DataLength` and `Io`.
    pub fn new<'a>(
        tensors: impl IntoIterator<Item = TensorSpec<'a>>,
        metadata: &[(&str, &str)],
    ) -> Result<Self, WriteError> {
        let mut header = String::from("{");
        write_metadata(metadata, &mut header)?;
        let mut seen = HashSet::new();
        let mut tensor_bytes = Vec::new();
        let mut end = 0_u64;
        for tensor in tensors {
            let name = tensor.name;
            let byte_len = check_spec(&tensor)?;
            let start = end;
            end = start.checked_add(byte_len).ok_or_else(|| bad_shape(&tensor))?;
            if !seen.insert(name) {
                return Err(WriteError::DuplicateName { tensor: name.to_owned() });
            }
            if header.len() > 1 {
                header.push(',');
            }
            push_json_string(&mut header, name);
            let (dtype, shape) = (tensor.dtype, tensor.shape);
            // No blanks: so written, the headers of the release have their published sizes.
            let sizes: Vec<_> = shape.iter().map(usize::to_string).collect();
            let sizes = sizes.join(",");
            header.push_str(&format!(
                ":{{\"dtype\":\"{dtype}\",\"shape\":[{sizes}],\"data_offsets\":[{start},{end}]}}"
            ));
            tensor_bytes.push(byte_len);
        }
        header.push('}');
        while !header.len().is_multiple_of(HEADER_ALIGN_BYTES) {
            header.push(' ');
        }
        let header_bytes = header.len();
        if header_bytes as u64 > MAX_HEADER_BYTES {
            return Err(WriteError::HeaderTooLarge { header_bytes });
        }
        let mut head = (header_bytes as u64).to_le_bytes().to_vec();
        head.extend_from_slice(header.as_bytes());
        let file_bytes = head.len() as u64 + end;
        Ok(Self { head, tensor_bytes, file_bytes })
    }
}

/// Writes a file whose data is made while it is written: `fill` gets the index of a tensor and a
/// sink for exactly its bytes.
///
/// # Errors
/// Every variant of [`WriteError`]; no file is left behind, an older one stays as it was.
pub fn write_safetensors_with<'a>(
    path: &Path,
    tensors: &[TensorSpec<'a>],
    metadata: &[(&str, &str)],
    mut fill: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
) -> Result<(), WriteError> {
    let layout = FileLayout::new(tensors.iter().copied(), metadata)?;
    let io_error = |reason| WriteError::Io { path: path.to_owned(), reason };
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // As for any new file: readable by whom the user's mask lets read.
    let mode = Permissions::from_mode(0o666);
    let file = tempfile::Builder::new().prefix(".writing-").permissions(mode).tempfile_in(folder);
    let mut file = file.map_err(io_error)?;
    let mut sink = BufWriter::with_capacity(1 << 20, file.as_file_mut());
    sink.write_all(&layout.head).map_err(io_error)?;
    for (index, (tensor, &expected_bytes)) in tensors.iter().zip(&layout.tensor_bytes).enumerate() {
        let mut counted = Counted { sink: &mut sink, got_bytes: 0 };
        fill(index, &mut counted).map_err(io_error)?;
        let got_bytes = counted.got_bytes;
        if got_bytes != expected_bytes {
            let tensor = tensor.name.to_owned();
            return Err(WriteError::DataLength { tensor, expected_bytes, got_bytes });
        }
    }
    sink.flush().map_err(io_error)?;
    drop(sink);
    file.persist(path).map_err(|error| io_error(error.error))?;
    Ok(())
}

/// Writes a file from data in memory: little-endian bytes of each tensor, row-major.
///
/// # Errors
/// As [`write_safetensors_with`].
pub fn write_safetensors(
    path: &Path,
    tensors: &[(TensorSpec<'_>, &[u8])],
    metadata: &[(&str, &str)],
) -> Result<(), WriteError> {
    let specs: Vec<_> = tensors.iter().map(|(spec, _)| *spec).collect();
    write_safetensors_with(path, &specs, metadata, |index, sink| sink.write_all(tensors[index].1))
}

fn check_spec(tensor: &TensorSpec<'_>) -> Result<u64, WriteError> {
    let TensorSpec { name, dtype, shape } = *tensor;
    if name == METADATA_KEY {
        return Err(WriteError::ReservedName);
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(WriteError::NameTooLong { name_bytes: name.len() });
    }
    if shape.len() > MAX_RANK {
        return Err(WriteError::RankTooHigh { tensor: name.to_owned(), rank: shape.len() });
    }
    let elements = shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size as u64));
    elements.and_then(|elements| dtype.byte_len(elements)).ok_or_else(|| bad_shape(tensor))
}

fn bad_shape(tensor: &TensorSpec<'_>) -> WriteError {
    let (name, shape) = (tensor.name.to_owned(), tensor.shape.to_vec());
    WriteError::BadShape { tensor: name, shape, dtype: tensor.dtype }
}

fn write_metadata(metadata: &[(&str, &str)], header: &mut String) -> Result<(), WriteError> {
    if metadata.is_empty() {
        return Ok(());
    }
    push_json_string(header, METADATA_KEY);
    header.push_str(":{");
    let mut seen = HashSet::new();
    for (index, (key, value)) in metadata.iter().enumerate() {
        if !seen.insert(*key) {
            return Err(WriteError::DuplicateKey { key: (*key).to_owned() });
        }
        if index > 0 {
            header.push(',');
        }
        push_json_string(header, key);
        header.push(':');
        push_json_string(header, value);
    }
    header.push('}');
    Ok(())
}

fn push_json_string(header: &mut String, text: &str) {
    header.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => header.extend(['\\', character]),
            '\0'..='\u{1F}' => header.push_str(&format!("\\u{:04x}", u32::from(character))),
            _ => header.push(character),
        }
    }
    header.push('"');
}

/// Counts what passes through.
struct Counted<'a, W> {
    sink: &'a mut W,
    got_bytes: u64,
}

impl<W: Write> Write for Counted<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.sink.write(bytes)?;
        self.got_bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Checkpoint;

    fn spec<'a>(name: &'a str, dtype: Dtype, shape: &'a [usize]) -> TensorSpec<'a> {
        TensorSpec { name, dtype, shape }
    }

    /// What is written must be what both readers read, odd names, scalars and empties included.
    #[test]
    fn written_files_read_back_in_both_readers() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("a.safetensors");
        let tensors = [
            (spec("odd \"name\"\\\n café", Dtype::U8, &[3]), &[1_u8, 2, 3][..]),
            (spec("empty", Dtype::F32, &[0, 4]), &[]),
            (spec("scalar", Dtype::Bf16, &[]), &[0x80, 0x3F]),
        ];
        write_safetensors(&path, &tensors, &[("ids", "1,2"), ("note", "}\"{")]).expect("written");
        let ours = Checkpoint::open_file(&path).expect("ours");
        let bytes = std::fs::read(&path).expect("bytes");
        let other = safetensors::SafeTensors::deserialize(&bytes).expect("crate");
        assert_eq!((ours.len(), other.len()), (3, 3));
        for (spec, data) in tensors {
            assert_eq!(ours.read(spec.name).expect("ours"), data);
            assert_eq!(other.tensor(spec.name).expect("crate").data(), data);
            assert_eq!(ours.tensor(spec.name).expect("ours").shape, spec.shape);
        }
        assert_eq!(ours.shards()[0].metadata()[1], ("note".into(), "}\"{".into()));
        assert!(ours.shards()[0].data_start().is_multiple_of(8));
    }

    /// A writer must not make what its own reader rejects, and must not leave half a file.
    #[test]
    fn refusals_leave_nothing_behind() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("a.safetensors");
        let refuse = |tensors: &[(TensorSpec<'_>, &[u8])]| {
            write_safetensors(&path, tensors, &[]).expect_err("refused")
        };
        let reserved = refuse(&[(spec(METADATA_KEY, Dtype::U8, &[0]), &[])]);
        assert!(matches!(reserved, WriteError::ReservedName));
        let twice = spec("w", Dtype::U8, &[0]);
        assert!(matches!(refuse(&[(twice, &[]), (twice, &[])]), WriteError::DuplicateName { .. }));
        let long = "n".repeat(MAX_NAME_BYTES + 1);
        assert!(matches!(
            refuse(&[(spec(&long, Dtype::U8, &[0]), &[])]),
            WriteError::NameTooLong { .. }
        ));
        let deep = refuse(&[(spec("w", Dtype::U8, &[1; MAX_RANK + 1]), &[0])]);
        assert!(matches!(deep, WriteError::RankTooHigh { .. }));
        let huge = refuse(&[(spec("w", Dtype::F64, &[usize::MAX, 2]), &[])]);
        assert!(matches!(huge, WriteError::BadShape { .. }));
        let short = refuse(&[(spec("w", Dtype::F32, &[1]), &[0; 3])]);
        assert!(matches!(short, WriteError::DataLength { expected_bytes: 4, got_bytes: 3, .. }));
        let metadata = FileLayout::new([], &[("a", "1"), ("a", "2")]);
        assert!(matches!(metadata, Err(WriteError::DuplicateKey { .. })));
        assert_eq!(std::fs::read_dir(folder.path()).expect("folder").count(), 0);
        let nowhere = write_safetensors(&path.join("b.safetensors"), &[], &[]);
        assert!(matches!(nowhere, Err(WriteError::Io { .. })));
    }
}
