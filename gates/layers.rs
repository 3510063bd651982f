//! `layers` and `merge`: the proof on a checkpoint, what it catches and where it says so, parts and
//! journals, and a foreign engine's dump.

mod cluster;
mod command;
mod dumps;
mod expected;
mod mutants;
mod precision;
mod swaps;

use std::path::PathBuf;

use k3_gates::fixtures::Fixtures;

/// The shipped tiny model, unpacked.
struct Tiny {
    fixtures: Fixtures,
}

impl Tiny {
    fn open() -> Self {
        Self { fixtures: Fixtures::embedded().unwrap() }
    }

    fn model(&self) -> PathBuf {
        self.fixtures.root.join("tiny/model")
    }
}
