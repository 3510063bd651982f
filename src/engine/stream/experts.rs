//! The expert cache: memory slots managed by the laboratory's slot table.
//!
//! Residency, eviction and the order of decisions are the laboratory's code (`k3_cache`), so a run
//! and a replay of its trace give the same counters. This module adds memory and reads. A batch's
//! missing experts are read together, several at a time, in the order of their place on the disk;
//! only what arrived is published, and a read that failed ends the use of the cache, since the
//! table then lists experts that were not read.
//!
//! Nothing is read ahead: the next layer's experts are not known before its router has run, and
//! the laboratory (`simcache --prefetch`) does not show that guessing them pays. On K3's published
//! routing the experts of the token before are resident anyway from one token's working set (1472
//! slots) on; with fewer slots, of those read ahead 29 to 62 % are used and a token reads 0.6 to
//! 62 % more bytes, which a disk that streams the trunk meanwhile has to spend. With the trunk in
//! memory and slots for less than a token (115 to 141 GB) the wait would become shorter, at best.
//! The table is `reports/simcache/kimi-k3-prefetch.snap`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::blocks::{Pool, Slot};
use super::fault_hooks::FaultHooks;
use super::read::{BlockFile, read_all};
use super::recorder::Recorder;
use super::runs::{Run, RunSource};
use super::{NOT_IN_RUN, StreamError};
use crate::kernels::threads::Threads;
use crate::model::{EngineError, Expert, ExpertSource, MlpKind, Shape};
use k3_cache::policy::{DemandView, PolicyName};
use k3_cache::shape::ModelShape;
use k3_cache::slot_table::{Counters, Reserve, SlotTable};
use k3_cache::trace::{Outcome, Phase};
use k3_checkpoint::names::EXPERT_ROLES;
use k3_checkpoint::{Binding, Checkpoint};
use k3_core::listing::listed;

/// Where the experts are stored and how many are held.
#[derive(Debug)]
pub struct ExpertStore {
    /// The checkpoint.
    pub checkpoint: Arc<Checkpoint>,
    /// Where its tensors are.
    pub binding: Arc<Binding>,
    /// Its shards.
    pub files: Vec<BlockFile>,
    /// Experts held; at least 1.
    pub slots: usize,
    /// Bytes of a slot; see [`slot_bytes`].
    pub slot_bytes: usize,
    /// Who goes when a slot is needed.
    pub policy: PolicyName,
    /// Threads that read.
    pub io_threads: usize,
}

/// What has been done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExpertCounters {
    /// Decisions of the slot table.
    pub table: Counters,
    /// Bytes read.
    pub read_bytes: u64,
    /// Nanoseconds in which the computation waited for experts.
    pub wait_nanoseconds: u64,
}

/// Experts through a cache.
#[derive(Debug)]
pub struct ExpertCache {
    shape: Shape,
    sizes: ModelShape,
    store: ExpertStore,
    threads: Threads,
    pool: Arc<Pool>,
    hooks: Arc<dyn FaultHooks>,
    state: Mutex<CacheState>,
}

#[derive(Debug)]
struct CacheState {
    table: SlotTable,
    /// By slot.
    resident: Vec<Option<Arc<Expert>>>,
    recorder: Option<Recorder>,
    /// Why the cache cannot continue.
    failed: Option<String>,
    reads: u64,
    counters: ExpertCounters,
}

/// One expert to read.
struct Missing {
    expert: usize,
    slot: usize,
    run: Run,
}

/// The sizes that traces and policies work with, for the layers of `shape`.
#[must_use]
pub fn sizes(shape: &Shape) -> ModelShape {
    let weights = 3 * shape.moe.latent as u64 * shape.moe.inner as u64;
    let dense = shape.layers.iter().take_while(|layer| layer.mlp == MlpKind::Dense).count();
    ModelShape {
        layer_count: shape.layers.len() as u32,
        first_moe_layer: dense as u32,
        experts_per_layer: shape.moe.experts as u32,
        top_k: shape.moe.top_k as u32,
        expert_bytes: weights / 2 + weights / 32,
    }
}

