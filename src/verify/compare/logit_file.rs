//! Logit files of any engine: raw f32, reference JSON, safetensors, NumPy, run JSON.
//!
//! The format is recognised by content, not by name. What is of no known form is raw little-endian
//! f32, if its values can be logits; it says nothing about its ids or its vocabulary.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use thiserror::Error;

use super::npz;
use crate::tensor_file::{IDS, TensorFile, TensorValues, parse_file};
use k3_checkpoint::{Malformed, Problem};
use k3_core::Precision;
use k3_core::content::{ZIP_MAGIC, known_form, looks_like_safetensors};
use k3_core::npy::{self, Dtype, Npy};
use k3_core::stages::StageValues;

/// Why a logit file cannot be used.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct LogitFileError(#[from] Malformed);

impl LogitFileError {
    /// What is wrong, without the file's name.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.0.problem
    }
}

/// Logits with what the file says about them.
#[derive(Debug, Clone, PartialEq)]
pub struct LogitFile {
    /// Where they come from.
    pub path: PathBuf,
    /// `raw f32`, `reference JSON`, `safetensors`, `NumPy`, `run JSON`.
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
        Self::read_one(path, true)
    }

    /// A JSON may name another file, but that one no further: two could name each other.
    fn read_one(path: &Path, may_name_another: bool) -> Result<Self, LogitFileError> {
        let bytes = k3_core::host::files::read(path)
            .map_err(|error| Malformed::unreadable(path, &error))?;
        if bytes.is_empty() {
            return Err(empty(path));
        }
        let named = |ending: &str| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(ending));
        if named("safetensors") || looks_like_safetensors(&bytes) {
            return from_safetensors(path, &bytes);
        }
        if bytes.starts_with(npy::MAGIC) || bytes.starts_with(ZIP_MAGIC) {
            return from_numpy(path, &bytes);
        }
        if named("json") || looks_like_json(&bytes) {
            if !may_name_another {
                let what = "expected raw f32, safetensors or NumPy, got JSON";
                return Err(Problem::whole(what).in_file(path).into());
            }
            return from_json(path, &bytes);
        }
        let values = raw_values(path, &bytes)?;
        if let Some(problem) = not_logits(&values) {
            return Err(Problem::whole(problem).in_file(path).into());
        }
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

    /// Whether the two were made from different ids, in words: the prompts, and of the generated
    /// ids those that were fed back. Of two files with a row for every id of the prompt, one may
    /// have fewer; then the ids of the rows that both have decide.
    #[must_use]
    pub fn differs_in_ids(&self, other: &Self, vocabulary: usize) -> Option<String> {
        let rows = [self, other].map(|file| file.values.len() / vocabulary.max(1));
        let common = rows[0].min(rows[1]);
        let by_position = |file: &Self, rows: usize| {
            file.prompt_ids.as_ref().is_some_and(|ids| ids.len() == rows)
        };
        let prefixes =
            rows[0] != rows[1] && by_position(self, rows[0]) && by_position(other, rows[1]);
        let of_prompt = if prefixes { common } else { usize::MAX };
        let lists = [
            ("prompt ids", &self.prompt_ids, &other.prompt_ids, of_prompt),
            (
                "ids fed after the prompt",
                &self.generated_ids,
                &other.generated_ids,
                common.saturating_sub(1),
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

fn looks_like_json(bytes: &[u8]) -> bool {
    let start = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    matches!(start, Some(b'{' | b'[')) && std::str::from_utf8(bytes).is_ok()
}

/// The largest logit that is believed of content without a header. Those of K3 are below 100.
const LARGEST: f64 = 1e4;

/// Smaller values are no logits either, unless zero: one in 10⁹ is by chance.
const SMALLEST: f64 = 1e-9;

/// Why values read as f32 cannot be logits: magnitudes or exponents that no logits have. Large
/// negative values are left: ids are suppressed with them.
fn not_logits(values: &[f64]) -> Option<String> {
    let first = |wrong: &dyn Fn(f64) -> bool| values.iter().position(|value| wrong(*value));
    let hint = "16-bit or 64-bit values, another byte order, a header?";
    if let Some(at) = first(&|value| value.is_finite() && value > LARGEST) {
        let value = values[at];
        return Some(format!("expected logits in f32, got {value:e} at element {at} ({hint})"));
    }
    // Of two BF16 values the second is the upper half of a word and makes a likely logit. The first
    // is the lower half, where an f32 has digits that nothing ties to an exponent.
    let halves = || values.iter().map(|value| (*value as f32).to_bits() as u16).filter(|h| *h != 0);
    let likely = |half: &u16| (115..=133).contains(&(half >> 7 & 0xff));
    let (count, all) = (halves().filter(likely).count(), halves().count());
    if all >= 64 && count > all / 10 * 8 {
        return Some(format!(
            "expected logits in f32, got {count} of {all} lower halves that are \
             logits in BF16: 16-bit values?"
        ));
    }
    let tiny = |value: &&f64| **value != 0.0 && value.abs() < SMALLEST;
    let (count, all) = (values.iter().filter(tiny).count(), values.len());
    (count > all / 100).then(|| {
        format!("expected logits in f32, got {count} of {all} values below {SMALLEST:e} ({hint})")
    })
}

/// Raw little-endian f32 as f64.
///
/// # Errors
///
/// An empty or a cut file, content of another known form.
pub fn raw_values(path: &Path, bytes: &[u8]) -> Result<Vec<f64>, LogitFileError> {
    if let Some(form) = known_form(bytes) {
        let what = format!("expected raw f32, got {form}");
        return Err(Problem::whole(what).in_file(path).into());
    }
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
    let StageValues::Real(values) = &tensor.values else {
        return Err(field_error(path, name, "floating-point values", "integers"));
    };
    let vocabulary = row_length(path, name, &tensor.shape, values)?;
    let stored = tensor.stored.unwrap_or(Precision::F32);
    let mut logits = LogitFile::bare(path, "safetensors", stored, values.clone());
    logits.vocabulary = Some(vocabulary);
    logits.prompt_ids = ids_in(&file, &PROMPT_IDS);
    logits.generated_ids = ids_in(&file, &GENERATED_IDS);
    logits.header = file.metadata.clone();
    Ok(logits)
}

/// Spellings of the ids given: ours, Hugging Face's, vLLM's, llama.cpp's.
pub(super) const PROMPT_IDS: [&str; 6] =
    ["prompt_ids", IDS, "input_ids", "prompt_token_ids", "tokens", "input_tokens"];

/// Spellings of the ids that came out.
pub(super) const GENERATED_IDS: [&str; 4] =
    ["generated_ids", "output_ids", "token_ids", "output_token_ids"];

/// Ids under the first of the names that has some: a tensor, or text of the header.
pub(super) fn ids_in(file: &TensorFile, names: &[&str]) -> Option<Vec<u32>> {
    let tensor = |name: &&str| ids_among(&file.tensors.get(*name)?.values);
    let text = |name: &&str| parse_ids(file.metadata.get(*name)?);
    names.iter().find_map(|name| tensor(name).or_else(|| text(name)))
}

/// Length of a row of logits \[T, V\] or \[V\]; leading extents of 1 are left out.
fn row_length(
    path: &Path,
    name: &str,
    full_shape: &[usize],
    values: &[f64],
) -> Result<usize, LogitFileError> {
    if values.is_empty() {
        return Err(empty(path));
    }
    let mut shape = full_shape;
    while let [1, rest @ ..] = shape
        && rest.len() > 1
    {
        shape = rest;
    }
    match *shape {
        [vocabulary] | [_, vocabulary] => Ok(vocabulary),
        _ => Err(field_error(path, name, "a shape [T, V]", format!("{full_shape:?}"))),
    }
}

fn ids_among(values: &StageValues) -> Option<Vec<u32>> {
    match values {
        StageValues::Ids(ids) => ids.iter().map(|id| u32::try_from(*id).ok()).collect(),
        // Some engines store every tensor as floats.
        StageValues::Real(ids) => {
            let id = |id: &f64| (f64::from(*id as u32) == *id).then_some(*id as u32);
            ids.iter().map(id).collect()
        }
    }
}

/// A `.npy` of logits, or a `.npz` with them and their ids.
fn from_numpy(path: &Path, bytes: &[u8]) -> Result<LogitFile, LogitFileError> {
    let fails = |what: String| Problem::whole(what).in_file(path);
    let files = if bytes.starts_with(ZIP_MAGIC) {
        npz::arrays(bytes).map_err(fails)?
    } else {
        BTreeMap::from([("logits".to_owned(), bytes.to_vec())])
    };
    let mut arrays = BTreeMap::new();
    for (name, bytes) in &files {
        let array = Npy::parse(bytes).map_err(|what| fails(format!("{name}: {what}")))?;
        arrays.insert(name.as_str(), array);
    }
    let is_real = |array: &&Npy<'_>| matches!(array.dtype, Dtype::Float(_));
    let mut real = arrays.iter().filter(|(_, array)| is_real(array));
    let found = match (arrays.get_key_value("logits"), real.next(), real.next()) {
        (Some(found), ..) | (None, Some(found), None) => found,
        _ => {
            let got = format!("{} of other names", arrays.len());
            return Err(field_error(path, "logits", "an array of this name", got));
        }
    };
    let (name, array) = found;
    let Some((stored, values)) = array.floats() else {
        return Err(field_error(path, name, "floating-point values", "integers"));
    };
    let vocabulary = row_length(path, name, &array.shape, &values)?;
    let mut logits = LogitFile::bare(path, "NumPy", stored, values);
    // One dimension does not say where a row ends.
    logits.vocabulary = (array.shape.len() > 1).then_some(vocabulary);
    let ids = |name: &&str| {
        let ids = arrays.get(*name)?.integers()?;
        ids.into_iter().map(|id| u32::try_from(id).ok()).collect()
    };
    logits.prompt_ids = PROMPT_IDS.iter().find_map(ids);
    logits.generated_ids = GENERATED_IDS.iter().find_map(ids);
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

/// Comma-separated ids, in brackets or not.
#[must_use]
pub fn parse_ids(text: &str) -> Option<Vec<u32>> {
    let text = text.trim().trim_start_matches('[').trim_end_matches(']');
    let digits = |part: &str| {
        let part = part.trim();
        let plain = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| part.parse().ok()).flatten()
    };
    text.split(',').map(digits).collect()
}

/// `logits_bits` (f32 bits), `logits` (numbers) or `logits_file` (raw f32 in the same folder).
/// Nested lists are rows.
fn from_json(path: &Path, bytes: &[u8]) -> Result<LogitFile, LogitFileError> {
    let mut json: Value =
        serde_json::from_slice(bytes).map_err(|error| Problem::whole(error).in_file(path))?;
    if json.is_array() {
        json = serde_json::json!({ "logits": json });
    }
    let mut stored = Precision::F32;
    let (form, (rows, values)) = if let Some(bits) = json.get("logits_bits") {
        let word = |value: &Value| {
            let bits = u32::try_from(value.as_u64()?).ok()?;
            Some(f64::from(f32::from_bits(bits)))
        };
        let values = numbers(path, "logits_bits", "the bits of an f32", bits, &word)?;
        ("reference JSON", values)
    } else if let Some(plain) = json.get("logits") {
        ("run JSON", numbers(path, "logits", "a number", plain, &Value::as_f64)?)
    } else if let Some(name) = json.get("logits_file").and_then(Value::as_str) {
        let folder = path.parent().unwrap_or(Path::new("."));
        // Both may have been moved to another place together.
        let moved = Path::new(name).file_name().map(|name| folder.join(name));
        let named = folder.join(name);
        let file = moved.filter(|moved| !named.exists() && moved.exists()).unwrap_or(named);
        let raw = LogitFile::read_one(&file, false)?;
        stored = raw.stored;
        ("run JSON", (raw.vocabulary, raw.values))
    } else {
        let expected = "logits_bits, logits or logits_file";
        return Err(field_error(path, "logits_bits", expected, "none of them"));
    };
    let mut logits = LogitFile::bare(path, form, stored, values);
    for (names, ids) in
        [(&PROMPT_IDS[..], &mut logits.prompt_ids), (&GENERATED_IDS[..], &mut logits.generated_ids)]
    {
        for name in names {
            if ids.is_none() {
                *ids = ids_of(path, &json, name)?;
            }
        }
    }
    let stated = ["vocab", "vocab_size", "vocabulary"]
        .iter()
        .find_map(|key| json.get(key)?.as_u64())
        .and_then(|size| usize::try_from(size).ok());
    if let (Some(rows), Some(stated)) = (rows, stated)
        && rows != stated
    {
        let expected = format!("{rows}, the length of its rows");
        return Err(field_error(path, "vocab", &expected, stated));
    }
    logits.vocabulary = stated.or(rows);
    check_against_itself(&logits, &json)?;
    Ok(logits)
}

/// The length of the rows, if the list has any, and all numbers of a list that may be nested.
fn numbers(
    path: &Path,
    field: &str,
    what: &str,
    value: &Value,
    read: &dyn Fn(&Value) -> Option<f64>,
) -> Result<(Option<usize>, Vec<f64>), LogitFileError> {
    let (mut rows, mut values) = (None, Vec::new());
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        let Value::Array(items) = value else {
            match read(value) {
                Some(number) => values.push(number),
                None => return Err(field_error(path, field, what, value)),
            }
            continue;
        };
        let nested = items.iter().any(Value::is_array);
        if !nested && rows.is_some_and(|rows| rows != items.len()) {
            let expected = format!("rows of {} numbers", rows.unwrap_or(0));
            return Err(field_error(path, field, &expected, items.len()));
        }
        if nested && !items.iter().all(Value::is_array) {
            return Err(field_error(path, field, "rows, or numbers", "both in one list"));
        }
        if !nested {
            rows = Some(items.len());
        }
        open.extend(items.iter().rev());
    }
    if values.is_empty() {
        return Err(empty(path));
    }
    // One list alone does not say where a row ends.
    let is_nested = value.as_array().is_some_and(|items| items.iter().any(Value::is_array));
    Ok((rows.filter(|_| is_nested), values))
}

/// A list of ids, or such a list as the only row of another. Pieces of text are no ids.
fn ids_of(path: &Path, json: &Value, field: &str) -> Result<Option<Vec<u32>>, LogitFileError> {
    let Some(mut value) = json.get(field).filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    if let Value::Array(rows) = value
        && rows.iter().any(Value::is_array)
    {
        let [row] = rows.as_slice() else {
            let got = format!("{} of them", rows.len());
            return Err(field_error(path, field, "one list of ids", got));
        };
        value = row;
    }
    if value.as_array().is_some_and(|items| !items.is_empty() && items.iter().all(Value::is_string))
    {
        return Ok(None);
    }
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
        assert_eq!(raw.differs_in_ids(&json, 2), None);
        let mut other = json.clone();
        other.prompt_ids = Some(vec![8]);
        assert!(json.differs_in_ids(&other, 2).is_some());
    }
}
