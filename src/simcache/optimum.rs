//! The optimum: the hits of a policy that knows the future.
//!
//! The bound is forced admission: the engine must hold what it uses, so every miss is stored and
//! the victim is the resident (not in use) whose next use is furthest away. Where storing may be
//! declined (bypass), a cache can do a little better; that number is a note, not a bound for an
//! engine. The two are kept apart because published optima differ in this alone.
//!
//! [`curve`] gives the forced optimum at every capacity in one pass. The optimum is a stack
//! algorithm: the cache of C+1 slots always holds what the cache of C slots holds and one more
//! (ties go to the lower expert index). The stack is kept as an array; position p holds what the
//! cache of p slots has and the cache of p-1 has not. Serving a group moves its members to the
//! top; those they push out go down as a pool: at each position the sooner next use of position
//! and pool stays. Only positions with a later next use than the pool's soonest change, and a
//! maximum tree finds the next such position, so most of the stack is never looked at.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::curve::{Curve, Depths};
use super::workload::{ByWindow, Group, WINDOW_COUNT, Workload};

/// Next use of an expert that is never used again.
const NEVER: u32 = u32::MAX - 1;
/// Tree value of a position that a member of the served group has left.
const HOLE: u32 = u32::MAX;
const NOWHERE: u32 = u32::MAX;

/// For every lookup, the group in which the expert is next looked up ([`NEVER`] = none).
fn next_uses(workload: &Workload) -> Vec<u32> {
    let mut upcoming = vec![NEVER; workload.shape.expert_count()];
    let mut next = vec![NEVER; workload.experts.len()];
    for (index, group) in workload.groups.iter().enumerate().rev() {
        for at in group.experts.clone() {
            let expert = workload.experts[at] as usize;
            next[at] = std::mem::replace(&mut upcoming[expert], index as u32);
        }
    }
    next
}

/// Whether a miss must be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// What is used is held: the bound.
    Forced,
    /// Storing may be declined: a note.
    MayBypass,
}

/// Hits by window with `slot_count` slots, replayed. With groups larger than the cache this is
/// the best for the order in which [`SlotTable::waves`](k3_cache::slot_table::SlotTable::waves)
/// serves.
pub fn replay(workload: &Workload, slot_count: usize, admission: Admission) -> ByWindow {
    let next = next_uses(workload);
    let mut cache = Clairvoyant::new(workload.shape.expert_count(), slot_count, admission);
    let mut hits = [0; WINDOW_COUNT];
    for group in &workload.groups {
        hits[group.window as usize] += u64::from(group.repeat_count);
        if slot_count == 0 {
            continue;
        }
        let (experts, next) = (workload.experts_of(group), &next[group.experts.clone()]);
        let resident = experts.iter().filter(|&&expert| cache.holds(expert)).count();
        hits[group.window as usize] += resident as u64;
        if experts.len() <= slot_count {
            cache.serve(experts, next);
        } else {
            cache.serve_in_waves(experts, next);
        }
    }
    hits
}

/// One cache that knows the next uses.
struct Clairvoyant {
    /// Next use of the residents, [`NOWHERE`] for the others.
    next_use: Vec<u32>,
    /// Furthest next use first, then the lower expert: next use in the high half, the expert's
    /// complement in the low one. Entries that no longer agree with `next_use` are stale.
    furthest: BinaryHeap<u64>,
    resident_count: usize,
    slot_count: usize,
    admission: Admission,
}

impl Clairvoyant {
    fn new(expert_count: usize, slot_count: usize, admission: Admission) -> Self {
        Clairvoyant {
            next_use: vec![NOWHERE; expert_count],
            furthest: BinaryHeap::new(),
            resident_count: 0,
            slot_count,
            admission,
        }
    }

    fn holds(&self, expert: u32) -> bool {
        self.next_use[expert as usize] != NOWHERE
    }

    fn serve(&mut self, experts: &[u32], next: &[u32]) {
        if self.admission == Admission::MayBypass {
            self.admit(experts, next);
            self.shrink_to(self.slot_count);
            return;
        }
        for &expert in experts {
            let was = std::mem::replace(&mut self.next_use[expert as usize], NOWHERE);
            self.resident_count -= usize::from(was != NOWHERE);
        }
        self.shrink_to(self.slot_count - experts.len());
        self.admit(experts, next);
    }

    /// Residents first, then the missing ones, as many at a time as there are slots.
    fn serve_in_waves(&mut self, experts: &[u32], next: &[u32]) {
        let members = experts.iter().copied().zip(next.iter().copied());
        let (resident, missing): (Vec<_>, Vec<_>) = members.partition(|one| self.holds(one.0));
        let (experts, next): (Vec<u32>, Vec<u32>) = resident.into_iter().chain(missing).unzip();
        for (experts, next) in experts.chunks(self.slot_count).zip(next.chunks(self.slot_count)) {
            self.serve(experts, next);
        }
    }

    fn admit(&mut self, experts: &[u32], next: &[u32]) {
        for (&expert, &next) in experts.iter().zip(next) {
            let was = std::mem::replace(&mut self.next_use[expert as usize], next);
            self.resident_count += usize::from(was == NOWHERE);
            self.furthest.push(u64::from(next) << 32 | u64::from(!expert));
        }
    }

