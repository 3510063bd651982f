//! The ways a checkpoint can fail to fit its config.

use std::path::PathBuf;

use thiserror::Error;

use super::malformed::Malformed;
use super::shape::ShapeError;
use k3_core::listing::listed;

/// One way a checkpoint does not fit its config.
#[derive(Debug, Error)]
pub enum BindError {
    /// A raw config that was not made by its reader.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// Tensors that the config implies and the checkpoint does not have.
    #[error(
        "{}: {count} tensor(s) missing: {}{}",
        path.display(), listed(names, *count as usize), hint(unknown)
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
    /// A dtype or a shape that is another than the config implies, a tensor under two spellings,
    /// or a config that implies far more tensors than there are.
    #[error(transparent)]
    File(#[from] Malformed),
}

fn hint(unknown: &[String]) -> String {
    if unknown.is_empty() {
        return String::new();
    }
    format!("; names there that are not known: {}", listed(unknown, unknown.len()))
}
