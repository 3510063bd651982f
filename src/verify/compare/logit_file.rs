//! Logit files of any engine: raw f32, reference JSON, safetensors, run JSON.
//!
//! The format is recognised by content, not by name: a valid safetensors prefix, else a JSON
//! object, else raw little-endian f32. A raw file says nothing about its ids or its vocabulary.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use thiserror::Error;

use crate::tensor_file::{IDS, TensorValues, parse_file};
use k3_checkpoint::{Malformed, Problem};
use k3_core::Precision;
use k3_core::stages::StageValues;

/// Why a logit file cannot be used.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct LogitFileError(#[from] Malformed);

/// Logits with what the file says about them.
#[derive(Debug, Clone, PartialEq)]
pub struct LogitFile {
    /// Where they come from.
    pub path: PathBuf,
    /// `raw f32`, `reference JSON`, `safetensors`, `run JSON`.
    pub form: &'static str,
    /// The precision they were stored in.
    pub stored: Precision,
    /// Row-major values.
    pub values: Vec<f64>,
    /// Size of a row, where the file says.
    pub vocabulary: Option<usize>,
    /// The ids given, where the file says.
    pub prompt_ids: Option<Vec<u32>>,
    /// The ids generated, where the file says.
    pub generated_ids: Option<Vec<u32>>,
    /// Texts of a safetensors header.
    pub header: BTreeMap<String, String>,
}

impl LogitFile {
    /// Reads a file of any of the forms.
    ///
    /// # Errors
    ///
    /// [`LogitFileError`] for a file that is missing, empty, cut or contradicts itself.
    pub fn read(path: &Path) -> Result<Self, LogitFileError> {
        let bytes = std::fs::read(path).map_err(|error| Problem::whole(error).in_file(path))?;
        if bytes.is_empty() {
            return Err(empty(path));
        }
        let named = |ending: &str| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(ending));
        if named("safetensors") || looks_like_safetensors(&bytes) {
            return from_safetensors(path, &bytes);
        }
        if named("json") || looks_like_json(&bytes) {
            return from_json(path, &bytes);
        }
        let values = raw_values(path, &bytes)?;
        Ok(Self::bare(path, "raw f32", Precision::F32, values))
    }

    fn bare(path: &Path, form: &'static str, stored: Precision, values: Vec<f64>) -> Self {
        Self {
            path: path.to_owned(),
            form,
            stored,
            values,
            vocabulary: None,
            prompt_ids: None,
            generated_ids: None,
            header: BTreeMap::new(),
        }
    }

    /// The ids that the given number of rows was made from, and nothing of what came out: the
    /// prompt, and of the generated ids those that were fed back.
    #[must_use]
    pub fn differs_in_ids(&self, other: &Self, rows: usize) -> Option<String> {
        let lists = [
            ("prompt ids", &self.prompt_ids, &other.prompt_ids, usize::MAX),
            (
                "ids fed after the prompt",
                &self.generated_ids,
                &other.generated_ids,
                rows.saturating_sub(1),
            ),
        ];
        for (what, mine, theirs, count) in lists {
            if let (Some(mine), Some(theirs)) = (mine, theirs) {
                let cut = |ids: &[u32]| ids[..ids.len().min(count)].to_vec();
                let (mine, theirs) = (cut(mine), cut(theirs));
                if mine != theirs {
                    let (mine, theirs) = (id_list(&mine), id_list(&theirs));
                    return Some(format!("{what}: {mine} against {theirs}"));
                }
            }
        }
        None
    }
}

/// Ids with commas, a long list shortened.
#[must_use]
pub fn id_list(ids: &[u32]) -> String {
    const SHOWN: usize = 16;
    let shown: Vec<String> = ids.iter().take(SHOWN).map(u32::to_string).collect();
    let rest = ids.len().saturating_sub(SHOWN);
    match rest {
        0 => shown.join(","),
        rest => format!("{},… and {rest} more", shown.join(",")),
    }
}

/// Whether bytes begin as a safetensors file does: a plausible header length, then a brace.
#[must_use]
pub fn looks_like_safetensors(bytes: &[u8]) -> bool {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return false;
    };
    let fits = usize::try_from(u64::from_le_bytes(*length)).is_ok_and(|n| n <= rest.len());
    fits && rest.first() == Some(&b'{')
}

fn looks_like_json(bytes: &[u8]) -> bool {
    let start = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    start == Some(&b'{') && std::str::from_utf8(bytes).is_ok()
}

/// Raw little-endian f32 as f64.
///
/// # Errors
///
/// An empty or a cut file.
pub fn raw_values(path: &Path, bytes: &[u8]) -> Result<Vec<f64>, LogitFileError> {
    match bytes.as_chunks::<4>() {
        ([], []) => Err(empty(path)),
        (words, []) => Ok(words.iter().map(|word| f64::from(f32::from_le_bytes(*word))).collect()),
        _ => {
            let what = format!("expected a multiple of 4 bytes (raw f32), got {}", bytes.len());
            Err(Problem::whole(what).in_file(path).into())
        }
    }
}

