//! Trace format v1: what `generate --dump-trace` writes and `simcache` reads.
//!
//! All numbers little-endian. A header of 128 bytes, then records, then one end record:
//!
//! | offset | bytes | header field |
//! | --- | --- | --- |
//! | 0 | 8 | magic `89 4B 33 54 0D 0A 1A 0A` (a text-mode copy damages it visibly) |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | bytes of the header, 128 |
//! | 16 | 4 | layers · 20: first MoE layer · 24: experts per layer · 28: top-k (4 bytes each) |
//! | 32 | 8 | bytes of one expert |
//! | 40 | 8 | trunk bytes read per token when nothing is pinned, 0 = not stated |
//! | 48 | 8 | bytes of the head, 0 = not stated |
//! | 56 | 32 | checkpoint identity (sha256), zeros = not stated |
//! | 88 | 4 | expert slots of the recording cache, 0 = it recorded no decisions |
//! | 92 | 4 | its request unit: 0 not stated, 1 single, 2 batch, 3 union |
//! | 96 | 4 | its admission order: 0 not stated, 1 late (hits first), 2 early |
//! | 100 | 4 | zero |
//! | 104 | 24 | its policy, ASCII, padded with zeros |
//!
//! A record is `kind: u32, words: u32`, then that many u32:
//!
//! | kind | words |
//! | --- | --- |
//! | 1 step | phase (1 prefill, 2 decode, 3 recompute), first position, positions |
//! | 2 chunk | first position, positions: what runs through every layer together |
//! | 3 demand | layer, position, then 1 to top-k distinct experts, in the router's order |
//! | 4 prefetch | layer, then experts: loaded without being asked for |
//! | 5 decision | layer, expert, outcome (0 hit, 1 loaded, 2 loaded over), victim layer, expert |
//! | 255 end | records before this one, requests (two words each, low first), sha256 (8 words) |
//!
//! Decisions are in request order (in the order of the unit: a union decides once per distinct
//! expert of a chunk), independent of threads. They may be left out altogether. The sha256 in the
//! end record is that of every byte before the end record: a cut or changed file is refused.

mod read;
mod write;

use super::TraceError;
use crate::shape::ModelShape;
use crate::slot_table::{Requests, Reserve};
pub use read::read;
pub use write::TraceWriter;

/// First bytes of a file; the line ends in it break when a copy converts text.
pub const MAGIC: [u8; 8] = [0x89, b'K', b'3', b'T', b'\r', b'\n', 0x1a, b'\n'];
/// The version written and read.
pub const VERSION: u32 = 1;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 128;
/// Longest policy name.
pub const POLICY_BYTES: usize = 24;

const KIND_STEP: u32 = 1;
const KIND_CHUNK: u32 = 2;
const KIND_DEMAND: u32 = 3;
const KIND_PREFETCH: u32 = 4;
const KIND_DECISION: u32 = 5;
const KIND_END: u32 = 255;
const NO_VICTIM: u32 = u32::MAX;

/// What the header says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Sizes of the model.
    pub shape: ModelShape,
    /// Trunk bytes one token reads when no layer is pinned; 0 = not stated.
    pub trunk_bytes: u64,
    /// Bytes of the output head; 0 = not stated.
    pub head_bytes: u64,
    /// Identity of the checkpoint; zeros = not stated.
    pub checkpoint_identity: [u8; 32],
    /// Slots of the recording cache; 0 = no decisions recorded.
    pub slot_count: u32,
    /// Request unit of the recording cache.
    pub requests: Option<Requests>,
    /// Admission order of the recording cache.
    pub reserve: Option<Reserve>,
    /// Policy of the recording cache; empty = not stated.
    pub policy: String,
}

impl Header {
    /// A header that states the sizes of the model and nothing else.
    pub fn of_shape(shape: ModelShape) -> Header {
        Header {
            shape,
            trunk_bytes: 0,
            head_bytes: 0,
            checkpoint_identity: [0; 32],
            slot_count: 0,
            requests: None,
            reserve: None,
            policy: String::new(),
        }
    }
}

/// Whether the bytes claim to be a trace of ours; a magic that lost its line ends is an error.
pub fn is_ours(bytes: &[u8]) -> Result<bool, TraceError> {
    if bytes.starts_with(&MAGIC) {
        return Ok(true);
    }
    if bytes.starts_with(&MAGIC[..4]) {
        let what = "the magic of a k3-verify trace is damaged: line ends were converted on the way";
        return Err(TraceError::whole(what));
    }
    Ok(false)
}
