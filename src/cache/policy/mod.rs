//! Replacement policies, one file each, under one small trait.
//!
//! A policy sees slots, not memory: who was put where, who was used, and when a slot is needed.
//! It never sees the future; the optimum, which does, is in `optimum`. A policy
//! must give the same victims for the same calls, whatever the machine.

mod list;

pub mod clock;
pub mod fifo;
pub mod layer_cycle;
pub mod lfu;
pub mod lru;
pub mod pinned;
pub mod random;
pub mod s3_fifo;
pub mod sieve;

use k3_core::choice::Choice;
use serde::Serialize;

use crate::shape::ModelShape;
use crate::slot_table::InUse;

/// A position's demand on one layer, as it becomes known.
#[derive(Debug, Clone, Copy)]
pub struct DemandView<'a> {
    /// Zero-based layer.
    pub layer: u16,
    /// Dense indices of the experts, in the router's order.
    pub experts: &'a [u32],
    /// Further positions of the chunk that will ask this layer after this one.
    pub pending: u32,
}

/// Who goes when a slot is needed.
pub trait Policy: Send {
    /// A position asks a layer for these experts; called before they are served. Most policies
    /// do not care.
    fn demand(&mut self, _demand: &DemandView<'_>) {}

    /// `expert` has been given `slot`, which was empty or whose expert was the last victim.
    fn inserted(&mut self, slot: u32, expert: u32);

    /// The expert in `slot` is used; `fresh` if this is the use it was loaded for.
    fn used(&mut self, slot: u32, fresh: bool);

    /// The slot to give to `incoming`: one that is not in use (there is one). Its expert is gone
    /// when this returns.
    fn victim(&mut self, incoming: u32, in_use: &InUse) -> u32;
}

/// The policies by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyName {
    /// Least recently used.
    Lru,
    /// First in, first out.
    Fifo,
    /// Second chance, a hand over the slots.
    Clock,
    /// SIEVE: FIFO with a hand that spares what was used.
    Sieve,
    /// Least frequently used, with dynamic ageing.
    Lfu,
    /// Small queue, main queue, ghosts.
    S3Fifo,
    /// A random slot, seeded.
    Random,
    /// Ours: chance at the layer's next turn, less the wait.
    LayerCycle,
}

impl Choice for PolicyName {
    const ALL: &'static [Self] = &[
        Self::Lru,
        Self::Fifo,
        Self::Clock,
        Self::Sieve,
        Self::Lfu,
        Self::S3Fifo,
        Self::Random,
        Self::LayerCycle,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Fifo => "fifo",
            Self::Clock => "clock",
            Self::Sieve => "sieve",
            Self::Lfu => "lfu",
            Self::S3Fifo => "s3-fifo",
            Self::Random => "random",
            Self::LayerCycle => "layer-cycle",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Lru => "Least recently used",
            Self::Fifo => "First in, first out",
            Self::Clock => "Second chance, a hand over the slots",
            Self::Sieve => "SIEVE: FIFO with a hand that spares what was used",
            Self::Lfu => "Least frequently used, with dynamic ageing",
            Self::S3Fifo => "Small queue, main queue, ghosts",
            Self::Random => "A random slot, seeded",
            Self::LayerCycle => {
                "This project's policy: predicted reuse at the layer's next visit, minus a waiting \
                 cost"
            }
        }
    }
}

impl PolicyName {
    /// A policy for a cache of `slot_count` slots.
    pub fn build(self, shape: &ModelShape, slot_count: usize) -> Box<dyn Policy> {
        let experts = shape.expert_count();
        match self {
            PolicyName::Lru => Box::new(lru::Lru::new(slot_count)),
            PolicyName::Fifo => Box::new(fifo::Fifo::new(slot_count)),
            PolicyName::Clock => Box::new(clock::Clock::new(slot_count)),
            PolicyName::Sieve => Box::new(sieve::Sieve::new(slot_count)),
            PolicyName::Lfu => Box::new(lfu::Lfu::new(slot_count)),
            PolicyName::S3Fifo => Box::new(s3_fifo::S3Fifo::new(slot_count, experts)),
            PolicyName::Random => Box::new(random::Random::new(slot_count)),
            PolicyName::LayerCycle => Box::new(layer_cycle::LayerCycle::new(shape, slot_count)),
        }
    }
}
