//! `layers` and `merge`: the proof on a checkpoint, what it catches and where it says so, parts and
//! journals, and a foreign engine's dump.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test that cannot read its input fails

#[path = "layers/cluster.rs"]
mod cluster;
#[path = "layers/command.rs"]
mod command;
#[path = "layers/dumps.rs"]
mod dumps;
#[path = "layers/mutants.rs"]
mod mutants;
#[path = "layers/precision.rs"]
mod precision;
#[path = "layers/swaps.rs"]
mod swaps;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use k3_gates::fixtures::Fixtures;
use k3_gates::report::layers::LayersReport;

/// Ids of the chains.
const IDS: &str = "3,17,200,5,9,44,100,7,250,1";

fn k3_verify(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_k3-verify"))
        .args(arguments)
        .env_remove("K3_MODEL")
        .output()
        .unwrap()
}

/// Runs, checks the exit code and that nothing panicked; stdout and stderr.
#[track_caller]
fn expect(arguments: &[&str], code: i32) -> (String, String) {
    let output = k3_verify(arguments);
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{stdout}\n{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    (stdout, stderr)
}

/// The report of a run as it stands in JSON.
#[track_caller]
fn report(arguments: &[&str], code: i32) -> LayersReport {
    let with_json = [arguments, &["--format", "json"]].concat();
    serde_json::from_str(&expect(&with_json, code).0).unwrap()
}

/// The shipped tiny model, unpacked.
struct Tiny {
    fixtures: Fixtures,
}

impl Tiny {
    fn open() -> Self {
        Self { fixtures: Fixtures::embedded().unwrap() }
    }

    fn model(&self) -> PathBuf {
        self.fixtures.root.join("tiny/model")
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
