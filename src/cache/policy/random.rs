//! A random slot, from one fixed seed: the baseline that any policy with an idea must beat.

use super::Policy;
use crate::slot_table::InUse;
use k3_core::random::SplitMix64;

/// The seed; fixed, so that a report can be made again.
pub const SEED: u64 = 1;

/// Random replacement.
#[derive(Debug)]
pub struct Random {
    generator: SplitMix64,
    slot_count: u64,
}

impl Random {
    /// For a cache of `slot_count` slots.
    pub fn new(slot_count: usize) -> Random {
        Random { generator: SplitMix64::new(SEED), slot_count: slot_count as u64 }
    }
}

impl Policy for Random {
    fn inserted(&mut self, _slot: u32, _expert: u32) {}

    fn used(&mut self, _slot: u32, _fresh: bool) {}

    fn victim(&mut self, _incoming: u32, in_use: &InUse) -> u32 {
        loop {
            let slot = self.generator.below(self.slot_count) as u32;
            if !in_use.contains(slot) {
                return slot;
            }
        }
    }
}
