//! Synthetic checkpoints: their bytes, the replica of the release, what the command refuses, and
//! the engine against the reference on them.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test that cannot read its input fails

#[path = "synth/bytes.rs"]
mod bytes;
#[path = "synth/command.rs"]
mod command;
#[path = "synth/numbers.rs"]
mod numbers;
#[path = "synth/replica.rs"]
mod replica;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

/// Runs `synth` with arguments; OUT first.
fn synth(folder: &Path, arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_k3-verify"))
        .arg("synth")
        .arg(folder)
        .args(arguments.split_whitespace())
        .output()
        .unwrap()
}

/// The same, of which the exit code is known; an error is one line and a hint, never a panic.
#[track_caller]
fn expect(folder: &Path, arguments: &str, code: i32) -> (String, String) {
    let output = synth(folder, arguments);
    let (stdout, stderr) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(code), "{arguments}\n{stdout}\n{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    let errors = stderr.lines().filter(|line| line.starts_with("error: "));
    assert_eq!(errors.count(), usize::from(code != 0), "{stderr}");
    (stdout, stderr)
}

/// Every file of a folder with its bytes.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let read = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        (name, std::fs::read(entry.path()).unwrap())
    };
    entries.map(read).collect()
}
