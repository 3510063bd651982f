//! Input text, from a file or stdin, byte for byte, and how its markers are read.

use std::io::{self, Read};
use std::path::Path;

use clap::ValueEnum;

use super::output::{CommandError, bad_input};
use k3_checkpoint::Malformed;
use k3_text::{Special, TextError};

/// Largest input: offsets within a piece of text have 32 bits, with room to spare.
pub const MAX_INPUT_BYTES: u64 = 1 << 30;
/// Largest prompt: about a million tokens. It is read and encoded before the memory of the run can
/// be planned, so it has to be small against the error of a plan.
pub const MAX_PROMPT_BYTES: u64 = 4 << 20;
/// The name of stdin.
const STDIN: &str = "-";

/// How markers in a text are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SpecialArg {
    /// As plain text, never as control tokens
    Text,
    /// As control tokens, one id each
    Token,
}

impl From<SpecialArg> for Special {
    fn from(typed: SpecialArg) -> Self {
        match typed {
            SpecialArg::Text => Self::Text,
            SpecialArg::Token => Self::Token,
        }
    }
}

/// The name of an input in messages.
#[must_use]
pub fn name_of(path: &Path) -> String {
    if path.as_os_str() == STDIN {
        return "stdin".to_owned();
    }
    path.display().to_string()
}

/// Reads a file, or stdin for `-`, keeping a byte-order mark and the last line end.
pub fn read_text(path: &Path, limit_bytes: u64) -> Result<String, CommandError> {
    let from_stdin = path.as_os_str() == STDIN;
    let name = name_of(path);
    let refuse = |what: String| {
        let error = anyhow::anyhow!("{name}: {what}");
        bad_input(error)
    };
    let mut bytes = Vec::new();
    let read = |source: &mut dyn Read, bytes: &mut Vec<u8>| {
        source.take(limit_bytes + 1).read_to_end(bytes)
    };
    let done = if from_stdin {
        read(&mut io::stdin().lock(), &mut bytes)
    } else {
        let mut file = k3_core::host::files::open(path)
            .map_err(|error| TextError::from(Malformed::unreadable(path, &error)))?;
        read(&mut file, &mut bytes)
    };
    done.map_err(|error| refuse(format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > limit_bytes {
        return Err(refuse(format!("larger than the limit of {limit_bytes} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let byte = error.as_bytes()[at];
        refuse(format!("byte {at}: expected UTF-8, got 0x{byte:02X}"))
            .hint("text must be valid UTF-8")
    })
}
