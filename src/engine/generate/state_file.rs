//! Saved states: everything a sequence carries, in a file bound to the weights that made it.
//!
//! | bytes | what |
//! | --- | --- |
//! | 8 | magic `89 4B 33 53 0D 0A 1A 0A` (a text-mode copy damages it visibly) |
//! | 4 | version, 1, little-endian |
//! | 4 | bytes of the header |
//! | … | header: JSON with identity of the checkpoint, ε of MLA's norms, sizes, position, ids |
//! | … | values, see below |
//! | 32 | sha256 of everything before |
//!
//! Values are f32, little-endian: per KDA slot the recurrent state, then the convolution inputs;
//! then the cached rows of each MLA slot.
//!
//! The file is written under a temporary name and renamed: a run that is killed leaves the old one.
//! Reading refuses another checkpoint, another stack, a cut or changed file, and a version it does
//! not know; the length is checked against the header before memory is allocated.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::model::{Shape, State};
use k3_checkpoint::identity::Identity;
use k3_checkpoint::{Malformed, Problem};
use k3_core::host::files::replace_file_by;

const MAGIC: [u8; 8] = [0x89, b'K', b'3', b'S', b'\r', b'\n', 0x1a, b'\n'];
const VERSION: u32 = 1;
/// Largest header read; a million ids have seven million digits.
const MAX_HEADER_BYTES: u32 = 64 << 20;
const DIGEST_BYTES: u64 = 32;

/// What a state belongs to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Identity of the checkpoint.
    pub identity: String,
    /// ε of MLA's two low-rank norms.
    pub mla_norm_eps: f64,
    /// Element type of the values.
    pub dtype: String,
    /// Layers of the stack.
    pub layers: usize,
    /// KDA slots.
    pub kda_slots: usize,
    /// Values of a recurrent state.
    pub recurrent_values: usize,
    /// Values of a slot's convolution inputs.
    pub convolution_values: usize,
    /// MLA slots.
    pub mla_slots: usize,
    /// Values of a cached row.
    pub cache_width: usize,
    /// Positions fed.
    pub position: usize,
    /// The sequence: the ids fed, and any that were chosen and not yet fed.
    pub ids: Vec<u32>,
}

impl Header {
    /// The header of a state at `position`.
    #[must_use]
    pub fn new(
        identity: Identity,
        mla_norm_eps: f64,
        shape: &Shape,
        position: usize,
        ids: Vec<u32>,
    ) -> Self {
        let empty = State::new(shape);
        let projection = shape.kda.width;
        Self {
            identity: identity.to_string(),
            mla_norm_eps,
            dtype: "F32".to_owned(),
            layers: shape.layers.len(),
            kda_slots: empty.kda.len(),
            recurrent_values: projection * shape.kda.head_dim,
            convolution_values: 3 * (shape.kda.taps - 1) * projection,
            mla_slots: empty.mla.len(),
            cache_width: shape.mla.cache_width,
            position,
            ids,
        }
    }

    /// Bytes of the values; `None` when they do not fit 64 bits.
    fn value_bytes(&self) -> Option<u64> {
        let size = |count: usize| count as u64;
        let slot = size(self.recurrent_values).checked_add(size(self.convolution_values))?;
        let kda = size(self.kda_slots).checked_mul(slot)?;
        let row = size(self.cache_width).checked_mul(size(self.position))?;
        let mla = size(self.mla_slots).checked_mul(row)?;
        kda.checked_add(mla)?.checked_mul(4)
    }
}

/// Hashes what goes through.
struct Hashing<T> {
    inner: T,
    hash: Sha256,
}

impl<T: Write> Write for Hashing<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hash.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Hashing<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(bytes)?;
        self.hash.update(&bytes[..count]);
        Ok(count)
    }
}

/// Writes a state whole or not at all.
///
/// # Errors
/// A file that cannot be written.
pub fn save(path: &Path, header: &Header, state: &State) -> Result<(), Malformed> {
    let written = replace_file_by(path, |file| put_all(file, header, state));
    written.map_err(|reason| Problem::whole(reason).in_file(path))
}

/// Everything in the order of the file, and its hash.
fn put_all(file: &File, header: &Header, state: &State) -> io::Result<()> {
    let mut sink = Hashing { inner: BufWriter::new(file), hash: Sha256::new() };
    let text = serde_json::to_vec(header)?;
    sink.write_all(&MAGIC)?;
    sink.write_all(&VERSION.to_le_bytes())?;
    sink.write_all(&(text.len() as u32).to_le_bytes())?;
    sink.write_all(&text)?;
    for slot in &state.kda {
        put(&mut sink, &slot.recurrent)?;
        put(&mut sink, &slot.convolution)?;
    }
    for cache in &state.mla {
        put(&mut sink, &cache.rows)?;
    }
    let digest = sink.hash.finalize();
    sink.inner.write_all(&digest)?;
    sink.inner.flush()
}

/// Values as little-endian bytes, a block at a time.
fn put(sink: &mut impl Write, values: &[f32]) -> io::Result<()> {
    let mut block = Vec::with_capacity(4 * 4096);
    for part in values.chunks(4096) {
        block.clear();
        block.extend(part.iter().flat_map(|value| value.to_le_bytes()));
        sink.write_all(&block)?;
    }
    Ok(())
}