fn empty(path: &Path) -> LogitFileError {
    Problem::whole("expected logits, got an empty file").in_file(path).into()
}

fn field_error(path: &Path, field: &str, expected: &str, got: impl ToString) -> LogitFileError {
    let what = format!("expected {expected}, got {}", got.to_string());
    Problem::new(field, what).in_file(path).into()
}

/// The tensor `logits`, or the only one whose name begins with it, `logits.f64` before others.
fn from_safetensors(path: &Path, bytes: &[u8]) -> Result<LogitFile, LogitFileError> {
    let file = parse_file(path, bytes).map_err(|error| error.0)?;
    let (name, tensor) = pick_logits(path, &file.tensors)?;
    let mut shape: &[usize] = &tensor.shape;
    while let [1, rest @ ..] = shape
        && rest.len() > 1
    {
        shape = rest;
    }
    let StageValues::Real(values) = &tensor.values else {
        return Err(field_error(path, name, "floating-point values", "integers"));
    };
    let [.., vocabulary] = *shape else {
        return Err(field_error(path, name, "a shape [T, V]", "[]"));
    };
    if shape.len() > 2 {
        let got = format!("{:?}", tensor.shape);
        return Err(field_error(path, name, "a shape [T, V]", got));
    }
    if values.is_empty() {
        return Err(empty(path));
    }
    let stored = tensor.stored.unwrap_or(Precision::F32);
    let mut logits = LogitFile::bare(path, "safetensors", stored, values.clone());
    logits.vocabulary = Some(vocabulary);
    let id_tensor = |name: &str| match file.tensors.get(name).map(|tensor| &tensor.values) {
        Some(StageValues::Ids(ids)) => ids.iter().map(|id| u32::try_from(*id).ok()).collect(),
        _ => None,
    };
    let id_text = |name: &str| parse_ids(file.metadata.get(name)?);
    for key in ["prompt_ids", IDS] {
        logits.prompt_ids = logits.prompt_ids.or_else(|| id_tensor(key));
        logits.prompt_ids = logits.prompt_ids.or_else(|| id_text(key));
    }
    logits.generated_ids = id_tensor("generated_ids").or_else(|| id_text("generated_ids"));
    logits.header = file.metadata.clone();
    Ok(logits)
}

fn pick_logits<'a>(
    path: &Path,
    tensors: &'a BTreeMap<String, TensorValues>,
) -> Result<(&'a str, &'a TensorValues), LogitFileError> {
    for exact in ["logits", "logits.f64"] {
        if let Some((name, tensor)) = tensors.get_key_value(exact) {
            return Ok((name, tensor));
        }
    }
    let named: Vec<_> = tensors.iter().filter(|(name, _)| name.starts_with("logits")).collect();
    match (named.as_slice(), tensors.len()) {
        ([(name, tensor)], _) => Ok((name, tensor)),
        ([], 1) => {
            let mut only = tensors.iter();
            let (name, tensor) = only.next().unwrap_or_else(|| unreachable!("one tensor"));
            Ok((name, tensor))
        }
        ([], count) => {
            let got = format!("{count} tensors of other names");
            Err(field_error(path, "logits", "a tensor of this name", got))
        }
        (many, _) => {
            let got = format!("{} that begin with it", many.len());
            Err(field_error(path, "logits", "one tensor of this name", got))
        }
    }
}

/// Comma-separated ids.
#[must_use]
pub fn parse_ids(text: &str) -> Option<Vec<u32>> {
    let text = text.trim();
    let digits = |part: &str| {
        let part = part.trim();
        let plain = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| part.parse().ok()).flatten()
    };
    text.split(',').map(digits).collect()
}

/// `logits_bits` (f32 bits), `logits` (numbers) or `logits_file` (raw f32 in the same folder).
fn from_json(path: &Path, bytes: &[u8]) -> Result<LogitFile, LogitFileError> {
    let json: Value =
        serde_json::from_slice(bytes).map_err(|error| Problem::whole(error).in_file(path))?;
    let (form, stored, values) = if let Some(bits) = json.get("logits_bits") {
        let word = |value: &Value| {
            let bits = u32::try_from(value.as_u64()?).ok()?;
            Some(f64::from(f32::from_bits(bits)))
        };
        let values = numbers(path, "logits_bits", "the bits of an f32", bits, &word)?;
        ("reference JSON", Precision::F32, values)
    } else if let Some(plain) = json.get("logits") {
        let values = numbers(path, "logits", "a number", plain, &Value::as_f64)?;
        ("run JSON", Precision::F32, values)
    } else if let Some(name) = json.get("logits_file").and_then(Value::as_str) {
        let beside = path.parent().unwrap_or(Path::new(".")).join(name);
        let bytes =
            std::fs::read(&beside).map_err(|error| Problem::whole(error).in_file(&beside))?;
        ("run JSON", Precision::F32, raw_values(&beside, &bytes)?)
    } else {
        let expected = "logits_bits, logits or logits_file";
        return Err(field_error(path, "logits_bits", expected, "none of them"));
    };
    let mut logits = LogitFile::bare(path, form, stored, values);
    logits.prompt_ids = ids_of(path, &json, "prompt_ids")?;
    logits.generated_ids = ids_of(path, &json, "generated_ids")?;
    logits.vocabulary = ["vocab", "vocab_size", "vocabulary"]
        .iter()
        .find_map(|key| json.get(key)?.as_u64())
        .and_then(|size| usize::try_from(size).ok());
    check_against_itself(&logits, &json)?;
    Ok(logits)
}

