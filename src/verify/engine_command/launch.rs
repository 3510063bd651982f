//! One launch of a foreign engine: start it, wait up to the time limit, read its output.

use std::fmt::Display;
use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use thiserror::Error;

use super::Template;
use crate::compare::raw_values;
use crate::tensor_file::parse_file;
use k3_core::content::looks_like_safetensors;
use k3_core::host::files::read_at_most;
use k3_core::stages::StageValues;

/// How often a running command is looked at.
const PATIENCE: Duration = Duration::from_millis(5);
/// Characters shown of what a command printed last.
const SHOWN: usize = 200;
/// Lines shown of it: a traceback ends with the place and the reason.
const LAST_LINES: usize = 3;
/// Room for the header of a safetensors file of logits.
const MAX_HEADER_BYTES: u64 = 1 << 20;

/// Why a launch yields no answer, in one line.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// It did not run to its end or left nothing that can be read: its numbers are not known.
    #[error("{0}")]
    NoAnswer(String),
    /// It answered, and the answer cannot be right.
    #[error("{0}")]
    Wrong(String),
}

impl LaunchError {
    /// The program cannot be started, or its files cannot be made.
    fn start(error: std::io::Error) -> Self {
        Self::NoAnswer(format!("cannot be started: {error}"))
    }

    /// Why the logits cannot be read.
    fn unreadable(what: impl Display) -> Self {
        Self::NoAnswer(format!("logits: {what}"))
    }

    /// The number of logits fits no number of rows.
    pub(super) fn rows(expected: &str, vocabulary: usize, got: impl Display) -> Self {
        Self::Wrong(format!("logits: expected {expected} rows of {vocabulary}, got {got}"))
    }

    /// With the last lines on stderr, where there is no answer.
    fn with_last_lines(self, stderr: &Path) -> Self {
        match (self, last_lines(stderr)) {
            (Self::NoAnswer(what), Some(said)) => Self::NoAnswer(format!("{what}: {said}")),
            (error, _) => error,
        }
    }
}

/// What a launch yields.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// The generated ids.
    pub ids: Vec<u32>,
    /// Rows of logits.
    pub rows: usize,
    /// `[rows, vocabulary]`.
    pub logits: Vec<f64>,
}

/// Runs the command once on `ids` and reads its answer.
///
/// # Errors
///
/// [`LaunchError`], one line each.
pub fn launch(
    template: &Template,
    model: &Path,
    ids: &[u32],
    generate: usize,
    vocabulary: usize,
) -> Result<Output, LaunchError> {
    let scratch = k3_core::host::files::scratch_folder("k3-verify-engine-", None)
        .map_err(LaunchError::start)?;
    let logits = scratch.path().join("logits");
    let list: Vec<String> = ids.iter().map(u32::to_string).collect();
    let model = model.canonicalize().map_err(LaunchError::start)?;
    let words = template.filled([
        &model.to_string_lossy(),
        &list.join(","),
        &generate.to_string(),
        &logits.to_string_lossy(),
    ]);
    let stdout = scratch.path().join("stdout");
    let stderr = scratch.path().join("stderr");
    let to_file = |path: &Path| File::create(path).map(Stdio::from).map_err(LaunchError::start);
    let child = Command::new(&words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .stdout(to_file(&stdout)?)
        .stderr(to_file(&stderr)?)
        // A group of its own, so that what it started can be ended with it.
        .process_group(0)
        .spawn()
        .map_err(LaunchError::start)?;
    let _group = k3_core::host::interrupt::Group::of(&child);
    let answer = || {
        let status = wait(child, template.timeout)?;
        if !status.success() {
            return Err(LaunchError::NoAnswer(format!("ended with {status}")));
        }
        let values = (ids.len() + generate) as u64 * vocabulary as u64;
        let (rows, values) = read_logits(&logits, vocabulary, 8 * values + MAX_HEADER_BYTES)?;
        let ids = read_ids(&read_text(&stdout), ids, generate)?;
        Ok(Output { ids, rows, logits: values })
    };
    answer().map_err(|error: LaunchError| error.with_last_lines(&stderr))
}

fn wait(mut child: Child, timeout: Duration) -> Result<ExitStatus, LaunchError> {
    let end = Instant::now() + timeout;
    loop {
        if let Some(status) = child.try_wait().map_err(LaunchError::start)? {
            return Ok(status);
        }
        if Instant::now() >= end {
            stop(&mut child);
            let seconds = timeout.as_secs();
            return Err(LaunchError::NoAnswer(format!(
                "did not end within {seconds} s and was stopped"
            )));
        }
        std::thread::sleep(PATIENCE);
    }
}

fn stop(child: &mut Child) {
    let group = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(group) = group {
        // It may have ended in this moment; then there is nothing to stop.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.wait();
}

fn read_text(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn last_line(text: &str) -> Option<String> {
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    Some(line.chars().take(SHOWN).collect())
}

/// The last lines of a file of text, as one.
fn last_lines(path: &Path) -> Option<String> {
    let text = read_text(path);
    let mut lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let lines = lines.split_off(lines.len().saturating_sub(LAST_LINES)).join(" | ");
    // The end of it says most.
    let skipped = lines.chars().count().saturating_sub(SHOWN);
    (!lines.is_empty()).then(|| lines.chars().skip(skipped).collect())
}

/// Raw f32 or safetensors of at most so many bytes; at least one row, every value finite.
fn read_logits(
    path: &Path,
    vocabulary: usize,
    most: u64,
) -> Result<(usize, Vec<f64>), LaunchError> {
    let bytes = read_at_most(path, most).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => LaunchError::NoAnswer(
            "wrote no logits: the file named by {logits} does not exist".to_owned(),
        ),
        _ => LaunchError::unreadable(error),
    })?;
    let whole_rows = |got: String| LaunchError::rows("whole", vocabulary, got);
    let values = if looks_like_safetensors(&bytes) {
        let (shape, values) = safetensors_logits(path, &bytes)?;
        if shape.last() != Some(&vocabulary) {
            return Err(whole_rows(format!("shape {shape:?}")));
        }
        values
    } else {
        // The path is one of ours and gone by the time anybody reads it.
        raw_values(path, &bytes).map_err(|error| LaunchError::unreadable(error.problem()))?
    };
    if values.is_empty() || !values.len().is_multiple_of(vocabulary) {
        return Err(whole_rows(format!("{} values", values.len())));
    }
    let count = values.iter().filter(|value| !value.is_finite()).count();
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        let (total, row, id) = (values.len(), at / vocabulary, at % vocabulary);
        return Err(LaunchError::Wrong(format!(
            "logits: {count} of {total} are not finite, first in row {row}, id {id}"
        )));
    }
    Ok((values.len() / vocabulary, values))
}

