//! The reader of `config.json` that refuses: every field is required, nothing has a default.
//!
//! It yields the raw fields of the released, nested form (`text_config`,
//! `text_config.linear_attn_config`, `text_config.quantization_config`); no flat form, no second
//! spelling of a key, no search in another place, but what other places and spellings say must
//! agree (see `elsewhere`). What follows from the fields (layer kinds,
//! banks, derived widths) is worked out by the engine and by the reference, each for itself.
//!
//! Choices: an integer must be written as one (`16.0` and `1.6e1` are refused, `1` for a real
//! number is fine); a boolean must be a boolean; keys this reader does not know are accepted,
//! since the release has a hundred that no computation reads, unless they would change it.
//! Everything missing or ill-typed is told in one message; what contradicts itself is told, again
//! all at once, when nothing is.

mod elsewhere;
mod fields;
mod rules;

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use k3_core::config::RawConfig;
use thiserror::Error;

use crate::foreign::Foreign;
use crate::json::Value;
use crate::{Malformed, Problem};

use fields::Fields;

/// Largest `config.json` read: the released one has 7,006 bytes.
pub const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// A `config.json` that cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A file that cannot be read or is not one strict JSON document.
    #[error(transparent)]
    File(#[from] Malformed),
    /// Fields that are missing, ill-typed or not what this program computes.
    #[error("{}: {}", path.display(), list_problems(problems))]
    Refused {
        /// The file.
        path: PathBuf,
        /// Everything found, each at the full path of its field; never empty.
        problems: Vec<Problem>,
    },
}

fn list_problems(problems: &[Problem]) -> String {
    // Above the number of fields there are; only layer lists can have more problems.
    const SHOWN: usize = 80;
    let mut texts: Vec<_> = problems.iter().take(SHOWN).map(ToString::to_string).collect();
    if problems.len() == 1 {
        return texts.remove(0);
    }
    if problems.len() > SHOWN {
        texts.push(format!("and {} more", problems.len() - SHOWN));
    }
    format!("{} problems: {}", problems.len(), texts.join("; "))
}

/// Reads and checks the file at `path`, and the quantisation that may be written beside it.
///
/// # Errors
/// Every variant of [`ConfigError`].
pub fn read(path: &Path) -> Result<RawConfig, ConfigError> {
    read_all(path).map(|(config, _)| config)
}

/// The fields of the file that have to do with the numbers and are not read, since they say what
/// is computed anyway; with any other value, [`read`] refuses.
///
/// # Errors
/// Every variant of [`ConfigError`].
pub fn unread(path: &Path) -> Result<Vec<String>, ConfigError> {
    read_all(path).map(|(_, unread)| unread)
}

fn read_all(path: &Path) -> Result<(RawConfig, Vec<String>), ConfigError> {
    let config = read_bytes(path).map_err(|reason| Malformed::unreadable(path, &reason))?;
    let beside = path.with_file_name(elsewhere::HF_QUANT_FILE);
    let quantization = match read_bytes(&beside) {
        Err(reason) if reason.kind() == io::ErrorKind::NotFound && !beside.is_symlink() => None,
        read => Some(read.map_err(|reason| Malformed::unreadable(&beside, &reason))?),
    };
    let quantization = quantization.as_deref().map(|bytes| document(bytes, &beside)).transpose()?;
    check(&document(&config, path)?, quantization.as_ref(), path)
}

fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    k3_core::host::files::open(path)?.take(MAX_CONFIG_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Checks the bytes of a file; `origin` is the name used in messages.
///
/// # Errors
/// Every variant of [`ConfigError`].
pub fn parse(bytes: &[u8], origin: &Path) -> Result<RawConfig, ConfigError> {
    check(&document(bytes, origin)?, None, origin).map(|(config, _)| config)
}

fn document<'a>(bytes: &'a [u8], origin: &Path) -> Result<Value<'a>, Malformed> {
    let in_file = |problem: Problem| problem.in_file(origin);
    if bytes.len() as u64 > MAX_CONFIG_BYTES {
        let what = format!("larger than the limit of {MAX_CONFIG_BYTES} bytes");
        return Err(in_file(Problem::whole(what)));
    }
    if let Some(what) = Foreign::of_content(bytes) {
        return Err(in_file(Problem::whole(what)));
    }
    Value::parse(bytes).map_err(in_file)
}

fn check(
    root: &Value<'_>,
    beside: Option<&Value<'_>>,
    origin: &Path,
) -> Result<(RawConfig, Vec<String>), ConfigError> {
    let mut fields = Fields::new(root);
    rules::check_released_values(&mut fields);
    let kv_heads = fields.width("text_config.num_key_value_heads");
    let config = rules::read_fields(&mut fields);
    let unread = elsewhere::check(&mut fields, beside);
    let mut problems = fields.into_problems();
    if problems.is_empty() {
        rules::check_consistency(&config, kv_heads, &mut problems);
    }
    let path = origin.to_owned();
    if problems.is_empty() {
        Ok((config, unread))
    } else {
        Err(ConfigError::Refused { path, problems })
    }
}
