//! The ratchet: how close each part of the shipped ladder has come to its tolerance.
//!
//! Tolerances are derived and mostly generous. A change that makes a result four times worse is a
//! finding even within its tolerance, so the observed ratios are kept in a committed file, and a
//! ratio that grows fourfold turns its gate red. The file is written by `k3-verify gates
//! --write-ratchet FILE`, and its changes are read like code.
//!
//! What one rounding can do is not growth: ratios below `one_rounding` count as that.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::outcome::Verdict;
use super::subject::{Precision, SubjectSource};
use crate::report::gates::GateRow;

/// Growth at which a ratio fails.
const GROWTH: f64 = 4.0;

const SHIPPED: &str = include_str!("../../reports/ratchet.json");
const SCHEMA: &str = "k3-verify/ratchet/1";

/// Ratios by `SET/GATE@SUBJECT PART`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ratchet {
    schema: String,
    /// Largest difference over allowance, rounded up to three digits.
    pub ratios: BTreeMap<String, f64>,
}

/// The ratio that one rounding of a tensor's largest value makes against the usual tolerance:
/// 2^-53 over 1e-9 in f64, 2^-24 over 2e-3 in f32.
fn one_rounding(precision: Precision) -> f64 {
    match precision {
        Precision::F64 => 2f64.powi(-53) / 1e-9,
        _ => 2f64.powi(-24) / 2e-3,
    }
}

/// To three digits, upwards.
fn rounded_up(ratio: f64) -> f64 {
    if ratio == 0.0 {
        return 0.0;
    }
    let unit = 10f64.powi(ratio.log10().floor() as i32 - 2);
    // Through text, so that the file has three digits and no binary tail.
    let text = format!("{:.2e}", (ratio / unit).ceil() * unit);
    text.parse().unwrap_or(ratio)
}

/// What of a gate a comparison belongs to: its stage, whatever the layer; other gates are whole.
fn part(gate: &str, comparison: &str) -> String {
    if gate != "stages" {
        return String::new();
    }
    let mut part = String::new();
    for word in comparison.split_inclusive(['.', ' ', ',']) {
        let number = word.trim_end_matches(['.', ' ', ',']);
        if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) {
            part.push_str(&word.replace(number, "*"));
        } else {
            part.push_str(word);
        }
    }
    part
}

/// The worst ratio of every part of a row; exact comparisons have none.
fn ratios_of(row: &GateRow) -> BTreeMap<String, f64> {
    let mut ratios: BTreeMap<String, f64> = BTreeMap::new();
    for comparison in &row.outcome.comparisons {
        let Some(ratio) = comparison.record.ratio else {
            continue;
        };
        let part = part(row.gate, &comparison.name);
        let key = format!("{}@{} {part}", row.id, row.subject);
        let worst = ratios.entry(key.trim_end().to_owned()).or_default();
        *worst = worst.max(ratio);
    }
    ratios
}

impl Ratchet {
    /// The committed file.
    ///
    /// # Panics
    ///
    /// Never in a build whose tests pass: the file is part of it.
    #[must_use]
    pub fn shipped() -> Self {
        serde_json::from_str(SHIPPED).expect("reports/ratchet.json is checked by the tests")
    }

    /// What the rows show now.
    #[must_use]
    pub fn observed(rows: &[GateRow]) -> Self {
        let mut observed = Self { schema: SCHEMA.to_owned(), ratios: BTreeMap::new() };
        observed.extend(rows.iter().flat_map(ratios_of));
        observed
    }

    /// Records more ratios, such as those of the layers of the sets.
    pub fn extend(&mut self, ratios: impl IntoIterator<Item = (String, f64)>) {
        let ratios = ratios.into_iter();
        self.ratios.extend(ratios.map(|(key, ratio)| (key, rounded_up(ratio))));
    }

