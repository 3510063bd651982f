//! Byte-pair merging by rank, in n log n.
//!
//! Of all neighbouring parts the two whose join has the lowest rank are joined, the leftmost of
//! equals, until no join has a rank. The rule is about the join, not about the pair: a list of
//! pairs rebuilt from ranks would lose what several pairs with one join mean.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Two neighbouring parts whose join has a rank; `start` decides between equal ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Join {
    rank: u32,
    start: u32,
    middle: u32,
    end: u32,
}

/// The parts of one piece, and room that is kept from piece to piece.
#[derive(Debug, Default)]
pub struct Merger {
    /// Where the part that starts at a byte ends; 0 inside a part.
    end_of: Vec<u32>,
    /// Where the part before the one that starts at a byte starts.
    before: Vec<u32>,
    joins: BinaryHeap<Reverse<Join>>,
}

impl Merger {
    /// Merges a piece (below 4 GiB); [`Merger::parts`] are the result.
    pub fn merge(&mut self, piece: &[u8], rank: impl Fn(&[u8]) -> Option<u32>) {
        let length = piece.len() as u32;
        self.end_of.clear();
        self.end_of.extend(1..=length);
        self.before.clear();
        self.before.extend((0..length).map(|at| at.saturating_sub(1)));
        let join = |start: u32, middle: u32, end: u32| {
            let rank = rank(&piece[start as usize..end as usize])?;
            let join = Join { rank, start, middle, end };
            Some(Reverse(join))
        };
        // Filled at once: pushing one by one would sort what a heap only has to arrange.
        let mut joins = std::mem::take(&mut self.joins).into_vec();
        joins.extend((1..length).filter_map(|at| join(at - 1, at, at + 1)));
        self.joins = joins.into();
        while let Some(Reverse(next)) = self.joins.pop() {
            let Join { start, middle, end, .. } = next;
            // Parts only grow: a join whose ends are no longer ends has been overtaken.
            if self.end_of[start as usize] != middle || self.end_of[middle as usize] != end {
                continue;
            }
            self.end_of[start as usize] = end;
            self.end_of[middle as usize] = 0;
            if end < length {
                self.before[end as usize] = start;
                self.joins.extend(join(start, end, self.end_of[end as usize]));
            }
            if start > 0 {
                self.joins.extend(join(self.before[start as usize], start, end));
            }
        }
    }

    /// The parts of the piece that was merged last, in order.
    pub fn parts<'p>(&'p self, piece: &'p [u8]) -> impl Iterator<Item = &'p [u8]> {
        let mut start = 0;
        std::iter::from_fn(move || {
            let end = *self.end_of.get(start)? as usize;
            let part = &piece[start..end];
            start = end;
            Some(part)
        })
    }
}
