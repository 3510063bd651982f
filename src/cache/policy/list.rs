//! Doubly linked lists over slot numbers, in two arrays: no allocation after the start.
//!
//! A slot is in at most one list. Several lists may share the links (S3-FIFO's two queues).

/// End of a list.
pub const NONE: u32 = u32::MAX;

/// The links of all slots.
#[derive(Debug)]
pub struct Links {
    newer: Vec<u32>,
    older: Vec<u32>,
}

/// One list: `newest` is where slots enter.
#[derive(Debug, Clone, Copy)]
pub struct List {
    /// Last slot pushed.
    pub newest: u32,
    /// First slot pushed of those that are left.
    pub oldest: u32,
    /// Slots in the list.
    pub length: usize,
}

impl List {
    /// An empty list.
    pub fn new() -> List {
        List { newest: NONE, oldest: NONE, length: 0 }
    }
}

impl Links {
    /// Links for `slot_count` slots.
    pub fn new(slot_count: usize) -> Links {
        Links { newer: vec![NONE; slot_count], older: vec![NONE; slot_count] }
    }

    /// The next newer slot, or [`NONE`].
    pub fn newer(&self, slot: u32) -> u32 {
        self.newer[slot as usize]
    }

    /// Puts a slot that is in no list at the newest end.
    pub fn push(&mut self, list: &mut List, slot: u32) {
        self.older[slot as usize] = list.newest;
        self.newer[slot as usize] = NONE;
        match list.newest {
            NONE => list.oldest = slot,
            newest => self.newer[newest as usize] = slot,
        }
        list.newest = slot;
        list.length += 1;
    }

    /// Takes a slot out of its list.
    pub fn remove(&mut self, list: &mut List, slot: u32) {
        let (older, newer) = (self.older[slot as usize], self.newer[slot as usize]);
        match older {
            NONE => list.oldest = newer,
            older => self.newer[older as usize] = newer,
        }
        match newer {
            NONE => list.newest = older,
            newer => self.older[newer as usize] = older,
        }
        list.length -= 1;
    }

    /// Moves a slot to the newest end.
    pub fn renew(&mut self, list: &mut List, slot: u32) {
        if list.newest != slot {
            self.remove(list, slot);
            self.push(list, slot);
        }
    }
}
