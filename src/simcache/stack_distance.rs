//! LRU at every capacity in one pass: stack distances over a Fenwick tree.
//!
//! With groups looked up together and used in request order, a cache of C slots (C at least the
//! largest group) holds exactly the C experts used last. So a request is a hit iff no more than C
//! distinct experts, itself included, were used since its own last use. The tree marks the time
//! of each expert's last use; the distance is the number of marks from there on. About 17 steps a
//! request; a list scan would be about 5,000 on the published trace.

use super::curve::{Curve, Depths};
use super::workload::Workload;

/// Prefix sums over times.
#[derive(Debug)]
struct Fenwick {
    sums: Vec<u32>,
}

impl Fenwick {
    fn new(length: usize) -> Fenwick {
        Fenwick { sums: vec![0; length + 1] }
    }

    fn add(&mut self, at: usize, delta: i32) {
        let mut node = at + 1;
        while node < self.sums.len() {
            self.sums[node] = self.sums[node].wrapping_add_signed(delta);
            node += node & node.wrapping_neg();
        }
    }

    /// Sum over `0..end`.
    fn prefix(&self, end: usize) -> u32 {
        let (mut node, mut sum) = (end, 0);
        while node > 0 {
            sum += self.sums[node];
            node &= node - 1;
        }
        sum
    }
}

const NEVER: u32 = u32::MAX;

/// Stack distances of all lookups, in order: the number of distinct experts used since the last
/// use, the expert itself included; None at the first use.
pub fn distances(workload: &Workload) -> Vec<Option<u32>> {
    let mut marks = Fenwick::new(workload.experts.len());
    let mut last_use = vec![NEVER; workload.shape.expert_count()];
    let mut marked = 0;
    let mut distances = Vec::with_capacity(workload.experts.len());
    for group in &workload.groups {
        for &expert in workload.experts_of(group) {
            let last = last_use[expert as usize];
            let known = last != NEVER;
            distances.push(known.then(|| marked - marks.prefix(last as usize)));
        }
        for at in group.experts.clone() {
            let last = &mut last_use[workload.experts[at] as usize];
            match *last {
                NEVER => marked += 1,
                time => marks.add(time as usize, -1),
            }
            *last = at as u32;
            marks.add(at, 1);
        }
    }
    distances
}

/// LRU's hits at every number of slots.
pub fn lru_curve(workload: &Workload, distances: &[Option<u32>]) -> Curve {
    let distinct_count = distances.iter().filter(|distance| distance.is_none()).count();
    let mut depths = Depths::new(distinct_count);
    for group in &workload.groups {
        depths.record_repeats(group.window, group.repeat_count);
        for distance in distances[group.experts.clone()].iter().flatten() {
            depths.record(group.window, *distance as usize);
        }
    }
    depths.into_curve(workload)
}
