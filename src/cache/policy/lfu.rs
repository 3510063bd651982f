//! Least frequently used with dynamic ageing (LFU-DA): priority = uses + the priority of the last
//! victim when it was loaded or used, so that old fame wears off. Ties go to the longest unused.

use std::collections::VecDeque;

use super::Policy;
use super::list::{Links, List, NONE};
use crate::slot_table::InUse;

/// LFU with dynamic ageing.
#[derive(Debug)]
pub struct Lfu {
    links: Links,
    /// Slots by priority, from `lowest` on; in a list, the longest unused is the oldest.
    by_priority: VecDeque<List>,
    lowest: u64,
    priority_of: Vec<u64>,
    uses: Vec<u64>,
    /// Priority of the last victim; no resident has less.
    age: u64,
}

impl Lfu {
    /// For a cache of `slot_count` slots.
    pub fn new(slot_count: usize) -> Lfu {
        Lfu {
            links: Links::new(slot_count),
            by_priority: VecDeque::new(),
            lowest: 0,
            priority_of: vec![0; slot_count],
            uses: vec![0; slot_count],
            age: 0,
        }
    }

    fn list_of(&mut self, priority: u64) -> (&mut Links, &mut List) {
        let place = (priority - self.lowest) as usize;
        if place >= self.by_priority.len() {
            self.by_priority.resize(place + 1, List::new());
        }
        (&mut self.links, &mut self.by_priority[place])
    }

    fn enter(&mut self, slot: u32) {
        let priority = self.uses[slot as usize] + self.age;
        self.priority_of[slot as usize] = priority;
        let (links, list) = self.list_of(priority);
        links.push(list, slot);
    }

    fn leave(&mut self, slot: u32) {
        let (links, list) = self.list_of(self.priority_of[slot as usize]);
        links.remove(list, slot);
    }
}

impl Policy for Lfu {
    fn inserted(&mut self, slot: u32, _expert: u32) {
        self.uses[slot as usize] = 0;
        self.enter(slot);
    }

    fn used(&mut self, slot: u32, _fresh: bool) {
        self.leave(slot);
        self.uses[slot as usize] += 1;
        self.enter(slot);
    }

    fn victim(&mut self, _incoming: u32, in_use: &InUse) -> u32 {
        while self.by_priority.front().is_some_and(|list| list.length == 0) {
            self.by_priority.pop_front();
            self.lowest += 1;
        }
        for place in 0..self.by_priority.len() {
            let mut slot = self.by_priority[place].oldest;
            while slot != NONE && in_use.contains(slot) {
                slot = self.links.newer(slot);
            }
            if slot != NONE {
                self.leave(slot);
                self.age = self.lowest + place as u64;
                return slot;
            }
        }
        unreachable!("the table holds more slots than are in use")
    }
}
