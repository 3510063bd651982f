//! S3-FIFO: newcomers go to a small queue, what is used again there moves to the main queue, and
//! whoever leaves the small queue unused is remembered as a ghost and enters main next time.
//!
//! Small queue 10 % of the slots, use counter capped at 3, promotion after more than one use,
//! ghosts as many as main's slots (Yang et al., SOSP 2023). Slots in use are passed over and go to
//! the newest end of their queue.

use std::collections::VecDeque;

use super::Policy;
use super::list::{Links, List, NONE};
use crate::slot_table::InUse;

const MAX_USES: u8 = 3;

/// S3-FIFO.
#[derive(Debug)]
pub struct S3Fifo {
    links: Links,
    small: List,
    main: List,
    in_small: Vec<bool>,
    uses: Vec<u8>,
    expert_in: Vec<u32>,
    small_target: usize,
    ghosts: VecDeque<(u32, u32)>,
    ghost_stamp: Vec<u32>,
    ghost_limit: usize,
    clock: u32,
}

impl S3Fifo {
    /// For a cache of `slot_count` slots over experts `0..expert_count`.
    pub fn new(slot_count: usize, expert_count: usize) -> S3Fifo {
        let small_target = (slot_count / 10).max(1);
        S3Fifo {
            links: Links::new(slot_count),
            small: List::new(),
            main: List::new(),
            in_small: vec![false; slot_count],
            uses: vec![0; slot_count],
            expert_in: vec![NONE; slot_count],
            small_target,
            ghosts: VecDeque::new(),
            ghost_stamp: vec![0; expert_count],
            ghost_limit: (slot_count - small_target).max(1),
            clock: 0,
        }
    }

    fn remember(&mut self, expert: u32) {
        self.clock += 1;
        self.ghost_stamp[expert as usize] = self.clock;
        self.ghosts.push_back((expert, self.clock));
        while self.ghosts.len() > self.ghost_limit {
            if let Some((old, stamp)) = self.ghosts.pop_front()
                && self.ghost_stamp[old as usize] == stamp
            {
                self.ghost_stamp[old as usize] = 0;
            }
        }
    }

    /// The oldest of the small queue goes, or moves up; None if all of it moved or is in use.
    fn evict_from_small(&mut self, in_use: &InUse) -> Option<u32> {
        for _ in 0..self.small.length {
            let slot = self.small.oldest;
            if in_use.contains(slot) {
                self.links.renew(&mut self.small, slot);
                continue;
            }
            self.links.remove(&mut self.small, slot);
            if self.uses[slot as usize] > 1 {
                self.uses[slot as usize] = 0;
                self.in_small[slot as usize] = false;
                self.links.push(&mut self.main, slot);
                continue;
            }
            self.remember(self.expert_in[slot as usize]);
            return Some(slot);
        }
        None
    }

    /// The oldest of main goes unless it was used, which costs one use; None if all are in use.
    fn evict_from_main(&mut self, in_use: &InUse) -> Option<u32> {
        for _ in 0..self.main.length * (usize::from(MAX_USES) + 1) {
            let slot = self.main.oldest;
            let uses = &mut self.uses[slot as usize];
            if in_use.contains(slot) {
                self.links.renew(&mut self.main, slot);
            } else if *uses > 0 {
                *uses -= 1;
                self.links.renew(&mut self.main, slot);
            } else {
                self.links.remove(&mut self.main, slot);
                return Some(slot);
            }
        }
        None
    }
}

impl Policy for S3Fifo {
    fn inserted(&mut self, slot: u32, expert: u32) {
        self.uses[slot as usize] = 0;
        self.expert_in[slot as usize] = expert;
        let ghost = std::mem::replace(&mut self.ghost_stamp[expert as usize], 0) != 0;
        self.in_small[slot as usize] = !ghost;
        let queue = if ghost { &mut self.main } else { &mut self.small };
        self.links.push(queue, slot);
    }

    fn used(&mut self, slot: u32, fresh: bool) {
        if !fresh {
            let uses = &mut self.uses[slot as usize];
            *uses = (*uses + 1).min(MAX_USES);
        }
    }

    fn victim(&mut self, _incoming: u32, in_use: &InUse) -> u32 {
        loop {
            if (self.small.length >= self.small_target || self.main.length == 0)
                && let Some(slot) = self.evict_from_small(in_use)
            {
                return slot;
            }
            if let Some(slot) = self.evict_from_main(in_use) {
                return slot;
            }
            if let Some(slot) = self.evict_from_small(in_use) {
                return slot;
            }
        }
    }
}