fn numbers(
    path: &Path,
    field: &str,
    what: &str,
    value: &Value,
    read: &dyn Fn(&Value) -> Option<f64>,
) -> Result<Vec<f64>, LogitFileError> {
    let mut values = Vec::new();
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items.iter().rev()),
            other => match read(other) {
                Some(number) => values.push(number),
                None => return Err(field_error(path, field, what, other)),
            },
        }
    }
    if values.is_empty() {
        return Err(empty(path));
    }
    Ok(values)
}

fn ids_of(path: &Path, json: &Value, field: &str) -> Result<Option<Vec<u32>>, LogitFileError> {
    let Some(value) = json.get(field).filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids = value.as_array().map(|ids| ids.iter().map(id).collect());
    match ids {
        Some(Some(ids)) => Ok(Some(ids)),
        _ => Err(field_error(path, field, "a list of ids", "something else")),
    }
}

/// A file whose own size or argmax contradicts its own logits proves nothing about anybody.
fn check_against_itself(logits: &LogitFile, json: &Value) -> Result<(), LogitFileError> {
    let count = logits.values.len();
    if let Some(vocabulary) = logits.vocabulary
        && (vocabulary == 0 || !count.is_multiple_of(vocabulary))
    {
        let expected = format!("a divisor of {count} logits");
        return Err(field_error(&logits.path, "vocab", &expected, vocabulary));
    }
    let one_row = logits.vocabulary.is_none_or(|size| size == count);
    if let Some(stated) = json.get("argmax").and_then(Value::as_u64).filter(|_| one_row) {
        let own = (0..count)
            .reduce(|best, id| if logits.values[id] > logits.values[best] { id } else { best });
        let own = own.unwrap_or(0);
        let finite = logits.values.iter().all(|value| value.is_finite());
        if finite && own as u64 != stated {
            let expected = format!("{own}, where its largest logit is");
            return Err(field_error(&logits.path, "argmax", &expected, stated));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(name: &str, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    /// One hostile file per way in which a logit file can be wrong.
    #[test]
    fn files_that_are_not_logits_are_refused() {
        for (name, bytes, says) in [
            ("a.bin", &b""[..], "empty"),
            ("a.bin", b"\0\0\0\0\0", "multiple of 4"),
            ("a.json", b"{\"prompt_ids\":[1]}", "logits_bits"),
            ("a.json", b"{\"logits_bits\":[]}", "empty"),
            ("a.json", b"{\"logits_bits\":[4294967296]}", "4294967296"),
            ("a.json", b"{\"logits_bits\":[-1]}", "-1"),
            ("a.json", b"{\"logits_bits\":[1,2,3],\"vocab\":2}", "vocab"),
            ("a.json", b"{\"logits\":[1.5,2.5],\"argmax\":0}", "argmax"),
            ("a.json", b"{\"logits\":[1.5],\"prompt_ids\":[-1]}", "prompt_ids"),
            ("a.json", b"{\"logits\":[1.5]", "EOF"),
            ("a.safetensors", b"\x08\0\0\0\0\0\0\0{}      ", "logits"),
            ("a.safetensors", b"\xff\0\0\0\0\0\0\0{}", "eader"),
        ] {
            let (_folder, path) = written(name, bytes);
            let error = LogitFile::read(&path).unwrap_err().to_string();
            assert!(error.contains(says), "{name}: {error}");
            assert_eq!(error.lines().count(), 1);
        }
    }

    /// The same two logits in every form.
    #[test]
    fn every_form_gives_the_same_values() {
        let bits = 1.5f32.to_bits();
        let raw = [1.5f32.to_le_bytes(), 2.5f32.to_le_bytes()].concat();
        let json = format!("{{\"logits_bits\":[{bits},{}],\"prompt_ids\":[7]}}", 2.5f32.to_bits());
        let (_a, raw) = written("raw.bin", &raw);
        let (_b, json) = written("noname", json.as_bytes());
        let (raw, json) = (LogitFile::read(&raw).unwrap(), LogitFile::read(&json).unwrap());
        assert_eq!(raw.values, [1.5, 2.5]);
        assert_eq!(raw.values, json.values);
        assert_eq!((raw.form, json.form), ("raw f32", "reference JSON"));
        assert_eq!(raw.differs_in_ids(&json, 1), None);
        let mut other = json.clone();
        other.prompt_ids = Some(vec![8]);
        assert!(json.differs_in_ids(&other, 1).is_some());
    }
}
