//! One evidence set with one subject opened on it: what the oracle gates look at.

use std::sync::OnceLock;

use crate::gates::evidence::EvidenceSet;
use crate::gates::subject::{Logits, Precision, Subject, SubjectError, SubjectSource};
use crate::stages::{NoStages, StageDump};

/// A set, a subject and what has been computed with them so far, so that two gates that need the
/// same pass share it.
pub struct Context<'a> {
    /// The set.
    pub set: &'a EvidenceSet,
    /// Where the subject comes from.
    pub source: &'a dyn SubjectSource,
    /// ε of MLA's two low-rank norms on the subject's side.
    pub mla_norm_eps: f64,
    /// Whether `invariance` takes every combination of its factors.
    pub exhaustive: bool,
    opened: OnceLock<Result<Box<dyn Subject>, SubjectError>>,
    full: OnceLock<Result<Logits, SubjectError>>,
    long: OnceLock<Result<Logits, SubjectError>>,
    stages: OnceLock<Result<StageDump, SubjectError>>,
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Context({} on {})", self.source.name(), self.set.name)
    }
}

impl<'a> Context<'a> {
    /// A context in which nothing has been opened yet.
    #[must_use]
    pub fn new(set: &'a EvidenceSet, source: &'a dyn SubjectSource, mla_norm_eps: f64) -> Self {
        Self {
            set,
            source,
            mla_norm_eps,
            exhaustive: false,
            opened: OnceLock::new(),
            full: OnceLock::new(),
            long: OnceLock::new(),
            stages: OnceLock::new(),
        }
    }

    /// The same, with every combination of `invariance` if `exhaustive`.
    #[must_use]
    pub fn exhaustively(mut self, exhaustive: bool) -> Self {
        self.exhaustive = exhaustive;
        self
    }

    /// The opened subject.
    ///
    /// # Errors
    ///
    /// What the subject said when it refused the checkpoint.
    pub fn subject(&self) -> Result<&dyn Subject, SubjectError> {
        let open = || {
            self.source
                .open(&self.set.model_dir, &self.set.config, self.mla_norm_eps)
        };
        self.opened
            .get_or_init(open)
            .as_deref()
            .map_err(Clone::clone)
    }

    /// Logits of the set's full ids, fed at once into a new sequence.
    ///
    /// # Errors
    ///
    /// What the subject said.
    pub fn full_logits(&self) -> Result<&Logits, SubjectError> {
        self.full
            .get_or_init(|| self.recompute(&self.set.full.ids))
            .as_ref()
            .map_err(Clone::clone)
    }

    /// Logits of the set's long sequence, fed at once into a new sequence.
    ///
    /// # Errors
    ///
    /// What the subject said, or that the set has no long sequence.
    pub fn long_logits(&self) -> Result<&Logits, SubjectError> {
        let compute = || match &self.set.long {
            Some(long) => self.recompute(&long.ids),
            None => Err(SubjectError::Failed(
                "the set has no long sequence".to_owned(),
            )),
        };
        self.long
            .get_or_init(compute)
            .as_ref()
            .map_err(Clone::clone)
    }

    /// Stage tensors of the rows for which the set has stages.
    ///
    /// # Errors
    ///
    /// What the subject said.
    pub fn stage_dump(&self) -> Result<&StageDump, SubjectError> {
        let compute = || {
            let mut dump = StageDump::default();
            let ids = &self.set.full.ids[..self.set.stage_rows];
            self.subject()?.sequence().feed(ids, &mut dump)?;
            Ok(dump)
        };
        self.stages
            .get_or_init(compute)
            .as_ref()
            .map_err(Clone::clone)
    }

    /// Logits of `ids` from an empty state.
    ///
    /// # Errors
    ///
    /// What the subject said.
    pub fn recompute(&self, ids: &[u32]) -> Result<Logits, SubjectError> {
        self.subject()?.sequence().feed(ids, &mut NoStages)
    }

    /// The tolerance against `logits.f64` for the subject's precision.
    #[must_use]
    pub fn logits_tolerance(&self) -> f64 {
        match self.source.precision() {
            Precision::F64 => self.set.f64_tolerance,
            Precision::F32 => self.set.f32_tolerance,
        }
    }
}
