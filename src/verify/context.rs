//! One evidence set with one subject opened on it, as the oracle gates use it.

use k3_core::choice::Choice as _;
use std::sync::OnceLock;

use crate::evidence::EvidenceSet;
use crate::noise_floor::{FACTOR, NoiseFloor};
use crate::outcome::{Outcome, Verdict};
use crate::subject::{Generation, Logits, Precision, Subject, SubjectError, SubjectSource};
use k3_core::config::MLA_NORM_EPS;
use k3_core::stages::{NoStages, Stage, StageDump, StageKey};

/// A set, a subject and what has been computed with them so far, so that two gates that need the
/// same pass share it.
pub struct Context<'a> {
    /// The set.
    pub set: &'a EvidenceSet,
    /// Where the subject comes from.
    pub source: &'a dyn SubjectSource,
    /// ε of MLA's two low-rank norms on the subject's side.
    pub mla_norm_eps: f64,
    precision: Option<Precision>,
    /// On the full ids, on the long ones.
    floors: [OnceLock<Result<NoiseFloor, SubjectError>>; 2],
    generated: OnceLock<Option<Result<Generation, SubjectError>>>,
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
            precision: None,
            floors: [OnceLock::new(), OnceLock::new()],
            generated: OnceLock::new(),
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
        let open = || self.source.open(self.set.opening(self.mla_norm_eps));
        self.opened.get_or_init(open).as_deref().map_err(Clone::clone)
    }

    /// Logits of the set's full ids, fed at once into a new sequence.
    ///
    /// # Errors
    ///
    /// What the subject said.
    pub fn full_logits(&self) -> Result<&Logits, SubjectError> {
        self.full.get_or_init(|| self.recompute(&self.set.full.ids)).as_ref().map_err(Clone::clone)
    }

    /// Logits of the set's long sequence, fed at once into a new sequence.
    ///
    /// # Errors
    ///
    /// What the subject said, or that the set has no long sequence.
    pub fn long_logits(&self) -> Result<&Logits, SubjectError> {
        let compute = || match &self.set.long {
            Some(long) => self.recompute(&long.ids),
            None => Err(SubjectError::Failed("the set has no long sequence".to_owned())),
        };
        self.long.get_or_init(compute).as_ref().map_err(Clone::clone)
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
        self.stages.get_or_init(compute).as_ref().map_err(Clone::clone)
    }

    /// Logits of `ids` from an empty state.
    ///
    /// # Errors
    ///
    /// What the subject said.
    pub fn recompute(&self, ids: &[u32]) -> Result<Logits, SubjectError> {
        self.subject()?.sequence().feed(ids, &mut NoStages)
    }

    /// The same with tolerances from the noise floor of a precision; an f64 subject keeps the
    /// set's.
    #[must_use]
    pub fn with_precision(mut self, precision: Option<Precision>) -> Self {
        self.precision = precision.filter(|_| self.source.precision() != Precision::F64);
        self
    }

    /// The precision whose noise floor gives the tolerances.
    #[must_use]
    pub fn precision(&self) -> Option<Precision> {
        self.precision
    }

    /// The same set, ε, precision and floors with nothing computed, for another subject.
    #[must_use]
    pub fn with_source<'b>(&'b self, source: &'b dyn SubjectSource) -> Context<'b> {
        Context {
            precision: self.precision,
            floors: self.floors.clone(),
            ..Context::new(self.set, source, self.mla_norm_eps)
        }
    }

    /// The ids and logits of a subject that decodes the set's prompt on its own, as many ids as
    /// the set has; `None` for a subject that does not.
    #[must_use]
    pub fn generation(&self) -> Option<Result<&Generation, SubjectError>> {
        let set = self.set;
        let decode = || match self.subject() {
            Ok(subject) => subject.generate(&set.prompt_ids, set.greedy_ids.len()),
            Err(_) => None,
        };
        let generated = self.generated.get_or_init(decode).as_ref()?;
        Some(generated.as_ref().map_err(Clone::clone))
    }

    /// The tolerance against the right logits of `ids`: the set's for the subject's precision, or
    /// with a precision asked for, [`FACTOR`] times its noise floor on these ids.
    ///
    /// # Errors
    ///
    /// What the reference says while the floor is measured.
    pub fn logits_tolerance(&self, ids: &[u32]) -> Result<f64, SubjectError> {
        if let Some(floor) = self.noise_floor(ids)? {
            let key = StageKey::model(Stage::Logits);
            let floor = floor.stages.get(&key).map_or(0.0, |floor| floor.max_abs);
            return Ok(FACTOR * floor);
        }
        Ok(match self.source.precision() {
            Precision::F64 => self.set.f64_tolerance,
            _ => self.set.f32_tolerance,
        })
    }

    /// The noise floor of the precision asked for, on the set's full or long ids.
    ///
    /// # Errors
    ///
    /// What the reference says.
    pub fn noise_floor(&self, ids: &[u32]) -> Result<Option<&NoiseFloor>, SubjectError> {
        let Some(precision) = self.precision else {
            return Ok(None);
        };
        let set = self.set;
        let measure = || {
            NoiseFloor::measure(&set.model_dir, MLA_NORM_EPS, ids, precision)
                .map_err(|error| SubjectError::Failed(error.to_string()))
        };
        let [full, long] = &self.floors;
        let place = if ids == set.full.ids { full } else { long };
        place.get_or_init(measure).as_ref().map(Some).map_err(Clone::clone)
    }

    /// The outcome of a gate whose ids cannot judge the precision asked for: NOT APPLICABLE where
    /// rounding alone changes a decision, so that even a right engine may differ from the answers.
    #[must_use]
    pub fn unfit(&self, ids: &[u32]) -> Option<Outcome> {
        let floor = match self.noise_floor(ids) {
            Ok(floor) => floor?,
            Err(error) => return Some(Outcome::without_numbers("", &error)),
        };
        let (name, at) = (floor.precision.name(), floor.flipped.as_ref()?);
        let reason = format!("these ids cannot judge {name}: rounding alone changes {at}");
        Some(Outcome::new(Verdict::NotApplicable, reason))
    }
}
