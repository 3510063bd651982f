//! Family (c): right arithmetic on the wrong operand, and sums that depend on how work is cut
//! (A11, K1, K13, M8).
//!
//! Some keep something between calls, as the mistakes they stand for do: a cache keyed too
//! coarsely, a state shared by sequences.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::rows::products_by_rows;
use super::{EngineMutant, Family};
use crate::kernels::matrix;
use crate::kernels::products;
use crate::kernels::products::{Product, RowBlock};
use crate::kernels::rows::row_sum;
use crate::kernels::threads::Threads;
use crate::model::{
    EngineError, Expert, ExpertSource, KdaState, LatentCache, Operations, Projection, State,
};

engine_mutants! { Arithmetic
    "k13-slot-of-another-layer" ["K13"] "KDA layers share the first state slot" {
        fn kda_slot<'a>(&self, slots: &'a mut [KdaState], _: usize, _: usize) -> &'a mut KdaState {
            &mut slots[0]
        }
    }
    "k13-slots-counted-by-layer" ["K13"] "two neighbouring KDA layers use one slot" {
        fn kda_slot<'a>(&self, slots: &'a mut [KdaState], n: usize, _: usize) -> &'a mut KdaState {
            &mut slots[n / 2 * 2]
        }
    }
    "m8-cache-of-another-layer" ["M8"] "MLA layers use one cache in turn" {
        fn latent_cache<'a>(&self, caches: &'a mut [LatentCache], n: usize) -> &'a mut LatentCache {
            let other = n / 2 * 2;
            if n != other {
                caches[n].rows = caches[other].rows.clone();
            }
            &mut caches[n]
        }
    }
    "k1-history-of-another-projection" ["K1" "K13"] "k's convolution reads q's history" {
        fn history_of(&self, projection: Projection) -> usize {
            match projection {
                Projection::Query | Projection::Key => 0,
                Projection::Value => 2,
            }
        }
    }
    "m8-cache-row-overwritten" ["M8"] "every eighth position overwrites the row before it" {
        fn cache_append(&self, cache: &mut LatentCache, position: usize, row: &[f32]) {
            if position % 8 == 7 {
                let last = cache.rows.len() - row.len();
                cache.rows[last..].copy_from_slice(row);
            }
            cache.rows.extend_from_slice(row);
        }
    }
    "m8-ring-of-sixteen" ["M8"] "the cache wraps around after sixteen positions" {
        fn cache_append(&self, cache: &mut LatentCache, position: usize, row: &[f32]) {
            if position >= 16 {
                let first = position % 16 * row.len();
                cache.rows[first..first + row.len()].copy_from_slice(row);
            }
            cache.rows.extend_from_slice(row);
        }
    }
    "m8-first-row-rewritten-per-call" ["M8"] "each call writes its last row over position 0" {
        fn after_chunk(&self, state: &mut State) {
            for cache in &mut state.mla {
                let last = cache.rows.len() - cache.rows.len() / state.position;
                cache.rows.copy_within(last.., 0);
            }
        }
    }
    "k13-last-value-lost" ["K13"] "the last value of each recurrent state is lost between calls" {
        fn after_chunk(&self, state: &mut State) {
            for slot in &mut state.kda {
                let last = slot.recurrent.len() - 1;
                slot.recurrent[last] = 0.0;
            }
        }
    }
    "a11-expert-served-twice" ["A11" "E2"] "a batch's first expert is served for the second too" {
        fn experts(
            &self, source: &dyn ExpertSource, layer: usize, ids: &[usize],
        ) -> Result<Vec<Arc<Expert>>, EngineError> {
            let mut experts = source.experts(layer, ids)?;
            if experts.len() > 1 {
                experts[1] = experts[0].clone();
            }
            Ok(experts)
        }
    }
    "a11-neighbouring-expert" ["A11" "E2"] "expert ids are off by one" {
        fn experts(
            &self, source: &dyn ExpertSource, layer: usize, ids: &[usize],
        ) -> Result<Vec<Arc<Expert>>, EngineError> {
            let mut experts = Vec::new();
            for &id in ids {
                let other = if id == 0 { 1 } else { id - 1 };
                experts.extend(source.experts(layer, &[other])?);
            }
            Ok(experts)
        }
    }
    "a11-batch-in-order-of-arrival" ["A11" "A9"] "a batch's experts come back in another order" {
        fn experts(
            &self, source: &dyn ExpertSource, layer: usize, ids: &[usize],
        ) -> Result<Vec<Arc<Expert>>, EngineError> {
            let mut experts = source.experts(layer, ids)?;
            experts.reverse();
            Ok(experts)
        }
    }
    "a11-threads-split-sums" ["A11"] "threads sum parts of every row, and round them" {
        fn products(&self, threads: &Threads, products: Vec<Product<'_>>) {
            let parts = threads.count();
            by_token(threads, products, |matrix, row, x| {
                let part = x.len().div_ceil(parts);
                let mut whole = vec![0.0; x.len()];
                let sums = (0..parts).map(|index| {
                    let range = (index * part).min(x.len())..((index + 1) * part).min(x.len());
                    whole.fill(0.0);
                    whole[range.clone()].copy_from_slice(&x[range]);
                    row_sum(matrix.row(row), &whole) as f32
                });
                sums.fold(0.0, |sum, part| sum + part)
            });
        }
    }
    "a11-batches-use-another-kernel" ["A11"] "several tokens go through an f32 kernel" {
        fn products(&self, threads: &Threads, products: Vec<Product<'_>>) {
            let (single, several): (Vec<_>, Vec<_>) = products
                .into_iter()
                .partition(|product| product.vectors.len() == product.matrix.columns());
            products_by_rows(self, threads, single);
            by_token(threads, several, |matrix, row, x| {
                let row = matrix.row(row);
                (0..x.len()).map(|column| row.value(column) as f32 * x[column]).sum()
            });
        }
    }
    "a11-last-rows-of-a-block-dropped" ["A11"] "rows left over by the cut into threads stay zero" {
        fn products(&self, threads: &Threads, products: Vec<Product<'_>>) {
            let parts = threads.count();
            by_token(threads, products, |matrix, row, x| {
                let done = matrix.rows() / parts * parts;
                if row < done { row_sum(matrix.row(row), x) as f32 } else { 0.0 }
            });
        }
    }
}

