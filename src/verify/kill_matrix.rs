//! The kill matrix: every mutant against every gate.
//!
//! A mutant is a subject with one planted mistake. A gate that no mutant turns red does not count,
//! a clause without a mutant is not covered, and a mutant that no gate catches is a survivor: each
//! of these is a hole in the ladder, which the matrix shows.
//!
//! The gates after teacher forcing run the model many times. A mutant that teacher forcing catches
//! skips them unless every cell is asked for: neither its fate nor the first gate to catch it can
//! change.

use std::collections::BTreeMap;

use super::context::Context;
use super::evidence::EvidenceSet;
use super::kernels::KernelFixtures;
use super::outcome::{Outcome, Verdict};
use super::registry::{Gate, TEACHER_FORCING, of_subjects};
use super::runner::{in_parallel, judge};
use super::subject::SubjectSource;
use k3_core::clauses::Clause;

/// A subject with one planted mistake.
pub struct Mutant {
    /// Short name.
    pub id: String,
    /// `a`: of the f64 reference; `b`: the same at the engine's tolerances; `c`: of the engine.
    pub family: char,
    /// Ids of the clauses it breaks.
    pub clauses: Vec<&'static str>,
    /// The mistake in one sentence.
    pub what: &'static str,
    /// The subject.
    pub source: Box<dyn SubjectSource>,
}

impl std::fmt::Debug for Mutant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mutant({})", self.id)
    }
}

/// What became of one mutant.
#[derive(Debug, Clone)]
pub struct MutantRow {
    /// Short name.
    pub id: String,
    /// Family.
    pub family: char,
    /// Clauses it breaks.
    pub clauses: Vec<&'static str>,
    /// The mistake.
    pub what: &'static str,
    /// One verdict per gate, in the order of the ladder.
    pub verdicts: Vec<Verdict>,
    /// Summary of the first gate that turned red.
    pub first_failure: Option<String>,
}

impl MutantRow {
    /// Whether some gate turned red.
    #[must_use]
    pub fn killed(&self) -> bool {
        self.verdicts.contains(&Verdict::Fail)
    }

    /// Places of the gates that turned red.
    pub fn killers(&self) -> impl Iterator<Item = usize> + '_ {
        self.verdicts.iter().enumerate().filter(|(_, v)| **v == Verdict::Fail).map(|(i, _)| i)
    }
}

/// The whole matrix.
#[derive(Debug, Clone)]
pub struct KillMatrix {
    /// Ids of the gates, in the order of the ladder.
    pub gates: Vec<String>,
    /// One row per mutant.
    pub rows: Vec<MutantRow>,
}

/// How the clauses of one table are covered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coverage {
    /// Clauses with at least one killed mutant.
    pub covered: usize,
    /// All clauses of the table.
    pub total: usize,
    /// Ids of the clauses without one.
    pub uncovered: Vec<&'static str>,
}

impl Coverage {
    /// In percent.
    #[must_use]
    pub fn percent(&self) -> f64 {
        100.0 * self.covered as f64 / self.total as f64
    }
}

/// How the matrix is run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// ε of MLA's two low-rank norms on the subjects' side.
    pub mla_norm_eps: f64,
    /// Worker threads, at least 1.
    pub threads: usize,
    /// Run the gates after teacher forcing on mutants that it catches as well.
    pub every_cell: bool,
}

/// A mutant that stumbles over its own mistake has been seen: a panic is a red gate.
pub(super) fn caught(run: impl FnOnce() -> Outcome) -> Outcome {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run))
        .unwrap_or_else(|_| Outcome::failed("the mutant panicked"))
}

impl KillMatrix {
    /// Runs the mutants through the gates on the kernel fixtures and on `set`; `tick` is called
    /// after each.
    #[must_use]
    pub fn run(
        kernels: &KernelFixtures,
        set: &EvidenceSet,
        mutants: &[Mutant],
        options: Options,
        tick: &(dyn Fn() + Sync),
    ) -> Self {
        let gates: Vec<String> = of_subjects().map(|gate| gate.full_id(&set.name)).collect();
        let rows = in_parallel(options.threads, mutants.len(), |index| {
            let mutant = &mutants[index];
            let context = Context::new(set, mutant.source.as_ref(), options.mla_norm_eps);
            let mut is_seen = false;
            let outcome = |gate: &Gate| {
                if is_seen && !options.every_cell {
                    return Outcome::new(Verdict::NotSelected, "caught by teacher forcing");
                }
                let outcome = caught(|| judge(gate, kernels, &context));
                is_seen |= gate.id == TEACHER_FORCING && outcome.verdict == Verdict::Fail;
                outcome
            };
            let outcomes: Vec<Outcome> = of_subjects().map(outcome).collect();
            tick();
            let first_red = outcomes.iter().zip(&gates).find(|(o, _)| o.verdict == Verdict::Fail);
            MutantRow {
                id: mutant.id.clone(),
                family: mutant.family,
                clauses: mutant.clauses.clone(),
                what: mutant.what,
                verdicts: outcomes.iter().map(|outcome| outcome.verdict).collect(),
                first_failure: first_red.map(|(o, gate)| format!("{gate}: {}", o.summary)),
            }
        });
        Self { gates, rows }
    }

    /// Mutants that no gate saw.
    #[must_use]
    pub fn survivors(&self) -> Vec<&MutantRow> {
        self.rows.iter().filter(|row| !row.killed()).collect()
    }

    /// For each gate a mutant that it sees while all gates before it stay green.
    #[must_use]
    pub fn witnesses(&self) -> BTreeMap<&str, &str> {
        let mut witnesses = BTreeMap::new();
        for row in &self.rows {
            if let Some(first) = row.killers().next() {
                witnesses.entry(self.gates[first].as_str()).or_insert(row.id.as_str());
            }
        }
        witnesses
    }

    /// How the clauses of `table` are covered by killed mutants of some families.
    #[must_use]
    pub fn coverage(&self, table: &'static [Clause], families: &[char]) -> Coverage {
        let counts = |row: &&MutantRow| row.killed() && families.contains(&row.family);
        let killed = |clause: &&Clause| {
            self.rows.iter().filter(counts).any(|row| row.clauses.contains(&clause.id))
        };
        let uncovered: Vec<&'static str> =
            table.iter().filter(|clause| !killed(clause)).map(|clause| clause.id).collect();
        Coverage { covered: table.len() - uncovered.len(), total: table.len(), uncovered }
    }
}
