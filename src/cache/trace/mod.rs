//! A trace: the requested experts, by position, in order.
//!
//! The flat list of requests is cut into demands (one position asking one layer for its top-k),
//! demands belong to chunks (positions that run through a layer together) and chunks to steps (one
//! forward pass). These files become a trace: the headerless list of integer pairs that other
//! engines write ([`headerless`]), tables and arrays ([`foreign`]), our own format ([`v1`]). What
//! a trace MEANS, incremental decoding or the whole prefix recomputed at every step, is decided in
//! `order`, not here.

pub mod csv;
pub mod error;
pub mod foreign;
pub mod headerless;
pub mod router;
pub mod v1;

use serde::Serialize;

use crate::shape::ModelShape;
pub use error::TraceError;

/// Largest trace file that is read (it is read whole): 4 GiB.
pub const MAX_TRACE_BYTES: u64 = 4 << 30;

/// What a forward pass was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The prompt's positions, state carried on.
    Prefill,
    /// New positions after carried state.
    Decode,
    /// The whole prefix again, from nothing.
    Recompute,
    /// The file does not say and the order does not tell.
    Unknown,
}

/// One forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// What the pass was for.
    pub phase: Phase,
    /// First position it ran.
    pub first_position: u32,
    /// How many positions it ran.
    pub position_count: u32,
}

/// Positions that run through every layer together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Index of the step.
    pub step: u32,
    /// First position of the chunk.
    pub first_position: u32,
    /// Positions in it.
    pub position_count: u32,
}

/// One position asks one layer for its experts: a range of [`Trace::requests`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Index of the chunk.
    pub chunk: u32,
    /// Position in the sequence; meaningless while the step's phase is unknown.
    pub position: u32,
    /// Zero-based layer.
    pub layer: u16,
    /// First request.
    pub first: u32,
    /// Number of requests, at most top-k.
    pub count: u32,
}

/// Experts loaded ahead, without being asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefetch {
    /// The prefetch came before the demand of this index.
    pub before_demand: u32,
    /// Dense indices of the experts.
    pub experts: Vec<u32>,
}

/// What a cache did with one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The expert was resident.
    Hit,
    /// It was read into a slot that was empty.
    Loaded,
    /// It was read into the slot of the expert named.
    LoadedOver(u32),
}

/// One decision of a cache, in request order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// The expert asked for.
    pub expert: u32,
    /// What was done.
    pub outcome: Outcome,
}

/// A trace, checked: every index is inside the shape, every range inside the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// Sizes of the model.
    pub shape: ModelShape,
    /// Dense indices of the experts asked for, in request order.
    pub requests: Vec<u32>,
    /// Demands, in request order, covering all requests.
    pub demands: Vec<Demand>,
    /// Chunks, in order.
    pub chunks: Vec<Chunk>,
    /// Steps, in order.
    pub steps: Vec<Step>,
    /// Prefetches, in order.
    pub prefetches: Vec<Prefetch>,
    /// What the recording cache decided; empty where the file does not say.
    pub decisions: Vec<Decision>,
    /// What the header of our own format says beyond the shape.
    pub header: Option<v1::Header>,
}

impl Trace {
    /// The requests of one demand.
    pub fn experts(&self, demand: &Demand) -> &[u32] {
        &self.requests[demand.first as usize..(demand.first + demand.count) as usize]
    }

    /// The step a demand belongs to.
    pub fn step_of(&self, demand: &Demand) -> &Step {
        &self.steps[self.chunks[demand.chunk as usize].step as usize]
    }

    /// Distinct experts in the trace.
    pub fn distinct_count(&self) -> usize {
        let mut seen = vec![false; self.shape.expert_count()];
        let mut distinct = 0;
        for &expert in &self.requests {
            if !std::mem::replace(&mut seen[expert as usize], true) {
                distinct += 1;
            }
        }
        distinct
    }

    /// Layers that occur, ascending.
    pub fn layers(&self) -> Vec<u16> {
        let mut layers: Vec<u16> = self.demands.iter().map(|demand| demand.layer).collect();
        layers.sort_unstable();
        layers.dedup();
        layers
    }

