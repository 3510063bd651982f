//! Layers that do not all fit in memory: some are pinned, the others streamed through a ring of
//! slots.
//!
//! With one slot a layer is read when it is asked for. With two or more a reader thread goes ahead
//! of the computation, in the order of the layers, round and round, as far as slots are free. A
//! layer that could not be read is never published: a request for it returns the error.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use super::StreamError;
use super::blocks::{Buffer, Pool, Slot};
use super::fault_hooks::FaultHooks;
use super::pack;
use super::read::{BlockFile, read_all};
use super::runs::{Run, RunSource};
use crate::kernels::threads::Threads;
use crate::model::{EngineError, LayerSource, LayerWeights, Shape};
use k3_core::host::interrupt::Interrupt;

/// Where the layers are stored and how they are held.
#[derive(Debug)]
pub struct Trunk {
    /// One run per layer.
    pub runs: Vec<Run>,
    /// Files that the runs name.
    pub files: Vec<BlockFile>,
    /// Layers that stay in memory, ascending.
    pub pinned: Vec<usize>,
    /// Slots for the others; at least 1 if there are others.
    pub ring_slots: usize,
    /// Threads that read.
    pub io_threads: usize,
    /// Once it is set no further layer is given out.
    pub stop: Interrupt,
}

impl Trunk {
    /// Layers that are streamed, ascending.
    #[must_use]
    pub fn streamed(&self) -> Vec<usize> {
        let layers = 0..self.runs.len();
        layers.filter(|layer| self.pinned.binary_search(layer).is_err()).collect()
    }

    fn go_on(&self) -> Result<(), EngineError> {
        if self.stop.is_set() {
            return Err(EngineError::Interrupted);
        }
        Ok(())
    }
}

/// What has been done so far. Bytes are those of the layers' tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrunkCounters {
    /// Layers asked for.
    pub uses: u64,
    /// Of them, pinned ones.
    pub pinned_uses: u64,
    /// Of the others, those that were there when they were asked for.
    pub ready_uses: u64,
    /// Bytes of streamed layers that were used.
    pub used_bytes: u64,
    /// Bytes read at the start, for pinned layers.
    pub pinned_bytes: u64,
    /// Bytes read from the disk for streamed layers, those ahead of their use included.
    pub read_bytes: u64,
    /// Nanoseconds in which the computation waited for a layer.
    pub wait_nanoseconds: u64,
}

/// Layers from memory and from a ring.
#[derive(Debug)]
pub struct StreamedLayers {
    shape: Shape,
    ring: Arc<Ring>,
    pinned: Vec<Option<Arc<LayerWeights>>>,
    /// Held while a layer is asked for: requests of two sequences must not undo each other's.
    turn: Mutex<()>,
    reader: Option<JoinHandle<()>>,
    counters: Mutex<TrunkCounters>,
}

/// What the reader thread and the computation share.
#[derive(Debug)]
struct Ring {
    trunk: Trunk,
    streamed: Vec<usize>,
    pool: Arc<Pool>,
    threads: Threads,
    hooks: Arc<dyn FaultHooks>,
    state: Mutex<RingState>,
    changed: Condvar,
    read_bytes: AtomicU64,
    /// Layers that had their digest when they were first read.
    is_verified: Vec<AtomicBool>,
}

/// Places count streamed layers.
#[derive(Debug, Default)]
struct RingState {
    /// Layers that have been read, or failed, in order.
    ready: VecDeque<(usize, Result<Slot, StreamError>)>,
    /// The place the reader is filling.
    reading: Option<usize>,
    /// The place it takes next; none before the first request and after a failure.
    next: Option<usize>,
    /// Rises whenever the reader is sent elsewhere; what it read for the old course is dropped.
    course: u64,
    stopped: bool,
}

impl RingState {
    /// The place that will be published next.
    fn coming(&self) -> Option<usize> {
        let first = self.ready.front().map(|(place, _)| *place);
        first.or(self.reading).or(self.next)
    }

