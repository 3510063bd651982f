//! A run of the ladder: sets, subjects, gates, and the resulting report.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::answers::{self, AnswerError};
use super::blind::{BlindSpot, blind_spots};
use super::context::Context;
use super::evidence::{EvidenceError, EvidenceSet};
use super::fixtures::Fixtures;
use super::glob::Glob;
use super::kernels::KernelFixtures;
use super::outcome::{Outcome, Verdict};
use super::ratchet::Ratchet;
use super::registry::{Gate, LADDER, On, of_kernels, of_sets};
use super::runner::{SetState, in_parallel, judge_on_set, shipped_kernels, shipped_sets};
use super::subject::{Precision, SubjectSource};
use super::subjects;
use crate::report::gates::{Counts, GateReport, GateRow, Parameters, SetSummary};
use k3_core::config::MLA_NORM_EPS;
use k3_core::exit::Exit;
use k3_core::host::provenance::{Provenance, default_threads};

/// Name of the subject of gates that have none.
const NOBODY: &str = "k3-verify";

/// A ladder to be climbed: everything that a run depends on.
///
/// For another engine's own tests: it is judged by what it offers, and the least is the logits of
/// any ids on a checkpoint in the released layout. A gate that needs more is NOT APPLICABLE, which
/// never counts as a pass.
///
/// ```
/// use k3_gates::{
///     Ladder, Opening, Precision, Recomputed, Subject, SubjectError, SubjectSource,
/// };
/// # mod engine {
/// #     pub struct Loaded(k3_reference::Model);
/// #     impl Loaded {
/// #         pub fn from_folder(folder: &std::path::Path) -> Result<Self, String> {
/// #             let model = k3_reference::Model::open(folder, 1e-6);
/// #             model.map(Self).map_err(|error| error.to_string())
/// #         }
/// #         pub fn logits(&self, ids: &[u32]) -> Result<Vec<f32>, String> {
/// #             let logits = self.0.sequence().feed(ids, &mut k3_core::stages::NoStages);
/// #             let values = logits.map_err(|error| error.to_string())?.values;
/// #             Ok(values.into_iter().map(|value| value as f32).collect())
/// #         }
/// #     }
/// # }
///
/// struct MyEngine;
///
/// impl SubjectSource for MyEngine {
///     fn name(&self) -> &str {
///         "my engine"
///     }
///
///     fn precision(&self) -> Precision {
///         Precision::F32
///     }
///
///     fn open(&self, model: Opening<'_>) -> Result<Box<dyn Subject>, SubjectError> {
///         let engine = engine::Loaded::from_folder(model.dir).map_err(SubjectError::Refused)?;
///         // Row-major, one row of the vocabulary per id.
///         let logits = move |ids: &[u32]| engine.logits(ids).map_err(SubjectError::Failed);
///         Ok(Box::new(Recomputed::new(model.config.vocab_size, logits)))
///     }
/// }
///
/// // In a test, panics with the lines of the gates that failed.
/// Ladder::shipped().subject(MyEngine).run().assert_conforms();
/// ```
///
/// An engine that decodes with a cache implements [`Subject`](super::Subject) and its `generate`
/// as well; then the gate `incremental` judges what it carries. One that can show intermediate
/// values, reads checkpoints strictly or promises equal bits says so in
/// [`SubjectSource::offers`] and is asked the rest of the ladder.
pub struct Ladder {
    /// The fixtures that ship and the kernel cases among them; none on other evidence.
    shipped: Option<(Fixtures, Result<KernelFixtures, String>)>,
    sets: Vec<SetState>,
    /// The judged subjects [default: those that ship].
    subjects: Vec<Box<dyn SubjectSource>>,
    only: Option<Glob>,
    mla_norm_eps: f64,
    precision: Option<Precision>,
    threads: usize,
    exhaustive: bool,
    ratchet: bool,
    progress: Box<dyn Fn(usize, usize) + Sync>,
    start: Instant,
}

impl std::fmt::Debug for Ladder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ladder({} sets, {} subjects)", self.sets.len(), self.subjects.len())
    }
}

impl Ladder {
    /// The ladder that ships: kernel fixtures, the tiny oracle and its twins.
    ///
    /// # Panics
    ///
    /// When no temporary folder can be written to unpack them.
    #[must_use]
    pub fn shipped() -> Self {
        Self::of_fixtures(Fixtures::embedded().expect("the shipped fixtures are unpacked"))
    }

    /// The same on fixtures that are open.
    #[must_use]
    pub fn of_fixtures(fixtures: Fixtures) -> Self {
        let (sets, kernels) = (shipped_sets(&fixtures), shipped_kernels(&fixtures));
        Self::new(Some((fixtures, kernels)), sets.into())
    }

