//! Pinned hottest plus LRU: a fixed set that never leaves once it is loaded, LRU for the rest.
//!
//! Which experts are pinned is learned elsewhere, on the first part of a trace (`study`); only the
//! rest is judged. Nothing is loaded for free: a pinned expert is read at its first use.

use super::Policy;
use super::list::{Links, List, NONE};
use crate::slot_table::InUse;

/// LRU with pins.
#[derive(Debug)]
pub struct PinnedLru {
    links: Links,
    order: List,
    pinned_order: List,
    pinned: Vec<bool>,
    slot_is_pinned: Vec<bool>,
}

impl PinnedLru {
    /// For a cache of `slot_count` slots over experts `0..expert_count`, with these pins. Pins
    /// that leave no room for a group in use are given up, oldest use first.
    pub fn new(slot_count: usize, expert_count: usize, pins: &[u32]) -> PinnedLru {
        let mut pinned = vec![false; expert_count];
        for &expert in pins {
            pinned[expert as usize] = true;
        }
        PinnedLru {
            links: Links::new(slot_count),
            order: List::new(),
            pinned_order: List::new(),
            pinned,
            slot_is_pinned: vec![false; slot_count],
        }
    }

    fn oldest_free(&self, list: &List, in_use: &InUse) -> Option<u32> {
        let mut slot = list.oldest;
        while slot != NONE && in_use.contains(slot) {
            slot = self.links.newer(slot);
        }
        (slot != NONE).then_some(slot)
    }

    fn list_of(&mut self, slot: u32) -> (&mut Links, &mut List) {
        let pinned = self.slot_is_pinned[slot as usize];
        let list = if pinned { &mut self.pinned_order } else { &mut self.order };
        (&mut self.links, list)
    }
}

impl Policy for PinnedLru {
    fn inserted(&mut self, slot: u32, expert: u32) {
        self.slot_is_pinned[slot as usize] = self.pinned[expert as usize];
        let (links, list) = self.list_of(slot);
        links.push(list, slot);
    }

    fn used(&mut self, slot: u32, _fresh: bool) {
        let (links, list) = self.list_of(slot);
        links.renew(list, slot);
    }

    fn victim(&mut self, _incoming: u32, in_use: &InUse) -> u32 {
        let free = self.oldest_free(&self.order, in_use);
        let found = free.or_else(|| self.oldest_free(&self.pinned_order, in_use));
        // Invariant: the table holds more slots than are in use.
        let slot = found.expect("a slot that is not in use");
        let (links, list) = self.list_of(slot);
        links.remove(list, slot);
        slot
    }
}