    /// Sends the reader to `place`; what was read for others goes back to the pool.
    fn redirect(&mut self, place: usize) {
        self.ready.clear();
        (self.reading, self.next) = (None, Some(place));
        self.course += 1;
    }
}

impl Ring {
    fn lock(&self) -> MutexGuard<'_, RingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a layer; the first time its bytes are held against their digest, if they have one.
    fn fill(&self, layer: usize, bytes: &mut [u8]) -> Result<(), StreamError> {
        let run = &self.trunk.runs[layer];
        read_all(&self.threads, run.jobs(&self.trunk.files, bytes))
            .map_err(|source| StreamError::at(format!("layer {layer}"), source))?;
        let Some(expected) = &run.digest else { return Ok(()) };
        if self.is_verified[layer].load(Ordering::Relaxed) {
            return Ok(());
        }
        let got = pack::digest(&self.threads, &bytes[..run.buffer_bytes()]);
        if let Some(problem) = pack::altered(layer, &got, expected) {
            let file = &self.trunk.files[run.place().0];
            return Err(StreamError::File(problem.in_file(file.path())));
        }
        self.is_verified[layer].store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Reads the streamed layer at `place` into a buffer.
    fn read(&self, place: usize, mut buffer: Buffer) -> Result<Slot, StreamError> {
        let mut fill = |place: usize, bytes: &mut [u8]| self.fill(self.streamed[place], bytes);
        let filled = self.hooks.fill_layer(place, buffer.bytes_mut(), &mut fill);
        let layer = self.streamed[place];
        let bytes = self.trunk.runs[layer].tensor_bytes();
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        // The slot first: it takes the buffer back to the pool if the read failed.
        let slot = Slot::pooled(buffer, &self.pool);
        filled.map(|()| slot)
    }

    /// The reader thread.
    fn read_ahead(&self) {
        while let Some(buffer) = self.pool.take() {
            let Some((place, course)) = self.next_place() else {
                return;
            };
            let read = self.read(place, buffer);
            let mut state = self.lock();
            if state.course == course {
                state.reading = None;
                if read.is_err() {
                    state.next = None;
                }
                state.ready.push_back((place, read));
                self.changed.notify_all();
            }
        }
    }

    /// The place the reader has to take now, and the course; `None` when it is to stop.
    fn next_place(&self) -> Option<(usize, u64)> {
        let mut state = self.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(place) = state.next {
                state.reading = Some(place);
                state.next = Some((place + 1) % self.streamed.len());
                return Some((place, state.course));
            }
            state = self.wait(state);
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, RingState>) -> MutexGuard<'a, RingState> {
        let state = self.changed.wait(state);
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of the layer at `place`, and whether it was there already.
    fn take_ahead(&self, place: usize) -> Result<(Slot, bool), StreamError> {
        let mut state = self.lock();
        let mut waited = false;
        loop {
            if state.stopped {
                return Err(StreamError::Stopped);
            }
            if state.coming() != Some(place) {
                state.redirect(place);
                self.changed.notify_all();
            }
            if let Some((_, read)) = state.ready.pop_front() {
                return read.map(|slot| (slot, !waited));
            }
            waited = true;
            state = self.wait(state);
        }
    }
}

impl StreamedLayers {
    /// Reads the pinned layers and starts the reader.
    ///
    /// # Errors
    /// A pinned layer that cannot be read or bound; no thread; [`EngineError::Interrupted`].
    pub fn open(
        shape: Shape,
        trunk: Trunk,
        hooks: Arc<dyn FaultHooks>,
    ) -> Result<Self, EngineError> {
        let threads = Threads::new(trunk.io_threads)?;
        let streamed = trunk.streamed();
        let largest = streamed.iter().map(|&layer| trunk.runs[layer].buffer_bytes()).max();
        let slots = if streamed.is_empty() { 0 } else { trunk.ring_slots.max(1) };
        let pool = Pool::new(slots, largest.unwrap_or(0));
        let is_verified = trunk.runs.iter().map(|_| AtomicBool::new(false)).collect();
        let ring = Arc::new(Ring {
            is_verified,
            trunk,
            streamed,
            pool,
            threads,
            hooks,
            state: Mutex::new(RingState::default()),
            changed: Condvar::new(),
            read_bytes: AtomicU64::new(0),
        });
        let mut layers = Self {
            shape,
            pinned: vec![None; ring.trunk.runs.len()],
            ring,
            turn: Mutex::new(()),
            reader: None,
            counters: Mutex::new(TrunkCounters::default()),
        };
        layers.pin()?;
        if slots > 1 {
            let ring = Arc::clone(&layers.ring);
            let builder = std::thread::Builder::new().name("trunk reader".to_owned());
            let started = builder.spawn(move || ring.read_ahead());
            let started = started.map_err(|error| {
                let what = "cannot start the reader thread";
                EngineError::source("trunk", StreamError::at(what, error))
            })?;
            layers.reader = Some(started);
        }
        Ok(layers)
    }

