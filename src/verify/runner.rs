//! One gate on one subject, many of them in parallel, and the sets that ship.
//!
//! Workers are plain threads that take the next gate from a counter. They are not tasks of a
//! work-stealing pool: two gates may wait for the same pass, and a stolen task that waits for the
//! pass below it on its own stack would wait forever.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::context::Context;
use super::evidence::{EvidenceError, EvidenceSet};
use super::fixtures::{FileProblem, Fixtures, TWINS};
use super::kernels::KernelFixtures;
use super::outcome::{Outcome, Verdict};
use super::registry::{Gate, On};

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

/// Runs one gate on the subject of `context`: on the kernel fixtures or on the context's set.
#[must_use]
pub fn judge(gate: &Gate, kernels: &KernelFixtures, context: &Context<'_>) -> Outcome {
    match gate.on {
        On::Kernel => kernels.judge(gate, context.source),
        On::Set { .. } | On::Shipped(_) => judge_on_set(gate, context),
    }
}

/// Runs one gate on a set.
#[must_use]
pub fn judge_on_set(gate: &Gate, context: &Context<'_>) -> Outcome {
    let On::Set { applies, check } = gate.on else {
        return Outcome::new(Verdict::NotApplicable, "does not apply to evidence sets");
    };
    match applies(context.set).err().or_else(|| gate.needs.missing_in(context.source)) {
        Some(reason) => Outcome::new(Verdict::NotApplicable, reason),
        None => check(context),
    }
}

/// Runs `count` jobs on up to `threads` threads, one of them the caller's; results come back in the
/// order of the jobs. Where the system grants fewer threads, those do the work.
pub fn in_parallel<T: Send>(
    threads: usize,
    count: usize,
    job: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(count));
    let work = || {
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
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(count) {
            if std::thread::Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    let mut results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// The sets that ship: the tiny oracle and its twins.
#[must_use]
pub fn shipped_sets(fixtures: &Fixtures) -> [SetState; 1 + TWINS.len()] {
    let tiny = match fixtures.problem_below("tiny/") {
        Some(finding) => not_run("tiny", &format!("fixture {finding}")),
        None => ready("tiny", EvidenceSet::open("tiny", &fixtures.root.join("tiny"))),
    };
    let [mild, faint] = TWINS.map(|twin| twin_of_tiny(fixtures, twin));
    [tiny, mild, faint]
}

fn twin_of_tiny(fixtures: &Fixtures, twin: &str) -> SetState {
    let needed = [format!("{twin}/"), "tiny/model/".to_owned()];
    if let Some(finding) = needed.iter().find_map(|below| fixtures.problem_below(below)) {
        return not_run(twin, &format!("fixture {finding}"));
    }
    match fixtures.compose_twin(twin) {
        Ok(model) => {
            let set = EvidenceSet::open_parts(twin, &model, &fixtures.root.join(twin));
            ready(twin, set.map(|set| EvidenceSet { twin: true, ..set }))
        }
        Err(error) => not_run(twin, &error.to_string()),
    }
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

/// The kernel fixtures and the first set that ships: what mutants and perturbations are judged on.
///
/// # Errors
///
/// The first file that is missing or damaged.
pub fn shipped_evidence(fixtures: &Fixtures) -> Result<(KernelFixtures, Box<EvidenceSet>), String> {
    let [tiny, ..] = shipped_sets(fixtures);
    match tiny {
        SetState::Ready(tiny) => Ok((shipped_kernels(fixtures)?, tiny)),
        SetState::NotRun { name, reason } => Err(format!("set {name}: {reason}")),
    }
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
        None => format!("{} files match the manifest", fixtures.checked),
        Some(first) => first.to_string(),
    };
    let mut outcome = Outcome::new(verdict, summary);
    outcome.details = fixtures.findings.iter().skip(1).map(ToString::to_string).collect();
    outcome
}
