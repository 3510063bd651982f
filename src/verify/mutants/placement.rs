//! Right arithmetic on the wrong operand, and sums that depend on how work is cut (A11, K1, K13,
//! M8).
//!
//! Some keep state between calls, as the real mistakes do: a cache keyed too coarsely, a state
//! shared by sequences.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::rows::products_by_rows;
use super::{Carried, EngineMutant, Mistake};
use k3_checkpoint::Role;
use k3_engine::kernels::matrix::MatrixRef;
use k3_engine::kernels::products::{self, Product, RowBlock};
use k3_engine::kernels::rows::row_sum;
use k3_engine::kernels::table::Kernels;
use k3_engine::kernels::threads::Threads;
use k3_engine::model::{
    EngineError, Expert, ExpertSource, KdaState, LatentCache, LayerKind, Shape, State,
};

/// The mutants of this file.
pub(super) fn list() -> Vec<EngineMutant> {
    let mutant = |(id, clauses, what, mistake)| EngineMutant { id, clauses, what, mistake };
    let all = slots_and_products().into_iter().chain(carried()).chain(fetched());
    all.map(mutant).collect()
}

type Line = (&'static str, &'static [&'static str], &'static str, Mistake);

fn slots_and_products() -> Vec<Line> {
    let products: fn(Kernels) -> Kernels = |right| Kernels { products: split_sums, ..right };
    vec![
        (
            "k13-slot-of-another-layer",
            &["K13"],
            "KDA layers share the first state slot",
            Mistake::Shape(|shape| kda_slots(shape, |_| 0)),
        ),
        (
            "k13-slots-counted-by-layer",
            &["K13"],
            "two neighbouring KDA layers use one slot",
            Mistake::Shape(|shape| kda_slots(shape, |slot| slot / 2 * 2)),
        ),
        (
            "k6-bias-skipped-by-the-loader",
            &["K6"],
            "the loader makes zeros of dt_bias without reading it",
            Mistake::Skipped(Role::KdaDtBias),
        ),
        (
            "a11-threads-split-sums",
            &["A11"],
            "threads sum parts of every row, and round them",
            Mistake::Kernels(products),
        ),
        (
            "a11-batches-use-another-kernel",
            &["A11"],
            "several tokens go through an f32 kernel",
            Mistake::Kernels(|right| Kernels { products: f32_batches, ..right }),
        ),
        (
            "a11-last-rows-of-a-block-dropped",
            &["A11"],
            "rows left over by the cut into threads stay zero",
            Mistake::Kernels(|right| Kernels { products: rows_left_over, ..right }),
        ),
    ]
}

fn kda_slots(shape: &mut Shape, slot: fn(usize) -> usize) {
    let kda = |attention| attention == LayerKind::Kda;
    for layer in shape.layers.iter_mut().filter(|layer| kda(layer.kind)) {
        layer.slot = slot(layer.slot);
    }
}

/// Whole products, each element by `element`.
fn by_element(
    products: Vec<Product<'_>>,
    threads: &Threads,
    element: impl Fn(MatrixRef<'_>, usize, &[f32]) -> f32,
) {
    // On one thread a product is one block.
    let whole = Threads::new(1).ok();
    for mut block in products::row_blocks(products, whole.as_ref().unwrap_or(threads)) {
        let RowBlock { matrix, vectors, out, .. } = &mut block;
        for (x, out) in vectors.chunks_exact(matrix.columns()).zip(out) {
            for (row, out) in out.iter_mut().enumerate() {
                *out = element(*matrix, row, x);
            }
        }
    }
}

fn split_sums(_: &Kernels, threads: &Threads, products: Vec<Product<'_>>) {
    let parts = threads.count();
    by_element(products, threads, |matrix, row, x| {
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

fn f32_batches(kernels: &Kernels, threads: &Threads, products: Vec<Product<'_>>) {
    let is_single = |product: &Product<'_>| product.vectors.len() == product.matrix.columns();
    let (single, several): (Vec<_>, Vec<_>) = products.into_iter().partition(is_single);
    products_by_rows(kernels, threads, single);
    by_element(several, threads, |matrix, row, x| {
        let row = matrix.row(row);
        (0..x.len()).map(|column| row.value(column) as f32 * x[column]).sum()
    });
}

fn rows_left_over(_: &Kernels, threads: &Threads, products: Vec<Product<'_>>) {
    let parts = threads.count();
    by_element(products, threads, |matrix, row, x| {
        let done = matrix.rows() / parts * parts;
        if row < done { row_sum(matrix.row(row), x) as f32 } else { 0.0 }
    });
}

/// A change of the state before or after each chunk.
#[derive(Debug, Clone, Copy)]
struct Changed {
    before: fn(&mut State),
    after: fn(&mut State),
}

impl Carried for Changed {
    fn before(&self, state: &mut State) {
        (self.before)(state);
    }

    fn after(&self, state: &mut State) {
        (self.after)(state);
    }
}

macro_rules! changed {
    (before $change:expr) => {
        Mistake::Carried(|| Arc::new(Changed { before: $change, after: |_| {} }))
    };
    (after $change:expr) => {
        Mistake::Carried(|| Arc::new(Changed { before: |_| {}, after: $change }))
    };
}

/// Every cache with the width of its rows, once it has some.
fn caches(state: &mut State) -> impl Iterator<Item = (&mut Vec<f32>, usize)> {
    let positions = state.position;
    let widths = move |cache: &mut LatentCache| cache.rows.len() / positions.max(1);
    state.mla.iter_mut().map(move |cache| (widths(cache), cache)).map(|(w, c)| (&mut c.rows, w))
}

fn neighbours_cache(state: &mut State) {
    for slot in (1..state.mla.len()).step_by(2) {
        state.mla[slot] = state.mla[slot - 1].clone();
    }
}

fn queries_history_for_keys(state: &mut State) {
    for slot in &mut state.kda {
        let third = slot.convolution.len() / 3;
        slot.convolution.copy_within(..third, third);
    }
}

fn every_eighth_row_twice(state: &mut State) {
    for position in (7..state.position).step_by(8) {
        for (rows, width) in caches(state) {
            rows.copy_within(position * width..(position + 1) * width, (position - 1) * width);
        }
    }
}

fn ring_of_sixteen(state: &mut State) {
    for position in 16..state.position {
        for (rows, width) in caches(state) {
            rows.copy_within(position * width..(position + 1) * width, position % 16 * width);
        }
    }
}

fn last_row_first(state: &mut State) {
    for (rows, width) in caches(state) {
        let last = rows.len() - width;
        rows.copy_within(last.., 0);
    }
}

fn last_value_lost(state: &mut State) {
    for slot in &mut state.kda {
        slot.recurrent.iter_mut().rev().take(1).for_each(|value| *value = 0.0);
    }
}

fn carried() -> Vec<Line> {
    vec![
        (
            "m8-cache-of-another-layer",
            &["M8"],
            "every second MLA layer is given its neighbour's cache after a call",
            changed!(after neighbours_cache),
        ),
        (
            "k1-history-of-another-projection",
            &["K1", "K13"],
            "k's convolution begins a call with q's history",
            changed!(before queries_history_for_keys),
        ),
        (
            "m8-cache-row-overwritten",
            &["M8"],
            "every eighth position overwrites the row before it",
            changed!(after every_eighth_row_twice),
        ),
        (
            "m8-ring-of-sixteen",
            &["M8"],
            "the cache wraps around after sixteen positions",
            changed!(after ring_of_sixteen),
        ),
        (
            "m8-first-row-rewritten-per-call",
            &["M8"],
            "each call writes its last row over position 0",
            changed!(after last_row_first),
        ),
        (
            "k13-last-value-lost",
            &["K13"],
            "the last value of each recurrent state is lost between calls",
            changed!(after last_value_lost),
        ),
        (
            "k13-state-of-another-sequence",
            &["K13", "A11"],
            "sequences share one recurrent state",
            Mistake::Carried(|| Arc::new(SharedRecurrence::default())),
        ),
        (
            "k13-convolution-inputs-of-another-sequence",
            &["K13", "A11"],
            "a new sequence starts with the last one's convolution inputs",
            Mistake::Carried(|| Arc::new(SharedHistory::default())),
        ),
        (
            "m8-cache-of-another-sequence",
            &["M8", "A11"],
            "a prefix cache looks at the length of a prefix only",
            Mistake::Carried(|| Arc::new(SharedCache::default())),
        ),
    ]
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

impl Carried for SharedRecurrence {
    fn before(&self, state: &mut State) {
        if let Some(kept) = self.0.with(Option::take).filter(|_| state.position > 0) {
            state.kda = kept;
        }
    }

    fn after(&self, state: &mut State) {
        self.0.with(|kept| *kept = Some(state.kda.clone()));
    }
}

/// The convolution inputs belong to the engine and are never reset.
#[derive(Debug, Default)]
struct SharedHistory(Kept<Option<Vec<Vec<f32>>>>);

impl Carried for SharedHistory {
    fn before(&self, state: &mut State) {
        if let Some(kept) = self.0.with(Option::take) {
            state.kda.iter_mut().zip(kept).for_each(|(slot, kept)| slot.convolution = kept);
        }
    }

    fn after(&self, state: &mut State) {
        let histories = state.kda.iter().map(|slot| slot.convolution.clone()).collect();
        self.0.with(|kept| *kept = Some(histories));
    }
}

/// Latent caches of equal length are taken for the same sequence's.
#[derive(Debug, Default)]
struct SharedCache(Kept<HashMap<usize, Vec<LatentCache>>>);

impl Carried for SharedCache {
    fn before(&self, state: &mut State) {
        if let Some(kept) = self.0.with(|kept| kept.get(&state.position).cloned()) {
            state.mla = kept;
        }
    }

    fn after(&self, state: &mut State) {
        self.0.with(|kept| {
            kept.entry(state.position).or_insert_with(|| state.mla.clone());
        });
    }
}

/// Experts as they are handed on: (source, layer, ids) → experts.
type Fetch = fn(&dyn ExpertSource, usize, &[usize]) -> Result<Vec<Arc<Expert>>, EngineError>;

/// A source of experts with a mistake in what it hands on.
#[derive(Debug)]
struct Fetched {
    source: Box<dyn ExpertSource>,
    fetch: Fetch,
}

impl ExpertSource for Fetched {
    fn experts(&self, layer: usize, ids: &[usize]) -> Result<Vec<Arc<Expert>>, EngineError> {
        (self.fetch)(&*self.source, layer, ids)
    }

    fn batch_limit(&self) -> usize {
        self.source.batch_limit()
    }
}

/// An expert cache keyed by expert alone.
#[derive(Debug)]
struct StaleExperts {
    source: Box<dyn ExpertSource>,
    kept: Kept<HashMap<usize, Arc<Expert>>>,
}

impl ExpertSource for StaleExperts {
    fn experts(&self, layer: usize, ids: &[usize]) -> Result<Vec<Arc<Expert>>, EngineError> {
        let fetched = self.source.experts(layer, ids)?;
        let keep = |kept: &mut HashMap<usize, Arc<Expert>>| {
            let pairs = ids.iter().zip(fetched);
            pairs.map(|(id, expert)| kept.entry(*id).or_insert(expert).clone()).collect()
        };
        Ok(self.kept.with(keep))
    }

    fn batch_limit(&self) -> usize {
        self.source.batch_limit()
    }
}

macro_rules! fetched {
    ($fetch:expr) => {
        Mistake::Experts(|source| Box::new(Fetched { source, fetch: $fetch }))
    };
}

fn fetched() -> Vec<Line> {
    vec![
        (
            "a11-expert-served-twice",
            &["A11", "E2"],
            "a batch's first expert is served for the second too",
            fetched!(|source, layer, ids| {
                let mut experts = source.experts(layer, ids)?;
                if experts.len() > 1 {
                    experts[1] = experts[0].clone();
                }
                Ok(experts)
            }),
        ),
        (
            "a11-neighbouring-expert",
            &["A11", "E2"],
            "expert ids are off by one",
            fetched!(|source, layer, ids| {
                let others = ids.iter().map(|&id| if id == 0 { 1 } else { id - 1 });
                let mut experts = Vec::new();
                for other in others {
                    experts.extend(source.experts(layer, &[other])?);
                }
                Ok(experts)
            }),
        ),
        (
            "a11-batch-in-order-of-arrival",
            &["A11", "A9"],
            "a batch's experts come back in another order",
            fetched!(|source, layer, ids| {
                let mut experts = source.experts(layer, ids)?;
                experts.reverse();
                Ok(experts)
            }),
        ),
        (
            "a11-expert-of-another-layer",
            &["A11", "E2"],
            "cached experts are found by number, whatever their layer",
            Mistake::Experts(|source| Box::new(StaleExperts { source, kept: Kept::default() })),
        ),
    ]
}
