//! Runs the ladder: which gates on which sets with which subjects, in parallel, reported in order.
//!
//! Workers are plain threads that take the next gate from a counter. They are not tasks of a
//! work-stealing pool: two gates may wait for the same pass, and a stolen task that waits for the
//! pass below it on its own stack would wait for ever.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::context::Context;
use super::evidence::{EvidenceError, EvidenceSet};
use super::fixtures::{FileProblem, FixtureError, Fixtures};
use super::glob::Glob;
use super::kernels::{KERNEL_GATES, KernelFixtures, KernelGate};
use super::outcome::{Outcome, Verdict};
use super::registry::{Gate, ORACLE_GATES};
use super::subject::{Precision, SubjectSource};

/// What to run.
pub struct Plan<'a> {
    /// The kernel fixtures, or why they cannot be used; none beside other evidence.
    pub kernels: Option<&'a Result<KernelFixtures, String>>,
    /// The sets to climb, in order.
    pub sets: &'a [SetState],
    /// The subjects, in order.
    pub subjects: &'a [Box<dyn SubjectSource>],
    /// Gates to leave in; all without a pattern.
    pub only: Option<&'a Glob>,
    /// ε of MLA's two low-rank norms on the subject's side.
    pub mla_norm_eps: f64,
    /// The precision whose measured noise floor gives the budgets of subjects that are not f64;
    /// without it the sets' own tolerances do.
    pub precision: Option<Precision>,
    /// Worker threads, at least 1.
    pub threads: usize,
    /// Whether `invariance` takes every combination of its factors.
    pub exhaustive: bool,
}

impl std::fmt::Debug for Plan<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Plan({} sets, {} subjects)", self.sets.len(), self.subjects.len())
    }
}

/// A set that is ready, or why it is not.
#[derive(Debug)]
pub enum SetState {
    /// Read and consistent.
    Ready(Box<EvidenceSet>),
    /// A file of it is missing or damaged; its gates cannot be run.
    NotRun {
        /// Name of the set.
        name: String,
        /// The file and what is wrong with it.
        reason: String,
    },
}

impl SetState {
    /// Name of the set.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Ready(set) => &set.name,
            Self::NotRun { name, .. } => name,
        }
    }

    /// Asks a twin also what is asked of the set it is the twin of.
    pub fn ask_everything(&mut self) {
        if let Self::Ready(set) = self {
            set.twin = false;
        }
    }
}

/// One line of the ladder: a gate, a set, a subject and what came out.
#[derive(Debug, Clone)]
pub struct Row {
    /// Name of the set; `kernels` for the kernel gates.
    pub set: String,
    /// Name of the gate.
    pub gate: &'static str,
    /// What passes.
    pub what: &'static str,
    /// How far off is allowed.
    pub budget: &'static str,
    /// Name of the subject.
    pub subject: String,
    /// What came out.
    pub outcome: Outcome,
}

impl Row {
    /// `SET/GATE`.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}/{}", self.set, self.gate)
    }
}

/// Name under which the kernel gates stand in the ladder.
pub const KERNELS: &str = "kernels";

/// Gates that ask for nothing but logits and ids.
const GATES_OF_LOGITS: [&str; 4] =
    ["teacher-forcing", "teacher-forcing-long", "greedy", "incremental"];

