//! The engine as a subject, with the run options that must change no bit, and its mutants.

use std::any::Any;
use std::sync::Arc;

use super::{engine_kernels, streamed};
use crate::kill_matrix::Mutant;
use crate::registry::Needs;
use crate::subject::{
    Answer, KernelCase, Logits, Opening, Precision, Sequence, Subject, SubjectError, SubjectSource,
    Variant,
};
use k3_checkpoint::Checkpoint;
use k3_core::stages::StageSink;
use k3_engine::kernels::path::KernelPath;
use k3_engine::model::mutants::perturbed::Site;
use k3_engine::model::{Contract, Engine, EngineOptions, EngineSequence, Operations, mutants};

/// Thread counts that must give the bits of one thread.
const THREADS: [usize; 3] = [2, 3, 8];
/// Prefill chunks that must give the bits of the default chunk; the last is longer than any set.
const CHUNKS: [usize; 4] = [1, 3, 7, 4096];

/// The engine in production.
#[must_use]
pub fn production() -> Box<dyn SubjectSource> {
    let (path, options) = (KernelPath::detect(), EngineOptions::default());
    Box::new(Production { path, options })
}

/// Every mutant of the engine, families (b) and (c).
#[must_use]
pub fn engine_mutants() -> Vec<Mutant> {
    mutants::mutants()
        .into_iter()
        .map(|mutant| Mutant {
            id: mutant.id.to_owned(),
            family: mutant.family.letter(),
            clauses: mutant.clauses.to_vec(),
            what: mutant.what,
            source: Box::new(Wrong {
                name: format!("engine with {}", mutant.id),
                make: Arc::new(move || mutant.operations()),
                options: EngineOptions::default(),
                is_varied: true,
            }),
        })
        .collect()
}

/// The engine with one value off by a relative error.
#[must_use]
pub fn perturbed(site: Site, delta: f64) -> Box<dyn SubjectSource> {
    Box::new(Wrong {
        name: format!("engine with {} off by {delta:e}", site.id),
        make: Arc::new(move || site.operations(delta)),
        options: EngineOptions::default(),
        is_varied: false,
    })
}

/// The operations of an engine without a model: for the kernel gates alone.
pub fn of_operations<O: Operations + ?Sized>(operations: &O) -> impl SubjectSource {
    OperationsSource { operations }
}

struct OperationsSource<'a, O: ?Sized> {
    operations: &'a O,
}

impl<O: Operations + ?Sized> SubjectSource for OperationsSource<'_, O> {
    fn name(&self) -> &str {
        "engine"
    }

    fn precision(&self) -> Precision {
        Precision::F32
    }

    fn open(&self, _model: Opening<'_>) -> Result<Box<dyn Subject>, SubjectError> {
        Err(SubjectError::Refused("single operations only".to_owned()))
    }

    fn operation(&self, case: KernelCase<'_>) -> Answer {
        engine_kernels::run(self.operations, case)
    }
}

struct Production {
    path: KernelPath,
    options: EngineOptions,
}

/// The engine over operations that are wrong somewhere, made anew each time it is opened.
struct Wrong {
    name: String,
    make: Arc<dyn Fn() -> Arc<dyn Operations> + Send + Sync>,
    options: EngineOptions,
    /// Whether it can be run in another way as well.
    is_varied: bool,
}

struct EngineSubject<O: Operations + ?Sized> {
    engine: Arc<Engine<O>>,
}

fn refused(error: impl std::error::Error) -> SubjectError {
    SubjectError::Refused(error.to_string())
}

fn open<O: Operations + ?Sized + 'static>(
    operations: Arc<O>,
    model: Opening<'_>,
    options: EngineOptions,
) -> Result<Box<dyn Subject>, SubjectError> {
    let checkpoint = Checkpoint::open(model.dir).map_err(refused)?;
    let options = EngineOptions { mla_norm_eps: model.mla_norm_eps, ..options };
    let engine = Engine::resident(operations, model.config, &checkpoint, options);
    let engine = engine.map_err(refused)?;
    Ok(Box::new(EngineSubject { engine: Arc::new(engine) }))
}

impl SubjectSource for Production {
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
        open(Arc::new(Contract { path: self.path }), model, self.options)
    }

    fn operation(&self, case: KernelCase<'_>) -> Answer {
        engine_kernels::run(&Contract { path: self.path }, case)
    }

    fn variants(&self) -> Vec<Variant> {
        let other = |name: String, path, options| Variant {
            name,
            tokens: usize::MAX,
            source: Box::new(Self { path, options }),
        };
        let mut variants = Vec::new();
        for path in KernelPath::available() {
            variants.push(other(format!("path {}", path.name()), path, self.options));
        }
        for threads in THREADS {
            let options = EngineOptions { threads, ..self.options };
            variants.push(other(format!("threads {threads}"), self.path, options));
        }
        for chunk_tokens in CHUNKS {
            let options = EngineOptions { chunk_tokens, ..self.options };
            variants.push(other(format!("chunk {chunk_tokens}"), self.path, options));
        }
        variants.extend(streamed::variants(self.path, self.options));
        variants
    }

    fn exhaustive_variants(&self) -> Vec<Variant> {
        let mut variants = self.variants();
        variants.extend(streamed::product(self.path, self.options));
        variants
    }
}

impl SubjectSource for Wrong {
    fn name(&self) -> &str {
        &self.name
    }

    fn precision(&self) -> Precision {
        Precision::F32
    }

    fn offers(&self) -> &[Needs] {
        Needs::ALL
    }

    fn open(&self, model: Opening<'_>) -> Result<Box<dyn Subject>, SubjectError> {
        open((self.make)(), model, self.options)
    }

    fn operation(&self, case: KernelCase<'_>) -> Answer {
        engine_kernels::run(&*(self.make)(), case)
    }

    fn variants(&self) -> Vec<Variant> {
        if !self.is_varied {
            return Vec::new();
        }
        let options = EngineOptions { chunk_tokens: 3, threads: 2, ..self.options };
        vec![Variant {
            name: "chunk 3, threads 2".to_owned(),
            tokens: usize::MAX,
            source: Box::new(Self {
                name: self.name.clone(),
                make: Arc::clone(&self.make),
                options,
                is_varied: true,
            }),
        }]
    }
}

impl<O: Operations + ?Sized + 'static> Subject for EngineSubject<O> {
    fn sequence(&self) -> Box<dyn Sequence + '_> {
        Box::new(EngineSequence::new(Arc::clone(&self.engine)))
    }
}

impl<O: Operations + ?Sized> Sequence for EngineSequence<O> {
    fn feed(&mut self, ids: &[u32], sink: &mut dyn StageSink) -> Result<Logits, SubjectError> {
        let vocabulary = self.engine().shape().vocabulary;
        let values =
            self.feed_with(ids, sink).map_err(|error| SubjectError::Failed(error.to_string()))?;
        let rows = values.len() / vocabulary;
        let values = values.into_iter().map(f64::from).collect();
        Ok(Logits { rows, vocabulary, values })
    }

    fn state(&self) -> Option<Box<dyn Any>> {
        Some(Box::new(self.state.clone()))
    }

    fn set_state(&mut self, state: Box<dyn Any>) {
        if let Ok(state) = state.downcast() {
            self.state = *state;
        }
    }
}
