//! A thread pool of the engine's own; there is no global one.
//!
//! Threads take whole items (rows, heads, tokens, experts), never part of a sum, so their number
//! and their timing change no bit (A11).

use rayon::prelude::*;

/// A fixed number of worker threads.
#[derive(Debug)]
pub struct Threads {
    pool: Option<rayon::ThreadPool>,
    count: usize,
}

/// The pool could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {count} threads: {source}")]
pub struct ThreadsError {
    count: usize,
    source: rayon::ThreadPoolBuildError,
}

impl Threads {
    /// A pool of `count` threads; 0 counts as 1. One thread works in the caller.
    ///
    /// # Errors
    /// The system refuses to start them.
    pub fn new(count: usize) -> Result<Self, ThreadsError> {
        let count = count.max(1);
        if count == 1 {
            return Ok(Self { pool: None, count });
        }
        let builder = rayon::ThreadPoolBuilder::new().num_threads(count);
        let pool = builder.build().map_err(|source| ThreadsError { count, source })?;
        Ok(Self { pool: Some(pool), count })
    }

    /// Number of threads.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Calls `work` once per item. Items must be independent: their order is not defined.
    pub fn for_each<T: Send>(&self, items: Vec<T>, work: &(dyn Fn(T) + Sync)) {
        match &self.pool {
            Some(pool) if items.len() > 1 => {
                pool.install(|| items.into_par_iter().with_max_len(1).for_each(work));
            }
            _ => items.into_iter().for_each(work),
        }
    }
}
