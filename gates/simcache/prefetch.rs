//! Reading ahead against a second count made with plain lists.

use k3_core::choice::Choice as _;

use k3_cache::policy::PolicyName;
use k3_cache::slot_table::{Requests, Reserve};
use k3_simcache::prefetch::{Predictor, PrefetchCounts, replay};
use k3_simcache::study::run;
use k3_simcache::workload::{Window, Workload};

use crate::support::read_ahead;
use crate::support::traces::{SMALL, plan as study_plan, small_zipf};

#[test]
fn plain_lists_count_the_same() {
    let mut seen = PrefetchCounts::default();
    for seed in [1, 2, 3] {
        let trace = small_zipf(seed);
        for slots in [3, 4, 5, 7, 9, 15, 20, 40, SMALL.expert_count()] {
            for predictor in Predictor::ALL {
                for count in [1, 2, 3, 5, 12] {
                    let counts =
                        read_ahead::agree(&trace, slots, read_ahead::plan(predictor, count));
                    assert!(counts.used_ahead <= counts.reads_ahead);
                    seen.caused_misses += counts.caused_misses;
                    seen.used_ahead += counts.used_ahead;
                    seen.evictions_ahead += counts.evictions_ahead;
                }
            }
        }
    }
    assert!(seen.caused_misses > 0 && seen.used_ahead > 0 && seen.evictions_ahead > 0);
}

/// Whoever knows what comes waits for nothing and reads no more; whoever names nothing changes
/// nothing.
#[test]
fn the_bound_waits_for_nothing() {
    let trace = small_zipf(7);
    let workload = Workload::new(&trace, Requests::Batch);
    for &policy in PolicyName::ALL {
        let bound = read_ahead::plan(Predictor::Perfect, 12);
        let counts = replay(&workload, 20, policy, Reserve::Late, bound, Window::DECODE).unwrap();
        assert_eq!(counts.demand_misses, 0, "{policy:?}");
        assert_eq!(counts.used_ahead, counts.reads_ahead, "{policy:?}");
    }
}

/// A capacity that a batch does not fit was left out without a word.
#[test]
fn a_capacity_that_a_batch_does_not_fit_is_refused_in_the_table_of_reading_ahead() {
    let mut study = study_plan();
    study.prefetch = vec![read_ahead::plan(Predictor::Perfect, 2)];
    study.policies = vec![PolicyName::Lru];
    study.slot_counts = vec![1, 8];
    let report = run(vec![small_zipf(42)], &study).unwrap();
    let slots: Vec<usize> = report.prefetch.iter().map(|row| row.slot_count).collect();
    assert_eq!(slots, [8]);
    let [refused] = &report.prefetch_refused[..] else {
        panic!("{:?}", report.prefetch_refused);
    };
    assert!(refused.contains("1 slot"), "{refused}");
    let words = report.document().text();
    let (_, section) = words.split_once("Reading ahead").unwrap();
    assert!(section.contains(&format!("refused: {refused}")), "{section}");
}
