//! The report of the ladder: schema and text.

use serde::Serialize;

use super::gates_document::table;
use crate::blind::BlindSpot;
use crate::evidence::EvidenceSet;
use crate::outcome::{Outcome, Verdict};
use crate::registry::Gate;
use crate::runner::SetState;
use k3_core::Precision;
use k3_core::choice::Choice as _;
use k3_core::exit::Exit;
use k3_core::host::provenance::Provenance;
use k3_render::Row;

/// Schema name and version of the ladder's JSON report.
pub const SCHEMA: &str = "k3-verify/gates/1";

/// The report of a run of the ladder.
#[derive(Debug, Clone, Serialize)]
pub struct GateReport {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// `CONFORMS`, `DOES NOT CONFORM` or `INCOMPLETE`.
    ///
    /// A pass in a precision narrower than f32 says so, and to which clauses it is blind.
    pub verdict: String,
    /// The process exit code.
    pub exit_code: u8,
    /// Who was judged.
    pub subjects: Vec<String>,
    /// What the result depends on.
    pub parameters: Parameters,
    /// Rows per verdict.
    pub counts: Counts,
    /// The clauses of the model in which a known mistake would have passed too, after a pass in a
    /// precision narrower than f32.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blind: Option<Vec<BlindSpot>>,
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
    /// The precision whose measured noise floor gives the tolerances.
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

    /// The row of the table, with details and informational distances below it.
    pub(super) fn row(&self) -> Row {
        let Outcome { verdict, summary, information, details, .. } = &self.outcome;
        let below = information
            .iter()
            .map(|near| format!("distance to {}: {:.3e}", near.name, near.max_abs))
            .chain(details.iter().cloned());
        let cells = [verdict.word(), &self.id, &self.subject, summary];
        Row { cells: cells.map(str::to_owned).to_vec(), below: below.collect() }
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
        blind: Option<Vec<BlindSpot>>,
        sets: Vec<SetSummary>,
        gates: Vec<GateRow>,
        provenance: Provenance,
    ) -> Self {
        let exit = counts.exit();
        let mut verdict = exit.verdict().to_owned();
        if let (Some(blind), Some(precision)) = (&blind, parameters.precision) {
            verdict += &format!(" IN {}", precision.name().to_uppercase());
            if !blind.is_empty() {
                let clauses: Vec<&str> = blind.iter().map(|spot| spot.clause).collect();
                verdict += &format!(", BLIND TO: {}", clauses.join(" "));
            }
        }
        let exit_code = exit.code();
        let schema = SCHEMA;
        Self {
            schema,
            verdict,
            exit_code,
            subjects,
            parameters,
            counts,
            blind,
            sets,
            gates,
            provenance,
        }
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
        let is_bad =
            |row: &&GateRow| matches!(row.outcome.verdict, Verdict::Fail | Verdict::NotRun);
        let lines = table(self.gates.iter().filter(is_bad)).text();
        panic!("{}: {}\n{lines}", self.verdict, self.subjects.join(", "));
    }
}
