//! First in, first out: the victim is the one loaded first that is not in use. Uses change nothing.

use super::Policy;
use super::list::{Links, List};
use crate::slot_table::InUse;

/// First in, first out.
#[derive(Debug)]
pub struct Fifo {
    links: Links,
    order: List,
}

impl Fifo {
    /// For a cache of `slot_count` slots.
    pub fn new(slot_count: usize) -> Fifo {
        Fifo { links: Links::new(slot_count), order: List::new() }
    }
}

impl Policy for Fifo {
    fn inserted(&mut self, slot: u32, _expert: u32) {
        self.links.push(&mut self.order, slot);
    }

    fn used(&mut self, _slot: u32, _fresh: bool) {}

    fn victim(&mut self, _incoming: u32, in_use: &InUse) -> u32 {
        let mut slot = self.order.oldest;
        while in_use.contains(slot) {
            slot = self.links.newer(slot);
        }
        self.links.remove(&mut self.order, slot);
        slot
    }
}
