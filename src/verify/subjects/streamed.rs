//! The engine with weights that do not fit: the ways to stream it that must change no bit.
//!
//! One factor at a time (ring, expert slots, policy, vocabulary, state through a file), then seeded
//! combinations of these with threads, chunks and kernel paths, or with --exhaustive their whole
//! product. And the mistakes of streaming, as mutants: each is right when resident and wrong when
//! streamed, so `invariance` must catch it.

use k3_core::choice::Choice as _;
use k3_engine::kernels::table::Kernels;
use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::{engine_kernels, refused};
use crate::kill_matrix::Mutant;
use crate::registry::Needs;
use crate::subject::{
    Answer, KernelCase, Logits, Opening, Precision, Sequence, Subject, SubjectError, SubjectSource,
    Variant,
};
use k3_cache::policy::PolicyName;
use k3_checkpoint::identity::Identity;
use k3_core::config::RawConfig;
use k3_core::host::interrupt::Interrupt;
use k3_core::random::SplitMix64;
use k3_core::stages::StageSink;
use k3_engine::generate::state_file::{Header, SavedState, save};
use k3_engine::kernels::path::KernelPath;
use k3_engine::model::{EngineOptions, EngineSequence};
use k3_engine::stream::fault_hooks::{
    ExpertSlotGivenTwice, FaultHooks, NoFaults, RingSlotOverwritten, StaleReadPublished,
};
use k3_engine::stream::{ModelFiles, StreamOptions, StreamedEngine};

/// Slots of the ring; 0: every layer in memory.
const RINGS: [usize; 4] = [0, 1, 2, 3];
/// Worker threads.
const THREADS: [usize; 4] = [1, 2, 3, 8];
/// Prefill chunks; the last is longer than any set.
const CHUNKS: [usize; 4] = [1, 3, 7, 4096];
/// Tokens fed: a whole chunk of three and a cut one. A slot that is wrong is wrong within a few
/// tokens (each asks every layer and two dozen experts); the other ways are fed everything.
const TOKENS: usize = 4;
/// Combinations besides one factor at a time, and the seed they are drawn with.
const COMBINATIONS: usize = 20;
const SEED: u64 = 93;

/// Expert slots, by the model's sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slots {
    TopK,
    TopKAndOne,
    Half,
    All,
}

impl Slots {
    const EACH: [Self; 4] = [Self::TopK, Self::TopKAndOne, Self::Half, Self::All];

    fn name(self) -> &'static str {
        match self {
            Self::TopK => "top-k",
            Self::TopKAndOne => "top-k+1",
            Self::Half => "half",
            Self::All => "all",
        }
    }

    fn count(self, config: &RawConfig) -> usize {
        let dense = config.first_k_dense_replace.min(config.num_hidden_layers);
        let all = (config.num_hidden_layers - dense) * config.num_experts;
        match self {
            Self::TopK => config.num_experts_per_token,
            Self::TopKAndOne => config.num_experts_per_token + 1,
            Self::Half => (all / 2).max(1),
            Self::All => all.max(1),
        }
    }
}

/// One way to run.
#[derive(Debug, Clone, Copy)]
struct Way {
    ring: usize,
    slots: Slots,
    policy: PolicyName,
    streams_vocabulary: bool,
    state_through_file: bool,
    path: KernelPath,
    options: EngineOptions,
}

/// Opened files of the last checkpoint, shared by the variants of one subject.
type Opened = Arc<Mutex<Option<(PathBuf, Arc<ModelFiles>)>>>;

/// The engine run in one way.
struct Streamed {
    way: Way,
    opened: Opened,
    hooks: fn(&RawConfig) -> Arc<dyn FaultHooks>,
}

fn careful(_config: &RawConfig) -> Arc<dyn FaultHooks> {
    Arc::new(NoFaults)
}

/// Everything in memory, as the production engine runs.
fn plain(path: KernelPath, options: EngineOptions) -> Way {
    Way {
        ring: 0,
        slots: Slots::All,
        policy: PolicyName::LayerCycle,
        streams_vocabulary: false,
        state_through_file: false,
        path,
        options,
    }
}

/// The ways of the default ladder.
pub fn variants(path: KernelPath, options: EngineOptions) -> Vec<Variant> {
    let plain = plain(path, options);
    let mut ways = Vec::new();
    for ring in &RINGS[1..] {
        ways.push((format!("ring {ring}"), Way { ring: *ring, ..plain }));
    }
    for slots in Slots::EACH {
        ways.push((format!("{} slots", slots.name()), Way { slots, ..plain }));
    }
    for &policy in PolicyName::ALL {
        let way = Way { slots: Slots::Half, policy, ..plain };
        ways.push((format!("policy {}", policy.name()), way));
    }
    let way = Way { streams_vocabulary: true, ..plain };
    ways.push(("streamed vocabulary".to_owned(), way));
    let way = Way { state_through_file: true, ..plain };
    ways.push(("state through a file".to_owned(), way));
    let mut random = SplitMix64::new(SEED);
    for _ in 0..COMBINATIONS {
        let way = draw(&mut random);
        ways.push((describe(&way), way));
    }
    of_ways(ways)
}

