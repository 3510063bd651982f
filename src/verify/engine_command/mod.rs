//! Any executable as a subject: `--engine-cmd 'CMD {model} {ids} {gen} {logits}'`.
//!
//! # The protocol
//!
//! The text is split into words as a POSIX shell splits them (quotes and backslashes work; there
//! are no variables, pipes or globs, for which `sh -c '…'` can be the command). In every word these
//! are replaced:
//!
//! | place | becomes |
//! | --- | --- |
//! | `{model}` | absolute path of a checkpoint folder in the released layout |
//! | `{ids}` | the ids given, decimal, with commas: `3,4,5` |
//! | `{gen}` | how many ids to generate greedily, 1 or more |
//! | `{logits}` | absolute path of a file that does not exist; the command writes it |
//!
//! The command exits with 0, prints the generated ids and writes logits.
//!
//! *Ids*: the last line of stdout that is a list of decimal numbers, with commas or blanks between
//! them, in brackets or not; or JSON on stdout with a field `generated_ids`. Exactly `{gen}` ids,
//! or the given ids followed by them. stderr is free.
//!
//! *Logits*: raw little-endian f32, or safetensors with a tensor `logits` of shape \[R, V\] in F32,
//! F64, F16 or BF16. With n ids given and g generated, R tells what the rows are:
//!
//! | R | rows |
//! | --- | --- |
//! | n + g, n + g − 1 | one per position fed, the given ids first |
//! | n | one per given id; the generated positions are then judged by their ids alone |
//! | g | one per generated id, the first being that of the last given id |
//!
//! An engine of the last form is asked once per position, with one id more each time. Where n = g
//! and both forms fit, what it wrote for another length decides.

mod launch;
mod subject;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

pub use launch::{LaunchError, Output};
pub use subject::EngineCommand;

/// Placeholders that a command must contain.
const PLACES: [&str; 4] = ["{model}", "{ids}", "{gen}", "{logits}"];

/// Why a command cannot be used, found before anything is run.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TemplateError {
    /// A text that is no command with its places.
    #[error("--engine-cmd: {0}")]
    Text(String),
    /// No such program.
    #[error("--engine-cmd: program {0:?} does not exist or cannot be run")]
    NoProgram(String),
}

/// A command with its places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    words: Vec<String>,
    /// How long one launch may take.
    pub timeout: Duration,
}

impl Template {
    /// Reads the text of `--engine-cmd`. `search_path` lists the folders in which a program without
    /// a slash in its name is looked for, as `PATH` does.
    ///
    /// # Errors
    ///
    /// [`TemplateError`], before anything is run.
    pub fn parse(
        text: &str,
        timeout: Duration,
        search_path: &OsStr,
    ) -> Result<Self, TemplateError> {
        let refuse = |what: String| Err(TemplateError::Text(what));
        let Some(words) = shlex::split(text) else {
            return refuse(format!("a quote is not closed in {text:?}"));
        };
        if words.is_empty() {
            return refuse("expected a command, got an empty text".to_owned());
        }
        for place in PLACES {
            if !words.iter().any(|word| word.contains(place)) {
                return refuse(format!("{place} is missing in {text:?}"));
            }
        }
        if let Some(unknown) = words.iter().find_map(|word| unknown_place(word)) {
            let places = "{model}, {ids}, {gen} or {logits}";
            return refuse(format!("expected {places}, got {{{unknown}}}"));
        }
        if !is_program(&words[0], search_path) {
            return Err(TemplateError::NoProgram(words[0].clone()));
        }
        Ok(Self { words, timeout })
    }

    /// The words with their places filled.
    fn filled(&self, values: [&str; 4]) -> Vec<String> {
        let fill = |word: &String| {
            let mut out = String::new();
            let mut rest = word.as_str();
            // In one pass: a path that contains `{ids}` must not be filled again.
            while let Some((at, place)) = next_place(rest) {
                out.push_str(&rest[..at]);
                out.push_str(values[place]);
                rest = &rest[at + PLACES[place].len()..];
            }
            out + rest
        };
        self.words.iter().map(fill).collect()
    }
}

/// The first placeholder in a text: its position and which it is.
fn next_place(text: &str) -> Option<(usize, usize)> {
    let found = PLACES.iter().enumerate();
    let found = found.filter_map(|(place, name)| Some((text.find(name)?, place)));
    found.min()
}

/// A word in braces that looks like a place and is none. Other braces, as of JSON, are let be.
fn unknown_place(word: &str) -> Option<String> {
    let mut rest = word;
    while let Some((_, tail)) = rest.split_once('{') {
        rest = tail;
        if let Some((name, _)) = tail.split_once('}') {
            let simple = !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase());
            if simple && !PLACES.contains(&format!("{{{name}}}").as_str()) {
                return Some(name.to_owned());
            }
        }
    }
    None
}

/// Whether a program of this name is there: a path, or a name on the search path.
fn is_program(name: &str, search_path: &OsStr) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    let runs = |path: PathBuf| {
        let facts = std::fs::metadata(path);
        facts.is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        return runs(name.into());
    }
    std::env::split_paths(search_path).any(|folder| runs(folder.join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Template, TemplateError> {
        Template::parse(text, Duration::from_secs(1), OsStr::new("/usr/bin:/bin"))
    }

    /// One wrong text per way it can be wrong.
    #[test]
    fn wrong_commands_are_refused_before_they_run() {
        for (text, says) in [
            ("", "empty"),
            ("sh 'x {model} {ids} {gen} {logits}", "quote"),
            ("sh {model} {ids} {gen}", "{logits} is missing"),
            ("sh {model} {ids} {gen} {logits} {frobnicate}", "frobnicate"),
            ("no-such-program-here {model} {ids} {gen} {logits}", "no-such-program"),
            ("/etc/passwd {model} {ids} {gen} {logits}", "cannot be run"),
        ] {
            let error = parsed(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    /// A path with a blank stays one word, and what a path contains is not filled again.
    #[test]
    fn places_are_filled_once_and_words_stay_words() {
        let template = parsed("sh -c 'a b' --m={model} {ids} {gen} {logits} '{\"k\": 1}'").unwrap();
        let words = template.filled(["/a {ids}/b", "1,2", "3", "/tmp/x"]);
        let expected = ["sh", "-c", "a b", "--m=/a {ids}/b", "1,2", "3", "/tmp/x", "{\"k\": 1}"];
        assert_eq!(words, expected);
    }
}
