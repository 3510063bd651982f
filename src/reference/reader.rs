//! The reference's own checkpoint reader: the index, shard headers, plain file reads.
//!
//! Headers are parsed by the `safetensors` crate, where the engine has a strict visitor of its
//! own, so that a mistake in one is seen by the other. Shards are opened when a tensor of theirs
//! is first asked for, so a partial checkpoint serves the layers it holds. Deliberately not here:
//! maps (a file that shrinks gives an error, not a signal), caches, integrity checks beyond what
//! is read, and any code of `checkpoint`.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use half::bf16;
use rayon::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::error::ReferenceError;
use super::rows::{Matrix, from_values, widen};

/// Largest header that is read, in bytes: the crate's own limit.
const HEADER_LIMIT_BYTES: u64 = 100_000_000;

/// What is read in one piece of a long tensor.
const READ_PART_BYTES: usize = 1 << 22;

/// A checkpoint folder, opened for reading by tensor name.
#[derive(Debug)]
pub struct Reader {
    /// The index file, or the single shard where there is no index.
    index_file: PathBuf,
    folder: PathBuf,
    /// Shard file name of each tensor.
    shard_of: HashMap<String, String>,
    shards: Mutex<HashMap<String, Arc<Shard>>>,
    /// Tensors that were found as they were asked for.
    found: Mutex<BTreeSet<String>>,
}

/// Where a tensor is stored, according to this reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The dtype's name in the header.
    pub dtype: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// File name of the shard.
    pub shard: String,
    /// Absolute offset in the file.
    pub offset_bytes: u64,
    /// Bytes.
    pub length_bytes: u64,
}

/// One open shard.
#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    /// Where the tensor bytes begin in the file.
    data_start_bytes: u64,
}

impl Reader {
    /// Opens a folder with `model.safetensors.index.json`, or one without where the headers of
    /// all its shards say what there is.
    ///
    /// # Errors
    /// The index is unreadable or malformed, or the only shard is.
    pub fn open(folder: &Path) -> Result<Self, ReferenceError> {
        let index_file = folder.join("model.safetensors.index.json");
        let mut reader = Self {
            index_file: index_file.clone(),
            folder: folder.to_path_buf(),
            shard_of: HashMap::new(),
            shards: Mutex::new(HashMap::new()),
            found: Mutex::new(BTreeSet::new()),
        };
        let shards = shard_files(folder)?;
        if index_file.exists() || shards.is_empty() {
            reader.shard_of = read_index(&index_file)?;
            return Ok(reader);
        }
        reader.index_file = folder.to_path_buf();
        for shard in shards {
            for name in reader.shard(&shard)?.metadata.offset_keys() {
                if let Some(other) = reader.shard_of.insert(name.clone(), shard.clone()) {
                    let what = format!("it is in {other} and in {shard}");
                    return Err(reader.malformed(&name.clone(), name, what));
                }
            }
        }
        Ok(reader)
    }

    /// The file of a tensor blamed for a value in it.
    #[must_use]
    pub fn malformed(&self, tensor: &str, at: String, what: String) -> ReferenceError {
        let file = self.shard_of.get(tensor).map(|file| self.folder.join(file));
        ReferenceError::Malformed { path: file.unwrap_or_else(|| self.folder.clone()), at, what }
    }

