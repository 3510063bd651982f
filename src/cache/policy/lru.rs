//! Least recently used: a list in order of use, the victim is the oldest that is not in use.
//!
//! On a scan through the layers with fewer slots than one token's working set it keeps nothing
//! that will be asked for again: every expert is thrown out just before its layer comes round.

use super::Policy;
use super::list::{Links, List};
use crate::slot_table::InUse;

/// Least recently used.
#[derive(Debug)]
pub struct Lru {
    links: Links,
    order: List,
}

impl Lru {
    /// For a cache of `slot_count` slots.
    pub fn new(slot_count: usize) -> Lru {
        Lru { links: Links::new(slot_count), order: List::new() }
    }
}

impl Policy for Lru {
    fn inserted(&mut self, slot: u32, _expert: u32) {
        self.links.push(&mut self.order, slot);
    }

    fn used(&mut self, slot: u32, _fresh: bool) {
        self.links.renew(&mut self.order, slot);
    }

    fn victim(&mut self, _incoming: u32, in_use: &InUse) -> u32 {
        let mut slot = self.order.oldest;
        while in_use.contains(slot) {
            slot = self.links.newer(slot);
        }
        self.links.remove(&mut self.order, slot);
        slot
    }
}