/// Bytes of a slot that holds any expert of the first `layers` layers, and most bytes of an expert
/// that binding copies because they are misaligned.
#[must_use]
pub fn slot_bytes(checkpoint: &Checkpoint, binding: &Binding, layers: usize) -> (usize, usize) {
    let experts = binding.shape().moe.experts;
    let places = (0..layers).flat_map(|layer| (0..experts).map(move |expert| (layer, expert)));
    let bytes = |(layer, expert)| {
        let ids = binding.expert(layer, expert)?.in_order();
        // The common case without the names: one stretch of tensors of whole words.
        let odd = |id| !checkpoint.info(id).byte_len.is_multiple_of(8);
        let even = !ids.iter().copied().any(odd);
        let one = checkpoint.contiguous(&ids).filter(|(_, range)| even && range.start % 8 == 0);
        Some(match one {
            Some((_, range)) => {
                let block = super::blocks::BLOCK_BYTES as u64;
                let end = range.end.next_multiple_of(block);
                ((end - range.start / block * block) as usize, 0)
            }
            None => {
                let run = Run::of(checkpoint, &ids);
                (run.buffer_bytes(), run.copied_bytes())
            }
        })
    };
    let sizes = places.filter_map(bytes);
    sizes.fold((0, 0), |(slot, copied), one| (slot.max(one.0), copied.max(one.1)))
}

impl ExpertCache {
    /// An empty cache; takes its memory now.
    ///
    /// # Errors
    /// No slots, no threads.
    pub fn open(
        shape: Shape,
        store: ExpertStore,
        hooks: Arc<dyn FaultHooks>,
    ) -> Result<Self, EngineError> {
        // A stack of dense layers alone asks for none; the table wants one.
        let (sizes, slots) = (sizes(&shape), store.slots.max(1));
        let policy = store.policy.build(&sizes, slots);
        let table = SlotTable::new(sizes.expert_count(), slots, policy);
        let table = table.map_err(|error| EngineError::source("expert cache", error))?;
        let state = CacheState {
            table,
            resident: vec![None; slots],
            recorder: None,
            failed: None,
            reads: 0,
            counters: ExpertCounters::default(),
        };
        Ok(Self {
            shape,
            sizes,
            threads: Threads::new(store.io_threads)?,
            pool: Pool::new(slots, store.slot_bytes),
            hooks,
            state: Mutex::new(state),
            store,
        })
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has been done so far.
    #[must_use]
    pub fn counters(&self) -> ExpertCounters {
        let state = self.lock();
        ExpertCounters { table: state.table.counters(), ..state.counters }
    }

    /// Experts resident now, and slots in all.
    #[must_use]
    pub fn residents(&self) -> (usize, usize) {
        let state = self.lock();
        (state.table.resident_count(), state.table.slot_count())
    }

    /// The files that experts are read from.
    #[must_use]
    pub fn files(&self) -> &[BlockFile] {
        &self.store.files
    }

    /// Records what follows.
    pub fn record(&self, recorder: Recorder) {
        self.lock().recorder = Some(recorder);
    }

    /// Ends the recording, if there is one, and writes its end.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn finish_record(&self) -> Result<(), StreamError> {
        let recorder = self.lock().recorder.take();
        recorder.map_or(Ok(()), Recorder::finish)
    }

