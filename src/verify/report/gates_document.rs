//! The ladder's report for people, made from the report alone.

use super::gates::{GateReport, GateRow, SetSummary};
use crate::blind::BlindSpot;
use crate::noise_floor::FACTOR;
use crate::outcome::NamedComparison;
use k3_core::choice::Choice as _;
use k3_core::compare::ratio_text;
use k3_core::config::epsilon_line;
use k3_core::stages::{Stage, StageKey};
use k3_render::svg::HeatMap;
use k3_render::{Document, Table, left};

/// Ends of the colour scale of chained tolerances: powers of ten of a ratio.
const CHAINED_DECADES: (f64, f64) = (-8.0, 0.0);
/// Of local tolerances, which are as narrow as rounding allows.
const LOCAL_DECADES: (f64, f64) = (-2.0, 0.0);

impl GateReport {
    /// The report for people. The page adds, for each set and subject that was judged on stages,
    /// the ratio of every stage of every layer, and what each gate allows.
    #[must_use]
    pub fn document(&self) -> Document {
        let subjects = self.subjects.join(", ");
        let mut document = Document::new(format!(
            "k3-verify gates: is this what Kimi K3 computes? Judged: {subjects}"
        ));
        document.line(epsilon_line(self.parameters.mla_norm_eps));
        if let Some(precision) = self.parameters.precision {
            let precision = precision.name();
            document.line(format!(
                "tolerance of logits: {FACTOR} x the noise floor of {precision}, measured on each \
                 set"
            ));
        }
        if let Some(only) = &self.parameters.only {
            document.line(format!("only: {only}"));
        }
        for set in &self.sets {
            describe_set(&mut document, set);
        }
        document.table(table(self.gates.iter()));
        document.gap();
        let counts = self.counts;
        document.line(format!(
            "{} passed, {} failed, {} not run, {} not applicable, {} not selected",
            counts.pass, counts.fail, counts.not_run, counts.not_applicable, counts.not_selected
        ));
        self.describe_blind(&mut document);
        document.line(format!("VERDICT: {}: {subjects}", self.verdict));
        document.appendix(self.appendix());
        document
    }

    /// What would have passed too, and how it is seen.
    fn describe_blind(&self, document: &mut Document) {
        let (Some(blind), Some(precision)) = (&self.blind, self.parameters.precision) else {
            return;
        };
        let precision = precision.name();
        for BlindSpot { clause, text, known, unseen } in blind {
            let (first, count) = (unseen.first().map_or("", String::as_str), unseen.len());
            document.line(format!(
                "blind to {clause} ({text}): {count} of {known} known mistakes pass, such as \
                 {first}"
            ));
        }
        if !blind.is_empty() {
            document.line(format!(
                "to see them: k3-verify layers 0..LAST --model DIR --engine-dump DUMP --precision \
                 {precision}, or gates on the engine's f32 build"
            ));
        }
    }

    fn appendix(&self) -> Document {
        let mut appendix = Document::new("");
        let judged = self.gates.iter().filter(|row| row.gate == "stages");
        let kinds = judged.flat_map(|row| [(row, false), (row, true)]);
        let maps: Vec<_> = kinds.filter_map(|(row, local)| ratio_map(row, local)).collect();
        if !maps.is_empty() {
            appendix.heading("Stages");
        }
        for (name, map) in maps {
            appendix.figure(name, map);
        }
        appendix.heading("Tolerance of each gate, and why");
        let mut seen: Vec<&str> = Vec::new();
        let mut basis = Table::new(["gate", "passes when", "tolerance"]);
        for row in &self.gates {
            if !seen.contains(&row.gate) {
                seen.push(row.gate);
                basis.row([row.gate, row.what, row.basis]);
            }
        }
        appendix.table(basis);
        appendix
    }
}

/// The rows of gates as a table.
pub(super) fn table<'a>(rows: impl Iterator<Item = &'a GateRow>) -> Table {
    let mut table =
        Table::new([left("verdict", 14), left("gate", 0), left("subject", 0), left("result", 0)]);
    rows.for_each(|row| table.push(row.row()));
    table
}

fn describe_set(document: &mut Document, set: &SetSummary) {
    let name = &set.name;
    document.line(match (&set.layers, &set.ids) {
        (Some([layers, kda, mla]), Some([prompt, greedy, long])) => {
            let long = if *long > 0 { format!(", long {long} ids") } else { String::new() };
            format!(
                "set {name}: {layers} layers ({kda} KDA, {mla} MLA), prompt {prompt} + greedy \
                 {greedy} ids{long}"
            )
        }
        _ => {
            let problem = set.problem.as_deref().unwrap_or("not usable");
            format!("set {name}: NOT RUN: {problem}")
        }
    });
    if !set.ignored.is_empty() {
        document.line(format!("    ignored: {}", set.ignored.join(", ")));
    }
}

/// Layer and stage of a comparison of the wanted kind; local ones carry a mark in their name.
fn place(comparison: &NamedComparison, local: bool) -> Option<(usize, Stage)> {
    let name = match (comparison.name.strip_suffix(" (local)"), local) {
        (Some(name), true) => name,
        (None, false) => &comparison.name,
        _ => return None,
    };
    let key = StageKey::parse(name)?;
    Some((key.layer?, key.stage))
}

fn ratio_map(row: &GateRow, local: bool) -> Option<(String, HeatMap)> {
    let cells: Vec<((usize, Stage), f64)> = row
        .outcome
        .comparisons
        .iter()
        .filter_map(|c| Some((place(c, local)?, c.record.ratio?)))
        .collect();
    let layers = cells.iter().map(|((layer, _), _)| layer + 1).max()?;
    let stages: Vec<Stage> =
        Stage::ALL.into_iter().filter(|stage| cells.iter().any(|((_, s), _)| s == stage)).collect();
    let range = if local { LOCAL_DECADES } else { CHAINED_DECADES };
    let mut values = vec![vec![None; layers]; stages.len()];
    for ((layer, stage), ratio) in &cells {
        if let Some(line) = stages.iter().position(|s| s == stage) {
            // A ratio of nothing at all is drawn as the lower end of the scale.
            values[line][*layer] = Some(ratio.log10().max(range.0));
        }
    }
    let (kind, basis) = if local {
        ("local", "its own rounding, derived per element")
    } else {
        ("chained", "the set's own, from the start of the model")
    };
    let worst = ratio_text(cells.iter().map(|(_, ratio)| *ratio).fold(0.0, f64::max));
    let map = HeatMap {
        title: format!("{} on {}: stages, {kind} tolerances", row.subject, row.set),
        subtitle: format!("tolerance: {basis}; worst {worst} of it; grey: no such stage"),
        x_label: "layer".to_owned(),
        y_label: "stage, in execution order".to_owned(),
        value_label: "log10 of the largest difference over its tolerance".to_owned(),
        columns: (0..layers).map(|layer| layer.to_string()).collect(),
        rows: stages.iter().map(|stage| stage.name().to_owned()).collect(),
        values,
        range,
    };
    let name = format!("stages-{}-{}-{kind}", row.set, row.subject);
    Some((name, map))
}
