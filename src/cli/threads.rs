//! How many worker threads a command uses.

use clap::Args;

use k3_core::host::provenance::default_threads;

/// The option `--threads`.
#[derive(Debug, Clone, Args)]
pub struct ThreadsArgs {
    /// Worker threads (at most 1024)
    #[arg(long = "threads", value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub given: Option<u16>,
}

impl ThreadsArgs {
    /// The number given, or as many as the scheduler grants this process.
    #[must_use]
    pub fn count(&self) -> usize {
        self.given.map_or_else(default_threads, usize::from)
    }
}