    fn pin(&mut self) -> Result<(), EngineError> {
        let ring = Arc::clone(&self.ring);
        for &layer in &ring.trunk.pinned {
            ring.trunk.go_on()?;
            let run = &ring.trunk.runs[layer];
            let mut buffer = Buffer::zeroed(run.buffer_bytes());
            let filled = ring.fill(layer, buffer.bytes_mut());
            filled.map_err(|error| EngineError::source("trunk", error))?;
            let weights = self.bind(layer, Slot::owned(buffer))?;
            self.pinned[layer] = Some(weights);
            self.count(|counters| counters.pinned_bytes += run.tensor_bytes());
        }
        Ok(())
    }

    fn bind(&self, layer: usize, slot: Slot) -> Result<Arc<LayerWeights>, EngineError> {
        let (run, slot) = (&self.ring.trunk.runs[layer], Arc::new(slot));
        let source = RunSource { run, files: &self.ring.trunk.files, slot };
        LayerWeights::load(&self.shape, &source, layer).map(Arc::new)
    }
}

impl StreamedLayers {
    fn count(&self, add: impl FnOnce(&mut TrunkCounters)) {
        add(&mut self.counters.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// What has been done so far.
    #[must_use]
    pub fn counters(&self) -> TrunkCounters {
        let counters = *self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        TrunkCounters { read_bytes: self.ring.read_bytes.load(Ordering::Relaxed), ..counters }
    }

    /// The files that layers are read from.
    #[must_use]
    pub fn files(&self) -> &[BlockFile] {
        &self.ring.trunk.files
    }
}

impl LayerSource for StreamedLayers {
    fn layer(&self, layer: usize) -> Result<Arc<LayerWeights>, EngineError> {
        self.ring.trunk.go_on()?;
        if let Some(weights) = &self.pinned[layer] {
            self.count(|counters| {
                counters.uses += 1;
                counters.pinned_uses += 1;
            });
            return Ok(Arc::clone(weights));
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        let ring = &self.ring;
        let place = ring.streamed.binary_search(&layer).unwrap_or_default();
        let slot = if self.reader.is_some() {
            ring.take_ahead(place)
        } else {
            let buffer = ring.pool.take().ok_or(StreamError::Stopped);
            buffer.and_then(|buffer| ring.read(place, buffer).map(|slot| (slot, false)))
        };
        let waited = start.elapsed().as_nanos() as u64;
        let (slot, ready) = slot.map_err(|error| EngineError::source("trunk", error))?;
        self.count(|counters| {
            counters.uses += 1;
            counters.ready_uses += u64::from(ready);
            counters.used_bytes += ring.trunk.runs[layer].tensor_bytes();
            counters.wait_nanoseconds += waited;
        });
        self.bind(layer, slot)
    }
}

impl Drop for StreamedLayers {
    fn drop(&mut self) {
        self.ring.lock().stopped = true;
        self.ring.changed.notify_all();
        self.ring.pool.close();
        if let Some(reader) = self.reader.take() {
            // A reader that panicked has nothing left to say.
            let _ = reader.join();
        }
    }
}