/// A gate of either kind, with the place of its set.
#[derive(Clone, Copy)]
enum Rung {
    Kernel(&'static KernelGate),
    Oracle(usize, &'static Gate),
}

/// Whether a pattern selects a gate: it may name the full id, the gate alone, or either with
/// `@SUBJECT`.
#[must_use]
pub fn selected(only: Option<&Glob>, set: &str, gate: &str, subject: &str) -> bool {
    only.is_none_or(|glob| {
        let full = format!("{set}/{gate}");
        glob.matches(&full)
            || glob.matches(gate)
            || glob.matches(&format!("{full}@{subject}"))
            || glob.matches(&format!("{gate}@{subject}"))
    })
}

/// Runs the plan and returns its rows: kernels first, then set by set, gate by gate, subject by
/// subject.
#[must_use]
pub fn run(plan: &Plan<'_>) -> Vec<Row> {
    let contexts: Vec<Vec<Context<'_>>> =
        plan.sets.iter().map(|state| contexts_of(plan, state)).collect();
    let mut rungs = Vec::new();
    if plan.kernels.is_some() {
        rungs.extend(KERNEL_GATES.iter().map(Rung::Kernel));
    }
    for (set_index, _) in plan.sets.iter().enumerate() {
        rungs.extend(ORACLE_GATES.iter().map(|gate| Rung::Oracle(set_index, gate)));
    }
    let count = plan.subjects.len();
    let row_of = |job: usize| {
        let (rung, subject_index) = (rungs[job / count], job % count);
        let source = plan.subjects[subject_index].as_ref();
        let (set, gate, what, budget) = match rung {
            Rung::Kernel(gate) => (KERNELS, gate.kernel, gate.what, gate.budget),
            Rung::Oracle(index, gate) => (plan.sets[index].name(), gate.id, gate.what, gate.budget),
        };
        let outcome = if selected(plan.only, set, gate, source.name()) {
            match rung {
                Rung::Kernel(gate) => judge_kernel(plan, gate, source),
                Rung::Oracle(index, gate) => match &plan.sets[index] {
                    SetState::NotRun { reason, .. } => Outcome::new(Verdict::NotRun, reason),
                    SetState::Ready(_) => judge(gate, &contexts[index][subject_index]),
                },
            }
        } else {
            Outcome::new(Verdict::NotSelected, "")
        };
        let (set, subject) = (set.to_owned(), source.name().to_owned());
        Row { set, gate, what, budget, subject, outcome }
    };
    // From the top: the upper rungs take longest, and a long one begun last would have one thread
    // wait for another.
    let jobs = rungs.len() * count;
    let mut rows = in_parallel(plan.threads, jobs, |job| row_of(jobs - 1 - job));
    rows.reverse();
    rows
}

fn contexts_of<'a>(plan: &Plan<'a>, state: &'a SetState) -> Vec<Context<'a>> {
    match state {
        SetState::Ready(set) => plan
            .subjects
            .iter()
            .map(|source| {
                Context::new(set, source.as_ref(), plan.mla_norm_eps)
                    .with_precision(plan.precision)
                    .exhaustively(plan.exhaustive)
            })
            .collect(),
        SetState::NotRun { .. } => Vec::new(),
    }
}

fn judge_kernel(plan: &Plan<'_>, gate: &KernelGate, source: &dyn SubjectSource) -> Outcome {
    match plan.kernels {
        Some(Ok(fixtures)) => fixtures.judge(gate, source),
        Some(Err(reason)) => Outcome::new(Verdict::NotRun, reason),
        None => Outcome::new(Verdict::NotRun, "no kernel fixtures"),
    }
}

/// Runs one gate in one context.
#[must_use]
pub fn judge(gate: &Gate, context: &Context<'_>) -> Outcome {
    if let Err(reason) = (gate.applies)(context.set) {
        return Outcome::new(Verdict::NotApplicable, reason);
    }
    if context.source.logits_only() && !GATES_OF_LOGITS.contains(&gate.id) {
        let summary = "a command is judged by its logits and ids";
        return Outcome::new(Verdict::NotApplicable, summary);
    }
    if let Some(ids) = ids_of_logits(gate, context.set) {
        match context.unfit(ids) {
            Ok(None) => {}
            Ok(Some(reason)) => return Outcome::new(Verdict::NotApplicable, reason),
            Err(error) => return Outcome::failed(error.to_string()),
        }
    }
    (gate.check)(context)
}

/// The ids whose logits a gate holds to the right ones.
fn ids_of_logits<'a>(gate: &Gate, set: &'a EvidenceSet) -> Option<&'a [u32]> {
    match (GATES_OF_LOGITS.contains(&gate.id), &set.long) {
        (true, Some(long)) if gate.id == "teacher-forcing-long" => Some(&long.ids),
        (true, _) => Some(&set.full.ids),
        (false, _) => None,
    }
}