    /// The part of the trace whose demands `keep` accepts. What depends on the whole (next uses,
    /// distances) is always computed later, from the trace that is left. Decisions and prefetches
    /// belong to the undivided run and are dropped.
    pub fn filtered(&self, keep: impl Fn(&Demand) -> bool) -> Trace {
        let mut part = Trace {
            requests: Vec::new(),
            demands: Vec::new(),
            prefetches: Vec::new(),
            decisions: Vec::new(),
            ..self.clone()
        };
        for demand in self.demands.iter().filter(|demand| keep(demand)) {
            let first = part.requests.len() as u32;
            part.requests.extend_from_slice(self.experts(demand));
            part.demands.push(Demand { first, ..*demand });
        }
        part
    }

    /// Puts another trace after this one, as if the sequences ran one after the other. The models
    /// must be the same; decisions are dropped, since a warm cache decides otherwise.
    pub fn append(&mut self, other: &Trace) -> Result<(), TraceError> {
        if self.shape != other.shape {
            return Err(different_models("sizes"));
        }
        let identity = |trace: &Trace| {
            trace
                .header
                .as_ref()
                .map(|header| header.checkpoint_identity)
                .filter(|id| *id != [0; 32])
        };
        if let (Some(mine), Some(others)) = (identity(self), identity(other))
            && mine != others
        {
            return Err(different_models("checkpoint identities"));
        }
        let joined = self.requests.len() as u64 + other.requests.len() as u64;
        if joined > u64::from(u32::MAX) {
            return Err(too_large(4 * joined, 4 * u64::from(u32::MAX)));
        }
        let (requests, demands) = (self.requests.len() as u32, self.demands.len() as u32);
        let (chunks, steps) = (self.chunks.len() as u32, self.steps.len() as u32);
        self.requests.extend_from_slice(&other.requests);
        self.demands.extend(other.demands.iter().map(|demand| Demand {
            chunk: demand.chunk + chunks,
            first: demand.first + requests,
            ..*demand
        }));
        self.chunks.extend(other.chunks.iter().map(|c| Chunk { step: c.step + steps, ..*c }));
        self.steps.extend_from_slice(&other.steps);
        self.prefetches.extend(other.prefetches.iter().map(|prefetch| Prefetch {
            before_demand: prefetch.before_demand + demands,
            experts: prefetch.experts.clone(),
        }));
        self.decisions.clear();
        Ok(())
    }
}

fn different_models(what: &str) -> TraceError {
    let what = format!("the traces have different {what}: they come from different models");
    TraceError::Malformed(what)
}

fn too_large(bytes: u64, limit: u64) -> TraceError {
    TraceError::Malformed(format!("the trace has {bytes} bytes, more than the limit of {limit}"))
}

/// Reads a trace file: ours if it starts with the magic, a form of other programs if it looks like
/// one, else headerless pairs checked against `shape`. What says nothing of itself must look like a
/// router's output.
pub fn read(
    path: &std::path::Path,
    shape: &ModelShape,
    stated: &foreign::Stated,
) -> Result<Trace, TraceError> {
    let size = std::fs::metadata(path)?.len();
    if size > MAX_TRACE_BYTES {
        return Err(too_large(size, MAX_TRACE_BYTES));
    }
    let bytes = foreign::decompressed(k3_core::host::files::read(path)?)?;
    if v1::is_ours(&bytes)? {
        return v1::read(&bytes);
    }
    if let Some(trace) = foreign::read(&bytes, stated)? {
        router::check(&trace)?;
        return Ok(trace);
    }
    router::width(&bytes)?;
    let trace = headerless::import(&bytes, shape)?;
    if trace.requests.len() >= router::ENOUGH_REQUESTS {
        router::check(&trace)?;
    }
    Ok(trace)
}

/// Our own format or headerless pairs, already in memory.
pub fn parse(bytes: &[u8], shape: &ModelShape) -> Result<Trace, TraceError> {
    if v1::is_ours(bytes)? { v1::read(bytes) } else { headerless::import(bytes, shape) }
}