    /// The first ratio that has grown fourfold or was never recorded, in words.
    #[must_use]
    pub fn finding(
        &self,
        precision: Precision,
        ratios: impl IntoIterator<Item = (String, f64)>,
    ) -> Option<String> {
        let floor = one_rounding(precision);
        ratios.into_iter().find_map(|(key, ratio)| match self.ratios.get(&key) {
            None => Some(format!("ratchet: {key} is at {ratio:.2e}, nothing is recorded")),
            Some(before) if ratio > GROWTH * before.max(floor) => Some(format!(
                "ratchet: {key} grew from {before:.2e} to {ratio:.2e} of its tolerance"
            )),
            Some(_) => None,
        })
    }

    /// Turns rows red in which there is such a ratio.
    pub fn judge(&self, rows: &mut [GateRow], subjects: &[Box<dyn SubjectSource>]) {
        for row in rows.iter_mut().filter(|row| row.outcome.verdict == Verdict::Pass) {
            let precision = subjects
                .iter()
                .find(|subject| subject.name() == row.subject)
                .map_or(Precision::F64, |subject| subject.precision());
            if let Some(line) = self.finding(precision, ratios_of(row)) {
                row.outcome.verdict = Verdict::Fail;
                row.outcome.summary = line;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{NamedComparison, Outcome};
    use crate::registry::LADDER;
    use crate::subjects;
    use k3_core::compare::{Tolerance, compare};

    fn row(gate: &'static str, differences: &[(&str, f64)]) -> GateRow {
        let mut outcome = Outcome::judged(true, "fine");
        for (name, difference) in differences {
            outcome.comparisons.push(NamedComparison {
                name: (*name).to_owned(),
                record: compare(&[*difference], &[0.0], &[1], &Tolerance::Absolute(1.0)),
            });
        }
        let gate = LADDER.iter().find(|known| known.id == gate).unwrap();
        GateRow::new(gate, "tiny", "engine", outcome)
    }

    fn verdict(recorded: &GateRow, now: GateRow) -> (Verdict, String) {
        let mut rows = [now];
        Ratchet::observed(std::slice::from_ref(recorded)).judge(&mut rows, &subjects::shipped());
        let [row] = rows;
        (row.outcome.verdict, row.outcome.summary)
    }

    #[test]
    fn a_fourfold_ratio_fails_under_tolerance() {
        let before = row("teacher-forcing", &[("logits", 0.01)]);
        let after = |ratio| verdict(&before, row("teacher-forcing", &[("logits", ratio)]));
        assert_eq!(after(0.01).0, Verdict::Pass);
        assert_eq!(after(0.0399).0, Verdict::Pass);
        assert_eq!(after(1e-9).0, Verdict::Pass);
        let (verdict, line) = after(0.041);
        assert_eq!(verdict, Verdict::Fail);
        assert!(line.contains("tiny/teacher-forcing@engine grew from 1.00e-2"), "{line}");
    }

    #[test]
    fn stages_have_a_ratio_each_whatever_the_layer() {
        let names = [("layers.3.kda.q (local)", 0.1), ("layers.11.kda.q (local)", 0.2)];
        let before = row("stages", &names);
        let ratios = Ratchet::observed(std::slice::from_ref(&before)).ratios;
        let expected = [("tiny/stages@engine layers.*.kda.q (local)".to_owned(), 0.2)];
        assert_eq!(ratios, BTreeMap::from(expected));
        let other = verdict(&before, row("stages", &[("layers.3.kda.k (local)", 0.1)]));
        assert_eq!(other.0, Verdict::Fail);
        assert!(other.1.contains("nothing is recorded"), "{}", other.1);
    }

    #[test]
    fn one_rounding_is_not_growth() {
        let before = row("greedy", &[("logits", 0.0)]);
        let noise = 3.9 * one_rounding(Precision::F32);
        assert_eq!(verdict(&before, row("greedy", &[("logits", noise)])).0, Verdict::Pass);
        assert_eq!(verdict(&before, row("greedy", &[("logits", 2.0 * noise)])).0, Verdict::Fail);
    }
}
