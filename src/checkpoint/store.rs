//! A checkpoint, opened: the place of every tensor, and its bytes on demand.
//!
//! Opening, with its policy on missing, stray and contradictory files, is in the module behind
//! [`Checkpoint::open`]. Memory for the release (497,220 tensors): 62 MB, most of it names.

mod open;

use std::fmt;
use std::num::NonZeroU32;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::Problem;
use super::dtype::Dtype;
use super::header::Form;
use super::name_table::NameTable;
use super::shard::{ReadError, Shard};
use k3_core::listing::listed;

pub use open::CheckpointError;

/// The config's file name in a checkpoint folder.
pub const CONFIG_FILE: &str = "config.json";

/// Something worth saying that is no error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A `.safetensors` file that the index does not use.
    StrayShard {
        /// Its name.
        file: String,
    },
    /// A file whose name says that its download did not finish.
    UnfinishedDownload {
        /// Its name.
        file: String,
    },
    /// The index gives another sum of tensor bytes than the headers.
    TotalSizeDiffers {
        /// `metadata.total_size`.
        index_bytes: u64,
        /// Sum over all tensors.
        header_bytes: u64,
    },
    /// The index's `metadata`, which only informs, has another form than it should.
    OddMetadata {
        /// Where and what.
        problem: Problem,
    },
    /// Entries of a header have keys that the format does not have.
    UnreadKeys {
        /// The shard's file name.
        file: String,
        /// The first few keys.
        keys: Vec<String>,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StrayShard { file } => write!(f, "{file:?} is not in the index and is ignored"),
            Self::UnfinishedDownload { file } => write!(f, "{file:?} is an unfinished download"),
            Self::TotalSizeDiffers { index_bytes, header_bytes } => write!(
                f,
                "the index says total_size {index_bytes}, the headers add up to {header_bytes}"
            ),
            Self::OddMetadata { problem } => write!(f, "the index: {problem}; it only informs"),
            Self::UnreadKeys { file, keys } => {
                let count = keys.len();
                write!(f, "{file:?}: keys of entries that are not read: {}", listed(keys, count))
            }
        }
    }
}

/// Number of a tensor in its checkpoint; rises with shard, then offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorId(NonZeroU32);

impl TensorId {
    /// The number of the tensor at `index` in its checkpoint.
    pub(super) fn new(index: usize) -> Self {
        // Checkpoints hold fewer than 2^32 - 1 names, so neither step can fail or wrap.
        Self(NonZeroU32::MIN.saturating_add(index as u32))
    }

    /// Counted from 0; for tables with one row per tensor.
    #[must_use]
    pub fn index(self) -> usize {
        (self.0.get() - 1) as usize
    }
}

/// Where a tensor lies and what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    /// Its number.
    pub id: TensorId,
    /// Full name.
    pub name: &'a str,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first; empty for a scalar.
    pub shape: &'a [usize],
    /// Which shard; see [`Checkpoint::shard_path`].
    pub shard: usize,
    /// Absolute offset in the shard's file.
    pub offset: u64,
    /// Bytes.
    pub byte_len: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Absolute.
    offset: u64,
    name_id: u32,
    form: u32,
    shard: u32,
}

const NO_ENTRY: u32 = u32::MAX;

/// An opened checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    names: NameTable,
    /// Entry of each name; [`NO_ENTRY`] where the index maps it to a missing shard.
    entry_of_name: Vec<u32>,
    /// By shard, then offset.
    entries: Vec<Entry>,
    forms: Vec<Form>,
    shards: Vec<Shard>,
    missing_shards: Vec<String>,
    has_index: bool,
    notes: Vec<Note>,
}

impl Checkpoint {
    /// The folder, as given.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the config should lie.
    #[must_use]
    pub fn config_path(&self) -> PathBuf {
        self.folder.join(CONFIG_FILE)
    }

    /// Number of tensors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Number of names, those included that the index maps to missing shards.
    pub(super) fn name_count(&self) -> usize {
        self.names.len()
    }

    /// Whether there is no tensor.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether an index was there.
    #[must_use]
    pub fn has_index(&self) -> bool {
        self.has_index
    }

    /// The open shards, sorted by name.
    #[must_use]
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Path of a shard; `shard` is [`TensorInfo::shard`].
    #[must_use]
    pub fn shard_path(&self, shard: usize) -> &Path {
        self.shards[shard].path()
    }

    /// File names of the shards that are not there (partial checkpoints only).
    #[must_use]
    pub fn missing_shards(&self) -> &[String] {
        &self.missing_shards
    }

