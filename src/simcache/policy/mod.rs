//! Replacement policies, one file each behind one small trait.
//!
//! A policy sees slots, not memory: who was put where, who was used, and when a slot is needed.
//! It never sees the future; the optimum, which does, is in [`optimum`](super::optimum). A policy
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

use serde::Serialize;

use super::cache::InUse;
use super::shape::ModelShape;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
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

impl PolicyName {
    /// All of them, in the order of the report.
    pub const ALL: [PolicyName; 8] = [
        PolicyName::Lru,
        PolicyName::Fifo,
        PolicyName::Clock,
        PolicyName::Sieve,
        PolicyName::Lfu,
        PolicyName::S3Fifo,
        PolicyName::Random,
        PolicyName::LayerCycle,
    ];

    /// The name in reports, traces and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyName::Lru => "lru",
            PolicyName::Fifo => "fifo",
            PolicyName::Clock => "clock",
            PolicyName::Sieve => "sieve",
            PolicyName::Lfu => "lfu",
            PolicyName::S3Fifo => "s3-fifo",
            PolicyName::Random => "random",
            PolicyName::LayerCycle => "layer-cycle",
        }
    }

    /// The policy of that name.
    pub fn from_name(name: &str) -> Option<PolicyName> {
        PolicyName::ALL.into_iter().find(|policy| policy.as_str() == name)
    }

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
