//! The report of `check`: schema and text.

use std::fmt::{self, Write as _};

use serde::Serialize;

use crate::audit::Findings;
use crate::outcome::Verdict;
use k3_core::host::provenance::Provenance;

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
    /// The report in words.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> fmt::Result {
        for row in &self.checks {
            writeln!(
                text,
                "{:<14} {:<10} {}: {}",
                row.verdict.word(),
                row.id,
                row.what,
                row.detail
            )?;
            for finding in &row.findings.listed {
                let tensor = finding.tensor.as_ref().map_or(String::new(), |t| format!("{t}: "));
                writeln!(text, "    {}: {tensor}{}", finding.file, finding.what)?;
            }
            let more = row.findings.count - row.findings.listed.len() as u64;
            if more > 0 {
                writeln!(text, "    … and {more} more")?;
            }
            for name in row.absent.iter().take(crate::audit::LISTED) {
                writeln!(text, "    absent: {name}")?;
            }
            let more = row.absent.len().saturating_sub(crate::audit::LISTED);
            if more > 0 {
                writeln!(text, "    … and {more} more absent")?;
            }
        }
        for note in &self.notes {
            writeln!(text, "note: {note}")?;
        }
        let verdict = match self.exit_code {
            0 => "NO DAMAGE FOUND",
            1 => "DAMAGED",
            _ => "INCOMPLETE",
        };
        writeln!(text, "\n{verdict}")
    }
}
