//! A checkpoint folder, opened: every shard's header checked, the index compared with them, every
//! tensor's place known, its bytes read on demand.
//!
//! Policy:
//! - With an index, the index decides: its shards are opened, every tensor must be declared by
//!   exactly the shard it is mapped to, and the shards declare nothing else. Other
//!   `.safetensors` files in the folder are noted and left alone.
//! - Without one, all `*.safetensors` files are opened, sorted by name; a name in two of them is
//!   refused, and so is a set whose own numbering (`-00001-of-00003`) shows that files are missing.
//! - Links are followed by the system; names are taken from the folder, never from link targets.
//! - [`Checkpoint::open_partial`] lists missing shards instead of refusing. Damage is refused
//!   there as well.
//!
//! Memory for the release (497,220 tensors): 65 MB, most of it the names themselves.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io;
use std::num::NonZeroU32;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use thiserror::Error;

use super::dtype::Dtype;
use super::foreign::Foreign;
use super::header::{Form, Header, NameResolver};
use super::index::{INDEX_FILE, IndexError, MAX_SHARDS, ShardIndex};
use super::name_table::NameTable;
use super::shard::{ReadError, Shard, ShardError};

/// The config's file name in a checkpoint folder.
pub const CONFIG_FILE: &str = "config.json";

/// How many names a message lists before it only counts.
const LISTED: usize = 8;

/// One way a folder is no usable checkpoint.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// The folder is not there or cannot be listed.
    #[error("{}: not a readable folder: {reason}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// Neither an index nor a shard.
    #[error("{}: no {INDEX_FILE} and no .safetensors file{}", path.display(), hint(unfinished))]
    NoShards {
        /// The folder.
        path: PathBuf,
        /// Unfinished downloads that lie there.
        unfinished: Vec<String>,
    },
    /// More files than are ever opened at once.
    #[error("{}: {count} .safetensors files, above the limit of {MAX_SHARDS}", path.display())]
    TooManyShards {
        /// The folder.
        path: PathBuf,
        /// How many.
        count: usize,
    },
    /// The index is wrong in itself.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// A shard cannot be opened or its header is wrong.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// Shards that the index, or the numbering of the files, says there are.
    #[error(
        "{}: {} of {total} missing: {}{}",
        path.display(), missing.len(), listing(missing), hint(unfinished)
    )]
    ShardsMissing {
        /// The folder.
        path: PathBuf,
        /// File names.
        missing: Vec<String>,
        /// How many shards there should be.
        total: usize,
        /// Unfinished downloads that lie there.
        unfinished: Vec<String>,
    },
    /// The index maps a tensor to one shard, another one declares it.
    #[error(
        "{}: tensor {tensor:?} is mapped to {mapped}, but {declared} declares it", path.display()
    )]
    MappedElsewhere {
        /// The index.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shard by the index.
        mapped: String,
        /// The shard that has it.
        declared: String,
    },
    /// The index maps a tensor to a shard, and no shard declares it.
    #[error(
        "{}: tensor {tensor:?} is mapped to {mapped}, which does not declare it; nor does another \
         shard ({count} such tensors)",
        path.display()
    )]
    DeclaredNowhere {
        /// The index.
        path: PathBuf,
        /// The first such tensor, in the order of the index.
        tensor: String,
        /// The shard by the index.
        mapped: String,
        /// How many such tensors there are.
        count: usize,
    },
    /// A shard declares tensors that the index does not name.
    #[error(
        "{}: {shard} declares {count} tensors that the index omits: {}",
        path.display(), listing(tensors)
    )]
    NotInIndex {
        /// The index.
        path: PathBuf,
        /// The first such shard.
        shard: String,
        /// The first such tensors.
        tensors: Vec<String>,
        /// How many such tensors the shard has.
        count: usize,
    },
    /// Two shards declare the same tensor.
    #[error("{}: tensor {tensor:?} stands in both {first} and {second}", path.display())]
    InTwoShards {
        /// The folder.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// A shard that has it.
        first: String,
        /// Another one.
        second: String,
    },
}

