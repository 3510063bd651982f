//! The journal of a run: a header line with the request, then one line of JSON per finished row.
//!
//! A stopped run resumes from it if request and inputs are the same and no line was altered; a last
//! line that is cut short is dropped. Next to it is the chain, as safetensors in F64: the
//! reference's stream after the last finished layer.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::run::Chain;
use super::sources::Sources;
use crate::fixtures::hex_sha256;
use crate::report::layers::{LayerRow, Part, Question};
use k3_checkpoint::{Malformed, Problem};
use k3_core::host::files::replace_file;
use k3_core::seal::{seal, unseal};
use k3_reference::Residual;
use k3_reference::rows::from_values;

/// File name of the journal in the output folder.
pub const JOURNAL: &str = "journal.jsonl";

/// File name of the chain.
pub const CHAIN: &str = "chain.safetensors";

/// Everything that has to be equal for a run to resume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The request.
    pub question: Question,
    /// Which bytes the subject read.
    pub sources: Sources,
    /// Which bytes the reference read, where they were others.
    pub reference_sources: Option<Sources>,
    /// Which part.
    pub part: Option<Part>,
}

/// A finished row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The row.
    pub row: LayerRow,
    /// How long it took.
    pub seconds: f64,
}

/// A journal that cannot be used.
#[derive(Debug, Error)]
pub enum JournalError {
    /// A file that cannot be read or written, or is no journal or chain.
    #[error(transparent)]
    File(#[from] Malformed),
    /// The journal of another run.
    #[error(transparent)]
    OtherRun(Malformed),
}

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
}

impl Journal {
    /// Begins a new one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn begin(folder: &Path, header: &Header) -> Result<Self, JournalError> {
        let path = folder.join(JOURNAL);
        let io = |reason: io::Error| Problem::whole(reason).in_file(&path);
        let mut file = File::create(&path).map_err(io)?;
        write_line(&mut file, header).map_err(io)?;
        let chain = folder.join(CHAIN);
        if chain.exists() {
            fs::remove_file(&chain).map_err(io)?;
        }
        Ok(Self { file, path })
    }

    /// Takes up one that is there; gives the finished rows.
    ///
    /// # Errors
    /// A file that cannot be read, is no journal, or is of another run.
    pub fn resume(folder: &Path, header: &Header) -> Result<(Self, Vec<Entry>), JournalError> {
        let path = folder.join(JOURNAL);
        let io = |reason: io::Error| Problem::whole(reason).in_file(&path);
        let text = k3_core::host::files::read_to_string(&path).map_err(io)?;
        let mut lines = text.split_inclusive('\n');
        let first = lines.next().unwrap_or_default();
        let before: Header = unseal(first.as_bytes())
            .map_err(|what| Problem::new("not a journal of a run of layers", what))
            .map_err(|problem| problem.in_file(&path))?;
        if let Some(what) = difference(&before, header) {
            let problem = Problem::whole(format!("the journal of another run: {what} differs"));
            return Err(JournalError::OtherRun(problem.in_file(&path)));
        }
        let (mut kept, mut entries) = (first.len() as u64, Vec::new());
        for (number, line) in lines.enumerate().filter(|(_, line)| line.ends_with('\n')) {
            let problem = |what| Problem::new(format!("line {}", number + 2), what).in_file(&path);
            entries.push(unseal(line.as_bytes()).map_err(problem)?);
            kept += line.len() as u64;
        }
        let file = OpenOptions::new().append(true).open(&path).map_err(io)?;
        file.set_len(kept).map_err(io)?;
        Ok((Self { file, path }, entries))
    }

    /// Adds a finished row.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, row: &LayerRow, seconds: f64) -> Result<(), JournalError> {
        let row = row.clone();
        let written = write_line(&mut self.file, &Entry { row, seconds });
        Ok(written.map_err(|reason| Problem::whole(reason).in_file(&self.path))?)
    }
}

fn write_line(file: &mut File, value: &impl Serialize) -> io::Result<()> {
    file.write_all(format!("{}\n", seal(value)?).as_bytes())?;
    file.sync_data()
}

