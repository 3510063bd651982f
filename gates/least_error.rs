//! The least detectable errors: the perturbed engine without an error is the engine, and the
//! committed table is what comes out now.

use std::path::Path;

use k3_core::config::MLA_NORM_EPS;
use k3_core::stages::StageDump;
use k3_gates::evidence::EvidenceSet;
use k3_gates::fixtures::Fixtures;
use k3_gates::least_error::LeastErrors;
use k3_gates::mutants::perturbed::{self, Site};
use k3_gates::outcome::Verdict;
use k3_gates::registry::of_kernels;
use k3_gates::report::least_error::SiteLine;
use k3_gates::runner;
use k3_gates::subject::SubjectSource;
use k3_gates::subjects;
use serde_json::Value;

/// A committed file of the table.
fn committed(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("reports/least-error");
    std::fs::read_to_string(folder.join(name)).unwrap()
}

/// Bits of all logits and stages; the ids come in two calls, so that state is carried.
fn computed(source: &dyn SubjectSource, set: &EvidenceSet) -> (Vec<u64>, StageDump) {
    let subject = source.open(set.opening(MLA_NORM_EPS)).unwrap();
    let mut sequence = subject.sequence();
    let mut dump = StageDump::default();
    let (first, second) = set.prompt_ids.split_at(set.prompt_ids.len() / 2);
    let mut logits = sequence.feed(first, &mut dump).unwrap().values;
    logits.extend(sequence.feed(second, &mut dump).unwrap().values);
    (logits.into_iter().map(f64::to_bits).collect(), dump)
}

/// A site that changes something else than its value would report that as the gates' sight.
#[test]
fn without_an_error_every_site_is_the_engine() {
    let fixtures = Fixtures::embedded().unwrap();
    let (kernels, tiny) = runner::shipped_evidence(&fixtures).unwrap();
    let shipped = subjects::shipped();
    let engine = shipped.iter().find(|s| s.name() == "engine").unwrap();
    let right = computed(engine.as_ref(), &tiny);
    for site in perturbed::sites() {
        let source = subjects::perturbed(site, 0.0);
        assert!(computed(source.as_ref(), &tiny) == right, "{}", site.id);
        for gate in of_kernels() {
            let outcome = kernels.judge(gate, source.as_ref());
            assert_eq!(outcome.verdict, Verdict::Pass, "{} on {}", site.id, gate.id);
        }
    }
}

/// Two of the committed rows anew: an ε, and a blend.
#[test]
fn the_committed_table_is_what_comes_out() {
    let fixtures = Fixtures::embedded().unwrap();
    let (kernels, tiny) = runner::shipped_evidence(&fixtures).unwrap();
    let report: Value = serde_json::from_str(&committed("report.json")).unwrap();
    let kept = |id: &str| {
        let mut sites = report["sites"].as_array().unwrap().iter();
        sites.find(|site| site["id"] == id).unwrap().clone()
    };
    let mut sites = perturbed::sites();
    let wanted = ["n3-latent-epsilon", "e3-bias-in-weights"];
    sites.retain(|site| wanted.contains(&site.id));
    let table = LeastErrors::run(&kernels, &tiny, &sites, 2, &|| {});
    assert_eq!(table.red_at_zero, Vec::<String>::new());
    assert_eq!(table.rows.len(), wanted.len());
    for row in &table.rows {
        let now = serde_json::to_value(SiteLine::of(row, &table.gates)).unwrap();
        assert_eq!(now, kept(row.site.id), "write reports/least-error anew");
    }
}

/// Both files have every site, in order, and the text says the numbers of the JSON.
#[test]
fn the_committed_text_says_what_the_json_says() {
    let report: Value = serde_json::from_str(&committed("report.json")).unwrap();
    let text = committed("report.txt");
    let sites = report["sites"].as_array().unwrap();
    let ids: Vec<&str> = perturbed::sites().iter().map(|site: &Site| site.id).collect();
    let kept: Vec<&str> = sites.iter().map(|s| s["id"].as_str().unwrap()).collect();
    assert_eq!(kept, ids, "write reports/least-error anew");
    for site in sites {
        let id = site["id"].as_str().unwrap();
        let line = text.lines().find(|line| line.split_whitespace().nth(1) == Some(id));
        let line = line.unwrap_or_else(|| panic!("no line for {id}"));
        for seen in site["seen_by"].as_array().unwrap() {
            let of_tiny = seen["gate"].as_str().unwrap().starts_with("tiny/");
            let exponent = format!("2^{}", seen["exponent"]);
            assert!(!of_tiny || line.contains(&exponent), "{exponent} in {line}");
        }
    }
}
