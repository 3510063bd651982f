//! The kill matrix's plot and its page, made from the report alone.

use std::collections::BTreeSet;

use super::gates_page::Plot;
use super::mutants::{MutantLine, MutantReport};
use k3_render::html::Page;
use k3_render::svg::{HeatMap, PlotError, heat_map};

/// The matrix as a map, clause by gate: the share of a clause's mutants that the gate sees.
///
/// # Errors
///
/// [`PlotError`] when the canvas fails.
pub fn plots(report: &MutantReport) -> Result<Vec<Plot>, PlotError> {
    let broken: BTreeSet<&str> =
        report.mutants.iter().flat_map(|line| line.clauses.iter().copied()).collect();
    let mut clauses: Vec<&str> = broken.into_iter().collect();
    clauses.sort_by_key(|id| (id[..1].to_owned(), id[1..].parse::<u32>().unwrap_or(0)));
    let share = |clause: &str, gate: &str| {
        let of: Vec<&MutantLine> =
            report.mutants.iter().filter(|line| line.clauses.contains(&clause)).collect();
        let seen = of.iter().filter(|line| line.killed_by.iter().any(|id| id == gate));
        Some(100.0 * seen.count() as f64 / of.len() as f64)
    };
    let map = HeatMap {
        title: "Which gate sees which broken clause".to_owned(),
        subtitle: format!(
            "{} mutants on set {}, {} survivors",
            report.mutants.len(),
            report.set,
            report.survivors
        ),
        x_label: "gate".to_owned(),
        y_label: "clause".to_owned(),
        value_label: "mutants of the clause that the gate sees, %".to_owned(),
        columns: report.gates.iter().map(|gate| gate.id.clone()).collect(),
        rows: clauses.iter().map(|id| (*id).to_owned()).collect(),
        values: clauses
            .iter()
            .map(|clause| {
                let gates = report.gates.iter();
                gates.map(|gate| share(clause, &gate.id)).collect()
            })
            .collect(),
        range: (0.0, 100.0),
    };
    Ok(vec![("kill-matrix".to_owned(), heat_map(&map)?)])
}

/// The page. `plots` are those of [`plots`] for the same report.
#[must_use]
pub fn page(report: &MutantReport, plots: &[Plot]) -> String {
    let mut page = Page::new("k3-verify gates --mutants: which gate sees which mistake?");
    page.paragraph(&format!(
        "{} mutants, {} survivors, on set {}.",
        report.mutants.len(),
        report.survivors,
        report.set
    ));
    let coverage: Vec<String> = report
        .coverage
        .iter()
        .map(|table| {
            format!(
                "clauses of {}: {} of {} covered ({:.1} %)",
                table.table, table.covered, table.total, table.percent
            )
        })
        .collect();
    page.list(&coverage);
    for (_, svg) in plots {
        page.figure(svg);
    }
    let texts = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
    page.section("Gates");
    let gates: Vec<Vec<String>> = report
        .gates
        .iter()
        .map(|gate| {
            let witness = gate.witness.as_deref().unwrap_or("(none)");
            texts(&[&gate.id, &gate.kills.to_string(), witness])
        })
        .collect();
    page.table(&texts(&["gate", "kills", "a mutant that no earlier gate sees"]), &gates);
    page.section("Mutants");
    let mutants: Vec<Vec<String>> = report
        .mutants
        .iter()
        .map(|line| {
            let word = if line.killed { "killed" } else { "SURVIVED" };
            let first = line.killed_by.first().map_or("", String::as_str);
            let clauses = line.clauses.join(" ");
            texts(&[word, &line.family.to_string(), &line.id, &clauses, &line.what, first])
        })
        .collect();
    let header = ["fate", "family", "mutant", "clauses", "the mistake", "first gate to see it"];
    page.table(&texts(&header), &mutants);
    page.finish()
}
