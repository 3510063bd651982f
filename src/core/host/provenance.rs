//! Where and how a report was made: everything in it that differs from run to run.
//!
//! Reports keep these values in one object, so that two reports can be compared without it.

use serde::{Deserialize, Serialize};

/// The volatile part of a report.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Provenance {
    /// Version of this program.
    pub version: String,
    /// Operating system and processor architecture.
    pub platform: String,
    /// Worker threads.
    pub threads: usize,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Input paths as typed.
    pub inputs: Vec<String>,
}

impl Provenance {
    /// For a run that began at `start`.
    #[must_use]
    pub fn since(start: std::time::Instant, threads: usize, inputs: Vec<String>) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            platform: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            threads,
            seconds: start.elapsed().as_secs_f64(),
            inputs,
        }
    }
}

/// Threads to use when none are asked for: what the scheduler grants this process.
#[must_use]
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
