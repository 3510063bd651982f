//! Strict JSON for `config.json`, the index and shard headers, over `serde_json`.
//!
//! `serde_json` checks the syntax; what two readers could see differently is refused here: equal
//! keys in one object (escapes resolved), bytes that are not UTF-8, nesting without end. Values are
//! handed out as they are written, so no integer ever passes through a double, and nothing is
//! collected that the caller does not collect: a document's size never decides an allocation.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer as _, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Deserializer;
use serde_json::value::RawValue;

use super::Problem;

/// Deepest nesting accepted; the released config has five levels, a header three.
pub const MAX_DEPTH: usize = 64;

/// Longest number accepted: no finite double and no 64-bit integer needs as many digits.
pub const MAX_NUMBER_BYTES: usize = 1024;

/// The white space of JSON.
pub const JSON_SPACE: [u8; 4] = [b' ', b'\t', b'\n', b'\r'];

/// A value as it is written, and the document it belongs to.
#[derive(Debug, Clone, Copy)]
pub struct Raw<'a> {
    document: &'a str,
    text: &'a str,
}

impl<'a> Raw<'a> {
    /// The whole document. Only its object's members or its array's elements are to be asked for:
    /// the syntax is checked on the way.
    ///
    /// # Errors
    /// Bytes that are not UTF-8.
    pub fn document(bytes: &'a [u8]) -> Result<Self, Problem> {
        match std::str::from_utf8(bytes) {
            Ok(document) => {
                let text = document.trim_start_matches(JSON_SPACE.map(char::from));
                Ok(Self { document, text })
            }
            Err(error) => Err(refused(error.valid_up_to(), "not UTF-8")),
        }
    }

    /// Where the value starts in its document.
    #[must_use]
    pub fn at_byte(self) -> usize {
        self.text.as_ptr().addr() - self.document.as_ptr().addr()
    }

    /// The value as it is written.
    #[must_use]
    pub fn text(self) -> &'a str {
        self.text
    }

    /// What kind of value this is, for a message.
    #[must_use]
    pub fn kind(self) -> &'static str {
        match self.text.as_bytes().first() {
            Some(b'n') => "null",
            Some(b't' | b'f') => "a boolean",
            Some(b'"') => "a string",
            Some(b'[') => "an array",
            Some(b'{') => "an object",
            _ => "a number",
        }
    }

    /// The value of an integer from 0 to 2^64-1 that is written as one.
    #[must_use]
    pub fn integer(self) -> Option<u64> {
        // `parse` would take a plus, which JSON does not have.
        self.text.parse().ok()
    }

    /// The value of a string; `None` for other kinds.
    ///
    /// # Errors
    /// Half of a surrogate pair.
    pub fn string(self) -> Result<Option<Cow<'a, str>>, Problem> {
        let inside = self.text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        match inside {
            Some(inside) if inside.contains('\\') => {
                let text = serde_json::from_str(self.text).map_err(|error| self.problem(&error))?;
                Ok(Some(Cow::Owned(text)))
            }
            plain => Ok(plain.map(Cow::Borrowed)),
        }
    }

    /// Visits the members of an object in order. Equal keys are for the caller to refuse.
    ///
    /// # Errors
    /// Broken syntax, another kind of value, and whatever `each` returns.
    pub fn members(
        self,
        each: impl FnMut(Cow<'a, str>, Raw<'a>) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        let mut failed = None;
        let mut json = Deserializer::from_str(self.text);
        let visited = json.deserialize_map(Members { raw: self, each, failed: &mut failed });
        self.finish(visited.and_then(|()| json.end()), failed)
    }

    /// Visits the elements of an array in order.
    ///
    /// # Errors
    /// As [`Self::members`].
    pub fn elements(self, each: impl FnMut(Raw<'a>) -> Result<(), Problem>) -> Result<(), Problem> {
        let mut failed = None;
        let mut json = Deserializer::from_str(self.text);
        let visited = json.deserialize_seq(Elements { raw: self, each, failed: &mut failed });
        self.finish(visited.and_then(|()| json.end()), failed)
    }

    fn finish(
        self,
        visited: Result<(), serde_json::Error>,
        failed: Option<Problem>,
    ) -> Result<(), Problem> {
        failed.map_or(visited.map_err(|error| self.problem(&error)), Err)
    }

    fn inner(self, raw: &'a RawValue) -> Self {
        Self { text: raw.get(), ..self }
    }

    /// The error with its place in the document instead of a line and a column of this value.
    fn problem(self, error: &serde_json::Error) -> Problem {
        let lines_before = self.text.split_inclusive('\n').take(error.line().saturating_sub(1));
        let line_start: usize = lines_before.map(str::len).sum();
        let at_byte = self.at_byte() + line_start + error.column().saturating_sub(1);
        let text = error.to_string();
        let place = format!(" at line {} column {}", error.line(), error.column());
        refused(at_byte, text.strip_suffix(&place).unwrap_or(&text))
    }
}