    /// The names of all tensors, in no order.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.shard_of.keys().map(String::as_str)
    }

    /// Where a tensor is stored, with any dtype and shape.
    ///
    /// # Errors
    /// The tensor is missing, or its shard cannot be read.
    pub fn place(&self, tensor: &str) -> Result<Place, ReferenceError> {
        let (shard, info) = self.find(tensor)?;
        let (begin, end) = info.data_offsets;
        Ok(Place {
            dtype: format!("{:?}", info.dtype),
            shape: info.shape.clone(),
            shard: self.shard_of[tensor].clone(),
            offset_bytes: shard.data_start_bytes + begin as u64,
            length_bytes: (end - begin) as u64,
        })
    }

    /// `length_bytes` bytes of a tensor from its byte `start_bytes`.
    ///
    /// # Errors
    /// The tensor is missing or shorter, or its shard cannot be read.
    pub fn part(
        &self,
        tensor: &str,
        start_bytes: u64,
        length_bytes: usize,
    ) -> Result<Vec<u8>, ReferenceError> {
        let (shard, info) = self.find(tensor)?;
        let (begin, end) = info.data_offsets;
        let got = (end - begin) as u64;
        if start_bytes + length_bytes as u64 > got {
            return Err(shard.malformed(tensor, format!("{got} bytes, more were asked for")));
        }
        shard.read(shard.data_start_bytes + begin as u64 + start_bytes, length_bytes)
    }

    /// The shard of a tensor and its entry in the header.
    fn find(&self, tensor: &str) -> Result<(Arc<Shard>, TensorInfo), ReferenceError> {
        let Some(name) = self.shard_of.get(tensor) else {
            return Err(malformed(&self.index_file, tensor, "missing".to_owned()));
        };
        let shard = self.shard(name)?;
        let Some(info) = shard.metadata.info(tensor).cloned() else {
            return Err(shard.malformed(tensor, "missing".to_owned()));
        };
        Ok((shard, info))
    }

    /// The number of tensors the index names.
    #[must_use]
    pub fn tensor_count(&self) -> usize {
        self.shard_of.len()
    }

    /// Whether the index names the tensor.
    #[must_use]
    pub fn names(&self, tensor: &str) -> bool {
        self.shard_of.contains_key(tensor)
    }

    /// Checks that a tensor is there with this dtype and shape, reading nothing but its header.
    ///
    /// # Errors
    /// The tensor is missing or differs.
    pub fn check(&self, tensor: &str, dtype: Dtype, shape: &[usize]) -> Result<(), ReferenceError> {
        self.locate(tensor, dtype, shape).map(|_| ())
    }

    /// The raw bytes of a tensor of this dtype and shape.
    ///
    /// # Errors
    /// The tensor is missing, differs in dtype or shape, or cannot be read.
    pub fn bytes(
        &self,
        tensor: &str,
        dtype: Dtype,
        shape: &[usize],
    ) -> Result<Vec<u8>, ReferenceError> {
        let (shard, begin_bytes, length_bytes) = self.locate(tensor, dtype, shape)?;
        shard.read(begin_bytes, length_bytes)
    }

    /// A BF16 vector (or a matrix of one row), widened.
    ///
    /// # Errors
    /// As [`Reader::bytes`].
    pub fn bf16_vector(&self, tensor: &str, shape: &[usize]) -> Result<Vec<f64>, ReferenceError> {
        let bytes = self.bytes(tensor, Dtype::BF16, shape)?;
        Ok(bf16_codes(&bytes).map(widen).collect())
    }

    /// An F32 tensor, widened.
    ///
    /// # Errors
    /// As [`Reader::bytes`].
    pub fn f32_vector(&self, tensor: &str, shape: &[usize]) -> Result<Vec<f64>, ReferenceError> {
        let bytes = self.bytes(tensor, Dtype::F32, shape)?;
        let words = bytes.as_chunks::<4>().0.iter();
        Ok(words.map(|w| f64::from(f32::from_le_bytes(*w))).collect())
    }

    /// A BF16 matrix \[rows, columns\], kept as it is stored.
    ///
    /// # Errors
    /// As [`Reader::bytes`].
    pub fn bf16_matrix(
        &self,
        tensor: &str,
        rows: usize,
        columns: usize,
    ) -> Result<Matrix, ReferenceError> {
        let (shard, begin_bytes, _) = self.locate(tensor, Dtype::BF16, &[rows, columns])?;
        // In parts that are read side by side, so that no second copy of a matrix of up to half a
        // gigabyte is held.
        let mut codes = vec![bf16::ZERO; rows * columns];
        let parts = codes.par_chunks_mut(READ_PART_BYTES / 2).enumerate();
        parts.try_for_each(|(part, codes)| {
            let begin_bytes = begin_bytes + (part * READ_PART_BYTES) as u64;
            let bytes = shard.read(begin_bytes, codes.len() * 2)?;
            for (code, stored) in codes.iter_mut().zip(bf16_codes(&bytes)) {
                *code = stored;
            }
            Ok(())
        })?;
        Ok(Matrix::Bf16(from_values(columns, codes)))
    }

    /// One row of a BF16 matrix \[rows, columns\], widened. `row` is below `rows`.
    ///
    /// # Errors
    /// As [`Reader::bytes`].
    pub fn bf16_matrix_row(
        &self,
        tensor: &str,
        [rows, columns]: [usize; 2],
        row: usize,
    ) -> Result<Vec<f64>, ReferenceError> {
        debug_assert!(row < rows);
        let (shard, begin_bytes, _) = self.locate(tensor, Dtype::BF16, &[rows, columns])?;
        let row_bytes = columns * 2;
        let bytes = shard.read(begin_bytes + (row * row_bytes) as u64, row_bytes)?;
        Ok(bf16_codes(&bytes).map(widen).collect())
    }

    /// The shard, first byte (in the file) and length of a tensor of this dtype and shape.
    fn locate(
        &self,
        tensor: &str,
        dtype: Dtype,
        shape: &[usize],
    ) -> Result<(Arc<Shard>, u64, usize), ReferenceError> {
        let (shard, info) = self.find(tensor)?;
        if info.dtype != dtype {
            let what = format!("expected dtype {dtype:?}, got {:?}", info.dtype);
            return Err(shard.malformed(tensor, what));
        }
        if info.shape != shape {
            let what = format!("expected shape {shape:?}, got {:?}", info.shape);
            return Err(shard.malformed(tensor, what));
        }
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if !found.contains(tensor) {
            found.insert(tensor.to_owned());
        }
        let (begin, end) = info.data_offsets;
        let begin_bytes = shard.data_start_bytes + begin as u64;
        Ok((shard, begin_bytes, end - begin))
    }

    /// Names of the tensors that have been checked or read so far.
    #[must_use]
    pub fn found(&self) -> BTreeSet<String> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The shard of this file name, opened on first use.
    fn shard(&self, name: &str) -> Result<Arc<Shard>, ReferenceError> {
        // Nothing is left half-done under the lock, so a poisoned one is still whole.
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shard) = shards.get(name) {
            return Ok(Arc::clone(shard));
        }
        let shard = Arc::new(Shard::open(self.folder.join(name))?);
        shards.insert(name.to_owned(), Arc::clone(&shard));
        Ok(shard)
    }
}

