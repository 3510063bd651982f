//! The ladder's plots and its page, made from the report alone.

use super::gates::{GateReport, GateRow};
use crate::outcome::NamedComparison;
use k3_core::stages::{Stage, StageKey};
use k3_render::html::Page;
use k3_render::svg::{HeatMap, PlotError, heat_map};

/// One plot: file name without ending, and the SVG.
pub type Plot = (String, String);

/// Ends of the colour scale of chained budgets: powers of ten of a ratio.
const CHAINED_DECADES: (f64, f64) = (-8.0, 0.0);
/// Of local budgets, which are as narrow as rounding allows.
const LOCAL_DECADES: (f64, f64) = (-2.0, 0.0);

/// For each set and subject that was judged on stages, the ratio of every stage of every layer.
///
/// # Errors
///
/// [`PlotError`] when the canvas fails.
pub fn plots(report: &GateReport) -> Result<Vec<Plot>, PlotError> {
    let judged = report.gates.iter().filter(|row| row.gate == "stages");
    let maps =
        judged.flat_map(|row| [false, true].into_iter().filter_map(|local| ratio_map(row, local)));
    maps.map(|(name, map)| Ok((name, heat_map(&map)?))).collect()
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
        ("chained", "the set's tolerance, from the start of the model")
    };
    let worst = cells.iter().map(|(_, ratio)| *ratio).fold(0.0, f64::max);
    let map = HeatMap {
        title: format!("{} on {}: stages, {kind} budgets", row.subject, row.set),
        subtitle: format!("budget: {basis}; worst {worst:.2e} of it; grey: no such stage"),
        x_label: "layer".to_owned(),
        y_label: "stage, in execution order".to_owned(),
        value_label: "log10 of the largest difference over its budget".to_owned(),
        columns: (0..layers).map(|layer| layer.to_string()).collect(),
        rows: stages.iter().map(|stage| stage.name().to_owned()).collect(),
        values,
        range,
    };
    let name = format!("stages-{}-{}-{kind}", row.set, row.subject);
    Some((name, map))
}

fn texts(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}

/// The page. `plots` are those of [`plots`] for the same report.
#[must_use]
pub fn page(report: &GateReport, plots: &[Plot]) -> String {
    let mut page = Page::new("k3-verify gates: is this what Kimi K3 computes?");
    page.paragraph(&format!("{}: {}", report.verdict, report.subjects.join(", ")));
    let counts = report.counts;
    page.paragraph(&format!(
        "{} passed, {} failed, {} not run, {} not applicable, {} not selected",
        counts.pass, counts.fail, counts.not_run, counts.not_applicable, counts.not_selected
    ));
    let parameters = &report.parameters;
    let overridden = if parameters.mla_norm_eps == parameters.released_mla_norm_eps {
        "the released value"
    } else {
        "OVERRIDDEN: not the released value"
    };
    page.paragraph(&format!(
        "Epsilon of the MLA low-rank norms: {:e} ({overridden})",
        parameters.mla_norm_eps
    ));
    page.section("Gates");
    let rows: Vec<Vec<String>> = report
        .gates
        .iter()
        .map(|row| {
            let outcome = &row.outcome;
            texts(&[outcome.verdict.word(), &row.id, &row.subject, &outcome.summary])
        })
        .collect();
    page.table(&texts(&["verdict", "gate", "subject", "what was found"]), &rows);
    beside(&mut page, report);
    if !plots.is_empty() {
        page.section("Stages");
        for (_, svg) in plots {
            page.figure(svg);
        }
    }
    basis(&mut page, report);
    page.finish()
}

/// Distances that are reported and gate nothing.
fn beside(page: &mut Page, report: &GateReport) {
    let beside: Vec<String> = report
        .gates
        .iter()
        .flat_map(|row| {
            row.outcome.information.iter().map(move |near| {
                format!("{} of {}: {:.3e} from {}", row.id, row.subject, near.max_abs, near.name)
            })
        })
        .collect();
    if !beside.is_empty() {
        page.section("Beside the verdict");
        page.list(&beside);
    }
}

fn basis(page: &mut Page, report: &GateReport) {
    page.section("What each gate allows, and why");
    let mut basis: Vec<Vec<String>> = Vec::new();
    for row in &report.gates {
        if basis.iter().all(|line| line[0] != row.gate) {
            basis.push(texts(&[row.gate, row.what, row.basis]));
        }
    }
    page.table(&texts(&["gate", "passes when", "budget"]), &basis);
}
