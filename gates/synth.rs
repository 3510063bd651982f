//! Synthetic checkpoints: their bytes, the replica of the release, what the command refuses, and
//! the engine against the reference on them.

mod bytes;
mod command;
mod numbers;
mod replica;

use std::path::Path;

use super::support::{Ran, binary, expect_of};

/// Runs `synth` with a folder and arguments; see [`Ran::of`].
#[track_caller]
fn expect(folder: &Path, arguments: &str, code: i32) -> Ran {
    expect_of(binary().arg("synth").arg(folder).args(arguments.split_whitespace()), code)
}
