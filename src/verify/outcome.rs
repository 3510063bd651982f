//! The outcome of a gate: a verdict, one line of summary, the underlying records.

use serde::{Deserialize, Serialize};

use crate::subject::SubjectError;
use k3_core::compare::Comparison;

/// The verdict of one gate on one subject, of one layer, of one check of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// It ran and the subject conforms.
    #[serde(rename = "PASS")]
    Pass,
    /// It ran and the subject does not conform.
    #[serde(rename = "FAIL")]
    Fail,
    /// It should have run and could not; never counts as a pass.
    #[serde(rename = "NOT RUN")]
    NotRun,
    /// It has no meaning here.
    #[serde(rename = "NOT APPLICABLE")]
    NotApplicable,
    /// It was left out by a pattern.
    #[serde(rename = "NOT SELECTED")]
    NotSelected,
}

impl Verdict {
    /// The word in reports.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::NotRun => "NOT RUN",
            Self::NotApplicable => "NOT APPLICABLE",
            Self::NotSelected => "NOT SELECTED",
        }
    }
}

/// A comparison under a name (a tensor, a sequence).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NamedComparison {
    /// What was compared.
    pub name: String,
    /// The record.
    #[serde(flatten)]
    pub record: Comparison,
}

/// A distance that is reported and gates nothing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Information {
    /// What the subject was compared with.
    pub name: String,
    /// Largest absolute difference.
    pub max_abs: f64,
}

/// The outcome of one gate on one subject.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The verdict.
    pub verdict: Verdict,
    /// One line: the numbers of a pass, the first disagreement of a failure.
    pub summary: String,
    /// The records of the verdict, the deciding ones first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub comparisons: Vec<NamedComparison>,
    /// Informational distances.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub information: Vec<Information>,
    /// Further lines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
}

impl Outcome {
    /// An outcome without records.
    #[must_use]
    pub fn new(verdict: Verdict, summary: impl Into<String>) -> Self {
        Self {
            verdict,
            summary: summary.into(),
            comparisons: Vec::new(),
            information: Vec::new(),
            details: Vec::new(),
        }
    }

    /// PASS when `passed`, FAIL otherwise.
    #[must_use]
    pub fn judged(passed: bool, summary: impl Into<String>) -> Self {
        Self::new(if passed { Verdict::Pass } else { Verdict::Fail }, summary)
    }

    /// What came of a subject that gave no numbers: NOT RUN where it could not be run at all.
    #[must_use]
    pub fn without_numbers(before: &str, error: &SubjectError) -> Self {
        let verdict = match error {
            SubjectError::NotRun(_) => Verdict::NotRun,
            SubjectError::Refused(_) | SubjectError::Failed(_) => Verdict::Fail,
        };
        Self::new(verdict, format!("{before}{error}"))
    }

    /// FAIL with a line.
    #[must_use]
    pub fn failed(summary: impl Into<String>) -> Self {
        Self::new(Verdict::Fail, summary)
    }
}
