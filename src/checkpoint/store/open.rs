//! Opening a checkpoint folder.
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

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use thiserror::Error;

use super::{Checkpoint, Entry, NO_ENTRY, Note};
use crate::Problem;
use crate::foreign::Foreign;
use crate::header::{Form, Header, NameResolver};
use crate::index::{INDEX_FILE, MAX_SHARDS, ShardIndex};
use crate::malformed::Malformed;
use crate::name_table::NameTable;
use crate::shard::Shard;
use k3_core::listing::listed;

/// How many names a message lists before it only counts.
const LISTED: usize = 8;

/// One way a folder is no usable checkpoint.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// The folder, its index or a shard cannot be read, is wrong in itself, or contradicts another.
    #[error(transparent)]
    File(#[from] Malformed),
    /// Shards that the index, or the numbering of the files, says there are.
    #[error(
        "{}: {} of {total} missing: {}{}",
        path.display(), missing.len(), listed(missing, missing.len()), hint(unfinished)
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
}

fn hint(unfinished: &[String]) -> String {
    if unfinished.is_empty() {
        return String::new();
    }
    format!(" (unfinished downloads: {})", listed(unfinished, unfinished.len()))
}

/// What happens where shards are missing.
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
    /// [`CheckpointError::File`].
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
}

/// What lies in a checkpoint folder, by name.
struct Listing {
    has_index: bool,
    shards: Vec<String>,
    unfinished: Vec<String>,
}

impl Listing {
    fn read(folder: &Path) -> Result<Self, CheckpointError> {
        let io_error = |reason: io::Error| {
            Problem::whole(format!("not a readable folder: {reason}")).in_file(folder)
        };
        let mut found = Self { has_index: false, shards: Vec::new(), unfinished: Vec::new() };
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
        let stray = self.shards.into_iter().filter(|file| used.binary_search(file).is_err());
        let stray = stray.map(|file| Note::StrayShard { file });
        let unfinished = self.unfinished.into_iter();
        stray.chain(unfinished.map(|file| Note::UnfinishedDownload { file })).collect()
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
            let strangers = NameTable::new();
            let mut names = IndexedNames { table: &index.names, strangers, near: 0 };
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
    let mut notes = listing.notes(&used);
    notes.extend(index.odd_metadata.map(|problem| Note::OddMetadata { problem }));
    let total_size = index.total_size.filter(|_| absent.is_empty());
    let mut checkpoint = build.finish(absent, true, notes);
    let header_bytes = checkpoint.tensor_bytes();
    if let Some(index_bytes) = total_size.filter(|&bytes| bytes != header_bytes) {
        checkpoint.notes.push(Note::TotalSizeDiffers { index_bytes, header_bytes });
    }
    Ok(checkpoint)
}

fn open_unindexed(
    folder: &Path,
    listing: Listing,
    missing: Missing,
) -> Result<Checkpoint, CheckpointError> {
    let path = folder.to_owned();
    let count = listing.shards.len();
    let refuse = |what: String| Err(Problem::whole(what).in_file(folder).into());
    if count == 0 {
        let hint = hint(&listing.unfinished);
        return refuse(format!("no {INDEX_FILE} and no .safetensors file{hint}"));
    }
    if count > MAX_SHARDS {
        return refuse(format!("{count} .safetensors files, above the limit of {MAX_SHARDS}"));
    }
    let absent = absent_by_numbering(&listing.shards);
    let total = listing.shards.len() + absent.len();
    if !absent.is_empty() && missing == Missing::Refused {
        let unfinished = listing.unfinished;
        return Err(CheckpointError::ShardsMissing { path, missing: absent, total, unfinished });
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
                absent.push(format!("{stem}-{number:0digits$}-of-{total_text}.safetensors"));
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
    /// The id given last.
    near: u32,
}

impl NameResolver for IndexedNames<'_> {
    fn resolve(&mut self, name: &str) -> Option<u32> {
        if let Some(id) = self.table.find_near(name, self.near) {
            self.near = id;
            return Some(id);
        }
        let (id, _) = self.strangers.intern(name)?;
        id.checked_add(self.table.len() as u32)
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

    fn add_unindexed(&mut self, opened: (Shard, Header)) -> Result<(), Malformed> {
        let (shard, header) = opened;
        let forms = self.merge_forms(header.forms);
        self.entry_of_name.resize(self.names.len(), NO_ENTRY);
        for entry in header.entries {
            let place = &mut self.entry_of_name[entry.name_id as usize];
            if *place != NO_ENTRY {
                let first = &self.shards[self.entries[*place as usize].shard as usize];
                let problem = in_two_shards(
                    self.names.name(entry.name_id),
                    &file_name(first),
                    &file_name(&shard),
                );
                return Err(problem.in_file(&self.folder));
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

    fn finish(
        self,
        missing_shards: Vec<String>,
        has_index: bool,
        mut notes: Vec<Note>,
    ) -> Checkpoint {
        for shard in self.shards.iter().filter(|shard| !shard.unread_keys().is_empty()) {
            let keys = shard.unread_keys().iter().cloned().collect();
            notes.push(Note::UnreadKeys { file: file_name(shard), keys });
        }
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
    ) -> Result<(), Malformed> {
        if !strangers.is_empty() {
            let names = (0..strangers.len()).map(|id| strangers.name(id as u32).to_owned());
            let names: Vec<String> = names.take(LISTED).collect();
            let what = format!(
                "{} declares {} tensor(s) that the index omits: {}",
                self.shard_names[number],
                strangers.len(),
                listed(&names, strangers.len())
            );
            return Err(Problem::whole(what).in_file(self.path));
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
    fn finish(&self, build: &Build, absent: &[String]) -> Result<(), Malformed> {
        let mapped = |name: usize| &self.shard_names[usize::from(self.shard_of_name[name])];
        if let Some(&(name_id, number)) = self.elsewhere.first() {
            let tensor = build.names.name(name_id);
            let (mapped, declared) = (mapped(name_id as usize), &self.shard_names[number]);
            if build.entry_of_name[name_id as usize] != NO_ENTRY {
                return Err(in_two_shards(tensor, mapped, declared).in_file(&build.folder));
            }
            let what = format!("is mapped to {mapped}, but {declared} declares it");
            return Err(Problem::in_tensor(tensor, what).in_file(self.path));
        }
        let lost = |&name: &usize| {
            build.entry_of_name[name] == NO_ENTRY && absent.binary_search(mapped(name)).is_err()
        };
        let Some(first) = (0..build.entry_of_name.len()).find(lost) else {
            return Ok(());
        };
        let count = (first..build.entry_of_name.len()).filter(lost).count();
        let what = format!(
            "is mapped to {}, which does not declare it; nor does another shard ({count} such in \
             all)",
            mapped(first)
        );
        Err(Problem::in_tensor(build.names.name(first as u32), what).in_file(self.path))
    }
}

/// A tensor that two shards declare.
fn in_two_shards(tensor: &str, first: &str, second: &str) -> Problem {
    Problem::in_tensor(tensor, format!("is declared by both {first} and {second}"))
}

fn file_name(shard: &Shard) -> String {
    let name = shard.path().file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
