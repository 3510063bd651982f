//! Each fault of a measured table is reported by name.

use k3_simcache::measured::{MeasuredError, parse, read};
use k3_simcache::study::{StudyError, run};

use crate::support::traces::{flat, plan};

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
