//! The report of `check`: schema and text.

use serde::Serialize;

use crate::audit::Findings;
use crate::outcome::Verdict;
use k3_core::host::provenance::Provenance;
use k3_render::{Document, Row, Table, left};

/// Schema name and version of the JSON report.
pub const SCHEMA: &str = "k3-verify/check/1";

/// One check.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckRow {
    /// Short name.
    pub id: &'static str,
    /// What passes.
    pub what: &'static str,
    /// What came out.
    pub verdict: Verdict,
    /// What was looked at, or why not.
    pub detail: String,
    /// What is wrong.
    #[serde(skip_serializing_if = "Findings::is_empty")]
    pub findings: Findings,
    /// Files or tensors that were expected and are not there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<String>,
    /// Files that are there and cannot be read, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
}

/// All checks.
#[derive(Debug, Clone, Serialize)]
pub struct CheckReport {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The process exit code.
    pub exit_code: u8,
    /// In the order in which they ran.
    pub checks: Vec<CheckRow>,
    /// What the reader noticed and is no damage.
    pub notes: Vec<String>,
    /// Everything that differs from run to run.
    pub provenance: Provenance,
}

impl CheckReport {
    /// The report for people.
    #[must_use]
    pub fn document(&self) -> Document {
        let mut document = Document::new("k3-verify check");
        let mut table =
            Table::new(["verdict", "check", "passes when", "result"].map(|h| left(h, 0)));
        for row in &self.checks {
            let cells = [row.verdict.word(), row.id, row.what, &row.detail];
            table.push(Row { cells: cells.map(str::to_owned).to_vec(), below: row.below() });
        }
        document.table(table);
        for note in &self.notes {
            document.line(format!("note: {note}"));
        }
        document.gap();
        document.line(match self.exit_code {
            0 => "NO DAMAGE FOUND",
            1 => "DAMAGED",
            3 => "NOT CHECKED: files cannot be read",
            _ => "INCOMPLETE",
        });
        document
    }
}

impl CheckRow {
    /// What is wrong or absent, as far as it is listed.
    fn below(&self) -> Vec<String> {
        let mut lines = self.findings.lines();
        let unreadable = self.unreadable.iter().take(crate::audit::LISTED).cloned();
        lines.extend(unreadable);
        let absent = self.absent.iter().take(crate::audit::LISTED);
        lines.extend(absent.map(|name| format!("absent: {name}")));
        let more = self.absent.len().saturating_sub(crate::audit::LISTED);
        if more > 0 {
            lines.push(format!("… and {more} more absent"));
        }
        lines
    }
}