fn refused(at_byte: usize, why: &str) -> Problem {
    Problem::new(format!("byte {at_byte}"), format!("not valid JSON: {why}"))
}

#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

struct Members<'f, 'a, F> {
    raw: Raw<'a>,
    each: F,
    failed: &'f mut Option<Problem>,
}

impl<'a, F> Visitor<'a> for Members<'_, 'a, F>
where
    F: FnMut(Cow<'a, str>, Raw<'a>) -> Result<(), Problem>,
{
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some((Key(key), value)) = map.next_entry()? {
            if let Err(problem) = (self.each)(key, self.raw.inner(value)) {
                *self.failed = Some(problem);
                return Err(A::Error::custom("refused"));
            }
        }
        Ok(())
    }
}

struct Elements<'f, 'a, F> {
    raw: Raw<'a>,
    each: F,
    failed: &'f mut Option<Problem>,
}

impl<'a, F: FnMut(Raw<'a>) -> Result<(), Problem>> Visitor<'a> for Elements<'_, 'a, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'a>>(mut self, mut items: A) -> Result<(), A::Error> {
        while let Some(value) = items.next_element()? {
            if let Err(problem) = (self.each)(self.raw.inner(value)) {
                *self.failed = Some(problem);
                return Err(A::Error::custom("refused"));
            }
        }
        Ok(())
    }
}

/// A whole value; numbers are kept as they are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value<'a> {
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// Such as `1e-05`
    Number(&'a str),
    /// Escapes resolved
    String(Cow<'a, str>),
    /// Elements in order
    Array(Vec<Value<'a>>),
    /// Members by key; keys are unique
    Object(BTreeMap<Cow<'a, str>, Value<'a>>),
}

impl<'a> Value<'a> {
    /// Reads a whole document.
    ///
    /// # Errors
    /// Everything that the module refuses, with its place.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Problem> {
        let document = Raw::document(bytes)?;
        let checked = serde_json::from_str(document.text);
        let raw = checked.map_err(|error| document.problem(&error))?;
        Self::of(document.inner(raw), 0)
    }

    /// The value of a part of a document that lies inside `depth` objects and arrays.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn of(raw: Raw<'a>, depth: usize) -> Result<Self, Problem> {
        let refuse = |why: String| Err(refused(raw.at_byte(), &why));
        match raw.text.as_bytes().first() {
            Some(b'[' | b'{') if depth == MAX_DEPTH => {
                refuse(format!("nested deeper than {MAX_DEPTH} levels"))
            }
            Some(b'[') => {
                let mut items = Vec::new();
                raw.elements(|item| {
                    items.push(Self::of(item, depth + 1)?);
                    Ok(())
                })?;
                Ok(Self::Array(items))
            }
            Some(b'{') => {
                let mut object = BTreeMap::new();
                raw.members(|key, value| {
                    if object.contains_key(&key) {
                        return Err(refused(value.at_byte(), &format!("duplicate key {key:?}")));
                    }
                    object.insert(key, Self::of(value, depth + 1)?);
                    Ok(())
                })?;
                Ok(Self::Object(object))
            }
            Some(b'n') => Ok(Self::Null),
            Some(b't' | b'f') => Ok(Self::Bool(raw.text == "true")),
            _ => match raw.string()? {
                Some(text) => Ok(Self::String(text)),
                None if raw.text.len() > MAX_NUMBER_BYTES => {
                    refuse(format!("number longer than {MAX_NUMBER_BYTES} bytes"))
                }
                None => Ok(Self::Number(raw.text)),
            },
        }
    }

    /// What kind of value this is, for a message.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::String(_) => "a string",
            Self::Array(_) => "an array",
            Self::Object(_) => "an object",
        }
    }

    /// The value in a few words for a message: scalars as they are written, the size of others.
    #[must_use]
    pub fn brief(&self) -> String {
        const SHOWN_CHARS: usize = 60;
        match self {
            Self::Null => "null".into(),
            Self::Bool(value) => value.to_string(),
            Self::Number(text) => text.chars().take(SHOWN_CHARS).collect(),
            Self::String(text) => {
                let start: String = text.chars().take(SHOWN_CHARS).collect();
                format!("{start:?}")
            }
            Self::Array(items) => format!("an array of {}", items.len()),
            Self::Object(members) => format!("an object of {}", members.len()),
        }
    }
}
