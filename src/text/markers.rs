//! The markers: ids above the ranks with a name, read as control tokens only where that is asked.
//!
//! Of the 256 ids from 163584 to 163839 the release names some; the others are
//! `<|reserved_token_ID|>` with their ABSOLUTE id. Numbering them from 0 makes text of them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use regex::Regex;

use super::{K3_RANKS, K3_VOCABULARY, read_whole};
use k3_checkpoint::json::Value;
use k3_checkpoint::{Malformed, Problem};

/// Name of the file in a folder.
pub const FILE_NAME: &str = "tokenizer_config.json";
/// The field that names markers.
const FIELD: &str = "added_tokens_decoder";
/// Largest file: a published one with its chat template has a few kB.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Longest name that is read: the released ones have at most 20 bytes.
const MAX_NAME_BYTES: usize = 256;

/// Names by id.
#[derive(Debug, Clone)]
pub struct Markers {
    names: BTreeMap<u32, String>,
    ids: BTreeMap<String, u32>,
    /// Any name, the longest at each place.
    any: Regex,
}

impl Markers {
    /// Those named, and the reserved ones that `named` leaves without a name.
    #[must_use]
    #[expect(clippy::missing_panics_doc, reason = "256 escaped names of 256 bytes compile")]
    pub fn new(named: BTreeMap<u32, String>) -> Self {
        let mut names = named;
        for id in K3_RANKS as u32..K3_VOCABULARY as u32 {
            names.entry(id).or_insert_with(|| reserved_name(id));
        }
        let ids: BTreeMap<String, u32> =
            names.iter().map(|(id, name)| (name.clone(), *id)).collect();
        // Of several that match at one place the first is taken: so the longest comes first.
        let mut longest_first: Vec<&String> = ids.keys().collect();
        longest_first.sort_by_key(|name| std::cmp::Reverse(name.len()));
        let escaped = longest_first.iter().map(|name| regex::escape(name));
        let pattern = escaped.collect::<Vec<_>>().join("|");
        #[expect(clippy::expect_used, reason = "as above")]
        let any = Regex::new(&pattern).expect("escaped names compile");
        Self { names, ids, any }
    }

    /// Reads `tokenizer_config.json` for a table of `ranks` tokens.
    ///
    /// # Errors
    /// [`Malformed`], naming file and field.
    pub fn read(path: &Path, ranks: usize) -> Result<Self, Malformed> {
        let bytes = read_whole(path, MAX_FILE_BYTES)?;
        Self::parse(&bytes, path, ranks)
    }

    /// The markers of a file's bytes; `path` is its name in messages.
    ///
    /// # Errors
    /// As [`Markers::read`].
    pub fn parse(bytes: &[u8], path: &Path, ranks: usize) -> Result<Self, Malformed> {
        let named = named(bytes, ranks).map_err(|problem| problem.in_file(path))?;
        Ok(Self::new(named))
    }

    /// The name of an id.
    #[must_use]
    pub fn name(&self, id: u32) -> Option<&str> {
        self.names.get(&id).map(String::as_str)
    }

    /// Names by id.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &str)> {
        self.names.iter().map(|(id, name)| (*id, name.as_str()))
    }

    /// Places of markers in a text, in order, with their ids: leftmost first, the longest at a
    /// place.
    pub fn find<'t>(&'t self, text: &'t str) -> impl Iterator<Item = (Range<usize>, u32)> {
        let found = self.any.find_iter(text);
        found.filter_map(|found| Some((found.range(), *self.ids.get(found.as_str())?)))
    }
}

/// The names that a file gives to ids.
fn named(bytes: &[u8], ranks: usize) -> Result<BTreeMap<u32, String>, Problem> {
    let root = Value::parse(bytes)?;
    let Value::Object(root) = &root else {
        return Err(Problem::whole(format!("expected an object, got {}", root.brief())));
    };
    let wrong = |expected: &str, got: String| {
        Problem::new(FIELD, format!("expected {expected}, got {got}"))
    };
    let added = match root.get(FIELD) {
        Some(Value::Object(added)) => added,
        other => return Err(wrong("an object of markers by id", brief(other))),
    };
    let most = K3_VOCABULARY - K3_RANKS;
    if added.len() > most {
        return Err(wrong(&format!("at most {most} markers"), added.len().to_string()));
    }
    let mut named = BTreeMap::new();
    for (key, entry) in added {
        let id = marker_id(key, ranks).ok_or_else(|| {
            let last = K3_VOCABULARY - 1;
            let expected = format!("an id from {ranks} (the first after the ranks) to {last}");
            wrong(&expected, format!("{key:?}"))
        })?;
        let name = marker_name(entry)
            .map_err(|(field, what)| Problem::new(format!("{FIELD}.{key}{field}"), what))?;
        named.insert(id, name.to_owned());
    }
    if let Some((id, name, first)) = repeated(&named) {
        let what = format!("expected a name of its own, got {name:?}, which names {first}");
        return Err(Problem::new(format!("{FIELD}.{id}.content"), what));
    }
    Ok(named)
}

fn brief(value: Option<&Value<'_>>) -> String {
    value.map_or_else(|| "none".to_owned(), Value::brief)
}

fn reserved_name(id: u32) -> String {
    format!("<|reserved_token_{id}|>")
}

/// Decimal digits without leading zeros, above the ranks and inside the vocabulary.
fn marker_id(key: &str, ranks: usize) -> Option<u32> {
    let id: u32 = key.parse().ok()?;
    let inside = (ranks..K3_VOCABULARY).contains(&(id as usize));
    (inside && id.to_string() == key).then_some(id)
}

/// The content of an entry, or the field that is wrong and what is wrong with it.
fn marker_name<'v>(entry: &'v Value<'_>) -> Result<&'v str, (&'static str, String)> {
    let wrong = |field, expected: &str, got: String| {
        Err((field, format!("expected {expected}, got {got}")))
    };
    let Value::Object(entry) = entry else {
        return wrong("", "an object with content", entry.brief());
    };
    match entry.get("special") {
        None | Some(Value::Bool(_)) => {}
        Some(other) => return wrong(".special", "true or false", other.brief()),
    }
    match entry.get("content") {
        Some(Value::String(name)) if name.len() > MAX_NAME_BYTES => {
            wrong(".content", "a text of at most 256 bytes", format!("{} bytes", name.len()))
        }
        Some(Value::String(name)) if !name.is_empty() => Ok(name),
        other => wrong(".content", "a text of at least one character", brief(other)),
    }
}

/// A name that two ids have: the second id, the name, the first id. Reserved names count for
/// those ids that are not named.
fn repeated(named: &BTreeMap<u32, String>) -> Option<(u32, &str, u32)> {
    let mut first: BTreeMap<&str, u32> = BTreeMap::new();
    for (&id, name) in named {
        if let Some(&before) = first.get(name.as_str()) {
            return Some((id, name, before));
        }
        first.insert(name, id);
    }
    let unnamed = (K3_RANKS as u32..K3_VOCABULARY as u32).filter(|id| !named.contains_key(id));
    for reserved in unnamed {
        let name = reserved_name(reserved);
        if let Some((name, &id)) = first.get_key_value(name.as_str()) {
            return Some((id, name, reserved));
        }
    }
    None
}
