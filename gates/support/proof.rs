//! `layers` as a report, and what a proof of a whole model must say.

use std::path::Path;

use k3_gates::outcome::Verdict;
use k3_gates::report::layers::LayersReport;

use super::{arg, expect, read_json};

/// Ids of the chains.
pub const IDS: &str = "3,17,200,5,9,44,100,7,250,1";

/// The report of a run as it is in JSON.
#[track_caller]
pub fn report(arguments: &[&str], code: i32) -> LayersReport {
    let with_json = [arguments, &["--format", "json"]].concat();
    serde_json::from_str(&expect(&with_json, code).stdout).unwrap()
}

/// The report that a run has left in a folder.
pub fn read_report(folder: &Path) -> LayersReport {
    serde_json::from_value(read_json(&folder.join("report.json"))).unwrap()
}

/// All layers of a model of 13 pass, with synthetic and with chained input.
#[track_caller]
pub fn all_layers_pass(model: &Path) {
    let base = ["layers", "all", "--model", arg(model)];
    let synthetic = report(&base, 0);
    assert_eq!(synthetic.rows.len(), 15);
    let largest = synthetic.rows.iter().filter_map(|row| row.input_max);
    assert!(largest.fold(0.0, f64::max) > 100.0, "the sweep stays small");
    let chain = report(&[&base[..], &["--input", "chain", "--ids", IDS]].concat(), 0);
    for run in [&synthetic, &chain] {
        for row in &run.rows {
            assert_eq!(row.verdict, Verdict::Pass, "{row:?}");
            let (_, within, at) = row.chained().unwrap_or((0.0, true, ""));
            assert!(within, "{:?} {at} is beyond eight floors", row.layer);
            let repeated = row.repeated.map(|r| (r.values > 0, r.differing));
            let is_repeated = row.place != "embed";
            assert_eq!(repeated, is_repeated.then_some((true, 0)), "{row:?}");
        }
        // Not vacuous: something is compared, and not everything is exact.
        let worst = run.worst.as_ref().unwrap();
        assert!(worst.ratio.unwrap() > 0.5, "{worst:?}");
    }
}
