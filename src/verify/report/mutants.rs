//! The report of the kill matrix: schema and text.

use std::fmt::Write as _;
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

/// Schema name and version of the kill matrix's JSON report.
pub const SCHEMA: &str = "k3-verify/mutants/1";

/// A table of clauses: what it is of, the clauses, the families whose mutants cover it.
pub type Table = (&'static str, &'static [clauses::Clause], &'static [char]);

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
        tables: &[Table],
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

    /// The report as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_text(&mut text);
        text
    }

    fn write_text(&self, text: &mut String) -> std::fmt::Result {
        writeln!(text, "k3-verify gates --mutants: which gate sees which mistake?")?;
        writeln!(
            text,
            "set {}; x = the gate turned red, . = green, - = not asked, as teacher forcing has \
             seen it\n",
            self.set
        )?;
        for (place, gate) in self.gates.iter().enumerate() {
            let bars = "|".repeat(place);
            writeln!(text, "          {bars}+ {}", gate.id)?;
        }
        for line in self.controls.iter().chain(&self.mutants) {
            let word = match (line.family, line.killed) {
                ('-', false) => "control",
                ('-', true) => "RED",
                (_, true) => "killed",
                (_, false) => "SURVIVED",
            };
            let clauses = line.clauses.join(" ");
            writeln!(
                text,
                "{word:<8}  {}  {}/{} [{clauses}] {}",
                line.marks, line.family, line.id, line.what
            )?;
        }
        writeln!(text)?;
        for gate in &self.gates {
            match &gate.witness {
                Some(mutant) => {
                    writeln!(
                        text,
                        "gate {}: {} kills, first to see {mutant}",
                        gate.id, gate.kills
                    )?;
                }
                None => writeln!(
                    text,
                    "gate {}: {} kills, REDUNDANT: nothing that the gates before it miss",
                    gate.id, gate.kills
                )?,
            }
        }
        for table in &self.coverage {
            write!(
                text,
                "clauses of {}: {} of {} covered ({:.1} %)",
                table.table, table.covered, table.total, table.percent
            )?;
            if !table.uncovered.is_empty() {
                write!(text, ", NOT COVERED: {}", table.uncovered.join(" "))?;
            }
            writeln!(text)?;
        }
        let red = self.controls.iter().filter(|line| line.killed).count();
        if red > 0 {
            writeln!(text, "INVALID: {red} unmutated subjects are not green on this ladder")?;
        }
        writeln!(text, "{} mutants, {} survivors", self.mutants.len(), self.survivors)
    }
}