fn difference(before: &Header, now: &Header) -> Option<&'static str> {
    let pairs = [
        ("the program's version", before.question.program != now.question.program),
        ("the request", before.question != now.question),
        ("the part", before.part != now.part),
        ("the checkpoint", before.sources != now.sources),
        ("the reference's checkpoint", before.reference_sources != now.reference_sources),
    ];
    pairs.into_iter().find(|(_, differs)| *differs).map(|(what, _)| what)
}

/// Writes the chain under a temporary name, then renames.
///
/// # Errors
/// The file cannot be written.
pub fn write_chain(folder: &Path, chain: &Chain) -> Result<(), JournalError> {
    let path = folder.join(CHAIN);
    let Some(residual) = &chain.residual else {
        return Ok(());
    };
    let mut streams = vec![("sum".to_owned(), &residual.sum)];
    let banks = residual.banks.iter().enumerate();
    streams.extend(banks.map(|(index, bank)| (format!("bank.{index}"), bank)));
    let bytes: Vec<Vec<u8>> = streams
        .iter()
        .map(|(_, rows)| rows.iter().flat_map(|v| v.to_le_bytes()).collect())
        .collect();
    let refused = |reason: String| Problem::new("not a chain", reason).in_file(&path);
    let mut views = Vec::new();
    for ((name, rows), bytes) in streams.iter().zip(&bytes) {
        let shape = vec![rows.nrows(), rows.ncols()];
        let view = TensorView::new(Dtype::F64, shape, bytes);
        views.push((name.clone(), view.map_err(|error| refused(error.to_string()))?));
    }
    let mut notes = HashMap::from([("next_layer".to_owned(), chain.next.to_string())]);
    let digest = chain_digest(chain.next, views.iter().map(|(name, view)| (&**name, view)));
    notes.insert("digest".to_owned(), digest);
    let encoded = safetensors::serialize(views, Some(notes));
    let encoded = encoded.map_err(|error| refused(error.to_string()))?;
    Ok(replace_file(&path, &encoded).map_err(|reason| Problem::whole(reason).in_file(&path))?)
}

/// SHA-256 of everything in a chain.
fn chain_digest<'a>(
    next: usize,
    tensors: impl Iterator<Item = (&'a str, &'a TensorView<'a>)>,
) -> String {
    let mut digests: Vec<String> = tensors
        .map(|(name, view)| format!("{name} {:?} {}", view.shape(), hex_sha256(view.data())))
        .collect();
    digests.sort_unstable();
    hex_sha256(format!("{next} {digests:?}").as_bytes())
}

/// Reads the chain, if there is one.
///
/// # Errors
/// It is damaged.
pub fn read_chain(folder: &Path) -> Result<Option<Chain>, JournalError> {
    let path = folder.join(CHAIN);
    let bytes = match k3_core::host::files::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|reason| Problem::whole(reason).in_file(&path))?,
    };
    let refused = |reason: String| Problem::new("not a chain", reason).in_file(&path);
    let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(|e| refused(e.to_string()))?;
    let notes = metadata.metadata().clone().unwrap_or_default();
    let next = notes.get("next_layer").and_then(|next| next.parse().ok());
    let next = next.ok_or_else(|| refused("no next_layer in it".to_owned()))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| refused(error.to_string()))?;
    let tensors = file.tensors();
    let got = chain_digest(next, tensors.iter().map(|(name, view)| (&**name, view)));
    if notes.get("digest") != Some(&got) {
        return Err(refused(format!("altered: its digest is {got}, not the one it states")).into());
    }
    let mut streams = BTreeMap::new();
    for (name, view) in file.iter() {
        if view.dtype() != Dtype::F64 || view.shape().len() != 2 {
            return Err(refused(format!("{name} is not F64 [T, E]")).into());
        }
        let words = view.data().as_chunks::<8>().0.iter();
        let values = words.map(|word| f64::from_le_bytes(*word)).collect();
        let width = view.shape()[1];
        streams.insert(name.to_owned(), from_values(width, values));
    }
    let sum = streams.remove("sum").ok_or_else(|| refused("no sum in it".to_owned()))?;
    let mut banks = Vec::new();
    while let Some(bank) = streams.remove(&format!("bank.{}", banks.len())) {
        banks.push(bank);
    }
    Ok(Some(Chain { next, residual: Some(Residual { sum, banks }) }))
}
