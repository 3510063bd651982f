//! What the tests share: running the binary, the oracle that ships, files and folders.

pub mod engine;
pub mod process;
pub mod proof;
pub mod read_ahead;
pub mod traces;
pub mod vocabulary;
pub mod widen;

use std::borrow::BorrowMut;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use assert_cmd::assert::OutputAssertExt as _;
use k3_checkpoint::Checkpoint;
use k3_core::config::RawConfig;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use tempfile::TempDir;

/// The binary; no variable of the environment names a model.
pub fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_k3-verify"));
    command.env_remove("K3_MODEL");
    command
}

/// A command of the binary on a checkpoint.
pub fn command_on(command: &str, model: &Path) -> Command {
    let mut binary = binary();
    binary.arg(command).arg("--model").arg(model);
    binary
}

/// What a program wrote.
#[derive(Debug)]
pub struct Ran {
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// Checks the exit code, that nothing panicked, and that an error is one line: always there
    /// for exit codes 3 and 5, never for 0. Who is refused (2, 3, 5) has no result on stdout.
    #[track_caller]
    pub fn of(output: &Output, code: i32) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        output.clone().assert().code(code);
        assert!(!stderr.contains("panicked"), "{stderr}");
        let errors = stderr.lines().filter(|line| line.starts_with("error: ")).count();
        let allowed = match code {
            0 => 0..=0,
            3 | 5 => 1..=1,
            _ => 0..=1,
        };
        assert!(allowed.contains(&errors), "exit code {code}, {errors} error lines: {stderr}");
        assert!(![2, 3, 5].contains(&code) || stdout.is_empty(), "{stdout}");
        Self { stdout, stderr }
    }

    /// A report on stdout.
    #[track_caller]
    pub fn json(&self) -> Value {
        json(&self.stdout)
    }
}

/// Runs a command and checks its exit code.
#[track_caller]
pub fn expect_of(mut command: impl BorrowMut<Command>, code: i32) -> Ran {
    Ran::of(command.borrow_mut().assert().code(code).get_output(), code)
}

/// Runs the binary and checks its exit code.
#[track_caller]
pub fn expect(arguments: &[&str], code: i32) -> Ran {
    expect_of(binary().args(arguments), code)
}

/// Runs a command whose reader closes the pipe after some bytes.
pub fn read_and_close(command: &mut Command, bytes: usize) -> Output {
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("the command starts");
    let mut stdout = child.stdout.take().expect("it is piped");
    stdout.read_exact(&mut vec![0; bytes]).expect("so many bytes");
    drop(stdout);
    child.wait_with_output().expect("it ends")
}

/// A file of the shipped fixtures.
pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path)
}

/// The tiny model that ships.
pub fn tiny() -> PathBuf {
    fixture("tiny/model")
}

/// A path as an argument.
pub fn arg(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// A temporary folder, removed when it is dropped, and a path in it where nothing is yet.
pub fn scratch(name: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    (folder, path)
}

/// Ids as an argument.
pub fn typed(ids: &[u32]) -> String {
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    ids.join(",")
}

/// A JSON text, such as a report on stdout.
#[track_caller]
pub fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// A JSON file.
#[track_caller]
pub fn read_json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path);
    json(&text.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// A list of ids in JSON.
#[track_caller]
pub fn ids_of(list: &Value) -> Vec<u32> {
    serde_json::from_value(list.clone()).expect("a list of ids")
}

/// Ids of the tiny oracle's answers, such as `full_ids`.
pub fn ids(key: &str) -> Vec<u32> {
    ids_of(&read_json(&fixture("tiny/expected.json"))[key])
}

/// Copies a folder with everything below it; the copies can be written to.
pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::write(target, std::fs::read(entry.path()).unwrap()).unwrap();
        }
    }
}

/// Overwrites bytes of a tensor in its shard.
#[track_caller]
pub fn overwrite(model: &Path, tensor: &str, at_byte: u64, bytes: &[u8]) {
    let checkpoint = Checkpoint::open(model).unwrap();
    let info = checkpoint.tensor(tensor).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(checkpoint.shard_path(info.shard));
    file.unwrap().write_all_at(bytes, info.offset + at_byte).unwrap();
}

/// Every file of a folder with its bytes.
pub fn files_in(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let read = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        (name, std::fs::read(entry.path()).unwrap())
    };
    entries.map(read).collect()
}

/// Names of the files in a folder, in order.
pub fn names_in(folder: &Path) -> Vec<String> {
    files_in(folder).into_keys().collect()
}

/// Compares with the committed file of that name below `reports/`.
#[track_caller]
pub fn snapshot(folder: &str, name: &str, content: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(format!("../../reports/{folder}"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, content));
}

/// The bits of f32 values: equal bits, not equal numbers, are what the contract promises.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The bits of f64 values.
pub fn bits_f64(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The largest |a − b|; NaN anywhere counts as infinite.
#[track_caller]
pub fn largest_difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    assert!(!a.is_empty());
    let difference = |(a, b): (&f64, &f64)| {
        let difference = (a - b).abs();
        if difference.is_nan() { f64::INFINITY } else { difference }
    };
    a.iter().zip(b).map(difference).fold(0.0, f64::max)
}

/// A small model and the answers to it: the one that ships, or one from outside in the same form.
pub struct Oracle {
    pub model: PathBuf,
    pub config: RawConfig,
    expected: Value,
    tensors: Vec<u8>,
}

impl Oracle {
    /// The tiny oracle that ships.
    pub fn tiny() -> Self {
        Self::open(&fixture("tiny"))
    }

    pub fn open(set: &Path) -> Self {
        let model = set.join("model");
        Self {
            config: k3_checkpoint::config::read(&model.join("config.json")).unwrap(),
            expected: read_json(&set.join("expected.json")),
            tensors: std::fs::read(set.join("expected.safetensors")).unwrap(),
            model,
        }
    }

    /// A list of ids of the answers, such as `full_ids`.
    #[track_caller]
    pub fn ids(&self, key: &str) -> Vec<u32> {
        ids_of(&self.expected[key])
    }

    /// An expected tensor, widened.
    #[track_caller]
    pub fn tensor(&self, name: &str) -> Vec<f64> {
        let file = SafeTensors::deserialize(&self.tensors).unwrap();
        let view = file.tensor(name).unwrap();
        let words = view.data().as_chunks::<4>().0;
        match view.dtype() {
            Dtype::F32 => words.iter().map(|w| f64::from(f32::from_le_bytes(*w))).collect(),
            Dtype::I32 => words.iter().map(|w| f64::from(i32::from_le_bytes(*w))).collect(),
            Dtype::F64 => {
                let words = view.data().as_chunks::<8>().0;
                words.iter().map(|w| f64::from_le_bytes(*w)).collect()
            }
            other => panic!("{name}: unexpected dtype {other:?}"),
        }
    }
}
