//! Least frequently used with dynamic ageing (LFU-DA): priority = uses + the priority of the last
//! victim when it was loaded or used, so that old fame wears off. Ties go to the longest unused.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Policy;
use crate::simcache::cache::InUse;

/// LFU with dynamic ageing.
#[derive(Debug)]
pub struct Lfu {
    /// Lowest priority first, then oldest; entries that differ from `rank_of` are stale.
    ranked: BinaryHeap<Reverse<(u64, u64, u32)>>,
    rank_of: Vec<(u64, u64)>,
    uses: Vec<u64>,
    age: u64,
    clock: u64,
}

impl Lfu {
    /// For a cache of `slot_count` slots.
    pub fn new(slot_count: usize) -> Lfu {
        Lfu {
            ranked: BinaryHeap::new(),
            rank_of: vec![(0, 0); slot_count],
            uses: vec![0; slot_count],
            age: 0,
            clock: 0,
        }
    }

    fn rank(&mut self, slot: u32) {
        self.clock += 1;
        let rank = (self.uses[slot as usize] + self.age, self.clock);
        self.rank_of[slot as usize] = rank;
        self.ranked.push(Reverse((rank.0, rank.1, slot)));
    }
}

impl Policy for Lfu {
    fn inserted(&mut self, slot: u32, _expert: u32) {
        self.uses[slot as usize] = 0;
        self.rank(slot);
    }

    fn used(&mut self, slot: u32, _fresh: bool) {
        self.uses[slot as usize] += 1;
        self.rank(slot);
    }

    fn victim(&mut self, _incoming: u32, in_use: &InUse) -> u32 {
        let mut passed_over = Vec::new();
        let slot = loop {
            // Invariant: the table holds more slots than are in use.
            let Reverse(entry) = self.ranked.pop().expect("a slot that is not in use");
            let (priority, clock, slot) = entry;
            if self.rank_of[slot as usize] != (priority, clock) {
                continue;
            }
            if in_use.contains(slot) {
                passed_over.push(Reverse(entry));
                continue;
            }
            self.age = priority;
            self.rank_of[slot as usize] = (0, 0);
            break slot;
        };
        self.ranked.extend(passed_over);
        slot
    }
}
