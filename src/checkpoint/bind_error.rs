//! The ways a checkpoint can fail to fit its config.

use std::path::PathBuf;

use thiserror::Error;

use super::binding::MAX_MISSING;
use super::dtype::Dtype;
use super::names::Role;
use super::shape::ShapeError;

/// One way a checkpoint does not fit its config.
#[derive(Debug, Error)]
pub enum BindError {
    /// A raw config that was not made by its reader.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A config that implies far more tensors than there are.
    #[error(
        "{}: the config's layers and num_experts imply {expected} tensors, there are {got}; more \
         than {MAX_MISSING} missing ones are not looked for",
        path.display()
    )]
    TooManyExpected {
        /// The checkpoint or index.
        path: PathBuf,
        /// Tensors by the config.
        expected: u64,
        /// Names there are.
        got: u64,
    },
    /// Tensors that the config implies and the checkpoint does not have.
    #[error(
        "{}: {count} tensor(s) missing: {}{}", path.display(), listing(names, *count), hint(unknown)
    )]
    Missing {
        /// The checkpoint.
        path: PathBuf,
        /// Full names: all, or a selection that has every layer concerned at least once as long as
        /// there is room.
        names: Vec<String>,
        /// How many there are.
        count: u64,
        /// Tensors of the text model that have no place, as a hint; a selection.
        unknown: Vec<String>,
    },
    /// Another element type than the release's.
    #[error(
        "{}: tensor {tensor:?} ({role:?}): expected dtype {expected}, got {got}", path.display()
    )]
    WrongDtype {
        /// The shard.
        path: PathBuf,
        /// Full name.
        tensor: String,
        /// What it is in the model.
        role: Role,
        /// The release's type.
        expected: Dtype,
        /// The file's type.
        got: Dtype,
    },
    /// Another shape than the config implies.
    #[error(
        "{}: tensor {tensor:?} ({role:?}): expected shape {expected:?} by the config, got {got:?}",
        path.display()
    )]
    WrongShape {
        /// The shard.
        path: PathBuf,
        /// Full name.
        tensor: String,
        /// What it is in the model.
        role: Role,
        /// The config's shape.
        expected: Vec<usize>,
        /// The file's shape.
        got: Vec<usize>,
    },
    /// A residual tensor under its name, and another that is one by another spelling.
    #[error(
        "{}: tensor {tensor:?} is a second spelling of a residual norm or projection that stands \
         under its released name as well",
        path.display()
    )]
    BothSpellings {
        /// The checkpoint.
        path: PathBuf,
        /// The name that is not the released one.
        tensor: String,
    },
}

fn listing(names: &[String], count: u64) -> String {
    let shown: Vec<_> = names.iter().map(|name| name.escape_debug().to_string()).collect();
    let mut text = shown.join(", ");
    if count > names.len() as u64 {
        text.push_str(&format!(", … ({} more)", count - names.len() as u64));
    }
    text
}

fn hint(unknown: &[String]) -> String {
    if unknown.is_empty() {
        return String::new();
    }
    format!("; names there that are not known: {}", listing(unknown, unknown.len() as u64))
}