/// Whole products, each element by `element`.
fn by_token(
    threads: &Threads,
    products: Vec<Product<'_>>,
    element: impl Fn(matrix::MatrixRef<'_>, usize, &[f32]) -> f32,
) {
    let whole = Threads::new(1).ok();
    let threads = whole.as_ref().unwrap_or(threads);
    for mut block in products::row_blocks(products, threads) {
        let RowBlock { matrix, vectors, out, .. } = &mut block;
        for (x, out) in vectors.chunks_exact(matrix.columns()).zip(out) {
            for (row, out) in out.iter_mut().enumerate() {
                *out = element(*matrix, row, x);
            }
        }
    }
}

/// Something kept in a place where several sequences or layers find it.
#[derive(Debug, Default)]
struct Kept<T>(Mutex<T>);

impl<T> Kept<T> {
    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The recurrent state belongs to the engine, not to the sequence.
#[derive(Debug, Default)]
struct SharedRecurrence(Kept<Option<Vec<KdaState>>>);

impl Operations for SharedRecurrence {
    fn as_dyn(&self) -> &dyn Operations {
        self
    }

    fn before_chunk(&self, state: &mut State) {
        if let Some(kept) = self.0.with(Option::take).filter(|_| state.position > 0) {
            state.kda = kept;
        }
    }

    fn after_chunk(&self, state: &mut State) {
        self.0.with(|kept| *kept = Some(state.kda.clone()));
    }
}

/// The convolution inputs belong to the engine and are never reset.
#[derive(Debug, Default)]
struct SharedHistory(Kept<Option<Vec<Vec<f32>>>>);

impl Operations for SharedHistory {
    fn as_dyn(&self) -> &dyn Operations {
        self
    }

    fn before_chunk(&self, state: &mut State) {
        if let Some(kept) = self.0.with(Option::take) {
            state.kda.iter_mut().zip(kept).for_each(|(slot, kept)| slot.convolution = kept);
        }
    }

    fn after_chunk(&self, state: &mut State) {
        let histories = state.kda.iter().map(|slot| slot.convolution.clone()).collect();
        self.0.with(|kept| *kept = Some(histories));
    }
}

/// Latent caches of equal length are taken for the same sequence's.
#[derive(Debug, Default)]
struct SharedCache(Kept<HashMap<usize, Vec<LatentCache>>>);

impl Operations for SharedCache {
    fn as_dyn(&self) -> &dyn Operations {
        self
    }

    fn before_chunk(&self, state: &mut State) {
        if let Some(kept) = self.0.with(|kept| kept.get(&state.position).cloned()) {
            state.mla = kept;
        }
    }

    fn after_chunk(&self, state: &mut State) {
        self.0.with(|kept| {
            kept.entry(state.position).or_insert_with(|| state.mla.clone());
        });
    }
}

/// An expert cache keyed by expert alone.
#[derive(Debug, Default)]
struct StaleExperts(Kept<HashMap<usize, Arc<Expert>>>);

impl Operations for StaleExperts {
    fn as_dyn(&self) -> &dyn Operations {
        self
    }

    fn experts(
        &self,
        source: &dyn ExpertSource,
        layer: usize,
        ids: &[usize],
    ) -> Result<Vec<Arc<Expert>>, EngineError> {
        let fetched = source.experts(layer, ids)?;
        let keep = |kept: &mut HashMap<usize, Arc<Expert>>| {
            let pairs = ids.iter().zip(fetched);
            pairs.map(|(id, expert)| kept.entry(*id).or_insert(expert).clone()).collect()
        };
        Ok(self.0.with(keep))
    }
}

/// The mutants that keep something.
pub(super) fn keeping() -> Vec<EngineMutant> {
    let mutant = |id, clauses, what, make| EngineMutant {
        id,
        clauses,
        family: Family::Arithmetic,
        what,
        make,
    };
    vec![
        mutant(
            "k13-state-of-another-sequence",
            &["K13", "A11"],
            "sequences share one recurrent state",
            || Arc::new(SharedRecurrence::default()),
        ),
        mutant(
            "k13-convolution-inputs-of-another-sequence",
            &["K13", "A11"],
            "a new sequence starts with the last one's convolution inputs",
            || Arc::new(SharedHistory::default()),
        ),
        mutant(
            "m8-cache-of-another-sequence",
            &["M8", "A11"],
            "a prefix cache looks at the length of a prefix only",
            || Arc::new(SharedCache::default()),
        ),
        mutant(
            "a11-expert-of-another-layer",
            &["A11", "E2"],
            "cached experts are found by number, whatever their layer",
            || Arc::new(StaleExperts::default()),
        ),
    ]
}
