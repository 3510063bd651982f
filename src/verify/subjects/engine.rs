//! The engine as a subject, with the run options that must change no bit.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::{engine_kernels, refused, streamed};
use crate::registry::Needs;
use crate::subject::{
    Answer, KernelCase, Logits, Opening, Precision, Sequence, Subject, SubjectError, SubjectSource,
    Variant,
};
use k3_checkpoint::Checkpoint;
use k3_core::stages::StageSink;
use k3_engine::kernels::path::KernelPath;
use k3_engine::kernels::table::Kernels;
use k3_engine::model::{
    Engine, EngineError, EngineOptions, EngineSequence, Recorded, Shape, WeightSource,
};

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

struct Production {
    path: KernelPath,
    options: EngineOptions,
}

struct EngineSubject {
    engine: Arc<Engine>,
    loaded: BTreeSet<String>,
}

impl Production {
    fn engine(&self, model: Opening<'_>, source: &dyn WeightSource) -> Result<Engine, EngineError> {
        let mut shape = Shape::derive(model.config)?;
        shape.mla_norm_eps = model.mla_norm_eps;
        Engine::resident(Kernels::on(self.path), shape, source, self.options)
    }
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
        let checkpoint = Checkpoint::open(model.dir).map_err(refused)?;
        let source = Recorded::new(checkpoint);
        let engine = Arc::new(self.engine(model, &source).map_err(refused)?);
        Ok(Box::new(EngineSubject { engine, loaded: source.into_given() }))
    }

    fn operation(&self, case: KernelCase<'_>) -> Answer {
        engine_kernels::run(&Kernels::on(self.path), case)
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

impl Subject for EngineSubject {
    fn sequence(&self) -> Box<dyn Sequence + '_> {
        Box::new(EngineSequence::new(Arc::clone(&self.engine)))
    }

    fn loaded(&self) -> Option<BTreeSet<String>> {
        Some(self.loaded.clone())
    }
}

impl Sequence for EngineSequence {
    fn feed(&mut self, ids: &[u32], sink: &mut dyn StageSink) -> Result<Logits, SubjectError> {
        let vocabulary = self.engine().shape().vocab;
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
