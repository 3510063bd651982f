//! Writing a checkpoint folder: parallel, resumable, nothing half-written.
//!
//! A shard is written under a temporary name, flushed, and renamed; index and config come last, so
//! a folder with a config is complete. Existing files are checked first: a shard with the right
//! header and size, and the right bytes in three places of every tensor, is kept; anything else is
//! refused before a byte is written, and nothing is ever overwritten. The space on the file system
//! is checked for all that is missing.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::draw::{Content, Drawn, PlacedShard};
use super::index::index_text;
use super::{Layout, ShardPlan, SynthError};
use k3_checkpoint::Problem;
use k3_checkpoint::index::INDEX_FILE;
use k3_checkpoint::store::CONFIG_FILE;
use k3_core::host::files::{
    UNFINISHED, free_bytes, remove_abandoned, replace_file, replace_file_by,
};

/// What is to be written, and where.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// The shards.
    pub layout: Layout<'a>,
    /// Their bytes.
    pub content: Content,
    /// Whether to write `model.safetensors.index.json`.
    pub index: bool,
    /// OUT.
    pub folder: &'a Path,
}

/// What is there, and what is missing.
#[derive(Debug)]
pub struct Survey {
    /// Shards to be written, by index.
    pub missing: Vec<usize>,
    /// Shards that were there and are right.
    pub kept: usize,
    /// Bytes of tensors, of all shards.
    pub tensor_bytes: u64,
    /// Tensors in all shards.
    pub tensors: u64,
    /// Bytes of all shards.
    pub shard_bytes: u64,
    /// Bytes of the missing shards.
    pub missing_bytes: u64,
    /// Bytes that will be taken on the file system: of a hole only the header.
    pub needed_bytes: u64,
    /// The small files that are missing, with their text.
    texts: Vec<(PathBuf, String)>,
    /// Held while the folder is being written.
    _lock: File,
}