fn safetensors_logits(path: &Path, bytes: &[u8]) -> Result<(Vec<usize>, Vec<f64>), LaunchError> {
    // The path is one of ours and gone by the time anybody reads it.
    let file = parse_file(path, bytes).map_err(|error| LaunchError::unreadable(error.0.problem))?;
    let count = file.tensors.len();
    match file.tensors.into_iter().find(|(name, _)| name == "logits") {
        Some((_, tensor)) => match tensor.values {
            StageValues::Real(values) => Ok((tensor.shape, values)),
            StageValues::Ids(_) => Err(LaunchError::unreadable("they are integers")),
        },
        None => Err(LaunchError::unreadable(format!(
            "expected a tensor logits, got {count} of other names"
        ))),
    }
}

/// The last list of ids on stdout, or the field of a JSON text.
fn read_ids(text: &str, given: &[u32], generate: usize) -> Result<Vec<u32>, LaunchError> {
    let json = serde_json::from_str::<serde_json::Value>(text).ok();
    let field = json.as_ref().and_then(|json| {
        let ids = json.get("generated_ids")?.as_array()?;
        let id = |id: &serde_json::Value| u32::try_from(id.as_u64()?).ok();
        ids.iter().map(id).collect::<Option<Vec<u32>>>()
    });
    let refuse = |got: String| {
        format!("printed no ids: expected {generate} ids separated by commas, got {got}")
    };
    let found = field.or_else(|| text.lines().rev().find_map(id_line));
    let Some(mut ids) = found else {
        let got = last_line(text).map_or("nothing".to_owned(), |line| format!("{line:?}"));
        return Err(LaunchError::NoAnswer(refuse(got)));
    };
    if ids.len() == given.len() + generate && ids.starts_with(given) {
        ids.drain(..given.len());
    }
    if ids.len() != generate {
        return Err(LaunchError::Wrong(refuse(format!("{} ids", ids.len()))));
    }
    Ok(ids)
}

/// A line of decimal numbers with commas or blanks between them, in brackets or not.
fn id_line(line: &str) -> Option<Vec<u32>> {
    let line = line.trim();
    let inner = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let line = inner.unwrap_or(line);
    let parts: Vec<&str> = line.split([',', ' ', '\t']).filter(|part| !part.is_empty()).collect();
    let id = |part: &&str| {
        let digits = part.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| part.parse().ok()).flatten()
    };
    let ids: Option<Vec<u32>> = parts.iter().map(id).collect();
    ids.filter(|ids| !ids.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an engine may print, and what is no list of ids.
    #[test]
    fn ids_are_the_last_list_on_stdout() {
        for text in [
            "7,8\n",
            "loading 3 shards\n7, 8\n\n",
            "[7, 8]",
            "7 8",
            "1,2\n7,8\ndone.\n",
            "5,6,7,8",
            "{\"generated_ids\": [7, 8]}",
        ] {
            assert_eq!(read_ids(text, &[5, 6], 2).unwrap(), [7, 8], "{text:?}");
        }
        for (text, says) in [
            ("", "nothing"),
            ("done", "done"),
            ("7", "1 ids"),
            ("7,8,9", "3 ids"),
            ("7,x", "7,x"),
            ("-7,8", "-7,8"),
            ("7,99999999999", "99999999999"),
        ] {
            let error = read_ids(text, &[5, 6], 2).unwrap_err().to_string();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }
}