impl Shard {
    /// Reads the header; the tensors must fill the rest of the file exactly.
    fn open(path: PathBuf) -> Result<Self, ReferenceError> {
        let io = |source| ReferenceError::Io { path: path.clone(), source };
        let bad = |what: String| malformed(&path, "safetensors header", what);
        let mut file = k3_core::host::files::open(&path).map_err(io)?;
        let file_bytes = file.metadata().map_err(io)?.len();
        if file_bytes < 8 {
            return Err(bad(format!("expected at least 8 bytes, got {file_bytes}")));
        }
        let mut length = [0u8; 8];
        file.read_exact(&mut length).map_err(io)?;
        let header_bytes = u64::from_le_bytes(length);
        let limit_bytes = HEADER_LIMIT_BYTES.min(file_bytes - 8);
        if header_bytes > limit_bytes {
            return Err(bad(format!(
                "expected a header of at most {limit_bytes} bytes, got {header_bytes}"
            )));
        }
        let mut header = vec![0u8; header_bytes as usize];
        file.read_exact(&mut header).map_err(io)?;
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|error| bad(error.to_string()))?;
        let data_start_bytes = 8 + header_bytes;
        let expected = data_start_bytes + metadata.data_len() as u64;
        if expected != file_bytes {
            return Err(bad(format!("expected {expected} bytes in the file, got {file_bytes}")));
        }
        Ok(Self { path, file, metadata, data_start_bytes })
    }

    fn malformed(&self, tensor: &str, what: String) -> ReferenceError {
        malformed(&self.path, tensor, what)
    }

    /// `length_bytes` bytes from `begin_bytes` of the file.
    fn read(&self, begin_bytes: u64, length_bytes: usize) -> Result<Vec<u8>, ReferenceError> {
        let mut bytes = vec![0u8; length_bytes];
        self.file
            .read_exact_at(&mut bytes, begin_bytes)
            .map_err(|source| ReferenceError::Io { path: self.path.clone(), source })?;
        Ok(bytes)
    }
}

