//! The writer of trace v1: one method per record, a running checksum, nothing kept in memory.
//!
//! The caller says what happens in the order in which it happens; `finish` writes the end record.
//! The reader refuses a file without it, so a run that died leaves no partial trace that could pass
//! for a whole one.

use std::io::Write;

use sha2::{Digest, Sha256};

use super::super::{Outcome, Phase};
use super::{
    HEADER_BYTES, Header, KIND_CHUNK, KIND_DECISION, KIND_DEMAND, KIND_END, KIND_PREFETCH,
    KIND_STEP, MAGIC, NO_VICTIM, POLICY_BYTES, VERSION,
};
use crate::shape::ExpertKey;
use crate::slot_table::{Requests, Reserve};

/// Writes one trace.
#[derive(Debug)]
pub struct TraceWriter<W: Write> {
    sink: W,
    hash: Sha256,
    header: Header,
    record_count: u64,
    request_count: u64,
}

impl<W: Write> TraceWriter<W> {
    /// Writes the header.
    pub fn create(sink: W, header: &Header) -> std::io::Result<Self> {
        let mut writer = TraceWriter {
            sink,
            hash: Sha256::new(),
            header: header.clone(),
            record_count: 0,
            request_count: 0,
        };
        let bytes = header_bytes(header)?;
        writer.put(&bytes)?;
        Ok(writer)
    }

    /// A forward pass over `position_count` positions begins.
    pub fn step(
        &mut self,
        phase: Phase,
        first_position: u32,
        position_count: u32,
    ) -> std::io::Result<()> {
        let phase = match phase {
            Phase::Prefill => 1,
            Phase::Decode => 2,
            Phase::Recompute => 3,
            Phase::Unknown => return Err(invalid("a step needs a phase")),
        };
        self.record(KIND_STEP, &[phase, first_position, position_count])
    }

    /// The positions that now run through every layer together.
    pub fn chunk(&mut self, first_position: u32, position_count: u32) -> std::io::Result<()> {
        self.record(KIND_CHUNK, &[first_position, position_count])
    }

    /// `position` asks `layer` for these experts, in the router's order.
    pub fn demand(&mut self, layer: u32, position: u32, experts: &[u32]) -> std::io::Result<()> {
        self.request_count += experts.len() as u64;
        self.record(KIND_DEMAND, &[&[layer, position][..], experts].concat())
    }

    /// These experts of `layer` are loaded ahead.
    pub fn prefetch(&mut self, layer: u32, experts: &[u32]) -> std::io::Result<()> {
        self.record(KIND_PREFETCH, &[&[layer][..], experts].concat())
    }

    /// What the cache did with one request; `outcome` holds dense indices of the shape.
    pub fn decision(&mut self, expert: ExpertKey, outcome: Outcome) -> std::io::Result<()> {
        let (code, victim_layer, victim_expert) = match outcome {
            Outcome::Hit => (0, NO_VICTIM, NO_VICTIM),
            Outcome::Loaded => (1, NO_VICTIM, NO_VICTIM),
            Outcome::LoadedOver(victim) => {
                let victim = self.header.shape.key(victim);
                (2, u32::from(victim.layer), u32::from(victim.expert))
            }
        };
        let (layer, expert) = (u32::from(expert.layer), u32::from(expert.expert));
        self.record(KIND_DECISION, &[layer, expert, code, victim_layer, victim_expert])
    }

    /// Writes the end record and gives the sink back, flushed.
    pub fn finish(mut self) -> std::io::Result<W> {
        let mut words = Vec::with_capacity(12);
        for count in [self.record_count, self.request_count] {
            words.extend([count as u32, (count >> 32) as u32]);
        }
        let digest = self.hash.clone().finalize();
        for word in digest.chunks_exact(4) {
            words.push(u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        }
        self.record(KIND_END, &words)?;
        self.sink.flush()?;
        Ok(self.sink)
    }

    fn record(&mut self, kind: u32, words: &[u32]) -> std::io::Result<()> {
        let mut bytes = Vec::with_capacity(8 + 4 * words.len());
        bytes.extend(kind.to_le_bytes());
        bytes.extend((words.len() as u32).to_le_bytes());
        for word in words {
            bytes.extend(word.to_le_bytes());
        }
        self.record_count += 1;
        self.put(&bytes)
    }

    fn put(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.hash.update(bytes);
        self.sink.write_all(bytes)
    }
}

fn invalid(message: &str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidInput, message)
}

fn header_bytes(header: &Header) -> std::io::Result<Vec<u8>> {
    let policy = header.policy.as_bytes();
    if policy.len() > POLICY_BYTES || !header.policy.is_ascii() {
        return Err(invalid("the policy's name is no ASCII name of at most 24 bytes"));
    }
    let requests = match header.requests {
        None => 0,
        Some(Requests::Single) => 1,
        Some(Requests::Batch) => 2,
        Some(Requests::Union) => 3,
    };
    let reserve = match header.reserve {
        None => 0,
        Some(Reserve::Late) => 1,
        Some(Reserve::Early) => 2,
    };
    let shape = &header.shape;
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    bytes.extend(MAGIC);
    let sizes = [shape.layer_count, shape.first_moe_layer, shape.experts_per_layer, shape.top_k];
    for word in [VERSION, HEADER_BYTES as u32].iter().chain(&sizes) {
        bytes.extend(word.to_le_bytes());
    }
    for value in [shape.expert_bytes, header.trunk_bytes, header.head_bytes] {
        bytes.extend(value.to_le_bytes());
    }
    bytes.extend(header.checkpoint_identity);
    for word in [header.slot_count, requests, reserve, 0] {
        bytes.extend(u32::to_le_bytes(word));
    }
    bytes.extend(policy);
    bytes.resize(HEADER_BYTES, 0);
    Ok(bytes)
}
