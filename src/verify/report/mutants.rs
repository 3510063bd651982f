//! The report of the kill matrix: schema and text.

use std::collections::BTreeSet;
use std::time::Instant;

use serde::Serialize;

use crate::evidence::EvidenceSet;
use crate::kernels::KernelFixtures;
use crate::kill_matrix::{Coverage, KillMatrix, Mutant, MutantRow, Options};
use crate::outcome::Verdict;
use crate::subjects;
use k3_core::clauses;
use k3_core::exit::Exit;
use k3_core::host::provenance::Provenance;
use k3_render::svg::HeatMap;
use k3_render::{Document, Table, left};

/// Schema name and version of the kill matrix's JSON report.
pub const SCHEMA: &str = "k3-verify/mutants/1";

/// A table of clauses: what it is of, the clauses, the families whose mutants cover it.
pub type ClauseTable = (&'static str, &'static [clauses::Clause], &'static [char]);

/// Characters of the widest fate, SURVIVED.
const FATE_WIDTH: usize = 8;

/// The report of a run of the kill matrix.
#[derive(Debug, Clone, Serialize)]
pub struct MutantReport {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The process exit code.
    pub exit_code: u8,
    /// The set on which the mutants ran.
    pub set: String,
    /// Gates in the order of the ladder.
    pub gates: Vec<GateSummary>,
    /// Unmutated subjects: every gate must be green for them.
    pub controls: Vec<MutantLine>,
    /// The mutants.
    pub mutants: Vec<MutantLine>,
    /// Mutants that no gate saw.
    pub survivors: usize,
    /// Coverage of the tables of clauses.
    pub coverage: Vec<TableCoverage>,
    /// Everything that differs from run to run.
    pub provenance: Provenance,
}

/// What the matrix says about one gate.
#[derive(Debug, Clone, Serialize)]
pub struct GateSummary {
    /// Name of the gate.
    pub id: String,
    /// Mutants it turned red for.
    pub kills: usize,
    /// A mutant that it sees while every gate before it stays green.
    pub witness: Option<String>,
}

/// One mutant.
#[derive(Debug, Clone, Serialize)]
pub struct MutantLine {
    /// Short name.
    pub id: String,
    /// Family.
    pub family: char,
    /// Clauses it breaks.
    pub clauses: Vec<&'static str>,
    /// The mistake.
    pub what: String,
    /// Whether some gate turned red.
    pub killed: bool,
    /// The gates that turned red.
    pub killed_by: Vec<String>,
    /// What the first of them said.
    pub first_failure: Option<String>,
    #[serde(skip)]
    marks: String,
}

/// Coverage of one table of clauses.
#[derive(Debug, Clone, Serialize)]
pub struct TableCoverage {
    /// Which table.
    pub table: &'static str,
    /// Clauses with a killed mutant.
    pub covered: usize,
    /// All clauses.
    pub total: usize,
    /// In percent.
    pub percent: f64,
    /// The clauses without one.
    pub uncovered: Vec<&'static str>,
}

impl TableCoverage {
    fn of(table: &'static str, coverage: Coverage) -> Self {
        Self {
            table,
            covered: coverage.covered,
            total: coverage.total,
            percent: coverage.percent(),
            uncovered: coverage.uncovered,
        }
    }
}

impl MutantLine {
    fn of(row: &MutantRow, gates: &[String]) -> Self {
        let mark = |verdict: &Verdict| match verdict {
            Verdict::Fail => 'x',
            Verdict::Pass => '.',
            _ => '-',
        };
        Self {
            id: row.id.clone(),
            family: row.family,
            clauses: row.clauses.clone(),
            what: row.what.to_owned(),
            killed: row.killed(),
            killed_by: row.killers().map(|place| gates[place].clone()).collect(),
            first_failure: row.first_failure.clone(),
            marks: row.verdicts.iter().map(mark).collect(),
        }
    }
}

impl MutantReport {
    /// Runs the mutants and, as controls, the unmutated subjects on the kernel fixtures and a set;
    /// `tables` are the tables of clauses that the mutants are expected to cover, `tick` is called
    /// after each subject.
    #[must_use]
    pub fn run(
        (kernels, set): (&KernelFixtures, &EvidenceSet),
        mutants: &[Mutant],
        options: Options,
        tables: &[ClauseTable],
        tick: &(dyn Fn() + Sync),
    ) -> Self {
        let start = Instant::now();
        let run = |subjects: &[Mutant]| KillMatrix::run(kernels, set, subjects, options, tick);
        let (controls, matrix) = (run(&subjects::controls()), run(mutants));
        let witnesses = matrix.witnesses();
        let gates = matrix.gates.iter().enumerate().map(|(place, id)| GateSummary {
            id: id.clone(),
            kills: matrix.rows.iter().filter(|r| r.verdicts[place] == Verdict::Fail).count(),
            witness: witnesses.get(id.as_str()).map(|mutant| (*mutant).to_owned()),
        });
        let coverage = tables
            .iter()
            .map(|(name, table, families)| {
                TableCoverage::of(name, matrix.coverage(table, families))
            })
            .collect();
        let line = |row| MutantLine::of(row, &matrix.gates);
        let mut report = Self {
            schema: SCHEMA,
            exit_code: 0,
            set: set.name.clone(),
            gates: gates.collect(),
            controls: controls.rows.iter().map(line).collect(),
            mutants: matrix.rows.iter().map(line).collect(),
            survivors: matrix.survivors().len(),
            coverage,
            provenance: Provenance::since(start, options.threads, Vec::new()),
        };
        report.exit_code = report.exit().code();
        report
    }

    /// A survivor, an uncovered clause or a red control fails; no mutants at all is incomplete.
    #[must_use]
    pub fn exit(&self) -> Exit {
        let uncovered = self.coverage.iter().any(|table| !table.uncovered.is_empty());
        let red_control = self.controls.iter().any(|line| line.killed);
        if self.mutants.is_empty() || self.controls.is_empty() {
            Exit::Incomplete
        } else if self.survivors > 0 || uncovered || red_control {
            Exit::Disagrees
        } else {
            Exit::Conforms
        }
    }

    /// The report for people.
    #[must_use]
    pub fn document(&self) -> Document {
        let mut document =
            Document::new("k3-verify gates --mutants: which gate catches which mistake?");
        document.line(format!(
            "set {}; x = the gate turned red, . = green, - = not run, since teacher forcing \
             caught it",
            self.set
        ));
        document.figure("kill-matrix", self.map());
        document.gap();
        // Each bar ends at its gate's place among the marks.
        for (place, gate) in self.gates.iter().enumerate() {
            let bars = "|".repeat(place);
            document.line(format!("{:FATE_WIDTH$}  {bars}+ {}", "", gate.id));
        }
        document.table(self.table());
        document.gap();
        for gate in &self.gates {
            let kills = gate.kills;
            document.line(match &gate.witness {
                Some(mutant) => format!("gate {}: {kills} kills, first to catch {mutant}", gate.id),
                None => format!(
                    "gate {}: {kills} kills, REDUNDANT: catches nothing that earlier gates miss",
                    gate.id
                ),
            });
        }
        for table in &self.coverage {
            let TableCoverage { table, covered, total, percent, uncovered } = table;
            let lacking = match uncovered.is_empty() {
                true => String::new(),
                false => format!(", NOT COVERED: {}", uncovered.join(" ")),
            };
            document.line(format!(
                "clauses of {table}: {covered} of {total} covered ({percent:.1} %){lacking}"
            ));
        }
        let red = self.controls.iter().filter(|line| line.killed).count();
        if red > 0 {
            document.line(format!("INVALID: {red} unmutated subjects fail a gate"));
        }
        document.line(format!("{} mutants, {} survivors", self.mutants.len(), self.survivors));
        document
    }

    fn table(&self) -> Table {
        let mut table = Table::new([
            left("fate", FATE_WIDTH),
            left("gates", 0),
            left("mutant", 0),
            left("clauses", 0),
            left("the mistake", 0),
        ]);
        for line in self.controls.iter().chain(&self.mutants) {
            let fate = match (line.family, line.killed) {
                ('-', false) => "control",
                ('-', true) => "RED",
                (_, true) => "killed",
                (_, false) => "SURVIVED",
            };
            let clauses = format!("[{}]", line.clauses.join(" "));
            let id = format!("{}/{}", line.family, line.id);
            table.row([fate, &line.marks, &id, &clauses, &line.what]);
        }
        table
    }

    /// The matrix clause by gate: the share of a clause's mutants that the gate sees.
    fn map(&self) -> HeatMap {
        let broken: BTreeSet<&str> =
            self.mutants.iter().flat_map(|line| line.clauses.iter().copied()).collect();
        let mut clauses: Vec<&str> = broken.into_iter().collect();
        clauses.sort_by_key(|id| (id[..1].to_owned(), id[1..].parse::<u32>().unwrap_or(0)));
        let share = |clause: &str, gate: &str| {
            let of: Vec<&MutantLine> =
                self.mutants.iter().filter(|line| line.clauses.contains(&clause)).collect();
            let seen = of.iter().filter(|line| line.killed_by.iter().any(|id| id == gate));
            Some(100.0 * seen.count() as f64 / of.len() as f64)
        };
        HeatMap {
            title: "Which gate sees which broken clause".to_owned(),
            subtitle: format!(
                "{} mutants on set {}, {} survivors",
                self.mutants.len(),
                self.set,
                self.survivors
            ),
            x_label: "gate".to_owned(),
            y_label: "clause".to_owned(),
            value_label: "mutants of the clause that the gate sees, %".to_owned(),
            columns: self.gates.iter().map(|gate| gate.id.clone()).collect(),
            rows: clauses.iter().map(|id| (*id).to_owned()).collect(),
            values: clauses
                .iter()
                .map(|clause| {
                    let gates = self.gates.iter();
                    gates.map(|gate| share(clause, &gate.id)).collect()
                })
                .collect(),
            range: (0.0, 100.0),
        }
    }
}