fn take(source: &mut impl Read, values: &mut [f32]) -> io::Result<()> {
    let mut block = vec![0; 4 * 4096];
    for part in values.chunks_mut(4096) {
        let block = &mut block[..4 * part.len()];
        source.read_exact(block)?;
        for (value, bytes) in part.iter_mut().zip(block.as_chunks::<4>().0) {
            *value = f32::from_le_bytes(*bytes);
        }
    }
    Ok(())
}

type Source = Hashing<BufReader<File>>;

/// An opened file whose header has been read and whose length is right.
#[derive(Debug)]
pub struct SavedState {
    path: PathBuf,
    /// What it belongs to.
    pub header: Header,
}

impl SavedState {
    /// Reads the header.
    ///
    /// # Errors
    /// A file that cannot be read, is no state, or is cut.
    pub fn open(path: &Path) -> Result<Self, Malformed> {
        Self::start(path).map(|(saved, _)| saved)
    }

    fn start(path: &Path) -> Result<(Self, Source), Malformed> {
        let io_error = |reason: io::Error| Problem::whole(reason).in_file(path);
        let refuse = |what: String| Err(Problem::whole(what).in_file(path));
        let file = k3_core::host::files::open(path).map_err(io_error)?;
        let got = file.metadata().map_err(io_error)?.len();
        let mut source = Hashing { inner: BufReader::new(file), hash: Sha256::new() };
        let (mut magic, mut word) = ([0; 8], [0; 4]);
        source.read_exact(&mut magic).map_err(io_error)?;
        if magic != MAGIC {
            return refuse(format!("not a saved state (magic {magic:02x?})"));
        }
        source.read_exact(&mut word).map_err(io_error)?;
        let found = u32::from_le_bytes(word);
        if found != VERSION {
            return refuse(format!("version {found}, expected {VERSION}"));
        }
        source.read_exact(&mut word).map_err(io_error)?;
        let header_bytes = u32::from_le_bytes(word);
        if header_bytes > MAX_HEADER_BYTES {
            let what = format!("{header_bytes} bytes, expected at most {MAX_HEADER_BYTES}");
            return refuse(format!("header: {what}"));
        }
        let mut text = vec![0; header_bytes as usize];
        source.read_exact(&mut text).map_err(io_error)?;
        let header: Header = match serde_json::from_slice(&text) {
            Ok(header) => header,
            Err(error) => return refuse(format!("header: {error}")),
        };
        let start = 16 + u64::from(header_bytes) + DIGEST_BYTES;
        let expected = header.value_bytes().and_then(|bytes| bytes.checked_add(start));
        let expected = expected.unwrap_or(u64::MAX);
        if expected != got {
            return refuse(format!("{got} bytes, its header needs {expected}"));
        }
        if header.ids.len() < header.position {
            let (ids, position) = (header.ids.len(), header.position);
            return refuse(format!("header: {ids} ids at position {position}"));
        }
        Ok((Self { path: path.to_owned(), header }, source))
    }

    /// Refuses a state of another checkpoint, another stack or another ε.
    ///
    /// # Errors
    /// The first field that differs.
    pub fn check(&self, ours: &Header) -> Result<(), Malformed> {
        let theirs = &self.header;
        let sizes = |header: &Header| {
            [
                header.layers,
                header.kda_slots,
                header.recurrent_values,
                header.convolution_values,
                header.mla_slots,
                header.cache_width,
            ]
            .map(|size| size.to_string())
        };
        let names = [
            "layers",
            "kda_slots",
            "recurrent_values",
            "convolution_values",
            "mla_slots",
            "cache_width",
        ];
        let mut fields = vec![
            ("identity", ours.identity.clone(), theirs.identity.clone()),
            ("dtype", ours.dtype.clone(), theirs.dtype.clone()),
            ("mla_norm_eps", ours.mla_norm_eps.to_string(), theirs.mla_norm_eps.to_string()),
        ];
        let pairs = sizes(ours).into_iter().zip(sizes(theirs));
        fields.extend(names.into_iter().zip(pairs).map(|(name, (a, b))| (name, a, b)));
        match fields.into_iter().find(|(_, ours, theirs)| ours != theirs) {
            None => Ok(()),
            Some((field, expected, got)) => {
                let what = format!("expected {expected}, got {got}");
                Err(Problem::new(field, what).in_file(&self.path))
            }
        }
    }

    /// Reads the values into a state of the same shape, in place; the state is whole only when
    /// this returns well.
    ///
    /// # Errors
    /// A file that cannot be read or was changed.
    pub fn load_into(&self, state: &mut State) -> Result<(), Malformed> {
        let (_, mut source) = Self::start(&self.path)?;
        let io_error = |reason: io::Error| Problem::whole(reason).in_file(&self.path);
        state.interrupted = true;
        let row_values = self.header.position * self.header.cache_width;
        for slot in &mut state.kda {
            take(&mut source, &mut slot.recurrent).map_err(io_error)?;
            take(&mut source, &mut slot.convolution).map_err(io_error)?;
        }
        for cache in &mut state.mla {
            cache.rows.resize(row_values, 0.0);
            take(&mut source, &mut cache.rows).map_err(io_error)?;
        }
        let expected = source.hash.finalize();
        let mut digest = [0; DIGEST_BYTES as usize];
        source.inner.read_exact(&mut digest).map_err(io_error)?;
        if digest[..] != expected[..] {
            let what = "its sha256 does not fit its content";
            return Err(Problem::whole(what).in_file(&self.path));
        }
        state.position = self.header.position;
        state.interrupted = false;
        Ok(())
    }
}
