//! What the tests share: engines over the tiny oracle, `generate` on it, readers that fail.

use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use k3_cache::policy::PolicyName;
use k3_core::host::interrupt::Interrupt;
use k3_engine::kernels::table::Kernels;
use k3_engine::model::{EngineOptions, EngineSequence};
use k3_engine::stream::fault_hooks::NoFaults;
use k3_engine::stream::read::ReadAt;
use k3_engine::stream::{ModelFiles, StreamOptions, StreamedEngine};

use crate::support::{bits, command_on, ids, tiny, typed};

/// Layers of the tiny oracle, and its experts (12 MoE layers of 8, top-2).
pub const LAYERS: usize = 13;
pub const EXPERTS: usize = 96;
pub const TOP_K: usize = 2;

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
        hooks: Arc::new(NoFaults),
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

/// Logit bits of `ids` fed at once.
pub fn feed(streamed: &StreamedEngine, ids: &[u32]) -> Vec<u32> {
    let mut sequence = EngineSequence::new(Arc::clone(&streamed.engine));
    bits(&sequence.feed(ids).unwrap())
}

/// `generate` on the tiny oracle with its prompt.
pub fn generate(arguments: &[&str]) -> Command {
    let mut command = command_on("generate", &tiny());
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