/// Every combination of rings, slots, policies, threads, chunks and kernel paths.
pub fn product(path: KernelPath, options: EngineOptions) -> Vec<Variant> {
    let plain = plain(path, options);
    let mut ways = Vec::new();
    for path in KernelPath::available() {
        for (threads, chunk_tokens) in pairs(THREADS, CHUNKS) {
            for (ring, slots) in pairs(RINGS, Slots::EACH) {
                for &policy in PolicyName::ALL {
                    let options = EngineOptions { threads, chunk_tokens };
                    let way = Way { ring, slots, policy, path, options, ..plain };
                    ways.push((describe(&way), way));
                }
            }
        }
    }
    of_ways(ways)
}

fn pairs<A: Copy, B: Copy>(first: [A; 4], second: [B; 4]) -> impl Iterator<Item = (A, B)> {
    first.into_iter().flat_map(move |a| second.into_iter().map(move |b| (a, b)))
}

fn pick<T: Copy>(random: &mut SplitMix64, from: &[T]) -> T {
    from[random.below(from.len() as u64) as usize]
}

fn draw(random: &mut SplitMix64) -> Way {
    let paths = KernelPath::available();
    Way {
        ring: pick(random, &RINGS),
        slots: pick(random, &Slots::EACH),
        policy: pick(random, PolicyName::ALL),
        streams_vocabulary: random.below(4) == 0,
        state_through_file: random.below(8) == 0,
        path: pick(random, &paths),
        options: EngineOptions {
            threads: pick(random, &THREADS),
            chunk_tokens: pick(random, &CHUNKS),
        },
    }
}

fn describe(way: &Way) -> String {
    let mut text = format!(
        "ring {}, {} slots, {}, threads {}, chunk {}, {}",
        way.ring,
        way.slots.name(),
        way.policy.name(),
        way.options.threads,
        way.options.chunk_tokens,
        way.path.name()
    );
    if way.streams_vocabulary {
        text.push_str(", streamed vocabulary");
    }
    if way.state_through_file {
        text.push_str(", state through a file");
    }
    text
}

fn of_ways(ways: Vec<(String, Way)>) -> Vec<Variant> {
    let opened = Opened::default();
    let variant = |(name, way)| Variant {
        name,
        tokens: TOKENS,
        source: Box::new(Streamed { way, opened: Arc::clone(&opened), hooks: careful }),
    };
    ways.into_iter().map(variant).collect()
}

fn failed(error: impl std::fmt::Display) -> SubjectError {
    SubjectError::Failed(error.to_string())
}

impl Streamed {
    fn files(&self, model: Opening<'_>) -> Result<Arc<ModelFiles>, SubjectError> {
        let folder = model.dir;
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((path, files)) = &*opened
            && path == folder
        {
            return Ok(Arc::clone(files));
        }
        let files = ModelFiles::open(folder, None, None);
        let mut files = files.map_err(refused)?;
        files.shape.mla_norm_eps = model.mla_norm_eps;
        let files = Arc::new(files);
        *opened = Some((folder.to_owned(), Arc::clone(&files)));
        Ok(files)
    }
}

impl SubjectSource for Streamed {
    fn name(&self) -> &str {
        "engine"
    }

    fn precision(&self) -> Precision {
        Precision::F32
    }

    fn offers(&self) -> &[Needs] {
        Needs::ALL
    }

    fn open(&self, model: Opening<'_>) -> Result<Box<dyn Subject>, SubjectError> {
        let (files, config) = (self.files(model)?, model.config);
        let way = self.way;
        let pinned =
            if way.ring == 0 { (0..config.num_hidden_layers).collect() } else { Vec::new() };
        let stream = StreamOptions {
            pinned,
            ring_slots: way.ring,
            expert_slots: way.slots.count(config),
            policy: way.policy,
            streams_vocabulary: way.streams_vocabulary,
            // The shipped sets are small and warm: past the page cache is a matter of trial E.
            direct: false,
            hooks: (self.hooks)(config),
            stop: Interrupt::default(),
        };
        let kernels = Kernels::on(way.path);
        let streamed = files.engine(kernels, &stream, way.options).map_err(refused)?;
        Ok(Box::new(StreamedSubject { streamed, way }))
    }