fn listing(names: &[String]) -> String {
    let shown = names
        .iter()
        .take(LISTED)
        .map(|name| name.escape_debug().to_string());
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if names.len() > LISTED {
        text.push_str(&format!(", … ({} more)", names.len() - LISTED));
    }
    text
}

fn hint(unfinished: &[String]) -> String {
    if unfinished.is_empty() {
        return String::new();
    }
    format!(" (unfinished downloads: {})", listing(unfinished))
}

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
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StrayShard { file } => write!(f, "{file:?} is not in the index and is ignored"),
            Self::UnfinishedDownload { file } => write!(f, "{file:?} is an unfinished download"),
            Self::TotalSizeDiffers {
                index_bytes,
                header_bytes,
            } => write!(
                f,
                "the index says total_size {index_bytes}, the headers add up to {header_bytes}"
            ),
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Refused,
    Listed,
}

impl Checkpoint {
    /// Opens a complete checkpoint.
    ///
    /// # Errors
    /// Every variant of [`CheckpointError`].
    pub fn open(folder: &Path) -> Result<Self, CheckpointError> {
        Self::open_folder(folder, Missing::Refused)
    }

    /// Opens what there is of a checkpoint; see [`Self::missing_shards`].
    ///
    /// # Errors
    /// Every variant of [`CheckpointError`] but `ShardsMissing`, unless all are.
    pub fn open_partial(folder: &Path) -> Result<Self, CheckpointError> {
        Self::open_folder(folder, Missing::Listed)
    }

    /// Opens one file by itself (a dump, an evidence file).
    ///
    /// # Errors
    /// [`CheckpointError::Shard`].
    pub fn open_file(path: &Path) -> Result<Self, CheckpointError> {
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        let mut build = Build::new(folder, NameTable::new());
        let opened = Shard::open(path, &mut build.names)?;
        build.add_unindexed(opened)?;
        Ok(build.finish(Vec::new(), false, Vec::new()))
    }

    fn open_folder(folder: &Path, missing: Missing) -> Result<Self, CheckpointError> {
        let listing = Listing::read(folder)?;
        if listing.has_index {
            open_indexed(folder, listing, missing)
        } else {
            open_unindexed(folder, listing, missing)
        }
    }

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
        self.names
            .find(name)
            .is_some_and(|id| self.entry_of_name[id as usize] == NO_ENTRY)
    }

    /// What was noticed and is no error.
    #[must_use]
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Sum of all tensors' bytes.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        self.entries
            .iter()
            .map(|entry| self.forms[entry.form as usize].byte_len)
            .sum()
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
    /// Every variant of [`ReadError`] but the two about ranges.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, ReadError> {
        let Some(info) = self.tensor(name) else {
            return Err(ReadError::NoTensor {
                path: self.folder.clone(),
                tensor: name.to_owned(),
            });
        };
        let (tensor, byte_len) = (name.to_owned(), info.byte_len);
        let mut bytes = Vec::new();
        let reserved = usize::try_from(byte_len).map(|length| bytes.try_reserve_exact(length));
        if !matches!(reserved, Ok(Ok(()))) {
            return Err(ReadError::OutOfMemory { tensor, byte_len });
        }
        bytes.resize(byte_len as usize, 0);
        self.read_into(&info, 0..byte_len, &mut bytes)?;
        Ok(bytes)
    }

    /// Fills `buffer` with bytes `range` of a tensor, counted from its start.
    ///
    /// # Errors
    /// [`ReadError::OutOfRange`], [`ReadError::BufferLength`], [`ReadError::EarlyEnd`],
    /// [`ReadError::Io`].
    pub fn read_into(
        &self,
        info: &TensorInfo<'_>,
        range: Range<u64>,
        buffer: &mut [u8],
    ) -> Result<(), ReadError> {
        let Range { start, end } = range;
        let tensor = || info.name.to_owned();
        if start > end || end > info.byte_len {
            let byte_len = info.byte_len;
            return Err(ReadError::OutOfRange {
                tensor: tensor(),
                start,
                end,
                byte_len,
            });
        }
        if buffer.len() as u64 != end - start {
            let (wanted_bytes, got_bytes) = (end - start, buffer.len());
            return Err(ReadError::BufferLength {
                tensor: tensor(),
                wanted_bytes,
                got_bytes,
            });
        }
        self.shards[info.shard].read_at(info.offset + start, buffer)
    }
}

