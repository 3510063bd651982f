//! The reader of `config.json` that refuses: every field is required, nothing has a default.
//!
//! It yields the raw fields of the released, nested form (`text_config`,
//! `text_config.linear_attn_config`, `text_config.quantization_config`); no flat form, no second
//! spelling of a key, no search in another place. What follows from the fields (layer kinds,
//! banks, derived widths) is worked out by the engine and by the reference, each for itself.
//!
//! Choices: an integer must be written as one (`16.0` and `1.6e1` are refused, `1` for a real
//! number is fine); a boolean must be a boolean; keys this reader does not know are accepted,
//! since the release has a hundred that no computation reads. Everything missing or ill-typed is
//! told in one message; what contradicts itself is told, again all at once, when nothing is.

mod error;
mod fields;
mod rules;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use k3_core::config::RawConfig;

use crate::foreign::Foreign;
use crate::json::parse_document;
use crate::link::LinkTrouble;

pub use error::{ConfigError, ConfigProblem};
use fields::Fields;

/// Largest `config.json` read: the released one has 7,006 bytes.
pub const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// Reads and checks the file at `path`.
///
/// # Errors
/// Every variant of [`ConfigError`].
pub fn read(path: &Path) -> Result<RawConfig, ConfigError> {
    let io_error = |reason: io::Error| {
        let path = path.to_owned();
        match (LinkTrouble::of(&path, &reason), reason.kind()) {
            (Some(trouble), _) => ConfigError::Link { path, trouble },
            (None, io::ErrorKind::NotFound) => ConfigError::NotFound { path },
            (None, _) => ConfigError::Io { path, reason },
        }
    };
    let file = File::open(path).map_err(io_error)?;
    let mut bytes = Vec::new();
    file.take(MAX_CONFIG_BYTES + 1).read_to_end(&mut bytes).map_err(io_error)?;
    parse(&bytes, path)
}

/// Checks the bytes of a file; `origin` is the name used in messages.
///
/// # Errors
/// [`ConfigError::TooLarge`], [`ConfigError::Foreign`], [`ConfigError::Json`],
/// [`ConfigError::Refused`].
pub fn parse(bytes: &[u8], origin: &Path) -> Result<RawConfig, ConfigError> {
    let path = origin.to_owned();
    if bytes.len() as u64 > MAX_CONFIG_BYTES {
        return Err(ConfigError::TooLarge { path });
    }
    if let Some(what) = Foreign::of_content(bytes) {
        return Err(ConfigError::Foreign { path, what });
    }
    let root = match parse_document(bytes) {
        Ok(root) => root,
        Err(reason) => return Err(ConfigError::Json { path, reason }),
    };
    let mut fields = Fields::new(&root);
    rules::check_released_values(&mut fields);
    let kv_heads = fields.width("text_config.num_key_value_heads");
    let config = rules::read_fields(&mut fields);
    let mut problems = fields.into_problems();
    if problems.is_empty() {
        rules::check_consistency(&config, kv_heads, &mut problems);
    }
    if problems.is_empty() { Ok(config) } else { Err(ConfigError::Refused { path, problems }) }
}