/// Names of the `.safetensors` files of a folder, sorted.
fn shard_files(folder: &Path) -> Result<Vec<String>, ReferenceError> {
    let io = |source| ReferenceError::Io { path: folder.to_owned(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let name = entry.map_err(io)?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".safetensors") && !name.starts_with('.') {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// `weight_map` of the index: tensor name to shard file name. Shard names are names in the
/// checkpoint folder, never paths out of it.
fn read_index(file: &Path) -> Result<HashMap<String, String>, ReferenceError> {
    let bad = |what: String| malformed(file, "weight_map", what);
    let bytes = k3_core::host::files::read(file)
        .map_err(|source| ReferenceError::Io { path: file.to_owned(), source })?;
    let index: Index = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
    for (tensor, shard) in &index.weight_map {
        if Path::new(shard).file_name() != Some(shard.as_ref()) {
            return Err(bad(format!("{tensor}: expected a plain file name, got {shard:?}")));
        }
    }
    Ok(index.weight_map)
}

/// The part of the index that is read.
#[derive(serde::Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

/// BF16 numbers are little-endian in the file.
fn bf16_codes(bytes: &[u8]) -> impl Iterator<Item = bf16> {
    bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b))
}

fn malformed(path: &Path, at: &str, what: String) -> ReferenceError {
    ReferenceError::Malformed { path: path.to_owned(), at: at.to_owned(), what }
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::TensorView;
    use tempfile::TempDir;

    use super::*;

    /// A folder with one file `w.safetensors` that holds `w`, BF16 \[2, 2\] = 1, 2, 3, −0.5, and
    /// an index that names it.
    fn folder() -> TempDir {
        let folder = TempDir::new().unwrap();
        let bits = [0x3f80u16, 0x4000, 0x4040, 0xbf00];
        let bytes: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()).collect();
        let view = TensorView::new(Dtype::BF16, vec![2, 2], &bytes).unwrap();
        let file = safetensors::serialize([("w", view)], None).unwrap();
        std::fs::write(folder.path().join("w.safetensors"), file).unwrap();
        write_index(&folder, r#"{"weight_map": {"w": "w.safetensors"}}"#);
        folder
    }

    fn write_index(folder: &TempDir, index: &str) {
        std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    }

    fn message(folder: &TempDir) -> String {
        let read = Reader::open(folder.path()).and_then(|r| r.bf16_matrix("w", 2, 2));
        read.unwrap_err().to_string()
    }

    #[test]
    fn bf16_widens_exactly() {
        let folder = folder();
        let reader = Reader::open(folder.path()).unwrap();
        assert_eq!(reader.tensor_count(), 1);
        let matrix = reader.bf16_matrix("w", 2, 2).unwrap();
        let mut buffer = Vec::new();
        assert_eq!(matrix.row(1, &mut buffer), [3.0, -0.5]);
        assert_eq!(reader.bf16_matrix_row("w", [2, 2], 1).unwrap(), [3.0, -0.5]);
        assert_eq!(widen(bf16::from_bits(0x0001)), 2f64.powi(-133));
    }

    #[test]
    fn wrong_shape_is_named() {
        let folder = folder();
        let reader = Reader::open(folder.path()).unwrap();
        let error = reader.bf16_vector("w", &[4]).unwrap_err().to_string();
        assert!(error.ends_with("w.safetensors: w: expected shape [4], got [2, 2]"), "{error}");
    }

    #[test]
    fn wrong_dtype_is_named() {
        let folder = folder();
        let reader = Reader::open(folder.path()).unwrap();
        let error = reader.f32_vector("w", &[2, 2]).unwrap_err().to_string();
        assert!(error.ends_with("w: expected dtype F32, got BF16"), "{error}");
    }

    #[test]
    fn tensor_absent_from_the_index() {
        let folder = folder();
        write_index(&folder, r#"{"weight_map": {}}"#);
        assert!(message(&folder).ends_with("index.json: w: missing"));
    }

    #[test]
    fn tensor_absent_from_its_shard() {
        let folder = folder();
        write_index(&folder, r#"{"weight_map": {"v": "w.safetensors"}}"#);
        let reader = Reader::open(folder.path()).unwrap();
        let error = reader.bf16_vector("v", &[4]).unwrap_err().to_string();
        assert!(error.ends_with("w.safetensors: v: missing"), "{error}");
    }

    #[test]
    fn absent_shard() {
        let folder = folder();
        write_index(&folder, r#"{"weight_map": {"w": "gone.safetensors"}}"#);
        assert!(message(&folder).contains("gone.safetensors: "));
    }

    #[test]
    fn shard_outside_the_folder() {
        let folder = folder();
        write_index(&folder, r#"{"weight_map": {"w": "../w.safetensors"}}"#);
        assert!(message(&folder).contains("expected a plain file name"));
    }

    #[test]
    fn index_cut_short() {
        let folder = folder();
        write_index(&folder, r#"{"weight_map": {"w": "w.saf"#);
        assert!(message(&folder).contains("weight_map: "));
    }

    /// One byte short, half, header alone, less than the length prefix, and bytes too many.
    #[test]
    fn shard_cut_or_grown() {
        let folder = folder();
        let path = folder.path().join("w.safetensors");
        let whole = std::fs::read(&path).unwrap();
        for length in [whole.len() - 1, whole.len() / 2, whole.len() - 8, 8, 4, 0] {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert!(message(&folder).contains("safetensors header: "), "{length}");
        }
        std::fs::write(&path, [&whole[..], &[0; 4]].concat()).unwrap();
        assert!(message(&folder).contains("bytes in the file"));
    }

    /// A header length of 2^64 − 1 must not be allocated.
    #[test]
    fn absurd_header_length() {
        let folder = folder();
        std::fs::write(folder.path().join("w.safetensors"), [0xff; 64]).unwrap();
        assert!(message(&folder).contains("expected a header of at most 56 bytes"));
    }

    #[test]
    fn one_file_without_an_index() {
        let folder = folder();
        let path = folder.path();
        std::fs::remove_file(path.join("model.safetensors.index.json")).unwrap();
        std::fs::rename(path.join("w.safetensors"), path.join("model.safetensors")).unwrap();
        let reader = Reader::open(path).unwrap();
        assert!(reader.names("w") && reader.bf16_matrix("w", 2, 2).is_ok());
    }
}
