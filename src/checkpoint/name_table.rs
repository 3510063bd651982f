//! Tensor names, interned: one arena of text, one open-addressing table of ids.
//!
//! The release has 497,220 names of 80 bytes. A `String` and a map entry each would cost some
//! 150 bytes more per name; here the overhead is 4 bytes for the end in the arena and about 16 for
//! the slots, 50 MB in all.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// Largest arena: ends are kept as 32-bit offsets. 50 million names of the released length.
pub const MAX_ARENA_BYTES: usize = u32::MAX as usize;

const EMPTY: u32 = u32::MAX;

/// Interned names with ids 0, 1, 2, … in order of arrival.
#[derive(Debug, Clone)]
pub struct NameTable {
    arena: String,
    /// Where name i ends in the arena; it starts where name i−1 ends.
    ends: Vec<u32>,
    /// Power of two, at most half full.
    slots: Vec<Slot>,
    /// Drawn anew for each table, so that no file can be made whose names all collide.
    seeds: [u64; 2],
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    /// 32 bits of hash: the slot to start at, and a check before the arena is looked at.
    hash: u32,
    id: u32,
}

impl Default for NameTable {
    fn default() -> Self {
        Self::new()
    }
}

impl NameTable {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        const FIRST_SLOTS: usize = 64;
        let random = RandomState::new();
        Self {
            arena: String::new(),
            ends: Vec::new(),
            slots: vec![Slot { hash: 0, id: EMPTY }; FIRST_SLOTS],
            seeds: [random.hash_one(0), random.hash_one(1)],
        }
    }

    /// Number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The name with this id. Ids come from this table only.
    #[must_use]
    pub fn name(&self, id: u32) -> &str {
        let id = id as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] as usize };
        &self.arena[start..self.ends[id] as usize]
    }

    /// The id of a name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<u32> {
        let hash = self.hash(name);
        let slot = self.slots[self.probe(name, hash)];
        (slot.id != EMPTY).then_some(slot.id)
    }

    /// As [`Self::find`], looking at the neighbours of `near` first: lists of the same names mostly
    /// run alike, or backwards, and a neighbour is in the processor's cache.
    #[must_use]
    pub fn find_near(&self, name: &str, near: u32) -> Option<u32> {
        let neighbours = [near.wrapping_add(1), near.wrapping_sub(1)];
        let is_it = |&id: &u32| (id as usize) < self.ends.len() && self.name(id) == name;
        neighbours.into_iter().find(is_it).or_else(|| self.find(name))
    }

    /// The id of a name and whether it is new; `None` when the arena is full.
    pub fn intern(&mut self, name: &str) -> Option<(u32, bool)> {
        let hash = self.hash(name);
        let place = self.probe(name, hash);
        if self.slots[place].id != EMPTY {
            return Some((self.slots[place].id, false));
        }
        let end = self.arena.len() + name.len();
        let id = u32::try_from(self.ends.len()).ok().filter(|&id| id != EMPTY)?;
        if end > MAX_ARENA_BYTES {
            return None;
        }
        self.arena.push_str(name);
        self.ends.push(end as u32);
        self.slots[place] = Slot { hash, id };
        if self.ends.len() * 2 > self.slots.len() {
            self.grow();
        }
        Some((id, true))
    }

    /// Gives back what growing has left unused.
    pub fn shrink(&mut self) {
        self.arena.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// Bytes held, for a memory plan.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.arena.capacity() + self.ends.capacity() * 4 + self.slots.capacity() * 8
    }

    /// The slot of this name, or the empty one where it would go.
    fn probe(&self, name: &str, hash: u32) -> usize {
        let mask = self.slots.len() - 1;
        let mut place = hash as usize & mask;
        loop {
            let slot = self.slots[place];
            if slot.id == EMPTY || (slot.hash == hash && self.name(slot.id) == name) {
                return place;
            }
            place = (place + 1) & mask;
        }
    }

    /// Eight bytes at a time, each step a multiplication folded onto itself; the standard
    /// library's hash takes four times as long, and every name is hashed three times.
    fn hash(&self, name: &str) -> u32 {
        let [mut state, factor] = self.seeds;
        state ^= name.len() as u64;
        let (words, tail) = name.as_bytes().as_chunks::<8>();
        for word in words {
            state = folded_product(state ^ u64::from_le_bytes(*word), factor | 1);
        }
        let mut last = [0; 8];
        last[..tail.len()].copy_from_slice(tail);
        state = folded_product(state ^ u64::from_le_bytes(last), factor | 1);
        (state ^ state >> 32) as u32
    }

    fn grow(&mut self) {
        let mask = self.slots.len() * 2 - 1;
        let mut slots = vec![Slot { hash: 0, id: EMPTY }; mask + 1];
        for slot in self.slots.iter().filter(|slot| slot.id != EMPTY) {
            let mut place = slot.hash as usize & mask;
            while slots[place].id != EMPTY {
                place = (place + 1) & mask;
            }
            slots[place] = *slot;
        }
        self.slots = slots;
    }
}

fn folded_product(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Growing must lose no name and mix up none.
    #[test]
    fn names_keep_their_ids_through_growth() {
        let mut table = NameTable::new();
        for i in 0..5000 {
            assert_eq!(table.intern(&format!("layers.{i}.w")), Some((i, true)));
        }
        assert_eq!(table.intern("layers.17.w"), Some((17, false)));
        assert_eq!(table.intern(""), Some((5000, true)));
        for i in 0..5000 {
            assert_eq!(table.find(&format!("layers.{i}.w")), Some(i));
            assert_eq!(table.name(i), format!("layers.{i}.w"));
        }
        assert_eq!(table.name(5000), "");
        assert_eq!(table.find("layers.5000.w"), None);
        for near in [0, 4, 5, 6, 5000, u32::MAX] {
            assert_eq!(table.find_near("layers.5.w", near), Some(5));
            assert_eq!(table.find_near("none", near), None);
        }
    }
}