/// What lies in a checkpoint folder, by name.
struct Listing {
    has_index: bool,
    shards: Vec<String>,
    unfinished: Vec<String>,
}

impl Listing {
    fn read(folder: &Path) -> Result<Self, CheckpointError> {
        let io_error = |reason| CheckpointError::Folder {
            path: folder.to_owned(),
            reason,
        };
        let mut found = Self {
            has_index: false,
            shards: Vec::new(),
            unfinished: Vec::new(),
        };
        for entry in fs::read_dir(folder).map_err(io_error)? {
            // A name that is not UTF-8 cannot be in an index and ends in nothing we look for.
            let Ok(name) = entry.map_err(io_error)?.file_name().into_string() else {
                continue;
            };
            if Foreign::of_name(Path::new(&name)).is_some() {
                found.unfinished.push(name);
            } else if name == INDEX_FILE {
                found.has_index = true;
            } else if name.ends_with(".safetensors") && !name.starts_with('.') {
                found.shards.push(name);
            }
        }
        found.shards.sort();
        found.unfinished.sort();
        Ok(found)
    }

    fn notes(self, used: &[String]) -> Vec<Note> {
        let stray = self
            .shards
            .into_iter()
            .filter(|file| used.binary_search(file).is_err());
        let stray = stray.map(|file| Note::StrayShard { file });
        let unfinished = self.unfinished.into_iter();
        stray
            .chain(unfinished.map(|file| Note::UnfinishedDownload { file }))
            .collect()
    }
}

fn open_indexed(
    folder: &Path,
    listing: Listing,
    missing: Missing,
) -> Result<Checkpoint, CheckpointError> {
    let index_path = folder.join(INDEX_FILE);
    let index = ShardIndex::read(&index_path)?;
    // A name that is listed but is a dangling link is not missing: opening it says more.
    let is_there = |file: &&String| listing.shards.binary_search(file).is_ok();
    let (present, absent): (Vec<_>, Vec<_>) = index.shards.iter().partition(is_there);
    let absent: Vec<String> = absent.into_iter().cloned().collect();
    if !absent.is_empty() && (missing == Missing::Refused || present.is_empty()) {
        return Err(CheckpointError::ShardsMissing {
            path: folder.to_owned(),
            missing: absent,
            total: index.shards.len(),
            unfinished: listing.unfinished,
        });
    }
    let opened: Vec<_> = present
        .par_iter()
        .map(|file| {
            let mut names = IndexedNames {
                table: &index.names,
                strangers: NameTable::new(),
            };
            let opened = Shard::open(&folder.join(file), &mut names);
            opened.map(|opened| (opened, names.strangers))
        })
        .collect();
    let mut merge = IndexedMerge {
        path: &index_path,
        shard_of_name: &index.shard_of_name,
        shard_names: &index.shards,
        elsewhere: Vec::new(),
    };
    let numbers: Vec<usize> = (0..index.shards.len())
        .filter(|&number| absent.binary_search(&index.shards[number]).is_err())
        .collect();
    let used = index.shards.clone();
    let mut build = Build::new(folder.to_owned(), index.names);
    build.entries.reserve_exact(build.names.len());
    for (number, opened) in numbers.into_iter().zip(opened) {
        let (opened, strangers) = opened?;
        merge.add(&mut build, number, opened, &strangers)?;
    }
    merge.finish(&build, &absent)?;
    let notes = listing.notes(&used);
    let total_size = index.total_size.filter(|_| absent.is_empty());
    let mut checkpoint = build.finish(absent, true, notes);
    let header_bytes = checkpoint.tensor_bytes();
    if let Some(index_bytes) = total_size.filter(|&bytes| bytes != header_bytes) {
        checkpoint.notes.push(Note::TotalSizeDiffers {
            index_bytes,
            header_bytes,
        });
    }
    Ok(checkpoint)
}

