//! The ways a vocabulary's files, or an id, can be wrong.

use std::path::PathBuf;

use thiserror::Error;

use super::{K3_RANKS, K3_VOCABULARY};
use k3_checkpoint::Malformed;

/// One way text cannot be read or written.
#[derive(Debug, Error)]
pub enum TextError {
    /// A file that cannot be read or is not what it should be.
    #[error(transparent)]
    File(#[from] Malformed),
    /// No line at all.
    #[error("{}: expected lines of base64 and a rank, got an empty file", path.display())]
    NoRanks {
        /// The file.
        path: PathBuf,
    },
    /// A line of the rank file.
    #[error("{}: line {line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        problem: LineProblem,
    },
    /// A byte that no token stands for: a text with it could not be encoded.
    #[error(
        "{}: expected a token for each of the 256 single bytes, got none for byte 0x{byte:02X}",
        path.display()
    )]
    MissingByte {
        /// The file.
        path: PathBuf,
        /// The byte.
        byte: u8,
    },
    /// A rank between others that no line gives.
    #[error(
        "{}: expected ranks 0 to {largest} without a gap, got none for rank {rank} ({lines} lines)",
        path.display()
    )]
    MissingRank {
        /// The file.
        path: PathBuf,
        /// The first that is missing.
        rank: usize,
        /// The largest there is.
        largest: usize,
        /// Lines of the file.
        lines: usize,
    },
    /// An id that stands for nothing.
    #[error(
        "token id {id}: expected an id of the vocabulary ({ranks} ranks from 0 on, markers up to \
         {}), got {id}", K3_VOCABULARY - 1
    )]
    NoSuchId {
        /// The id.
        id: u32,
        /// Ranks of the vocabulary.
        ranks: usize,
    },
    /// The crate carries another vocabulary than K3's.
    #[error("the built-in vocabulary: expected {expected} ranks, got {got}")]
    BuiltIn {
        /// Ranks of K3.
        expected: usize,
        /// Ranks of the crate's.
        got: usize,
    },
}

/// One way a line of the rank file can be wrong.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LineProblem {
    /// Nothing on it, and lines after it.
    #[error("expected base64, a space and a rank, got a blank line")]
    Blank,
    /// No space, or more than one.
    #[error("expected base64, one space and a rank, got {got:?}")]
    Fields {
        /// The line, shortened.
        got: String,
    },
    /// Text that is not base64 of the standard alphabet with its padding.
    #[error("expected base64 in fours of A-Z a-z 0-9 + / with = at its end, got {got:?}: {error}")]
    Base64 {
        /// What is wrong with it.
        error: base64::DecodeError,
        /// The text, shortened.
        got: String,
    },
    /// A token of no bytes.
    #[error("expected a token of at least one byte, got none")]
    Empty,
    /// A rank that is none.
    #[error("expected a rank from 0 to {} in decimal digits, got {got:?}", K3_RANKS - 1)]
    Rank {
        /// The text, shortened.
        got: String,
    },
    /// A rank that a line before gave.
    #[error("expected every rank once, got rank {rank} again (first on line {first_line})")]
    RepeatedRank {
        /// The rank.
        rank: usize,
        /// Who had it first.
        first_line: usize,
    },
    /// A token that a line before gave.
    #[error("expected every token once, got that of line {first_line} again")]
    RepeatedToken {
        /// Who had it first.
        first_line: usize,
    },
}