    /// Whether the index names a tensor that lies in a missing shard.
    #[must_use]
    pub fn is_in_missing_shard(&self, name: &str) -> bool {
        self.names.find(name).is_some_and(|id| self.entry_of_name[id as usize] == NO_ENTRY)
    }

    /// What was noticed and is no error.
    #[must_use]
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Sum of all tensors' bytes.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        let forms = self.entries.iter().map(|entry| &self.forms[entry.form as usize]);
        // Sparse files can claim more than 64 bits hold.
        forms.fold(0, |sum, form| sum.saturating_add(form.byte_len))
    }

    /// Where tensors that lie behind one another in one shard are, as shard and absolute range;
    /// `None` for any others, and for none at all. An expert of the release is such a run.
    #[must_use]
    pub fn contiguous(&self, ids: &[TensorId]) -> Option<(usize, Range<u64>)> {
        let first = self.info(*ids.first()?);
        let mut end = first.offset;
        for info in ids.iter().map(|&id| self.info(id)) {
            if info.shard != first.shard || info.offset != end {
                return None;
            }
            end += info.byte_len;
        }
        Some((first.shard, first.offset..end))
    }

    /// Bytes this index holds in memory, for a memory plan.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.names.held_bytes()
            + self.entry_of_name.capacity() * size_of::<u32>()
            + self.entries.capacity() * size_of::<Entry>()
    }

    /// The tensor of that name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<TensorInfo<'_>> {
        self.find(name).map(|id| self.info(id))
    }

    /// The number of the tensor of that name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<TensorId> {
        let name_id = self.names.find(name)?;
        let entry = self.entry_of_name[name_id as usize];
        (entry != NO_ENTRY).then(|| TensorId::new(entry as usize))
    }

    /// As [`Self::find`], for names that come in an order of their own: `near` is the caller's, 0
    /// at first.
    pub(super) fn find_near(&self, name: &str, near: &mut u32) -> Option<TensorId> {
        let name_id = self.names.find_near(name, *near)?;
        *near = name_id;
        let entry = self.entry_of_name[name_id as usize];
        (entry != NO_ENTRY).then(|| TensorId::new(entry as usize))
    }

    /// What is known of a tensor of this checkpoint.
    #[must_use]
    pub fn info(&self, id: TensorId) -> TensorInfo<'_> {
        let entry = &self.entries[id.index()];
        let form = &self.forms[entry.form as usize];
        TensorInfo {
            id,
            name: self.names.name(entry.name_id),
            dtype: form.dtype,
            shape: &form.shape,
            shard: entry.shard as usize,
            offset: entry.offset,
            byte_len: form.byte_len,
        }
    }

    /// All tensors, by shard, then offset.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorInfo<'_>> {
        (0..self.entries.len()).map(|index| self.info(TensorId::new(index)))
    }

    /// Reads a whole tensor as it lies on disk.
    ///
    /// # Errors
    /// Every variant of [`ReadError`].
    pub fn read(&self, name: &str) -> Result<Vec<u8>, ReadError> {
        let Some(info) = self.tensor(name) else {
            return Err(self.refused(name, "not there".to_owned()));
        };
        let byte_len = info.byte_len;
        let mut bytes = Vec::new();
        let reserved = usize::try_from(byte_len).map(|length| bytes.try_reserve_exact(length));
        if !matches!(reserved, Ok(Ok(()))) {
            return Err(self.refused(name, format!("no memory for its {byte_len} bytes")));
        }
        bytes.resize(byte_len as usize, 0);
        self.read_into(&info, 0..byte_len, &mut bytes)?;
        Ok(bytes)
    }

    /// Fills `buffer` with bytes `range` of a tensor, counted from its start.
    ///
    /// # Errors
    /// Every variant of [`ReadError`].
    pub fn read_into(
        &self,
        info: &TensorInfo<'_>,
        range: Range<u64>,
        buffer: &mut [u8],
    ) -> Result<(), ReadError> {
        let Range { start, end } = range;
        if start > end || end > info.byte_len {
            let what = format!("bytes {start}..{end} asked for, it has {}", info.byte_len);
            return Err(self.refused(info.name, what));
        }
        if buffer.len() as u64 != end - start {
            let what = format!("a buffer of {} bytes for {} bytes", buffer.len(), end - start);
            return Err(self.refused(info.name, what));
        }
        self.shards[info.shard].read_at(info.offset + start, buffer)
    }

    fn refused(&self, tensor: &str, what: String) -> ReadError {
        Problem::in_tensor(tensor, what).in_file(&self.folder).into()
    }
}