    /// The gates of sets alone, on evidence sets in folders. A set is called as its folder is.
    ///
    /// # Errors
    ///
    /// The first set that cannot be read.
    pub fn of_evidence(folders: &[impl AsRef<Path>]) -> Result<Self, EvidenceError> {
        let mut sets: Vec<SetState> = Vec::new();
        for folder in folders {
            let folder = folder.as_ref();
            let base = folder
                .canonicalize()
                .ok()
                .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
                .unwrap_or_else(|| folder.display().to_string());
            let taken = sets.iter().filter(|set| set.name().starts_with(&base)).count();
            let name = if taken == 0 { base } else { format!("{base}-{}", taken + 1) };
            let mut set = EvidenceSet::open(&name, folder)?;
            if !set.states_digest {
                let damage = "damage to expected.safetensors, whose sha256 expected.json lacks";
                set.ignored.push(damage.to_owned());
            }
            sets.push(SetState::Ready(Box::new(set)));
        }
        Ok(Self::new(None, sets))
    }

    fn new(
        shipped: Option<(Fixtures, Result<KernelFixtures, String>)>,
        sets: Vec<SetState>,
    ) -> Self {
        Self {
            shipped,
            sets,
            subjects: Vec::new(),
            only: None,
            mla_norm_eps: MLA_NORM_EPS,
            precision: None,
            threads: default_threads(),
            exhaustive: false,
            ratchet: true,
            progress: Box::new(|_, _| {}),
            start: Instant::now(),
        }
    }

    /// Judges this engine; without any, the reference and the engine that ship.
    #[must_use]
    pub fn subject(mut self, subject: impl SubjectSource + 'static) -> Self {
        self.subjects.push(Box::new(subject));
        self
    }

    /// Runs only the gates whose id matches: SET/GATE, GATE, or either with @SUBJECT; `*` and `?`
    /// are wild.
    #[must_use]
    pub fn only(mut self, pattern: &str) -> Self {
        self.only = Some(Glob::new(pattern));
        self
    }

    /// Gives the subjects this ε of MLA's two low-rank norms instead of the released one.
    #[must_use]
    pub fn mla_norm_eps(mut self, epsilon: f64) -> Self {
        self.mla_norm_eps = epsilon;
        self
    }

    /// Answers the sets anew under [`Ladder::mla_norm_eps`], for subjects that cannot be told it.
    ///
    /// # Errors
    ///
    /// What the reference says of a set's checkpoint.
    pub fn answered_anew(mut self) -> Result<Self, AnswerError> {
        for state in &mut self.sets {
            if let SetState::Ready(set) = state {
                answers::replace(set, self.mla_norm_eps)?;
            }
        }
        Ok(self)
    }