    fn operation(&self, case: KernelCase<'_>) -> Answer {
        engine_kernels::run(&Kernels::on(self.way.path), case)
    }
}

struct StreamedSubject {
    streamed: StreamedEngine,
    way: Way,
}

impl Subject for StreamedSubject {
    fn sequence(&self) -> Box<dyn Sequence + '_> {
        let sequence = EngineSequence::new(Arc::clone(&self.streamed.engine));
        if self.way.state_through_file {
            Box::new(ThroughFile(sequence))
        } else {
            Box::new(sequence)
        }
    }
}

/// A sequence whose state is written to a file, forgotten and read back after every token.
struct ThroughFile(EngineSequence);

impl ThroughFile {
    fn through(&mut self, file: &Path) -> Result<(), SubjectError> {
        let engine = self.0.engine();
        let shape = engine.shape();
        let position = self.0.state.position;
        let ids = vec![0; position];
        // One process: no checkpoint to tell apart from another.
        let identity = Identity([0; 32]);
        let header = Header::new(identity, shape.mla_norm_eps, shape, position, ids);
        save(file, &header, &self.0.state).map_err(failed)?;
        let mut state = engine.state();
        let saved = SavedState::open(file).map_err(failed)?;
        saved.check(&header).map_err(failed)?;
        saved.load_into(&mut state).map_err(failed)?;
        self.0.state = state;
        Ok(())
    }
}

impl Sequence for ThroughFile {
    fn feed(&mut self, ids: &[u32], sink: &mut dyn StageSink) -> Result<Logits, SubjectError> {
        let folder = k3_core::host::files::scratch_folder("k3-verify-", None).map_err(failed)?;
        let file = folder.path().join("state");
        let vocabulary = self.0.engine().shape().vocab;
        let mut logits =
            Logits { rows: 0, vocabulary, values: Vec::with_capacity(ids.len() * vocabulary) };
        for id in ids {
            let row = Sequence::feed(&mut self.0, &[*id], sink)?;
            logits.rows += row.rows;
            logits.values.extend(row.values);
            self.through(&file)?;
        }
        Ok(logits)
    }

    fn state(&self) -> Option<Box<dyn Any>> {
        Sequence::state(&self.0)
    }

    fn set_state(&mut self, state: Box<dyn Any>) {
        Sequence::set_state(&mut self.0, state);
    }
}

/// An engine that is right in memory and wrong when it streams.
struct WrongStream {
    name: String,
    base: Box<dyn SubjectSource>,
    ring: usize,
    hooks: fn(&RawConfig) -> Arc<dyn FaultHooks>,
}

impl SubjectSource for WrongStream {
    fn name(&self) -> &str {
        &self.name
    }

    fn precision(&self) -> Precision {
        Precision::F32
    }

    fn offers(&self) -> &[Needs] {
        self.base.offers()
    }

    fn open(&self, model: Opening<'_>) -> Result<Box<dyn Subject>, SubjectError> {
        self.base.open(model)
    }

    fn operation(&self, case: KernelCase<'_>) -> Answer {
        self.base.operation(case)
    }

    fn variants(&self) -> Vec<Variant> {
        let way = Way {
            ring: self.ring,
            slots: Slots::Half,
            ..plain(KernelPath::detect(), EngineOptions::default())
        };
        vec![Variant {
            name: format!("ring {}, {} slots", way.ring, way.slots.name()),
            tokens: TOKENS,
            source: Box::new(Streamed { way, opened: Opened::default(), hooks: self.hooks }),
        }]
    }
}

/// The mistakes of streaming around the right engine.
pub fn mutants(base: impl Fn() -> Box<dyn SubjectSource>) -> Vec<Mutant> {
    let mutant = |id: &str, what, ring, hooks| Mutant {
        id: id.to_owned(),
        family: 'c',
        clauses: vec!["A11"],
        what,
        source: Box::new(WrongStream {
            name: format!("engine with {id}"),
            base: base(),
            ring,
            hooks,
        }) as Box<dyn SubjectSource>,
    };
    vec![
        mutant(
            "a11-ring-slot-overwritten",
            "the reader of the trunk fills the slot that is in use with the next layer",
            2,
            |config| {
                let count = config.num_hidden_layers;
                Arc::new(RingSlotOverwritten { count })
            },
        ),
        mutant(
            "a11-expert-slot-given-twice",
            "two experts of a batch are read into one slot of the cache",
            0,
            |_| Arc::new(ExpertSlotGivenTwice),
        ),
        mutant(
            "a11-stale-read-published",
            "a read that was lost is published with what the slot held before",
            0,
            |_| Arc::new(StaleReadPublished),
        ),
    ]
}
