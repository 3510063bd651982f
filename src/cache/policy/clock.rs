//! CLOCK: a hand goes round the slots and clears marks; the first unmarked slot is the victim.
//!
//! A mark is set by a use after the one the expert was loaded for.

use super::Policy;
use crate::slot_table::InUse;

/// Second chance.
#[derive(Debug)]
pub struct Clock {
    marked: Vec<bool>,
    hand: usize,
}

impl Clock {
    /// For a cache of `slot_count` slots.
    pub fn new(slot_count: usize) -> Clock {
        Clock { marked: vec![false; slot_count], hand: 0 }
    }
}

impl Policy for Clock {
    fn inserted(&mut self, slot: u32, _expert: u32) {
        self.marked[slot as usize] = false;
    }

    fn used(&mut self, slot: u32, fresh: bool) {
        if !fresh {
            self.marked[slot as usize] = true;
        }
    }

    fn victim(&mut self, _incoming: u32, in_use: &InUse) -> u32 {
        loop {
            let slot = self.hand;
            self.hand = (self.hand + 1) % self.marked.len();
            if in_use.contains(slot as u32) {
                continue;
            }
            if !std::mem::replace(&mut self.marked[slot], false) {
                return slot as u32;
            }
        }
    }
}
