//! The ladder's reports as committed files: text, JSON, plots and page, without what changes from
//! run to run.
//!
//! The reference computes with the platform's f64 functions, whose last bits differ between
//! processors: its numbers are masked. The engine's are bits of the contract and stay.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use k3_core::clauses;
use k3_core::config::MLA_NORM_EPS;
use k3_gates::fixtures::Fixtures;
use k3_gates::kill_matrix::Options;
use k3_gates::ratchet::Ratchet;
use k3_gates::report::mutants::MutantReport;
use k3_gates::runner;
use k3_gates::subjects;
use serde_json::Value;

use super::support::{arg, expect, files_in, json, snapshot};

/// The files that `gates --out` writes, made once.
static LADDER: LazyLock<BTreeMap<String, Vec<u8>>> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    expect(&["gates", "--threads", "2", "--out", arg(folder.path())], 0);
    files_in(folder.path())
});

fn written(name: &str) -> &'static str {
    str::from_utf8(&LADDER[name]).unwrap()
}

/// The line up to its first number that comes from the platform's functions.
fn masked(line: &str) -> String {
    let cut = [", worst", " worst", ", bit-exact", "; max |diff|"];
    match cut.iter().filter_map(|mark| line.find(mark)).min() {
        Some(place) => format!("{} ~", &line[..place]),
        None => line.to_owned(),
    }
}

#[test]
fn the_text_of_the_ladder() {
    let text = written("report.txt");
    let lines: Vec<String> = text
        .lines()
        .map(|line| if line.contains(" reference ") { masked(line) } else { line.to_owned() })
        .collect();
    snapshot("gates", "ladder-text", &lines.join("\n"));
}

/// Every row with verdict and summary, and of the engine's comparisons name and ratio.
#[test]
fn the_json_of_the_ladder() {
    let mut report = json(written("report.json"));
    assert!(report["provenance"]["seconds"].is_number());
    report.as_object_mut().unwrap().remove("provenance");
    for row in report["gates"].as_array_mut().unwrap() {
        let row = row.as_object_mut().unwrap();
        let comparisons = row.remove("comparisons").unwrap_or_default();
        if row["subject"] == "reference" {
            let summary = masked(row["summary"].as_str().unwrap());
            row.insert("summary".to_owned(), summary.into());
        } else if let Some(comparisons) = comparisons.as_array() {
            let short = |c: &Value| {
                let ratio = c["ratio"].as_f64().map_or("exact".to_owned(), |r| format!("{r:.2e}"));
                Value::from(format!("{}: {ratio}", c["name"].as_str().unwrap()))
            };
            let short: Vec<Value> = comparisons.iter().map(short).collect();
            row.insert("comparisons".to_owned(), short.into());
        }
    }
    snapshot("gates", "ladder-json", &k3_render::json::to_text(&report).unwrap());
}

/// The engine's plots are functions of its bits; page and plots must be what the report says.
#[test]
fn the_plots_and_the_page_of_the_ladder() {
    let page = written("report.html");
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("reports/gates");
    for name in ["stages-tiny-engine-local", "stages-tiny-engine-chained"] {
        let svg = written(&format!("{name}.svg"));
        assert!(page.contains(svg.trim()), "{name} is not on the page");
        let kept = std::fs::read_to_string(kept.join(format!("{name}.svg")));
        assert!(kept.is_ok_and(|kept| kept == svg), "{name}.svg is not what is drawn now");
    }
    for outside in ["<script", "<link", "href=", "src=", "url("] {
        assert!(!page.contains(outside), "the page is self-contained, without {outside}");
    }
}

/// The committed ratchet names exactly what the ladder compares, and nothing was left to judge.
#[test]
fn the_ratchet_names_what_the_ladder_compares() {
    let file = tempfile::NamedTempFile::new().unwrap();
    expect(&["gates", "--write-ratchet", arg(file.path())], 0);
    let now: Ratchet = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
    let recorded = Ratchet::shipped();
    assert!(now.ratios.keys().eq(recorded.ratios.keys()), "write the ratchet anew");
    assert!(recorded.ratios.len() > 100);
}

/// A small kill matrix: one mutant of each family, and one that teacher forcing does not see.
#[test]
fn the_report_of_a_kill_matrix() {
    let fixtures = Fixtures::embedded().unwrap();
    let (kernels, tiny) = runner::shipped_evidence(&fixtures).unwrap();
    let options = Options { mla_norm_eps: MLA_NORM_EPS, threads: 2, every_cell: false };
    let wanted = ["loader-shape-by-count", "l2norm-on-v", "a11-threads-split-sums"];
    let mut mutants = subjects::mutants();
    mutants.retain(|mutant| wanted.contains(&mutant.id.as_str()));
    // A mistake in a clause of the model is judged twice.
    assert_eq!(mutants.len(), wanted.len() + 1);
    let tables = [("the model", clauses::MODEL.as_slice(), ['a'].as_slice())];
    let report = MutantReport::run((&kernels, &tiny), &mutants, options, &tables, &|| {});
    assert_eq!(report.survivors, 0);
    // Two clauses are covered: a matrix of three mutants cannot conform.
    assert_eq!(report.exit_code, 1);
    let document = report.document();
    snapshot("gates", "kill-matrix-text", &document.text());
    let page = document.page(&document.figures().unwrap());
    assert!(page.contains("l2norm-on-v") && page.contains("<svg"), "{page}");
}
