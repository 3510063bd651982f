//! The subjects that ship: the reference, the engine, and the mutants of both.

mod engine;
mod engine_kernels;
mod inputs;
mod reference_kernels;
mod streamed;
mod wrapped;
mod wrong_engine;

use std::collections::BTreeSet;
use std::error::Error;
use std::iter::successors;

use super::kill_matrix::Mutant;
use super::registry::Needs;
use super::subject::{
    Answer, Generation, KernelCase, Logits, Opening, Precision, Sequence, Subject, SubjectError,
    SubjectSource,
};
use k3_core::stages::{NoStages, StageSink};
use k3_reference as reference;
use k3_reference::rounding::RoundedStages;
use k3_reference::{Formulas, RELEASED, ReferenceError};

/// What our engine refuses. Without threads it was not run, which says nothing of its numbers.
fn refused(error: impl Error + 'static) -> SubjectError {
    let text = error.to_string();
    let mut causes = successors(Some(&error as &dyn Error), |&error| error.source());
    match causes.any(|cause| cause.is::<rayon::ThreadPoolBuildError>()) {
        true => SubjectError::NotRun(text),
        false => SubjectError::Refused(text),
    }
}

pub use wrong_engine::{of_kernels, perturbed};

/// The subjects of the ladder, in the order of its rows.
#[must_use]
pub fn shipped() -> Vec<Box<dyn SubjectSource>> {
    vec![reference_source(), engine::production()]
}

/// The reference as it should be.
fn reference_source() -> Box<dyn SubjectSource> {
    Box::new(ReferenceSource::released())
}

/// The same subjects, and the reference rounded to f32, as rows of the kill matrix that must stay
/// green.
#[must_use]
pub fn controls() -> Vec<Mutant> {
    let control = |source: Box<dyn SubjectSource>| Mutant {
        id: source.name().to_owned(),
        family: '-',
        clauses: Vec::new(),
        what: "unmodified",
        source,
    };
    let rounded = ReferenceSource {
        name: "reference-f32".to_owned(),
        ..ReferenceSource::rounded(Precision::F32)
    };
    shipped().into_iter().chain([Box::new(rounded) as Box<_>]).map(control).collect()
}

/// The right reference with what it keeps rounded to a precision.
#[must_use]
pub fn rounded_reference(precision: Precision) -> Mutant {
    Mutant {
        id: "reference".to_owned(),
        family: '-',
        clauses: Vec::new(),
        what: "unmodified",
        source: Box::new(ReferenceSource::rounded(precision)),
    }
}

/// Every mistake in a clause of the model, of the reference with what it keeps rounded to a
/// precision.
#[must_use]
pub fn rounded_mutants(precision: Precision) -> Vec<Mutant> {
    of_formulas('b', ReferenceSource::rounded(precision)).collect()
}

/// Every mutant, family by family: a, mistakes in a clause of the model, of the f64 reference; b,
/// the same with all outputs rounded to f32, at the engine's tolerances; c, of the engine.
#[must_use]
pub fn mutants() -> Vec<Mutant> {
    of_formulas('a', ReferenceSource::released())
        .chain(wrapped::mutants(reference_source))
        .chain(of_formulas('b', ReferenceSource::rounded(Precision::F32)))
        .chain(wrong_engine::engine_mutants())
        .chain(streamed::mutants(engine::production))
        .collect()
}

/// The mistakes in the formulas of a right reference.
fn of_formulas(family: char, right: ReferenceSource) -> impl Iterator<Item = Mutant> {
    reference::mutants::mutants().into_iter().map(move |mutant| Mutant {
        id: mutant.id.to_owned(),
        family,
        clauses: mutant.clauses.to_vec(),
        what: mutant.what,
        source: Box::new(ReferenceSource {
            name: format!("reference with {}", mutant.id),
            formulas: mutant.formulas,
            ..right.clone()
        }) as Box<dyn SubjectSource>,
    })
}

/// The f64 reference under some formulas.
#[derive(Clone)]
struct ReferenceSource {
    name: String,
    formulas: Formulas,
    /// What it keeps its values in: f64, which is not to round at all, or narrower.
    precision: Precision,
}

impl ReferenceSource {
    fn released() -> Self {
        Self { name: "reference".to_owned(), formulas: RELEASED, precision: Precision::F64 }
    }

    fn rounded(precision: Precision) -> Self {
        Self { precision, ..Self::released() }
    }
}

impl SubjectSource for ReferenceSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn has_contract_bits(&self) -> bool {
        false
    }

    /// Rounding what is carried at every call, the rounded one gives other bits for other calls.
    fn offers(&self) -> &[Needs] {
        match self.precision {
            Precision::F64 => Needs::ALL,
            _ => &[Needs::Stages, Needs::Folder],
        }
    }

    fn open(&self, model: Opening<'_>) -> Result<Box<dyn Subject>, SubjectError> {
        let opened = reference::Model::open_with(model.dir, model.mla_norm_eps, &self.formulas)
            .map_err(|error: ReferenceError| SubjectError::Refused(error.to_string()))?;
        Ok(Box::new(ReferenceSubject { model: opened, stages: RoundedStages(self.precision) }))
    }

    fn operation(&self, case: KernelCase<'_>) -> Answer {
        let mut answer = reference_kernels::run(&self.formulas, case);
        // Stored weights have exact values, which no subject rounds.
        let is_exact = matches!(case.kernel, "mxfp4-decode" | "bf16-widen");
        if let (false, Some(Ok(outputs))) = (is_exact, &mut answer) {
            let values = outputs.values_mut().flatten();
            values.for_each(|value| *value = self.precision.round(*value));
        }
        answer
    }
}

struct ReferenceSubject {
    model: reference::Model,
    /// Rounds what an engine of the precision keeps, before any later step reads it.
    stages: RoundedStages,
}

impl Subject for ReferenceSubject {
    fn sequence(&self) -> Box<dyn Sequence + '_> {
        Box::new(self.model.sequence_with(&self.stages))
    }

    /// The rounded one promises no bits: what it carries is judged by what it decodes.
    fn generate(&self, prompt: &[u32], count: usize) -> Option<Result<Generation, SubjectError>> {
        let decode = || {
            let mut sequence = self.sequence();
            let mut last = sequence.feed(prompt, &mut NoStages)?;
            let mut ids = Vec::with_capacity(count);
            let mut logits = Logits { rows: 0, vocabulary: last.vocabulary, values: Vec::new() };
            while ids.len() < count {
                logits.values.extend_from_slice(last.row(last.rows - 1));
                logits.rows += 1;
                let Some(id) = last.argmax(last.rows - 1) else {
                    return Err(SubjectError::Failed("no finite maximum".to_owned()));
                };
                ids.push(id);
                if ids.len() < count {
                    last = sequence.feed(&[id], &mut NoStages)?;
                }
            }
            Ok(Generation { ids, logits })
        };
        (self.stages.0 != Precision::F64).then(decode)
    }

    fn loaded(&self) -> Option<BTreeSet<String>> {
        Some(self.model.reader().found())
    }
}

impl Sequence for k3_reference::Sequence<'_> {
    fn feed(&mut self, ids: &[u32], sink: &mut dyn StageSink) -> Result<Logits, SubjectError> {
        let logits =
            Self::feed(self, ids, sink).map_err(|error| SubjectError::Failed(error.to_string()))?;
        Ok(Logits { rows: logits.rows, vocabulary: logits.vocabulary, values: logits.values })
    }
}
