//! What the tests share: the tiny oracle, engines over it, readers that fail, the binary.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use k3_cache::policy::PolicyName;
use k3_core::host::interrupt::Interrupt;
use k3_engine::kernels::table::Kernels;
use k3_engine::model::{EngineOptions, EngineSequence};
use k3_engine::stream::habits::Careful;
use k3_engine::stream::read::ReadAt;
use k3_engine::stream::{ModelFiles, StreamOptions, StreamedEngine};

/// Layers of the tiny oracle, and its experts (12 MoE layers of 8, top-2).
pub const LAYERS: usize = 13;
pub const EXPERTS: usize = 96;
pub const TOP_K: usize = 2;

pub fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tiny/model")
}

fn expected() -> serde_json::Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tiny/expected.json");
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

pub fn ids(key: &str) -> Vec<u32> {
    let list = expected()[key].as_array().unwrap().clone();
    list.iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

pub fn typed(ids: &[u32]) -> String {
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    ids.join(",")
}

pub fn open(folder: &Path, trunk: Option<&Path>) -> ModelFiles {
    ModelFiles::open(folder, None, trunk).unwrap()
}

/// Everything in memory.
pub fn resident() -> StreamOptions {
    StreamOptions {
        pinned: (0..LAYERS).collect(),
        ring_slots: 0,
        expert_slots: EXPERTS,
        policy: PolicyName::LayerCycle,
        streams_vocabulary: false,
        direct: false,
        habits: Arc::new(Careful),
        stop: Interrupt::default(),
    }
}

pub fn streamed(ring: usize, slots: usize) -> StreamOptions {
    StreamOptions { pinned: Vec::new(), ring_slots: ring, expert_slots: slots, ..resident() }
}

pub fn engine(files: &ModelFiles, stream: &StreamOptions) -> StreamedEngine {
    engine_of(files, stream, EngineOptions::default())
}

pub fn engine_of(
    files: &ModelFiles,
    stream: &StreamOptions,
    options: EngineOptions,
) -> StreamedEngine {
    files.engine(Kernels::fastest(), stream, options).unwrap()
}

pub fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Logit bits of `ids` fed at once.
pub fn feed(streamed: &StreamedEngine, ids: &[u32]) -> Vec<u32> {
    let mut sequence = EngineSequence::new(Arc::clone(&streamed.engine));
    bits(&sequence.feed(ids).unwrap())
}

pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

pub fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_k3-verify"));
    command.env_remove("K3_MODEL");
    command
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs and checks code and error line.
#[track_caller]
pub fn expect(command: &mut Command, code: i32) -> Output {
    let output = command.output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{command:?}\n{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    if code != 0 {
        let lines = stderr.lines().filter(|line| line.starts_with("error: "));
        assert_eq!(lines.count(), 1, "{stderr}");
        assert!(output.stdout.is_empty(), "a result was printed");
    }
    output
}

/// `generate` on the tiny oracle with its prompt.
pub fn generate(arguments: &[&str]) -> Command {
    let mut command = binary();
    command.arg("generate").arg("--model").arg(tiny());
    command.arg("--ids").arg(typed(&ids("prompt_ids")));
    command.args(arguments);
    command
}

/// A reader whose reads of some bytes fail.
#[derive(Debug)]
pub struct Unreadable {
    pub file: std::fs::File,
    pub from: u64,
    pub to: u64,
}

impl ReadAt for Unreadable {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if offset < self.to && offset + buffer.len() as u64 > self.from {
            return Err(io::Error::other("the medium is damaged"));
        }
        ReadAt::read_at(&self.file, buffer, offset)
    }
}