    /// Judges activations of this precision: the tolerance of subjects that are not f64 is 8 times
    /// its measured noise floor instead of what the sets say.
    #[must_use]
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = Some(precision);
        self
    }

    /// Sets the number of threads, at least 1 [default: as many as the process may use].
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Leaves nothing out: `invariance` over every combination of its factors, every gate on the
    /// twins too.
    #[must_use]
    pub fn exhaustive(mut self) -> Self {
        self.exhaustive = true;
        self.sets.iter_mut().for_each(SetState::ask_everything);
        self
    }

    /// Leaves the ratchet out, which is otherwise held to what ships on what ships.
    #[must_use]
    pub fn without_ratchet(mut self) -> Self {
        self.ratchet = false;
        self
    }

    /// Calls this after every gate, with how many are done and how many there are.
    #[must_use]
    pub fn progress(mut self, progress: impl Fn(usize, usize) + Sync + 'static) -> Self {
        self.progress = Box::new(progress);
        self
    }

    /// The sets, in the order in which they are climbed.
    #[must_use]
    pub fn sets(&self) -> &[SetState] {
        &self.sets
    }

    /// Runs it: what ships first, then set by set, gate by gate, subject by subject.
    #[must_use]
    pub fn run(&self) -> GateReport {
        let ours = if self.subjects.is_empty() { subjects::shipped() } else { Vec::new() };
        let subjects = if self.subjects.is_empty() { &ours } else { &self.subjects };
        let mut rows = self.on_fixtures();
        let contexts = self.contexts(subjects);
        rows.extend(self.climb(subjects, &contexts));
        let is_recorded = self.shipped.is_some() && !ours.is_empty() && self.precision.is_none();
        if self.ratchet && is_recorded && self.mla_norm_eps == MLA_NORM_EPS {
            Ratchet::shipped().judge(&mut rows, subjects);
        }
        let counts = Counts::of(rows.iter().map(|row| row.outcome.verdict));
        let blind = self.blind_spots(&rows, &contexts, counts);
        rows.retain(|row| row.outcome.verdict != Verdict::NotSelected);
        let parameters = Parameters {
            mla_norm_eps: self.mla_norm_eps,
            released_mla_norm_eps: MLA_NORM_EPS,
            precision: self.precision,
            only: self.only.as_ref().map(|glob| glob.pattern().to_owned()),
            fixtures: match &self.shipped {
                None => "none",
                Some((fixtures, _)) if fixtures.is_embedded() => "embedded",
                Some(_) => "folder",
            },
        };
        GateReport::new(
            subjects.iter().map(|subject| subject.name().to_owned()).collect(),
            parameters,
            counts,
            blind,
            self.sets.iter().map(SetSummary::of).collect(),
            rows,
            Provenance::since(self.start, self.threads, Vec::new()),
        )
    }

    /// The gates that judge no subject, as far as they are selected.
    fn on_fixtures(&self) -> Vec<GateRow> {
        let mut rows = Vec::new();
        for gate in LADDER {
            if let (On::Shipped(check), Some((fixtures, _))) = (gate.on, &self.shipped)
                && self.selects(gate, "", NOBODY)
            {
                rows.push(GateRow::new(gate, "", NOBODY, check(fixtures)));
            }
        }
        rows
    }

    /// Every subject on every set; none on one that is not run.
    fn contexts<'a>(&'a self, subjects: &'a [Box<dyn SubjectSource>]) -> Vec<Vec<Context<'a>>> {
        let on_set = |state: &'a SetState| match state {
            SetState::Ready(set) => {
                let sources = subjects.iter().map(AsRef::as_ref);
                sources.map(|source| self.context(set, source)).collect()
            }
            SetState::NotRun { .. } => Vec::new(),
        };
        self.sets.iter().map(on_set).collect()
    }

    /// What a precision narrower than f32 hides from the gates on sets that all its subjects
    /// passed; nothing is to be said of a verdict that is not a pass.
    fn blind_spots(
        &self,
        rows: &[GateRow],
        contexts: &[Vec<Context<'_>>],
        counts: Counts,
    ) -> Option<Vec<BlindSpot>> {
        self.precision.filter(|p| *p < Precision::F32 && counts.exit() == Exit::Conforms)?;
        let is_passed = |gate: &Gate, context: &Context<'_>| {
            let subject = context.source.name();
            let is_it = |row: &&GateRow| row.gate == gate.id && row.set == context.set.name;
            let row = rows.iter().filter(is_it).find(|row| row.subject == subject);
            row.is_some_and(|row| row.outcome.verdict == Verdict::Pass)
        };
        let mut passed = Vec::new();
        for on_set in contexts {
            let judged: Vec<_> = on_set.iter().filter(|c| c.precision().is_some()).collect();
            let Some(first) = judged.first() else { continue };
            let gates = of_sets().filter(|gate| judged.iter().all(|c| is_passed(gate, c)));
            passed.extend(gates.map(|gate| (gate, *first)));
        }
        Some(blind_spots(&passed, self.threads, &*self.progress))
    }

    /// The others, in the order of the ladder.
    fn climb(
        &self,
        subjects: &[Box<dyn SubjectSource>],
        contexts: &[Vec<Context<'_>>],
    ) -> Vec<GateRow> {
        let on_kernels = of_kernels().filter(|_| self.shipped.is_some()).map(|gate| (gate, None));
        let on_sets = self.sets.iter().zip(contexts);
        let on_sets = on_sets.flat_map(|set| of_sets().map(move |gate| (gate, Some(set))));
        let rungs: Vec<_> = on_kernels.chain(on_sets).collect();
        let (count, jobs) = (subjects.len(), rungs.len() * subjects.len());
        let done = AtomicUsize::new(0);
        let row = |job: usize| {
            let ((gate, set), place) = (rungs[job / count], job % count);
            let source = subjects[place].as_ref();
            let set_name = set.map_or("", |(state, _)| state.name());
            let outcome = match set {
                _ if !self.selects(gate, set_name, source.name()) => {
                    Outcome::new(Verdict::NotSelected, "")
                }
                Some((SetState::NotRun { reason, .. }, _)) => Outcome::new(Verdict::NotRun, reason),
                Some((SetState::Ready(_), contexts)) => judge_on_set(gate, &contexts[place]),
                None => self.judge_kernel(gate, source),
            };
            (self.progress)(done.fetch_add(1, Ordering::Relaxed) + 1, jobs);
            GateRow::new(gate, set_name, source.name(), outcome)
        };
        // From the top: the upper rungs take longest, and a long one begun last would have one
        // thread wait for another.
        let mut rows = in_parallel(self.threads, jobs, |job| row(jobs - 1 - job));
        rows.reverse();
        rows
    }

    fn judge_kernel(&self, gate: &Gate, source: &dyn SubjectSource) -> Outcome {
        match &self.shipped {
            Some((_, Ok(kernels))) => kernels.judge(gate, source),
            Some((_, Err(reason))) => Outcome::new(Verdict::NotRun, reason),
            None => Outcome::new(Verdict::NotRun, "no kernel fixtures"),
        }
    }

    fn context<'a>(&self, set: &'a EvidenceSet, source: &'a dyn SubjectSource) -> Context<'a> {
        Context::new(set, source, self.mla_norm_eps)
            .with_precision(self.precision)
            .exhaustively(self.exhaustive)
    }

    /// Whether the pattern selects a gate: it may name the full id, the gate alone, or either with
    /// `@SUBJECT`.
    fn selects(&self, gate: &Gate, set: &str, subject: &str) -> bool {
        self.only.as_ref().is_none_or(|glob| {
            [gate.full_id(set), gate.id.to_owned()]
                .iter()
                .any(|id| glob.matches(id) || glob.matches(&format!("{id}@{subject}")))
        })
    }
}
