//! What a checkpoint on disk contains and whether it is whole, for `inspect` and `check`.
//!
//! [`census`] counts tensors by class and layer, [`end_ids`] finds the ids that end a turn,
//! [`statistics`] looks into single tensors. [`folder`] judges the files as files, [`values`] every
//! stored number, [`cross_read`] compares the engine's reader with the reference's, [`digests`]
//! compares whole files with a list of SHA-256. Nothing here repairs or skips: the report lists
//! what could not be read.

pub mod census;
pub mod cross_read;
pub mod digests;
pub mod end_ids;
pub mod folder;
pub mod statistics;
pub mod values;

use serde::Serialize;

/// Findings of one kind that are listed; all are counted.
pub const LISTED: usize = 20;

/// Something that is wrong, with its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// File name inside the checkpoint, or the folder.
    pub file: String,
    /// Full tensor name, where it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor: Option<String>,
    /// What is wrong: expected and got.
    pub what: String,
}

/// A list of findings that stays short and counts all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// How many there are.
    pub count: u64,
    /// The first [`LISTED`].
    pub listed: Vec<Finding>,
}

impl Findings {
    /// Adds one.
    pub fn push(&mut self, finding: Finding) {
        self.count += 1;
        if self.listed.len() < LISTED {
            self.listed.push(finding);
        }
    }

    /// Adds all of another list, in its order.
    pub fn append(&mut self, other: Self) {
        self.count += other.count;
        let room = LISTED - self.listed.len();
        self.listed.extend(other.listed.into_iter().take(room));
    }

    /// A line for each that is listed, and for the rest their number.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let line = |Finding { file, tensor, what }: &Finding| match tensor {
            Some(tensor) => format!("{file}: {tensor}: {what}"),
            None => format!("{file}: {what}"),
        };
        let mut lines: Vec<String> = self.listed.iter().map(line).collect();
        let more = self.count - self.listed.len() as u64;
        if more > 0 {
            lines.push(format!("… and {more} more"));
        }
        lines
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}