fn open_unindexed(
    folder: &Path,
    listing: Listing,
    missing: Missing,
) -> Result<Checkpoint, CheckpointError> {
    let path = folder.to_owned();
    if listing.shards.is_empty() {
        return Err(CheckpointError::NoShards {
            path,
            unfinished: listing.unfinished,
        });
    }
    if listing.shards.len() > MAX_SHARDS {
        return Err(CheckpointError::TooManyShards {
            path,
            count: listing.shards.len(),
        });
    }
    let absent = absent_by_numbering(&listing.shards);
    let total = listing.shards.len() + absent.len();
    if !absent.is_empty() && missing == Missing::Refused {
        let unfinished = listing.unfinished;
        return Err(CheckpointError::ShardsMissing {
            path,
            missing: absent,
            total,
            unfinished,
        });
    }
    let mut build = Build::new(path, NameTable::new());
    for file in &listing.shards {
        let opened = Shard::open(&folder.join(file), &mut build.names)?;
        build.add_unindexed(opened)?;
    }
    build.names.shrink();
    let used = listing.shards.clone();
    let notes = listing.notes(&used);
    Ok(build.finish(absent, false, notes))
}

/// Files that a numbering such as `model-00002-of-00003.safetensors` shows to be missing.
fn absent_by_numbering(shards: &[String]) -> Vec<String> {
    let mut absent = Vec::new();
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for shard in shards {
        let Some((stem, _, total_text)) = numbering(shard) else {
            continue;
        };
        let Ok(total) = total_text.parse::<usize>() else {
            continue;
        };
        if seen.contains(&(stem, total_text)) || total > MAX_SHARDS {
            continue;
        }
        seen.push((stem, total_text));
        let digits = total_text.len();
        for number in 1..=total {
            // Some publishers pad the total to six digits and the number to five.
            let fits = |shard: &String| {
                numbering(shard).is_some_and(|(other, text, of)| {
                    other == stem && of == total_text && text.parse() == Ok(number)
                })
            };
            if !shards.iter().any(fits) {
                absent.push(format!(
                    "{stem}-{number:0digits$}-of-{total_text}.safetensors"
                ));
            }
        }
    }
    absent
}

/// Stem, number and total of a numbered shard name.
fn numbering(shard: &str) -> Option<(&str, &str, &str)> {
    let (rest, total) = shard.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let all_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    (all_digits(number) && all_digits(total)).then_some((stem, number, total))
}

/// The index's names, fixed, and a place for names that are not among them.
struct IndexedNames<'a> {
    table: &'a NameTable,
    strangers: NameTable,
}

impl NameResolver for IndexedNames<'_> {
    fn resolve(&mut self, name: &str) -> Option<u32> {
        self.table.find(name).or_else(|| {
            let (id, _) = self.strangers.intern(name)?;
            id.checked_add(self.table.len() as u32)
        })
    }

    fn name(&self, id: u32) -> &str {
        match id.checked_sub(self.table.len() as u32) {
            Some(stranger) => self.strangers.name(stranger),
            None => self.table.name(id),
        }
    }
}

/// A checkpoint while its shards are added.
struct Build {
    folder: PathBuf,
    names: NameTable,
    entry_of_name: Vec<u32>,
    entries: Vec<Entry>,
    forms: Vec<Form>,
    form_numbers: HashMap<Form, u32>,
    shards: Vec<Shard>,
}

impl Build {
    fn new(folder: PathBuf, names: NameTable) -> Self {
        let entry_of_name = vec![NO_ENTRY; names.len()];
        Self {
            folder,
            names,
            entry_of_name,
            entries: Vec::new(),
            forms: Vec::new(),
            form_numbers: HashMap::new(),
            shards: Vec::new(),
        }
    }

    /// Numbers of a header's forms in the checkpoint's own list.
    fn merge_forms(&mut self, forms: Vec<Form>) -> Vec<u32> {
        let mut numbers = Vec::with_capacity(forms.len());
        for form in forms {
            let next = self.forms.len() as u32;
            let number = *self.form_numbers.entry(form).or_insert_with_key(|form| {
                self.forms.push(form.clone());
                next
            });
            numbers.push(number);
        }
        numbers
    }

