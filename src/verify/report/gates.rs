//! The report of the ladder: schema and text.

use k3_core::choice::Choice as _;
use std::fmt::{self, Write as _};

use serde::Serialize;

use crate::evidence::EvidenceSet;
use crate::noise_floor::FACTOR;
use crate::outcome::{Outcome, Verdict};
use crate::registry::Gate;
use crate::runner::SetState;
use k3_core::Precision;
use k3_core::exit::Exit;
use k3_core::host::provenance::Provenance;

/// Schema name and version of the ladder's JSON report.
pub const SCHEMA: &str = "k3-verify/gates/1";

/// The report of a run of the ladder.
#[derive(Debug, Clone, Serialize)]
pub struct GateReport {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// `CONFORMS`, `DOES NOT CONFORM` or `INCOMPLETE`.
    pub verdict: &'static str,
    /// The process exit code.
    pub exit_code: u8,
    /// Who was judged.
    pub subjects: Vec<String>,
    /// What the result depends on.
    pub parameters: Parameters,
    /// Rows per verdict.
    pub counts: Counts,
    /// The sets.
    pub sets: Vec<SetSummary>,
    /// The rows of the ladder that were selected.
    pub gates: Vec<GateRow>,
    /// Everything that differs from run to run.
    pub provenance: Provenance,
}

/// What the result depends on besides the data.
#[derive(Debug, Clone, Serialize)]
pub struct Parameters {
    /// ε of MLA's two low-rank norms on the subject's side.
    pub mla_norm_eps: f64,
    /// The released code's value of it.
    pub released_mla_norm_eps: f64,
    /// The precision whose measured noise floor gives the budgets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    /// The pattern of `--only`.
    pub only: Option<String>,
    /// `embedded`, `folder` or `none`.
    pub fixtures: &'static str,
}

/// Rows per verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// PASS.
    pub pass: usize,
    /// FAIL.
    pub fail: usize,
    /// NOT RUN.
    pub not_run: usize,
    /// NOT APPLICABLE.
    pub not_applicable: usize,
    /// NOT SELECTED.
    pub not_selected: usize,
}

/// A set in a few numbers.
#[derive(Debug, Clone, Serialize)]
pub struct SetSummary {
    /// Name.
    pub name: String,
    /// Layers, of which KDA and MLA.
    pub layers: Option<[usize; 3]>,
    /// Lengths of prompt, greedy and long sequence.
    pub ids: Option<[usize; 3]>,
    /// Keys and tensors that were ignored.
    pub ignored: Vec<String>,
    /// Why the set could not be used.
    pub problem: Option<String>,
}

/// One row of the ladder.
#[derive(Debug, Clone, Serialize)]
pub struct GateRow {
    /// `SET/GATE`.
    pub id: String,
    /// Name of the set.
    pub set: String,
    /// Name of the gate.
    pub gate: &'static str,
    /// Name of the subject.
    pub subject: String,
    /// What passes.
    pub what: &'static str,
    /// How far off is allowed and why.
    pub basis: &'static str,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl SetSummary {
    /// The numbers of a set.
    #[must_use]
    pub fn of(state: &SetState) -> Self {
        match state {
            SetState::Ready(set) => Self::of_ready(set),
            SetState::NotRun { name, reason } => Self {
                name: name.clone(),
                layers: None,
                ids: None,
                ignored: Vec::new(),
                problem: Some(reason.clone()),
            },
        }
    }

    fn of_ready(set: &EvidenceSet) -> Self {
        let config = &set.config;
        Self {
            name: set.name.clone(),
            layers: Some([
                config.num_hidden_layers,
                config.kda_layers.len(),
                config.full_attn_layers.len(),
            ]),
            ids: Some([
                set.prompt_ids.len(),
                set.greedy_ids.len(),
                set.long.as_ref().map_or(0, |long| long.ids.len()),
            ]),
            ignored: set.ignored.clone(),
            problem: None,
        }
    }
}

impl GateRow {
    /// What came of a gate on a set, with one subject.
    #[must_use]
    pub fn new(gate: &Gate, set: &str, subject: &str, outcome: Outcome) -> Self {
        Self {
            id: gate.full_id(set),
            set: gate.place(set).to_owned(),
            gate: gate.id,
            subject: subject.to_owned(),
            what: gate.passes,
            basis: gate.tolerance,
            outcome,
        }
    }

    /// The lines of the row, its id and its subject so wide.
    fn write_text(&self, text: &mut String, [id_width, subject_width]: [usize; 2]) -> fmt::Result {
        let outcome = &self.outcome;
        writeln!(
            text,
            "{:<14}  {:<id_width$}  {:<subject_width$}  {}",
            outcome.verdict.word(),
            self.id,
            self.subject,
            outcome.summary
        )?;
        for near in &outcome.information {
            writeln!(text, "{:>14}  beside {}: {:.3e}", "", near.name, near.max_abs)?;
        }
        for line in &outcome.details {
            writeln!(text, "{:>14}  {line}", "")?;
        }
        Ok(())
    }
}

