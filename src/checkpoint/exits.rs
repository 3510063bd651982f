//! How a command ends for what is wrong with a checkpoint.

use crate::config::ConfigError;
use crate::shape::ShapeError;
use crate::{CheckpointError, Malformed, ReadError};
use k3_core::exit::Exits;

impl Exits for ConfigError {
    fn hint(&self) -> Option<&'static str> {
        Some("the config of another model, or of a copy without its config, is not guessed at")
    }
}

impl Exits for CheckpointError {
    fn hint(&self) -> Option<&'static str> {
        Some("k3-verify check looks at every file by itself")
    }
}

impl Exits for Malformed {}
impl Exits for ReadError {}
impl Exits for ShapeError {}
