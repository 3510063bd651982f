//! The ids that end a turn, and which file says so. The release disagrees with itself: config.json
//! names 163586, tokenizer_config.json another token; so each is listed with its place.
//!
//! A statement that names no id of the vocabulary is refused, by every command alike: read as
//! nothing, a run would go on where the model has ended.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use k3_checkpoint::json::Value;
use k3_checkpoint::{Malformed, Problem};
use k3_core::config::RawConfig;
use k3_text::{K3_VOCABULARY, Markers, Special, TextError, Tokenizer, markers, ranks};

/// The token that closes a message in the chat format.
const END_OF_MESSAGE: &str = "<|end_of_msg|>";
/// The field that names markers.
const ADDED: &str = "added_tokens_decoder";

/// The field that names the token that ends a text.
const EOS: &str = "eos_token";

/// One statement of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EndId {
    /// File name.
    pub file: String,
    /// Key in the file.
    pub field: String,
    /// The ids it names.
    pub ids: Vec<u32>,
    /// The token's text, where the file gives one.
    pub token: Option<String>,
}

/// Everything the files of a folder say about it; a file that is not there says nothing.
/// The tokenizer's are in `texts`, which is the same folder unless another one was asked for;
/// `opened` is the vocabulary of those, where it is open already.
///
/// # Errors
/// A file that cannot be read, a field of another type, an id outside the vocabulary, a token that
/// the vocabulary does not have, markers that do not fit the rank table.
pub fn end_ids(
    folder: &Path,
    config: &RawConfig,
    texts: &Path,
    opened: Option<&Tokenizer>,
) -> Result<Vec<EndId>, TextError> {
    let mut said = Said { folder, vocabulary: config.vocab_size, found: Vec::new() };
    for (field, ids) in [
        ("eos_token_id", &config.token_ids.root.eos),
        ("text_config.eos_token_id", &config.token_ids.text.eos),
    ] {
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        let ids = Value::Array(ids.iter().map(|id| Value::Number(id)).collect());
        said.ids("config.json", field, &ids)?;
    }
    if let Some(bytes) = said.read("generation_config.json")? {
        let root = said.object("generation_config.json", &bytes)?;
        if let Some(ids) = root.get("eos_token_id") {
            said.ids("generation_config.json", "eos_token_id", ids)?;
        }
    }
    said.folder = texts;
    if let Some(bytes) = said.read(markers::FILE_NAME)? {
        said.tokens(&bytes, opened)?;
    }
    Ok(said.found)
}

/// What has been found so far.
struct Said<'a> {
    folder: &'a Path,
    vocabulary: usize,
    found: Vec<EndId>,
}

impl Said<'_> {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, Malformed> {
        let path = self.folder.join(name);
        // A dangling link is an error, not an absent file.
        if path.symlink_metadata().is_err() {
            return Ok(None);
        }
        let bytes = k3_core::host::files::read(&path);
        bytes.map(Some).map_err(|error| Malformed::unreadable(&path, &error))
    }

    fn object<'v>(
        &self,
        file: &str,
        bytes: &'v [u8],
    ) -> Result<BTreeMap<Cow<'v, str>, Value<'v>>, Malformed> {
        match Value::parse(bytes) {
            Ok(Value::Object(root)) => Ok(root),
            Ok(other) => Err(self.refused(file, "", "an object", &other.brief())),
            Err(problem) => Err(problem.in_file(&self.folder.join(file))),
        }
    }

    fn refused(&self, file: &str, field: &str, expected: &str, got: &str) -> Malformed {
        let what = format!("expected {expected}, got {got}");
        Problem::new(field, what).in_file(&self.folder.join(file))
    }

    fn push(&mut self, file: &str, field: &str, ids: Vec<u32>, token: Option<&str>) {
        let (file, field) = (file.to_owned(), field.to_owned());
        self.found.push(EndId { file, field, ids, token: token.map(str::to_owned) });
    }

    /// An id, a list of ids, or null.
    fn ids(&mut self, file: &str, field: &str, value: &Value<'_>) -> Result<(), Malformed> {
        let items = match value {
            Value::Null => return Ok(()),
            Value::Array(items) => items.as_slice(),
            one => std::slice::from_ref(one),
        };
        let mut ids = Vec::new();
        for item in items {
            let Value::Number(literal) = item else {
                return Err(self.refused(
                    file,
                    field,
                    "a token id or a list of them",
                    &item.brief(),
                ));
            };
            ids.push(self.id(file, field, literal)?);
        }
        if !ids.is_empty() {
            self.push(file, field, ids, None);
        }
        Ok(())
    }

    /// An id of the vocabulary.
    fn id(&self, file: &str, field: &str, literal: &str) -> Result<u32, Malformed> {
        let size = self.vocabulary;
        let id = literal.parse().ok().filter(|id| (*id as usize) < size);
        id.ok_or_else(|| {
            let expected = format!("a token id below {size}, the size of the vocabulary");
            self.refused(file, field, &expected, literal)
        })
    }

    /// The tokens that `tokenizer_config.json` names, resolved through its markers, or through the
    /// vocabulary where that is known.
    fn tokens(&mut self, bytes: &[u8], opened: Option<&Tokenizer>) -> Result<(), TextError> {
        let file = markers::FILE_NAME;
        let root = self.object(file, bytes)?;
        let text = |value: &Value<'_>| match value {
            Value::String(text) => Some(text.to_string()),
            _ => None,
        };
        let eos = match root.get(EOS) {
            None | Some(Value::Null) => None,
            Some(Value::Object(token)) => token.get("content").map(text),
            Some(token) => Some(text(token)),
        };
        let own;
        let tokenizer = match opened {
            Some(opened) => Some(opened),
            None if self.folder.join(ranks::FILE_NAME).symlink_metadata().is_ok() => {
                own = Tokenizer::open(self.folder)?;
                Some(&own)
            }
            None if self.vocabulary == K3_VOCABULARY => {
                own = Tokenizer::built_in()?;
                Some(&own)
            }
            None => None,
        };
        let added = root.get(ADDED);
        if let (Some(tokenizer), Some(_)) = (tokenizer, added) {
            Markers::parse(bytes, &self.folder.join(file), tokenizer.ranks())?;
        }
        let marker = |name: &str| {
            let Some(Value::Object(added)) = added else { return None };
            let named = |entry: &Value<'_>| match entry {
                Value::Object(entry) => entry.get("content").and_then(text),
                _ => None,
            };
            let found = added.iter().find(|(_, entry)| named(entry).as_deref() == Some(name));
            found.map(|(id, _)| id.to_string())
        };
        if let Some(eos) = eos {
            let Some(eos) = eos else {
                let got = root.get(EOS).map_or_else(String::new, Value::brief);
                return Err(self.refused(file, EOS, "a token's text or null", &got).into());
            };
            let in_vocabulary = || match tokenizer?.encode(&eos, Special::Token)[..] {
                [id] => Some(id.to_string()),
                _ => None,
            };
            let ids = match marker(&eos).or_else(in_vocabulary) {
                Some(id) => vec![self.id(file, EOS, &id)?],
                None if tokenizer.is_some() => {
                    let got = format!("{eos:?}");
                    return Err(self.refused(file, EOS, "a token of the vocabulary", &got).into());
                }
                None => Vec::new(),
            };
            self.push(file, EOS, ids, Some(&eos));
        }
        if let Some(id) = marker(END_OF_MESSAGE) {
            let ids = vec![self.id(file, ADDED, &id)?];
            self.push(file, ADDED, ids, Some(END_OF_MESSAGE));
        }
        Ok(())
    }
}
