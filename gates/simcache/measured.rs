//! Each fault of a measured table is reported by name.

use k3_simcache::measured::{parse, read};
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
    let refuse = |text: &str, words: &str| {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(words), "{text:?}: {error}");
    };
    refuse("", "has no rows");
    refuse("# only\n\n", "has no rows");
    refuse("cache_slots\texpert_hit_true\n", "has no rows");
    refuse("cache_slots\n1\n", "has no column expert_hit_true");
    let twice = "cache_slots\texpert_hit_true\tcache_slots\n1\t2\t3\n";
    refuse(twice, "has column cache_slots twice");
    let head = "cache_slots\texpert_hit_true\n";
    refuse(&format!("{head}1\n"), "line 2: 1 fields, the header has 2");
    for (row, column) in [
        ("0\t1", "cache_slots"),
        ("-3\t1", "cache_slots"),
        ("x\t1", "cache_slots"),
        ("1\tNaN", "expert_hit_true"),
        ("1\t101", "expert_hit_true"),
        ("1\tinf", "expert_hit_true"),
    ] {
        refuse(&format!("{head}{row}\n"), &format!("line 2: {column} is '"));
    }
    let missing = read(std::path::Path::new("/nowhere/ladder.tsv")).unwrap_err();
    assert!(missing.to_string().contains("cannot read the measured table"), "{missing}");
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