    fn shrink_to(&mut self, count: usize) {
        while self.resident_count > count
            && let Some(entry) = self.furthest.pop()
        {
            let (next, expert) = ((entry >> 32) as u32, !(entry as u32));
            if self.next_use[expert as usize] == next {
                self.next_use[expert as usize] = NOWHERE;
                self.resident_count -= 1;
            }
        }
    }
}

/// The forced optimum's hits at every number of slots.
pub fn curve(workload: &Workload) -> Curve {
    let next = next_uses(workload);
    let mut stack = OptimumStack::new(workload);
    let mut depths = Depths::new(stack.capacity);
    for group in &workload.groups {
        depths.record_repeats(group.window, group.repeat_count);
        for &expert in workload.experts_of(group) {
            let position = stack.position_of[expert as usize];
            if position != NOWHERE {
                depths.record(group.window, position as usize + 1);
            }
        }
        stack.serve(workload, group, &next);
    }
    depths.into_curve(workload)
}

/// The stack of all caches at once.
struct OptimumStack {
    expert_at: Vec<u32>,
    position_of: Vec<u32>,
    next_use: MaximumTree,
    capacity: usize,
    pool: BinaryHeap<Reverse<(u32, u32)>>,
}

impl OptimumStack {
    fn new(workload: &Workload) -> OptimumStack {
        let mut seen = vec![false; workload.shape.expert_count()];
        for &expert in &workload.experts {
            seen[expert as usize] = true;
        }
        let capacity = seen.iter().filter(|&&seen| seen).count();
        OptimumStack {
            expert_at: Vec::with_capacity(capacity),
            position_of: vec![NOWHERE; workload.shape.expert_count()],
            next_use: MaximumTree::new(capacity),
            capacity,
            pool: BinaryHeap::new(),
        }
    }

    fn serve(&mut self, workload: &Workload, group: &Group, next: &[u32]) {
        let members = group.experts.clone();
        let mut holes = 0;
        for at in members.clone() {
            let position = self.position_of[workload.experts[at] as usize];
            if position != NOWHERE {
                self.next_use.set(position as usize, HOLE);
                holes += 1;
            }
        }
        let top = members.len().min(self.expert_at.len());
        for position in 0..top {
            let next = self.next_use.get(position);
            if next == HOLE {
                holes -= 1;
            } else {
                self.pool.push(Reverse((next, self.expert_at[position])));
            }
        }
        let old_length = self.expert_at.len();
        self.expert_at.resize(old_length.max(members.len()), NOWHERE);
        for (position, at) in members.enumerate() {
            self.place(position, workload.experts[at], next[at]);
        }
        self.sink_pool(top, old_length, holes);
    }

    /// Lets the pool sink from position `from`; holes take one each, the rest lengthens the stack.
    fn sink_pool(&mut self, from: usize, old_length: usize, mut holes: usize) {
        let mut from = from;
        while let Some(&Reverse((soonest, expert))) = self.pool.peek() {
            let Some(position) = self.next_use.first_above(from, old_length, soonest) else {
                break;
            };
            self.pool.pop();
            let displaced = self.next_use.get(position);
            if displaced == HOLE {
                holes -= 1;
            } else {
                self.pool.push(Reverse((displaced, self.expert_at[position])));
            }
            self.place(position, expert, soonest);
            from = position + 1;
        }
        debug_assert_eq!(holes, 0, "every hole is filled by the pool");
        while let Some(Reverse((next, expert))) = self.pool.pop() {
            self.expert_at.push(NOWHERE);
            self.place(self.expert_at.len() - 1, expert, next);
        }
    }

    fn place(&mut self, position: usize, expert: u32, next: u32) {
        self.expert_at[position] = expert;
        self.position_of[expert as usize] = position as u32;
        self.next_use.set(position, next);
    }
}

/// Maxima over ranges of positions, for "the first position from here with a larger value".
struct MaximumTree {
    nodes: Vec<u32>,
    leaves: usize,
}

impl MaximumTree {
    fn new(length: usize) -> MaximumTree {
        let leaves = length.next_power_of_two();
        MaximumTree { nodes: vec![0; 2 * leaves], leaves }
    }

    fn get(&self, position: usize) -> u32 {
        self.nodes[self.leaves + position]
    }

    fn set(&mut self, position: usize, value: u32) {
        let mut node = self.leaves + position;
        self.nodes[node] = value;
        while node > 1 {
            let maximum = self.nodes[node].max(self.nodes[node ^ 1]);
            node /= 2;
            if self.nodes[node] == maximum {
                break;
            }
            self.nodes[node] = maximum;
        }
    }

    /// The first position in `from..end` whose value is above `bound`.
    fn first_above(&self, from: usize, end: usize, bound: u32) -> Option<usize> {
        if from >= end {
            return None;
        }
        let mut node = self.leaves + from;
        while self.nodes[node] <= bound {
            // Up while this is a right child, then to the right neighbour.
            while node & 1 == 1 {
                node /= 2;
            }
            if node == 0 {
                return None;
            }
            node += 1;
        }
        while node < self.leaves {
            node *= 2;
            if self.nodes[node] <= bound {
                node += 1;
            }
        }
        let position = node - self.leaves;
        (position < end).then_some(position)
    }
}