impl Job<'_> {
    /// Makes the folder where it is not there, and finds out what has to be done.
    ///
    /// # Errors
    /// Everything but what only writing can show. A folder that was made here is removed again.
    pub fn survey(&self) -> Result<Survey, SynthError> {
        let made = make_folder(self.folder)?;
        let survey = self.survey_folder().and_then(|survey| {
            self.check_space(survey.needed_bytes)?;
            Ok(survey)
        });
        if survey.is_err() && made {
            // Only ever an empty folder; if that fails there is nothing more to say.
            let _ = fs::remove_dir(self.folder);
        }
        survey
    }

    fn survey_folder(&self) -> Result<Survey, SynthError> {
        let lock = lock(self.folder)?;
        remove_abandoned(self.folder, UNFINISHED);
        self.refuse_foreign_files()?;
        let mut texts = Vec::new();
        self.survey_text(CONFIG_FILE, &self.layout.model.config_text, &mut texts)?;
        let surveyed: Result<Vec<_>, SynthError> = (0..self.layout.shard_count())
            .into_par_iter()
            .map(|index| {
                let plan = self.layout.shard(index)?;
                let is_there = self.is_there(&plan)?;
                Ok((
                    plan.layout.file_bytes,
                    plan.layout.head.len() as u64,
                    plan.tensors.len() as u64,
                    is_there,
                ))
            })
            .collect();
        let mut survey = Survey {
            missing: Vec::new(),
            kept: 0,
            tensor_bytes: 0,
            tensors: 0,
            shard_bytes: 0,
            missing_bytes: 0,
            needed_bytes: 0,
            texts: Vec::new(),
            _lock: lock,
        };
        for (index, (file_bytes, head_bytes, tensors, is_there)) in
            surveyed?.into_iter().enumerate()
        {
            survey.shard_bytes += file_bytes;
            survey.tensor_bytes += file_bytes - head_bytes;
            survey.tensors += tensors;
            if is_there {
                survey.kept += 1;
                continue;
            }
            survey.missing.push(index);
            survey.missing_bytes += file_bytes;
            survey.needed_bytes += match self.content {
                Content::Weights { .. } => file_bytes,
                Content::Holes => head_bytes,
            };
        }
        // Before half a million names are put into one text.
        self.check_space(survey.needed_bytes)?;
        if self.index {
            self.survey_text(INDEX_FILE, &index_text(&self.layout)?, &mut texts)?;
        }
        // The config last: it completes the folder.
        texts.reverse();
        survey.needed_bytes += texts.iter().map(|(_, text)| text.len() as u64).sum::<u64>();
        survey.texts = texts;
        Ok(survey)
    }

    /// Every file in the folder must be one of this checkpoint.
    fn refuse_foreign_files(&self) -> Result<(), SynthError> {
        let mut known: Vec<OsString> = (0..self.layout.shard_count())
            .map(|index| self.layout.file_name(index).into())
            .collect();
        known.extend([CONFIG_FILE.into(), INDEX_FILE.into()]);
        let listed = |reason| SynthError::io(self.folder, "cannot be listed", reason);
        let mut foreign = Vec::new();
        for entry in fs::read_dir(self.folder).map_err(listed)? {
            let name = entry.map_err(listed)?.file_name();
            if !known.contains(&name) {
                foreign.push(name.to_string_lossy().into_owned());
            }
        }
        match foreign.into_iter().min() {
            None => Ok(()),
            Some(file) => {
                let what = format!("holds {file:?}, which is no part of this checkpoint");
                Err(SynthError::Taken(Problem::whole(what).in_file(self.folder)))
            }
        }
    }

    fn survey_text(
        &self,
        name: &str,
        text: &str,
        missing: &mut Vec<(PathBuf, String)>,
    ) -> Result<(), SynthError> {
        let path = self.folder.join(name);
        match fs::read(&path) {
            Ok(bytes) if bytes == text.as_bytes() => Ok(()),
            Ok(_) => Err(other_checkpoint(&path, "another text")),
            Err(reason) if reason.kind() == io::ErrorKind::NotFound => {
                missing.push((path, text.to_owned()));
                Ok(())
            }
            Err(reason) => Err(SynthError::io(path, "cannot be read", reason)),
        }
    }

    /// Whether the shard is there; refuses one that is not of this checkpoint.
    fn is_there(&self, plan: &ShardPlan) -> Result<bool, SynthError> {
        let path = self.folder.join(&plan.file);
        let failed = |reason| SynthError::io(&path, "cannot be read", reason);
        let file = match File::open(&path) {
            Err(reason) if reason.kind() == io::ErrorKind::NotFound => return Ok(false),
            opened => opened.map_err(failed)?,
        };
        let (got, expected) = (file.metadata().map_err(failed)?.len(), plan.layout.file_bytes);
        if got != expected {
            return Err(other_checkpoint(&path, &format!("expected {expected} bytes, got {got}")));
        }
        let mut bytes = vec![0; plan.layout.head.len()];
        file.read_exact_at(&mut bytes, 0).map_err(failed)?;
        if bytes != plan.layout.head {
            return Err(other_checkpoint(&path, "another header"));
        }
        let shard = PlacedShard::new(plan);
        let mut drawn = Drawn::default();
        for piece in shard.checked_pieces() {
            shard.draw(self.content, piece, &mut drawn)?;
            for (expected, offset) in drawn.parts() {
                bytes.resize(expected.len(), 0);
                file.read_exact_at(&mut bytes, offset).map_err(failed)?;
                if bytes != expected {
                    let tensor = &plan.tensors[piece.tensor].name;
                    let what = format!("other bytes in {tensor} at offset {offset}");
                    return Err(other_checkpoint(&path, &what));
                }
            }
        }
        Ok(true)
    }

    fn check_space(&self, needed_bytes: u64) -> Result<(), SynthError> {
        let free_bytes = free_bytes(self.folder)
            .map_err(|reason| SynthError::io(self.folder, "free space cannot be read", reason))?;
        if needed_bytes > free_bytes {
            let what = format!(
                "{needed_bytes} bytes are to be written, {free_bytes} are free on that file system"
            );
            return Err(SynthError::NoSpace(Problem::whole(what).in_file(self.folder)));
        }
        Ok(())
    }

    /// Writes what the survey found missing; `progress` gets bytes as they are done.
    ///
    /// # Errors
    /// The system refuses, or a block has no scale. Whole shards stay, and are found again.
    pub fn write(
        &self,
        survey: &Survey,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(), SynthError> {
        let write = |&index: &usize| self.write_shard(&self.layout.shard(index)?, progress);
        match self.content {
            // One after the other, each by all threads: an interruption loses one shard at most.
            Content::Weights { .. } => survey.missing.iter().try_for_each(write)?,
            Content::Holes => survey.missing.par_iter().try_for_each(write)?,
        }
        for (path, text) in &survey.texts {
            let written = replace_file(path, text.as_bytes());
            written.map_err(|reason| SynthError::io(path, "cannot be written", reason))?;
        }
        let synced = File::open(self.folder).and_then(|folder| folder.sync_all());
        synced.map_err(|reason| SynthError::io(self.folder, "cannot be flushed", reason))
    }

    fn write_shard(
        &self,
        plan: &ShardPlan,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(), SynthError> {
        let path = self.folder.join(&plan.file);
        let mut unfit = None;
        let written = replace_file_by(&path, |file| {
            file.set_len(plan.layout.file_bytes)?;
            file.write_all_at(&plan.layout.head, 0)?;
            if self.content == Content::Holes {
                progress(plan.layout.file_bytes);
                return Ok(());
            }
            progress(plan.layout.head.len() as u64);
            let shard = PlacedShard::new(plan);
            let pieces = shard.all_pieces();
            let written = pieces.par_iter().try_for_each_init(Drawn::default, |drawn, piece| {
                let failed = |error| Stop::Unfit(Box::new(error));
                shard.draw(self.content, *piece, drawn).map_err(failed)?;
                for (bytes, offset) in drawn.parts() {
                    file.write_all_at(bytes, offset).map_err(Stop::Io)?;
                    progress(bytes.len() as u64);
                }
                Ok(())
            });
            match written {
                Ok(()) => Ok(()),
                Err(Stop::Io(reason)) => Err(reason),
                Err(Stop::Unfit(error)) => {
                    unfit = Some(*error);
                    Err(io::ErrorKind::InvalidData.into())
                }
            }
        });
        match unfit {
            Some(error) => Err(error),
            None => written.map_err(|reason| SynthError::io(path, "cannot be written", reason)),
        }
    }
}

/// Why the pieces of a shard came to an end.
enum Stop {
    Io(io::Error),
    Unfit(Box<SynthError>),
}

impl Drawn {
    /// The runs of bytes and where they belong.
    fn parts(&self) -> impl Iterator<Item = (&[u8], u64)> {
        let parts = [
            (self.data.as_slice(), self.data_offset),
            (self.scales.as_slice(), self.scales_offset),
        ];
        parts.into_iter().filter(|(bytes, _)| !bytes.is_empty())
    }
}

fn other_checkpoint(path: &Path, difference: &str) -> SynthError {
    let place = "is there already and belongs to another checkpoint";
    SynthError::OtherCheckpoint(Problem::new(place, difference).in_file(path))
}

/// Whether it had to be made.
fn make_folder(folder: &Path) -> Result<bool, SynthError> {
    match fs::metadata(folder) {
        Ok(found) if found.is_dir() => Ok(false),
        Ok(_) => {
            let problem = Problem::whole("exists and is no folder");
            Err(SynthError::Taken(problem.in_file(folder)))
        }
        Err(_) => {
            let made = fs::create_dir_all(folder);
            made.map_err(|reason| SynthError::io(folder, "cannot be made", reason))?;
            Ok(true)
        }
    }
}

/// An advisory lock on the folder itself: two runs would write the same files. Some network
/// file systems lock no folder; there the user has to see to it.
fn lock(folder: &Path) -> Result<File, SynthError> {
    let opened = File::open(folder);
    let file = opened.map_err(|reason| SynthError::io(folder, "cannot be opened", reason))?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            let problem = Problem::whole("another process is writing a checkpoint there");
            Err(SynthError::Busy(problem.in_file(folder)))
        }
        _ => Ok(file),
    }
}
