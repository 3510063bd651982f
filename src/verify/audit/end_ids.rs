//! The ids that end a turn, and which file says so. The release disagrees with itself: config.json
//! names 163586, tokenizer_config.json another token; so each is listed with its place.

use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::{Finding, Findings};
use k3_core::config::RawConfig;

/// The token that closes a message in the chat format.
const END_OF_MESSAGE: &str = "<|end_of_msg|>";

/// One statement of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EndId {
    /// File name.
    pub file: String,
    /// Key in the file.
    pub field: String,
    /// The ids it names.
    pub ids: Vec<u64>,
    /// The token's text, where the file gives one.
    pub token: Option<String>,
}

/// Everything the files of a folder say about it; a file that is not there says nothing.
#[must_use]
pub fn end_ids(folder: &Path, config: &RawConfig, problems: &mut Findings) -> Vec<EndId> {
    let mut found = Vec::new();
    for (field, ids) in [
        ("eos_token_id", &config.token_ids.root.eos),
        ("text_config.eos_token_id", &config.token_ids.text.eos),
    ] {
        if !ids.is_empty() {
            found.push(EndId {
                file: "config.json".to_owned(),
                field: field.to_owned(),
                ids: ids.iter().map(|id| u64::from(*id)).collect(),
                token: None,
            });
        }
    }
    if let Some(generation) = read(folder, "generation_config.json", problems) {
        let ids = numbers(&generation["eos_token_id"]);
        if !ids.is_empty() {
            found.push(EndId {
                file: "generation_config.json".to_owned(),
                field: "eos_token_id".to_owned(),
                ids,
                token: None,
            });
        }
    }
    if let Some(tokenizer) = read(folder, "tokenizer_config.json", problems) {
        let eos = text_of(&tokenizer["eos_token"]);
        if let Some(token) = eos {
            found.push(named(&tokenizer, "eos_token", token));
        }
        let closing = named(&tokenizer, "added_tokens_decoder", END_OF_MESSAGE);
        if !closing.ids.is_empty() {
            found.push(closing);
        }
    }
    found
}

fn named(tokenizer: &Value, field: &str, token: &str) -> EndId {
    let table = tokenizer["added_tokens_decoder"].as_object();
    let entries = table.into_iter().flatten();
    let fits = entries.filter(|(_, entry)| entry["content"].as_str() == Some(token));
    EndId {
        file: "tokenizer_config.json".to_owned(),
        field: field.to_owned(),
        ids: fits.filter_map(|(id, _)| id.parse().ok()).collect(),
        token: Some(token.to_owned()),
    }
}

fn text_of(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

fn numbers(value: &Value) -> Vec<u64> {
    match value {
        Value::Array(list) => list.iter().filter_map(Value::as_u64).collect(),
        value => value.as_u64().into_iter().collect(),
    }
}

fn read(folder: &Path, name: &str, problems: &mut Findings) -> Option<Value> {
    let path = folder.join(name);
    if !path.exists() {
        return None;
    }
    let bytes = k3_core::host::files::read(&path).map_err(|error| error.to_string());
    let parsed = bytes.and_then(|bytes| {
        serde_json::from_slice(&bytes).map_err(|error| format!("not valid JSON: {error}"))
    });
    match parsed {
        Ok(value) => Some(value),
        Err(what) => {
            problems.push(Finding { file: name.to_owned(), tensor: None, what });
            None
        }
    }
}
