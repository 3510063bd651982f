//! Reports as snapshots, under `reports/simcache/`: text and JSON of a generated trace, without
//! what changes from run to run.

use k3_core::host::provenance::Provenance;
use k3_render::json;
use k3_simcache::forecast::MemoryLimit;
use k3_simcache::report::Report;
use k3_simcache::study::run;

use crate::support::snapshot;
use crate::support::traces::{plan, recomputed, small_zipf};

/// The study that is kept: a recomputed trace of the small model, with memory limits and what was
/// measured.
pub fn kept_report() -> Report {
    let trace = small_zipf(42);
    let mut plan = plan();
    plan.requests = None;
    plan.limits = Some(vec![
        MemoryLimit::Memory { bytes: 4_000_000_000 },
        MemoryLimit::Memory { bytes: 20_000_000_000 },
        MemoryLimit::Memory { bytes: 34_000_000_000 },
        MemoryLimit::Memory { bytes: 50_000_000_000 },
        MemoryLimit::Preset {
            name: "ultra",
            trunk_bytes: 10_000_000_000,
            expert_bytes: 8_000_000_000,
        },
    ]);
    plan.machine.trunk_bytes = 20_000_000_000;
    plan.machine.fixed_bytes = 2_000_000_000;
    let measured = "total_gb\tcache_slots\tpin_gb\texpert_hit_true\ts_per_tok\tgb_read\n\
                  12\t9\t1\t0.0\t12.9\t15.0\n\
                  24\t20\t2\t46.67\t9.5\t8.0\n\
                  36\t30\t4\t53.3\t8.4\t7.0\n";
    plan.measured = Some(k3_simcache::measured::parse(measured).unwrap());
    run(vec![recomputed(&trace, 4, 16)], &plan).unwrap()
}

#[test]
fn the_text_of_a_study() {
    snapshot("simcache", "study-text", &kept_report().document().text());
}

#[test]
fn the_json_of_a_study() {
    let report = kept_report();
    assert_eq!(report.provenance, Provenance::default());
    snapshot("simcache", "study-json", &json::to_text(&report).unwrap());
}

#[test]
fn the_same_study_is_the_same_report_whatever_the_threads() {
    let expected = json::to_text(&kept_report()).unwrap();
    for threads in [1, 2, 3, 8] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        assert_eq!(pool.install(|| json::to_text(&kept_report()).unwrap()), expected, "{threads}");
    }
}
