//! Hits as a function of the number of slots, for every number of slots at once.
//!
//! A one-pass algorithm gives, for every request, the smallest cache in which it hits; the curve is
//! the running sum over those depths, by window. Below the largest group the curve is undefined,
//! since experts that are used together have to fit.

use super::workload::{ByWindow, WINDOW_COUNT, Window, Workload};

/// A depth histogram while it is being filled.
#[derive(Debug)]
pub struct Depths {
    by_window: [Vec<u64>; WINDOW_COUNT],
    repeats: ByWindow,
}

impl Depths {
    /// Depths 1 to `distinct_count`.
    pub fn new(distinct_count: usize) -> Depths {
        Depths {
            by_window: std::array::from_fn(|_| vec![0; distinct_count + 1]),
            repeats: [0; WINDOW_COUNT],
        }
    }

    /// One request that any cache of at least `depth` slots would have had.
    pub fn record(&mut self, window: Window, depth: usize) {
        self.by_window[window as usize][depth] += 1;
    }

    /// Second uses within a group: hits in every cache.
    pub fn record_repeats(&mut self, window: Window, repeats: u32) {
        self.repeats[window as usize] += u64::from(repeats);
    }

    /// Running sums.
    pub fn into_curve(self, workload: &Workload) -> Curve {
        let mut hits = self.by_window;
        for (window, sums) in hits.iter_mut().enumerate() {
            let mut total = self.repeats[window];
            for value in sums.iter_mut() {
                total += *value;
                *value = total;
            }
        }
        Curve { hits, first_slot_count: workload.largest_group }
    }
}

/// Hits at every number of slots, by window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Curve {
    hits: [Vec<u64>; WINDOW_COUNT],
    /// Fewest slots that the curve is defined for.
    pub first_slot_count: usize,
}

impl Curve {
    /// Hits in all windows.
    pub fn hits(&self, slot_count: usize) -> u64 {
        self.by_window(slot_count).iter().sum()
    }

    /// Hits of each window.
    pub fn by_window(&self, slot_count: usize) -> ByWindow {
        std::array::from_fn(|window| {
            let hits = &self.hits[window];
            hits[slot_count.min(hits.len() - 1)]
        })
    }

    /// The number of slots from which on nothing changes.
    pub fn distinct_count(&self) -> usize {
        self.hits[0].len() - 1
    }
}
