//! SIEVE: a FIFO whose hand moves from the oldest to the newest, spares what was used since it
//! last passed, and stays where it evicted. Nothing moves on a hit.

use super::Policy;
use super::list::{Links, List, NONE};
use crate::slot_table::InUse;

/// SIEVE.
#[derive(Debug)]
pub struct Sieve {
    links: Links,
    order: List,
    visited: Vec<bool>,
    hand: u32,
}

impl Sieve {
    /// For a cache of `slot_count` slots.
    pub fn new(slot_count: usize) -> Sieve {
        Sieve {
            links: Links::new(slot_count),
            order: List::new(),
            visited: vec![false; slot_count],
            hand: NONE,
        }
    }
}

impl Policy for Sieve {
    fn inserted(&mut self, slot: u32, _expert: u32) {
        self.visited[slot as usize] = false;
        self.links.push(&mut self.order, slot);
    }

    fn used(&mut self, slot: u32, fresh: bool) {
        if !fresh {
            self.visited[slot as usize] = true;
        }
    }

    fn victim(&mut self, _incoming: u32, in_use: &InUse) -> u32 {
        loop {
            let slot = if self.hand == NONE { self.order.oldest } else { self.hand };
            self.hand = self.links.newer(slot);
            if in_use.contains(slot) {
                continue;
            }
            if !std::mem::replace(&mut self.visited[slot as usize], false) {
                self.links.remove(&mut self.order, slot);
                return slot;
            }
        }
    }
}
