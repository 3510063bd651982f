//! Hooks at the steps of streaming where a plausible engine goes wrong.
//!
//! Production uses the defaults. A mutant overrides one of them, and the gate `invariance` must
//! turn red for it, which shows that the gate works.

use std::sync::Arc;

use super::StreamError;
use crate::model::Expert;

/// Fills a buffer with run number `n` of the streamed layers.
pub type Fill<'a> = &'a mut dyn FnMut(usize, &mut [u8]) -> Result<(), StreamError>;

/// How slots are filled and handed out.
pub trait FaultHooks: Send + Sync + std::fmt::Debug {
    /// Fills a ring slot with a layer of the streamed ones.
    ///
    /// # Errors
    /// The read failed; nothing may be published then.
    fn fill_layer(&self, run: usize, slot: &mut [u8], fill: Fill<'_>) -> Result<(), StreamError> {
        fill(run, slot)
    }

    /// Whether an expert is read into its slot, after `earlier` other reads. By default it is.
    fn reads_expert(&self, _earlier: u64) -> bool {
        true
    }

    /// The experts of one batch that were read, before they are published.
    fn publish(&self, _read: &mut [Arc<Expert>]) {}
}

/// Production: every default.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoFaults;

impl FaultHooks for NoFaults {}

/// A mutant: the reader reads the next layer into the slot that is in use.
#[derive(Debug, Clone, Copy)]
pub struct RingSlotOverwritten {
    /// Streamed layers.
    pub count: usize,
}

impl FaultHooks for RingSlotOverwritten {
    fn fill_layer(&self, run: usize, slot: &mut [u8], fill: Fill<'_>) -> Result<(), StreamError> {
        fill(run, slot)?;
        fill((run + 1) % self.count, slot)
    }
}

/// A mutant: two experts of a batch are given one slot, and the later read wins.
#[derive(Debug, Clone, Copy)]
pub struct ExpertSlotGivenTwice;

impl FaultHooks for ExpertSlotGivenTwice {
    fn publish(&self, read: &mut [Arc<Expert>]) {
        if let [first, second, ..] = read {
            *first = Arc::clone(second);
        }
    }
}

/// A mutant: every fifth read is lost, and the slot is published with what it held before.
#[derive(Debug, Clone, Copy)]
pub struct StaleReadPublished;

impl FaultHooks for StaleReadPublished {
    fn reads_expert(&self, earlier: u64) -> bool {
        earlier % 5 != 4
    }
}
