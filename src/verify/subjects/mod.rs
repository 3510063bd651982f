//! The subjects that ship: the reference, the engine, and the mutants of both.

mod engine;
mod engine_kernels;
mod inputs;
mod reference_kernels;
mod streamed;
mod wrapped;

use super::kill_matrix::Mutant;
use super::registry::Needs;
use super::subject::{
    Answer, KernelCase, Logits, Opening, Precision, Sequence, Subject, SubjectError, SubjectSource,
};
use k3_core::stages::StageSink;
use k3_reference as reference;
use k3_reference::{Formulas, RELEASED, ReferenceError};

pub use engine::{of_operations, perturbed};

/// The subjects of the ladder, in the order of its rows.
#[must_use]
pub fn shipped() -> Vec<Box<dyn SubjectSource>> {
    vec![reference_source(), engine::production()]
}

/// The reference as it should be.
fn reference_source() -> Box<dyn SubjectSource> {
    Box::new(ReferenceSource { name: "reference".to_owned(), formulas: RELEASED })
}

/// The same subjects as rows of the kill matrix that must stay green.
#[must_use]
pub fn controls() -> Vec<Mutant> {
    let control = |source: Box<dyn SubjectSource>| Mutant {
        id: source.name().to_owned(),
        family: '-',
        clauses: Vec::new(),
        what: "nothing is changed",
        source,
    };
    shipped().into_iter().map(control).collect()
}

/// Every mutant, family by family.
#[must_use]
pub fn mutants() -> Vec<Mutant> {
    let of_formulas = reference::mutants::mutants().into_iter().map(|mutant| Mutant {
        id: mutant.id.to_owned(),
        family: 'a',
        clauses: mutant.clauses.to_vec(),
        what: mutant.what,
        source: Box::new(ReferenceSource {
            name: format!("reference with {}", mutant.id),
            formulas: mutant.formulas,
        }),
    });
    of_formulas
        .chain(wrapped::mutants(reference_source))
        .chain(engine::engine_mutants())
        .chain(streamed::mutants(engine::production))
        .collect()
}

/// The f64 reference under some formulas.
struct ReferenceSource {
    name: String,
    formulas: Formulas,
}

impl SubjectSource for ReferenceSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn precision(&self) -> Precision {
        Precision::F64
    }

    fn offers(&self) -> &[Needs] {
        Needs::ALL
    }

    fn open(&self, model: Opening<'_>) -> Result<Box<dyn Subject>, SubjectError> {
        let opened = reference::Model::open_with(model.dir, model.mla_norm_eps, &self.formulas)
            .map_err(|error: ReferenceError| SubjectError::Refused(error.to_string()))?;
        Ok(Box::new(opened))
    }

    fn operation(&self, case: KernelCase<'_>) -> Answer {
        reference_kernels::run(&self.formulas, case)
    }
}

impl Subject for reference::Model {
    fn sequence(&self) -> Box<dyn Sequence + '_> {
        Box::new(Self::sequence(self))
    }
}

impl Sequence for reference::Sequence<'_> {
    fn feed(&mut self, ids: &[u32], sink: &mut dyn StageSink) -> Result<Logits, SubjectError> {
        let logits =
            Self::feed(self, ids, sink).map_err(|error| SubjectError::Failed(error.to_string()))?;
        Ok(Logits { rows: logits.rows, vocabulary: logits.vocabulary, values: logits.values })
    }
}
