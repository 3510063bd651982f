//! Wrong variants of the engine as subjects: the mutants, and the engine with one value off by δ.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::engine_kernels;
use crate::kill_matrix::Mutant;
use crate::mutants::perturbed::{Delta, Site};
use crate::mutants::{Carried, EngineMutant, WrongEngine, mutants};
use crate::registry::Needs;
use crate::subject::{
    Answer, KernelCase, Logits, Opening, Precision, Sequence, Subject, SubjectError, SubjectSource,
    Variant,
};
use k3_checkpoint::Checkpoint;
use k3_core::stages::{Stage, StageKey, StageSink};
use k3_engine::kernels::table::Kernels;
use k3_engine::model::{Engine, EngineOptions, EngineSequence, Recorded, Shape};

/// Every mutant of the engine.
#[must_use]
pub fn engine_mutants() -> Vec<Mutant> {
    let mutant = |mutant: EngineMutant| Mutant {
        id: mutant.id.to_owned(),
        family: 'c',
        clauses: mutant.clauses.to_vec(),
        what: mutant.what,
        source: Box::new(of_mutant(mutant)) as Box<dyn SubjectSource>,
    };
    mutants().into_iter().map(mutant).collect()
}

/// The engine with a mistake.
fn of_mutant(mutant: EngineMutant) -> impl SubjectSource {
    Wrong {
        name: format!("engine with {}", mutant.id),
        make: Arc::new(move || mutant.engine()),
        off: None,
        options: EngineOptions::default(),
    }
}

/// The engine with one value off by a relative error.
#[must_use]
pub fn perturbed(site: Site, delta: f64) -> Box<dyn SubjectSource> {
    let off = Off { delta: Delta(delta), stage: site.stage() };
    Box::new(Wrong {
        name: format!("engine with {} off by {delta:e}", site.id),
        make: Arc::new(move || site.engine(off.delta)),
        off: Some(off),
        options: EngineOptions::default(),
    })
}

/// The kernels of an engine without a model: for the kernel gates alone.
pub fn of_kernels(kernels: Kernels) -> impl SubjectSource {
    KernelsSource { kernels }
}

struct KernelsSource {
    kernels: Kernels,
}

impl SubjectSource for KernelsSource {
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
        engine_kernels::run(&self.kernels, case)
    }
}

/// How far one value of an engine is off, and the stage whose values are off as they are put out.
#[derive(Debug, Clone, Copy)]
struct Off {
    delta: Delta,
    stage: Option<Stage>,
}

impl Off {
    fn run<T>(this: Option<Self>, work: impl FnOnce() -> T) -> T {
        match this {
            Some(off) => off.delta.within(work),
            None => work(),
        }
    }

    /// Perturbs the values of the stage, which are f32.
    fn values(&self, values: &[f64]) -> Vec<f64> {
        let single = |value: &f64| f64::from(self.delta.single(*value as f32));
        values.iter().map(single).collect()
    }
}

/// An engine that is wrong somewhere, made anew each time it is opened.
struct Wrong {
    name: String,
    make: Arc<dyn Fn() -> WrongEngine + Send + Sync>,
    off: Option<Off>,
    options: EngineOptions,
}

struct WrongSubject {
    engine: Arc<Engine>,
    loaded: BTreeSet<String>,
    carried: Option<Arc<dyn Carried>>,
    off: Option<Off>,
}

struct WrongSequence<'a> {
    subject: &'a WrongSubject,
    sequence: EngineSequence,
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
        let refused = |error: &dyn std::fmt::Display| SubjectError::Refused(error.to_string());
        let checkpoint = Checkpoint::open(model.dir).map_err(|error| refused(&error))?;
        let mut shape = Shape::derive(model.config).map_err(|error| refused(&error))?;
        shape.mla_norm_eps = model.mla_norm_eps;
        let wrong = (self.make)();
        let source = Recorded::new(checkpoint);
        let engine = wrong.open(shape, &source, self.options);
        let engine = Arc::new(engine.map_err(|error| refused(&error))?);
        let (loaded, carried) = (source.into_given(), wrong.carried);
        Ok(Box::new(WrongSubject { engine, loaded, carried, off: self.off }))
    }

    fn operation(&self, case: KernelCase<'_>) -> Answer {
        Off::run(self.off, || engine_kernels::run(&(self.make)().kernels, case))
    }

    fn variants(&self) -> Vec<Variant> {
        if self.off.is_some() {
            return Vec::new();
        }
        let options = EngineOptions { chunk_tokens: 3, threads: 2 };
        let (name, make) = (self.name.clone(), Arc::clone(&self.make));
        vec![Variant {
            name: "chunk 3, threads 2".to_owned(),
            tokens: usize::MAX,
            source: Box::new(Self { name, make, off: None, options }),
        }]
    }
}

impl Subject for WrongSubject {
    fn sequence(&self) -> Box<dyn Sequence + '_> {
        let sequence = EngineSequence::new(Arc::clone(&self.engine));
        Box::new(WrongSequence { subject: self, sequence })
    }

    fn loaded(&self) -> Option<BTreeSet<String>> {
        Some(self.loaded.clone())
    }
}

impl WrongSequence<'_> {
    /// Feeds a chunk at a time, so that what comes between calls comes between chunks.
    fn feed_chunks(
        &mut self,
        ids: &[u32],
        sink: &mut dyn StageSink,
    ) -> Result<Logits, SubjectError> {
        let Some(carried) = &self.subject.carried else {
            return Sequence::feed(&mut self.sequence, ids, sink);
        };
        let vocabulary = self.subject.engine.shape().vocab;
        let mut all = Logits { rows: 0, vocabulary, values: Vec::new() };
        for chunk in ids.chunks(self.subject.engine.options().chunk_tokens) {
            carried.before(&mut self.sequence.state);
            let logits = Sequence::feed(&mut self.sequence, chunk, sink)?;
            carried.after(&mut self.sequence.state);
            all.rows += logits.rows;
            all.values.extend(logits.values);
        }
        Ok(all)
    }
}

impl Sequence for WrongSequence<'_> {
    fn feed(&mut self, ids: &[u32], sink: &mut dyn StageSink) -> Result<Logits, SubjectError> {
        let off = self.subject.off;
        let Some(Off { stage: Some(stage), .. }) = off else {
            return Off::run(off, || self.feed_chunks(ids, sink));
        };
        let mut sink = OffSink { sink, stage, off };
        let mut logits = Off::run(off, || self.feed_chunks(ids, &mut sink))?;
        if let (Stage::Logits, Some(off)) = (stage, off) {
            logits.values = off.values(&logits.values);
        }
        Ok(logits)
    }

    fn state(&self) -> Option<Box<dyn Any>> {
        Sequence::state(&self.sequence)
    }

    fn set_state(&mut self, state: Box<dyn Any>) {
        Sequence::set_state(&mut self.sequence, state);
    }
}

/// Perturbs the values of one stage on their way.
struct OffSink<'a> {
    sink: &'a mut dyn StageSink,
    stage: Stage,
    off: Option<Off>,
}

impl StageSink for OffSink<'_> {
    fn wants(&self, key: StageKey) -> bool {
        self.sink.wants(key)
    }

    fn put(&mut self, key: StageKey, shape: &[usize], values: &[f64]) {
        match self.off {
            Some(off) if key.stage == self.stage => self.sink.put(key, shape, &off.values(values)),
            _ => self.sink.put(key, shape, values),
        }
    }

    fn put_ids(&mut self, key: StageKey, shape: &[usize], ids: &[i32]) {
        self.sink.put_ids(key, shape, ids);
    }
}
