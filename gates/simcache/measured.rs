//! The measured table: exact with the admission order of kimi-k3-in-c, and what is wrong with
//! a table is said by name.

use k3_simcache::measured::{MeasuredError, parse, read};
use k3_simcache::study::{StudyError, run};

use crate::make::{external, flat, plan};
use crate::published::real_trace;

#[test]
fn the_forecast_is_exact_at_all_twelve_limits() {
    let Some(trace) = real_trace() else { return };
    let Some(path) = external("kimi-k3-routing/measured-ladder.tsv") else {
        return;
    };
    let mut plan = plan();
    plan.measured = Some(read(&path).unwrap());
    let measured = run(vec![trace], &plan).unwrap().measured.unwrap();
    assert!(measured.exact);
    assert_eq!((measured.model, measured.rows.len(), measured.request_count), ("early", 12, 1472));
    let hits: Vec<u64> = measured.rows.iter().map(|row| row.hits[0]).collect();
    assert_eq!(hits, [0, 0, 0, 0, 0, 0, 0, 440, 474, 487, 523, 644]);
    let read: Vec<String> =
        measured.rows.iter().map(|row| format!("{:.2}", row.forecast_gb)).collect();
    let measured_gb: Vec<String> =
        measured.rows.iter().map(|row| format!("{:.2}", row.measured_gb.unwrap())).collect();
    assert_eq!(read, measured_gb);
    // What plain LRU gets differently is named: one hit more at the largest limit, no other.
    let plain: Vec<&String> =
        measured.differences.iter().filter(|words| words.contains("(plain)")).collect();
    assert_eq!(plain.len(), 1);
    assert!(plain[0].contains("6208 slots") && plain[0].contains("645 hits = 43.82 %"));
}

#[test]
fn measurements_need_single_positions() {
    let mut plan = plan();
    plan.measured = Some(parse("cache_slots\texpert_hit_true\n3\t50\n").unwrap());
    let error = run(vec![flat(&[1, 2, 3])], &plan).unwrap_err();
    assert!(matches!(error, StudyError::NothingToMeasure));
}

#[test]
fn every_wrong_table_is_refused_by_name() {
    let error = |text: &str| parse(text).unwrap_err();
    assert!(matches!(error(""), MeasuredError::Empty));
    assert!(matches!(error("# only\n\n"), MeasuredError::Empty));
    assert!(matches!(error("cache_slots\texpert_hit_true\n"), MeasuredError::Empty));
    assert!(matches!(error("cache_slots\n1\n"), MeasuredError::MissingColumn("expert_hit_true")));
    let twice = "cache_slots\texpert_hit_true\tcache_slots\n1\t2\t3\n";
    assert!(matches!(error(twice), MeasuredError::ColumnTwice(_)));
    let head = "cache_slots\texpert_hit_true\n";
    assert!(matches!(error(&format!("{head}1\n")), MeasuredError::Ragged { line: 2, .. }));
    for (row, column) in [
        ("0\t1", "cache_slots"),
        ("-3\t1", "cache_slots"),
        ("x\t1", "cache_slots"),
        ("1\tNaN", "expert_hit_true"),
        ("1\t101", "expert_hit_true"),
        ("1\tinf", "expert_hit_true"),
    ] {
        match error(&format!("{head}{row}\n")) {
            MeasuredError::BadNumber { column: named, .. } => assert_eq!(named, column, "{row}"),
            other => panic!("{row}: {other}"),
        }
    }
    let missing = read(std::path::Path::new("/nowhere/ladder.tsv")).unwrap_err();
    assert!(matches!(missing, MeasuredError::Io(_)));
}

#[test]
fn carriage_returns_and_comments_do_not_matter() {
    let text = "# made by bench\r\ncache_slots\texpert_hit_true\r\n28\t0.0\r\n2073\t29.89\r\n";
    let measured = parse(text).unwrap();
    assert_eq!(
        (measured[1].slot_count, measured[1].hit_percent, measured[1].hit_decimals),
        (2073, 29.89, 2)
    );
}
