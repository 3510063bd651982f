//! The ways a JSON document can be wrong, each with its place.

use std::fmt;
use std::io;

use thiserror::Error;

use super::json::{MAX_DEPTH, MAX_NUMBER_BYTES};

/// One way a JSON document can be wrong; `at_byte` counts from the start of the document.
#[derive(Debug, Error)]
pub enum JsonError {
    /// The source failed.
    #[error("reading failed at byte {at_byte}: {reason}")]
    Io {
        /// Where.
        at_byte: u64,
        /// What the system said.
        reason: io::Error,
    },
    /// The document stops in the middle.
    #[error("ends at byte {at_byte} where {expected} is expected")]
    UnexpectedEnd {
        /// Length of what is there.
        at_byte: u64,
        /// What should follow.
        expected: &'static str,
    },
    /// A byte that cannot stand here (`NaN`, a NUL, a missing comma, …).
    #[error("byte {at_byte}: {found} where {expected} is expected")]
    Unexpected {
        /// Where.
        at_byte: u64,
        /// What should stand there.
        expected: &'static str,
        /// What does.
        found: FoundByte,
    },
    /// A comma with nothing behind it.
    #[error("byte {at_byte}: trailing comma")]
    TrailingComma {
        /// Where the bracket after it stands.
        at_byte: u64,
    },
    /// A number such as `012`.
    #[error("byte {at_byte}: number with a leading zero")]
    LeadingZero {
        /// Where.
        at_byte: u64,
    },
    /// More digits than [`MAX_NUMBER_BYTES`].
    #[error("byte {at_byte}: number longer than {MAX_NUMBER_BYTES} bytes")]
    NumberTooLong {
        /// Where it starts.
        at_byte: u64,
    },
    /// A raw byte below 0x20 inside a string.
    #[error("byte {at_byte}: control character {found} inside a string")]
    ControlCharacter {
        /// Where.
        at_byte: u64,
        /// Which.
        found: FoundByte,
    },
    /// A backslash followed by something JSON does not know.
    #[error("byte {at_byte}: unknown escape or bad \\u digits")]
    BadEscape {
        /// Where.
        at_byte: u64,
    },
    /// Half of a surrogate pair.
    #[error("byte {at_byte}: lone surrogate in a \\u escape")]
    LoneSurrogate {
        /// Where.
        at_byte: u64,
    },
    /// Bytes that are not UTF-8.
    #[error("byte {at_byte}: string is not UTF-8")]
    NotUtf8 {
        /// Where the string starts.
        at_byte: u64,
    },
    /// A string longer than its reader accepts.
    #[error("byte {at_byte}: string longer than {limit_bytes} bytes")]
    StringTooLong {
        /// Where the string starts.
        at_byte: u64,
        /// The limit.
        limit_bytes: usize,
    },
    /// More than [`MAX_DEPTH`] open brackets.
    #[error("byte {at_byte}: nested deeper than {MAX_DEPTH} levels")]
    TooDeep {
        /// Where.
        at_byte: u64,
    },
    /// Something after the document.
    #[error("byte {at_byte}: {found} after the end of the document")]
    TrailingData {
        /// Where.
        at_byte: u64,
        /// What.
        found: FoundByte,
    },
    /// Two equal keys in one object, escapes resolved.
    #[error("duplicate key {key:?} (seen again before byte {at_byte})")]
    DuplicateKey {
        /// The key.
        key: String,
        /// Where the second one ends.
        at_byte: u64,
    },
}

/// A byte of the document, shown readably in one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundByte(pub u8);

impl fmt::Display for FoundByte {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_ascii_graphic() {
            write!(f, "'{}'", char::from(self.0))
        } else {
            write!(f, "byte 0x{:02X}", self.0)
        }
    }
}