/// Runs `count` jobs on `threads` threads; results come back in the order of the jobs.
pub fn in_parallel<T: Send>(
    threads: usize,
    count: usize,
    job: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(count));
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, count.max(1)) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    let result = job(index);
                    // A poisoned lock means that another job panicked; the scope re-raises that.
                    if let Ok(mut results) = results.lock() {
                        results.push((index, result));
                    }
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// The two sets that ship: the tiny oracle and its mild twin.
#[must_use]
pub fn shipped_sets(fixtures: &Fixtures) -> Vec<SetState> {
    let tiny = match fixtures.problem_below("tiny/") {
        Some(finding) => not_run("tiny", &format!("fixture {finding}")),
        None => ready("tiny", EvidenceSet::open("tiny", &fixtures.root.join("tiny"))),
    };
    let damaged = fixtures.problem_below("mild/").or_else(|| fixtures.problem_below("tiny/model/"));
    let mild = match damaged {
        Some(finding) => not_run("mild", &format!("fixture {finding}")),
        None => match fixtures.compose_mild_twin() {
            Ok(model) => {
                let answers = fixtures.root.join("mild");
                let twin = EvidenceSet::open_parts("mild", &model, &answers);
                ready("mild", twin.map(|set| EvidenceSet { twin: true, ..set }))
            }
            Err(error) => not_run("mild", &error.to_string()),
        },
    };
    vec![tiny, mild]
}

/// The kernel fixtures that ship, or why they cannot be used.
///
/// # Errors
///
/// The first file that is missing or damaged.
pub fn shipped_kernels(fixtures: &Fixtures) -> Result<KernelFixtures, String> {
    let needed = ["kernels/", "tiny/model/config.json"];
    if let Some(finding) = needed.iter().find_map(|below| fixtures.problem_below(below)) {
        return Err(format!("fixture {finding}"));
    }
    let config = k3_checkpoint::config::read(&fixtures.root.join("tiny/model/config.json"))
        .map_err(|error| error.to_string())?;
    KernelFixtures::open(&fixtures.root.join("kernels"), config).map_err(|error| error.to_string())
}

fn ready(name: &str, set: Result<EvidenceSet, EvidenceError>) -> SetState {
    match set {
        Ok(set) => SetState::Ready(Box::new(set)),
        Err(error) => not_run(name, &error.to_string()),
    }
}

fn not_run(name: &str, reason: &str) -> SetState {
    SetState::NotRun { name: name.to_owned(), reason: reason.to_owned() }
}

/// Fixtures from a folder, or the embedded ones.
///
/// # Errors
///
/// [`FixtureError`] when they cannot be opened at all.
pub fn open_fixtures(folder: Option<&PathBuf>) -> Result<Fixtures, FixtureError> {
    match folder {
        Some(folder) => Fixtures::from_folder(folder),
        None => Fixtures::embedded(),
    }
}

/// What the manifest check says: PASS, FAIL for damage, NOT RUN for a missing file.
#[must_use]
pub fn judge_fixtures(fixtures: &Fixtures) -> Outcome {
    let damaged = fixtures.findings.iter().any(|f| f.problem != FileProblem::Missing);
    let verdict = match (fixtures.findings.is_empty(), damaged) {
        (true, _) => Verdict::Pass,
        (false, true) => Verdict::Fail,
        (false, false) => Verdict::NotRun,
    };
    let summary = match fixtures.findings.first() {
        None => format!("{} files as the manifest says", fixtures.checked),
        Some(first) => first.to_string(),
    };
    let mut outcome = Outcome::new(verdict, summary);
    outcome.details = fixtures.findings.iter().skip(1).map(ToString::to_string).collect();
    outcome
}