    /// A forward pass over `count` positions begins.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn begin_step(&self, phase: Phase, first: usize, count: usize) -> Result<(), StreamError> {
        match &mut self.lock().recorder {
            Some(recorder) => recorder.step(phase, first, count),
            None => Ok(()),
        }
    }

    fn index(&self, layer: usize, id: usize) -> u32 {
        layer as u32 * self.sizes.experts_per_layer + id as u32
    }

    /// Decides for a batch and reads what is missing.
    fn serve(
        &self,
        state: &mut CacheState,
        layer: usize,
        ids: &[usize],
    ) -> Result<Vec<Arc<Expert>>, EngineError> {
        let error = |error: StreamError| EngineError::source("expert cache", error);
        let group: Vec<u32> = ids.iter().map(|&id| self.index(layer, id)).collect();
        let mut served = Vec::with_capacity(group.len());
        let decided = state.table.serve(&group, Reserve::Late, |one| served.push(one));
        decided.map_err(|cache| error(cache.into()))?;
        if let Some(recorder) = &mut state.recorder {
            for one in &served {
                recorder.decision(*one).map_err(error)?;
            }
        }
        let mut missing = Vec::new();
        for one in served.iter().filter(|one| one.outcome != Outcome::Hit) {
            let key = self.sizes.key(one.expert);
            let (expert, slot) = (usize::from(key.expert), one.slot as usize);
            state.resident[slot] = None;
            let run = self.run(layer, expert).map_err(error)?;
            missing.push(Missing { expert, slot, run });
        }
        if !missing.is_empty() {
            self.read(state, layer, missing)?;
        }
        let resident = |one: &k3_cache::slot_table::Served| {
            let expert = &state.resident[one.slot as usize];
            expert.clone().ok_or_else(|| EngineError::source("expert cache", NOT_IN_RUN))
        };
        served.iter().map(resident).collect()
    }

    /// Where an expert is stored.
    fn run(&self, layer: usize, expert: usize) -> Result<Run, StreamError> {
        let tensors = self.store.binding.expert(layer, expert);
        let tensors = tensors.ok_or_else(|| {
            let names: Vec<String> =
                EXPERT_ROLES.iter().map(|role| role.name(layer, expert)).collect();
            let what = format!("tensors are missing: {}", listed(&names, names.len()));
            StreamError::at(format!("layer {layer}"), what)
        })?;
        Ok(Run::of(&self.store.checkpoint, &tensors.in_order()))
    }

    /// Reads experts into free slots and publishes them.
    fn read(
        &self,
        state: &mut CacheState,
        layer: usize,
        mut missing: Vec<Missing>,
    ) -> Result<(), EngineError> {
        let start = Instant::now();
        missing.sort_by_key(|one| one.run.place());
        let mut buffers = Vec::with_capacity(missing.len());
        for _ in &missing {
            let buffer = self.pool.take().ok_or(StreamError::Stopped);
            buffers.push(buffer.map_err(|error| EngineError::source("expert cache", error))?);
        }
        let mut jobs = Vec::new();
        for (one, buffer) in missing.iter().zip(&mut buffers) {
            if self.hooks.reads_expert(state.reads) {
                jobs.extend(one.run.jobs(&self.store.files, buffer.bytes_mut()));
            }
            state.reads += 1;
            state.counters.read_bytes += one.run.tensor_bytes();
        }
        let read = read_all(&self.threads, jobs);
        let slots = buffers.into_iter().map(|buffer| Slot::pooled(buffer, &self.pool));
        let slots: Vec<Slot> = slots.collect();
        read.map_err(|source| {
            let experts: Vec<usize> = missing.iter().map(|one| one.expert).collect();
            let place = format!("layer {layer}, experts {experts:?}");
            EngineError::source("expert cache", StreamError::at(place, source))
        })?;
        let mut experts = Vec::with_capacity(missing.len());
        for (one, slot) in missing.iter().zip(slots) {
            let (files, slot) = (&self.store.files, Arc::new(slot));
            let source = RunSource { run: &one.run, files, slot };
            let expert = Expert::load(&self.shape, &source, layer, one.expert);
            experts.push(Arc::new(expert?));
        }
        self.hooks.publish(&mut experts);
        for (one, expert) in missing.iter().zip(experts) {
            state.resident[one.slot] = Some(expert);
        }
        state.counters.wait_nanoseconds += start.elapsed().as_nanos() as u64;
        Ok(())
    }
}

impl ExpertSource for ExpertCache {
    fn experts(&self, layer: usize, ids: &[usize]) -> Result<Vec<Arc<Expert>>, EngineError> {
        let mut state = self.lock();
        if let Some(reason) = &state.failed {
            let what = "an earlier expert read failed, the cache cannot go on";
            return Err(EngineError::source("expert cache", StreamError::at(what, reason)));
        }
        let served = self.serve(&mut state, layer, ids);
        if let Err(error) = &served {
            state.failed = Some(error.to_string());
        }
        served
    }

    fn batch_limit(&self) -> usize {
        self.store.slots
    }

    /// Every distinct expert of the chunk once, in the order of first request; in waves where
    /// they do not fit.
    fn batches(
        &self,
        layer: usize,
        position: usize,
        demands: &[&[usize]],
    ) -> Result<Vec<Vec<usize>>, EngineError> {
        let mut state = self.lock();
        if let Some(recorder) = &mut state.recorder {
            let recorded = recorder.demands(layer, position, demands);
            recorded.map_err(|error| EngineError::source("trace", error))?;
        }
        let mut seen = vec![false; self.shape.moe.experts];
        let mut distinct = Vec::new();
        for (place, ids) in demands.iter().enumerate() {
            let experts: Vec<u32> = ids.iter().map(|&id| self.index(layer, id)).collect();
            state.table.observe(&DemandView {
                layer: layer as u16,
                experts: &experts,
                pending: (demands.len() - 1 - place) as u32,
            });
            for (&id, index) in ids.iter().zip(experts) {
                if !std::mem::replace(&mut seen[id], true) {
                    distinct.push(index);
                }
            }
        }
        let waves = state.table.waves(&distinct);
        let ids = |wave: Vec<u32>| {
            let expert = |index| usize::from(self.sizes.key(index).expert);
            wave.into_iter().map(expert).collect()
        };
        Ok(waves.into_iter().map(ids).collect())
    }
}