impl Counts {
    /// Counts rows by verdict.
    pub fn of(verdicts: impl Iterator<Item = Verdict>) -> Self {
        let mut counts = Self::default();
        for verdict in verdicts {
            match verdict {
                Verdict::Pass => counts.pass += 1,
                Verdict::Fail => counts.fail += 1,
                Verdict::NotRun => counts.not_run += 1,
                Verdict::NotApplicable => counts.not_applicable += 1,
                Verdict::NotSelected => counts.not_selected += 1,
            }
        }
        counts
    }

    /// What the process ends with: nothing that ran and passed is not a pass.
    #[must_use]
    pub fn exit(self) -> Exit {
        let mut exit = Exit::Conforms;
        if self.fail > 0 {
            exit = exit.and(Exit::Disagrees);
        }
        if self.not_run > 0 || self.pass + self.fail == 0 {
            exit = exit.and(Exit::Incomplete);
        }
        exit
    }
}

impl GateReport {
    /// The report on rows that are judged; `counts` has those that are left out of it as well.
    #[must_use]
    pub(crate) fn new(
        subjects: Vec<String>,
        parameters: Parameters,
        counts: Counts,
        sets: Vec<SetSummary>,
        gates: Vec<GateRow>,
        provenance: Provenance,
    ) -> Self {
        let exit = counts.exit();
        let verdict = match exit {
            Exit::Conforms => "CONFORMS",
            Exit::Disagrees => "DOES NOT CONFORM",
            _ => "INCOMPLETE",
        };
        let exit_code = exit.code();
        let schema = SCHEMA;
        Self { schema, verdict, exit_code, subjects, parameters, counts, sets, gates, provenance }
    }

    /// What the process ends with.
    #[must_use]
    pub fn exit(&self) -> Exit {
        self.counts.exit()
    }

    /// Whether something was judged, all of it conforms and nothing was left unjudged.
    #[must_use]
    pub fn conforms(&self) -> bool {
        self.exit() == Exit::Conforms
    }

    /// For tests.
    ///
    /// # Panics
    ///
    /// When it does not conform, with the line of every gate that failed or did not run.
    #[track_caller]
    pub fn assert_conforms(&self) {
        if self.conforms() {
            return;
        }
        let mut lines = String::new();
        let is_bad =
            |row: &&GateRow| matches!(row.outcome.verdict, Verdict::Fail | Verdict::NotRun);
        for row in self.gates.iter().filter(is_bad) {
            // Writing to a String cannot fail.
            let _ = row.write_text(&mut lines, [0, 0]);
        }
        panic!("{}: {}\n{lines}", self.verdict, self.subjects.join(", "));
    }

    /// The report as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_text(&mut text);
        text
    }

    fn write_text(&self, text: &mut String) -> fmt::Result {
        writeln!(
            text,
            "k3-verify gates: is this what Kimi K3 computes? Judged: {}",
            self.subjects.join(", ")
        )?;
        let eps = self.parameters.mla_norm_eps;
        let note = if eps == self.parameters.released_mla_norm_eps {
            "the released value".to_owned()
        } else {
            format!("OVERRIDDEN, released {:e}", self.parameters.released_mla_norm_eps)
        };
        writeln!(text, "epsilon of the MLA low-rank norms: {eps:e} ({note})")?;
        if let Some(precision) = self.parameters.precision {
            writeln!(
                text,
                "budgets of logits: {FACTOR} x the noise floor of {}, measured on each set",
                precision.name()
            )?;
        }
        if let Some(only) = &self.parameters.only {
            writeln!(text, "only: {only}")?;
        }
        for set in &self.sets {
            write_set(text, set)?;
        }
        writeln!(text)?;
        let id_width = self.gates.iter().map(|row| row.id.len()).max().unwrap_or(0);
        let subject_width = self.gates.iter().map(|row| row.subject.len()).max().unwrap_or(0);
        for row in &self.gates {
            row.write_text(text, [id_width, subject_width])?;
        }
        let counts = self.counts;
        writeln!(
            text,
            "\n{} passed, {} failed, {} not run, {} not applicable, {} not selected",
            counts.pass, counts.fail, counts.not_run, counts.not_applicable, counts.not_selected
        )?;
        writeln!(text, "VERDICT: {}: {}", self.verdict, self.subjects.join(", "))
    }
}

fn write_set(text: &mut String, set: &SetSummary) -> fmt::Result {
    match (&set.layers, &set.ids) {
        (Some([layers, kda, mla]), Some([prompt, greedy, long])) => {
            write!(text, "set {}: {layers} layers ({kda} KDA, {mla} MLA), ", set.name)?;
            write!(text, "prompt {prompt} + greedy {greedy} ids")?;
            if *long > 0 {
                write!(text, ", long {long} ids")?;
            }
            writeln!(text)?;
        }
        _ => {
            let problem = set.problem.as_deref().unwrap_or("not usable");
            writeln!(text, "set {}: NOT RUN: {problem}", set.name)?;
        }
    }
    if !set.ignored.is_empty() {
        writeln!(text, "    ignored: {}", set.ignored.join(", "))?;
    }
    Ok(())
}