    fn add_unindexed(&mut self, opened: (Shard, Header)) -> Result<(), CheckpointError> {
        let (shard, header) = opened;
        let forms = self.merge_forms(header.forms);
        self.entry_of_name.resize(self.names.len(), NO_ENTRY);
        for entry in header.entries {
            let place = &mut self.entry_of_name[entry.name_id as usize];
            if *place != NO_ENTRY {
                let first = self.entries[*place as usize].shard as usize;
                return Err(CheckpointError::InTwoShards {
                    path: self.folder.clone(),
                    tensor: self.names.name(entry.name_id).to_owned(),
                    first: file_name(&self.shards[first]),
                    second: file_name(&shard),
                });
            }
            *place = self.entries.len() as u32;
            self.entries.push(Entry {
                offset: shard.data_start() + entry.start,
                name_id: entry.name_id,
                form: forms[entry.form as usize],
                shard: self.shards.len() as u32,
            });
        }
        self.shards.push(shard);
        Ok(())
    }

    fn finish(self, missing_shards: Vec<String>, has_index: bool, notes: Vec<Note>) -> Checkpoint {
        Checkpoint {
            folder: self.folder,
            names: self.names,
            entry_of_name: self.entry_of_name,
            entries: self.entries,
            forms: self.forms,
            shards: self.shards,
            missing_shards,
            has_index,
            notes,
        }
    }
}

/// Compares the index with the headers while the shards are added.
struct IndexedMerge<'a> {
    path: &'a Path,
    shard_of_name: &'a [u16],
    shard_names: &'a [String],
    /// Name id and shard number of tensors found in a shard they are not mapped to.
    elsewhere: Vec<(u32, usize)>,
}

impl IndexedMerge<'_> {
    /// Adds the shard that the index knows by `number`.
    fn add(
        &mut self,
        build: &mut Build,
        number: usize,
        opened: (Shard, Header),
        strangers: &NameTable,
    ) -> Result<(), CheckpointError> {
        if !strangers.is_empty() {
            let shown = (0..strangers.len().min(LISTED)).map(|id| strangers.name(id as u32));
            return Err(CheckpointError::NotInIndex {
                path: self.path.to_owned(),
                shard: self.shard_names[number].clone(),
                tensors: shown.map(str::to_owned).collect(),
                count: strangers.len(),
            });
        }
        let (shard, header) = opened;
        let forms = build.merge_forms(header.forms);
        for entry in header.entries {
            let name = entry.name_id as usize;
            if usize::from(self.shard_of_name[name]) != number {
                self.elsewhere.push((entry.name_id, number));
                continue;
            }
            build.entry_of_name[name] = build.entries.len() as u32;
            build.entries.push(Entry {
                offset: shard.data_start() + entry.start,
                name_id: entry.name_id,
                form: forms[entry.form as usize],
                shard: build.shards.len() as u32,
            });
        }
        build.shards.push(shard);
        Ok(())
    }

    /// Judges what only all shards together show.
    fn finish(&self, build: &Build, absent: &[String]) -> Result<(), CheckpointError> {
        let mapped = |name: usize| &self.shard_names[usize::from(self.shard_of_name[name])];
        if let Some(&(name_id, number)) = self.elsewhere.first() {
            let tensor = build.names.name(name_id).to_owned();
            let declared = self.shard_names[number].clone();
            let mapped = mapped(name_id as usize).clone();
            if build.entry_of_name[name_id as usize] != NO_ENTRY {
                let path = build.folder.clone();
                let (first, second) = (mapped, declared);
                return Err(CheckpointError::InTwoShards {
                    path,
                    tensor,
                    first,
                    second,
                });
            }
            let path = self.path.to_owned();
            return Err(CheckpointError::MappedElsewhere {
                path,
                tensor,
                mapped,
                declared,
            });
        }
        let lost = |&name: &usize| {
            build.entry_of_name[name] == NO_ENTRY && absent.binary_search(mapped(name)).is_err()
        };
        let Some(first) = (0..build.entry_of_name.len()).find(lost) else {
            return Ok(());
        };
        Err(CheckpointError::DeclaredNowhere {
            path: self.path.to_owned(),
            tensor: build.names.name(first as u32).to_owned(),
            mapped: mapped(first).clone(),
            count: (first..build.entry_of_name.len()).filter(lost).count(),
        })
    }
}

fn file_name(shard: &Shard) -> String {
    let name = shard.path().file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
