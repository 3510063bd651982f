//! The cache laboratory on a trace of the released model and a ladder measured with it.

use std::path::{Path, PathBuf};

use k3_cache::policy::PolicyName;
use k3_cache::shape::ModelShape;
use k3_cache::slot_table::{Requests, Reserve};
use k3_cache::trace::{Demand, Trace, headerless, parse, read};
use k3_simcache::forecast::{K3_FIXED_BYTES, K3_TRUNK_BYTES, Machine};
use k3_simcache::measured;
use k3_simcache::optimum;
use k3_simcache::optimum::Admission;
use k3_simcache::order::{Recognition, mark_steps, recognise, relinearise};
use k3_simcache::prefetch::{Predictor, Scale};
use k3_simcache::replay::replay;
use k3_simcache::stack_distance;
use k3_simcache::study;
use k3_simcache::tables::prefetch_table;
use k3_simcache::workload::{Window, Workload, sum_over};

use super::external;
use crate::support::read_ahead;
use crate::support::traces::{hits, plan};
use crate::support::{arg, expect, json, snapshot};

const RECORDED_SLOTS: [usize; 6] = [455, 911, 1823, 3647, 7294, 14588];
const LRU_SINGLE: [u64; 6] = [36_272, 36_272, 36_272, 36_272, 49_238, 90_086];
const LRU_BATCH: [u64; 6] = [36_272, 36_272, 36_272, 36_272, 49_289, 90_086];
const OPTIMUM_SINGLE: [u64; 6] = [39_457, 42_649, 49_033, 61_801, 84_675, 90_086];
const OPTIMUM_BATCH: [u64; 6] = [39_442, 42_634, 49_018, 61_786, 84_675, 90_086];

fn path() -> PathBuf {
    external("kimi-k3-routing/expert_trace.bin")
}

fn ladder() -> PathBuf {
    external("kimi-k3-routing/measured-ladder.tsv")
}

fn real_trace() -> Trace {
    read(&path(), &ModelShape::K3, &Default::default()).unwrap()
}

fn decode_order() -> Trace {
    relinearise(&real_trace()).unwrap()
}

pub fn the_trace_is_eight_sweeps_of_five_to_twelve_positions() {
    let trace = real_trace();
    assert_eq!((trace.requests.len(), trace.distinct_count()), (100_096, 10_010));
    let Recognition::Recompute(evidence) = recognise(&trace) else {
        panic!("not recognised as recompute sweeps");
    };
    assert_eq!(evidence.sweep_count, 8);
    assert_eq!(evidence.positions_per_sweep, [5, 6, 7, 8, 9, 10, 11, 12]);
    assert_eq!(evidence.row_count, 68 * 92);
    assert_eq!(evidence.repeated_row_count, 56 * 92);
    assert_eq!(evidence.same_order_row_count, 56 * 92);
}

pub fn recorded_order_gives_the_published_hits() {
    let mut trace = real_trace();
    let recognition = recognise(&trace);
    mark_steps(&mut trace, &recognition);
    for (requests, lru, optimum) in [
        (Requests::Single, LRU_SINGLE, OPTIMUM_SINGLE),
        (Requests::Batch, LRU_BATCH, OPTIMUM_BATCH),
    ] {
        let workload = Workload::new(&trace, requests);
        let distances = stack_distance::distances(&workload);
        let curve = stack_distance::lru_curve(&workload, &distances);
        assert_eq!(RECORDED_SLOTS.map(|slots| curve.hits(slots)), lru, "{requests:?}");
        let curve = optimum::curve(&workload);
        assert_eq!(RECORDED_SLOTS.map(|slots| curve.hits(slots)), optimum, "{requests:?}");
        // The replays say the same as the one-pass curves.
        for (place, slots) in [(0, 455), (4, 7294)] {
            assert_eq!(hits(&workload, slots, PolicyName::Lru), lru[place]);
            let replayed = optimum::replay(&workload, slots, Admission::Forced);
            assert_eq!(replayed.iter().sum::<u64>(), optimum[place]);
        }
    }
}

pub fn decode_order_gives_the_measured_hits_of_the_last_step() {
    let trace = decode_order();
    let workload = Workload::new(&trace, Requests::Single);
    assert_eq!(workload.request_counts[Window::DecodeLast as usize], 1472);
    let curve = stack_distance::lru_curve(&workload, &stack_distance::distances(&workload));
    let slots = [28, 159, 250, 432, 615, 979, 1344, 2073, 2802, 3531, 4386, 6208];
    let rates = slots.map(|slots| {
        let hits = curve.by_window(slots)[Window::DecodeLast as usize];
        format!("{:.2}", 100.0 * hits as f64 / 1472.0)
    });
    let zero = "0.00";
    let expected =
        [zero, zero, zero, zero, zero, zero, zero, "29.89", "32.20", "33.08", "35.53", "43.82"];
    assert_eq!(rates, expected);
    // kimi-k3-in-c reserves misses first; these five counts are the ones measured on it.
    let batch = Workload::new(&trace, Requests::Batch);
    let early = [2073, 2802, 3531, 4386, 6208].map(|slots| {
        let policy = PolicyName::Lru.build(&batch.shape, slots);
        replay(&batch, slots, policy, Reserve::Early).unwrap()[Window::DecodeLast as usize]
    });
    assert_eq!(early, [440, 474, 487, 523, 644]);
}

pub fn the_first_step_reads_99_70_gb_from_64_slots_on() {
    let trace = decode_order();
    for requests in [Requests::Single, Requests::Batch] {
        let workload = Workload::new(&trace, requests);
        let curve = stack_distance::lru_curve(&workload, &stack_distance::distances(&workload));
        let prefill = Window::Prefill as usize;
        let read = |slots: usize| {
            let missed = workload.request_counts[prefill] - curve.by_window(slots)[prefill];
            format!("{:.2}", missed as f64 * 17_547_264.0 / 1e9)
        };
        for slots in [64, 113, 1472, 10_010] {
            assert_eq!(read(slots), "99.70", "{requests:?} {slots}");
        }
        assert_ne!(read(32), "99.70", "{requests:?}: half of that is not enough");
    }
}

pub fn decode_order_gives_the_forced_optimum_of_the_single_steps() {
    let trace = decode_order();
    for (requests, expected) in [
        (Requests::Single, ["29.31", "45.08", "51.67"]),
        (Requests::Batch, ["28.80", "44.99", "51.64"]),
    ] {
        let workload = Workload::new(&trace, requests);
        let requests = sum_over(Window::DECODE, &workload.request_counts);
        assert_eq!(requests, 7 * 1472);
        let curve = optimum::curve(&workload);
        let rates = [455, 911, 1344].map(|slots| {
            let hits = sum_over(Window::DECODE, &curve.by_window(slots));
            format!("{:.2}", 100.0 * hits as f64 / requests as f64)
        });
        assert_eq!(rates, expected);
    }
}

pub fn layer_cycle_on_the_real_trace() {
    let trace = decode_order();
    let workload = Workload::new(&trace, Requests::Batch);
    let requests = sum_over(Window::DECODE, &workload.request_counts) as f64;
    let rate = |policy: PolicyName, slots: usize| {
        let policy = policy.build(&workload.shape, slots);
        let hits = replay(&workload, slots, policy, Reserve::Late).unwrap();
        100.0 * sum_over(Window::DECODE, &hits) as f64 / requests
    };
    for (slots, at_least) in [(455, 10.0), (911, 18.0), (1344, 25.0)] {
        let rate = rate(PolicyName::LayerCycle, slots);
        assert!(rate >= at_least, "{rate} at {slots}");
    }
    for slots in [455, 911, 1344, 1823, 2802, 3647, 6208, 7294, 10_941] {
        let (ours, lru) = (rate(PolicyName::LayerCycle, slots), rate(PolicyName::Lru, slots));
        let (s3, random) = (rate(PolicyName::S3Fifo, slots), rate(PolicyName::Random, slots));
        println!("{slots}: ours {ours:.2} lru {lru:.2} s3-fifo {s3:.2} random {random:.2}");
        assert!(ours > lru - 1.0, "{ours} against {lru} at {slots}");
    }
}

/// The report on the real trace is kept under `reports/simcache/`: its text as a snapshot, its
/// main plots as files. Made again with
/// `k3-verify simcache expert_trace.bin --measured measured-ladder.tsv --out DIR`.
pub fn the_committed_report_and_plots_are_those_of_the_real_trace() {
    let trace = real_trace();
    let mut study_plan = plan();
    study_plan.requests = None;
    study_plan.machine.trunk_bytes = K3_TRUNK_BYTES;
    study_plan.machine.fixed_bytes = K3_FIXED_BYTES;
    study_plan.measured = Some(measured::read(&ladder()).unwrap());
    let report = study::run(vec![trace], &study_plan).unwrap();
    snapshot("simcache", "kimi-k3-text", &report.document().text());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("reports/simcache");
    let drawn = report.document().figures().unwrap();
    for name in ["hit-rate-decode", "orders", "split", "reuse-decode", "measured-hit-rate"] {
        let svg = &drawn.iter().find(|plot| plot.0 == name).unwrap().1;
        let kept = std::fs::read_to_string(folder.join(format!("kimi-k3-{name}.svg")));
        assert!(kept.is_ok_and(|kept| kept == *svg), "kimi-k3-{name}.svg is not what is drawn now");
    }
}

/// Why the engine does not read ahead. On the real trace, in decode order, with the engine's
/// policy: with slots for a token's experts and more, those of the token before are resident
/// anyway; with fewer, more is read in all, so a disk that is busy with the trunk takes longer, by
/// whatever predictor that cannot see what comes. The counts are held against the lists for LRU;
/// `reports/simcache/kimi-k3-prefetch.snap` is the table.
pub fn reading_ahead_reads_more_than_it_saves_on_real_routing() {
    let trace = decode_order();
    let workload = Workload::new(&trace, Requests::Batch);
    let token = 1472;
    let machine = Machine {
        disk_bytes_per_second: 3e9,
        disk_rate_given: true,
        compute_seconds_per_token: 11.0,
        trunk_bytes: K3_TRUNK_BYTES,
        fixed_bytes: K3_FIXED_BYTES,
    };
    let scale = Scale {
        workload: &workload,
        focus: Window::DECODE,
        requests_per_token: token as u64,
        machine: &machine,
    };
    let mut rows = Vec::new();
    for (predictor, count) in [
        (Predictor::PreviousToken, 4),
        (Predictor::PreviousToken, 16),
        (Predictor::MostFrequent, 16),
        (Predictor::Perfect, 16),
    ] {
        for slots in [32, 113, 455, 911, 1367, 1823, 3647] {
            let way = read_ahead::plan(predictor, count);
            read_ahead::agree(&trace, slots, way);
            let row = scale.row(slots, PolicyName::LayerCycle, Reserve::Late, way);
            let row = row.unwrap();
            assert!(row.read_gb_per_token >= row.plain_gb_per_token, "{row:?}");
            if predictor == Predictor::PreviousToken && slots >= token {
                assert_eq!(row.counts.reads_ahead, 0, "{row:?}");
            } else if predictor != Predictor::Perfect && slots < token {
                assert!(row.trunk_streamed.ahead > row.trunk_streamed.plain, "{row:?}");
                // Where it could help: nothing else to read while there is computing to do.
                assert!(row.trunk_held.ahead < row.trunk_held.plain, "{row:?}");
            }
            rows.push(row);
        }
    }
    let head = "Reading ahead on real routing, decode order: 3 GB/s, 11 s of computing per token, \
                a trunk of\n108.81 GB held or streamed.";
    let table = format!("{head}\n\n{}", prefetch_table(&rows).text());
    snapshot("simcache", "kimi-k3-prefetch", &table);
}

/// Exact with the admission order of kimi-k3-in-c.
pub fn the_forecast_is_exact_at_all_twelve_budgets() {
    let trace = real_trace();
    let mut study_plan = plan();
    study_plan.measured = Some(measured::read(&ladder()).unwrap());
    let measured = study::run(vec![trace], &study_plan).unwrap().measured.unwrap();
    assert!(measured.exact);
    assert_eq!((measured.model, measured.rows.len(), measured.request_count), ("early", 12, 1472));
    let hits: Vec<u64> = measured.rows.iter().map(|row| row.hits[0]).collect();
    assert_eq!(hits, [0, 0, 0, 0, 0, 0, 0, 440, 474, 487, 523, 644]);
    let read: Vec<String> =
        measured.rows.iter().map(|row| format!("{:.2}", row.forecast_gb)).collect();
    let measured_gb: Vec<String> =
        measured.rows.iter().map(|row| format!("{:.2}", row.measured_gb.unwrap())).collect();
    assert_eq!(read, measured_gb);
    // What plain LRU gets differently is named: one hit more at the largest budget, no other.
    let plain: Vec<&String> =
        measured.differences.iter().filter(|words| words.contains("(plain)")).collect();
    assert_eq!(plain.len(), 1);
    assert!(plain[0].contains("6208 slots") && plain[0].contains("645 hits = 43.82 %"));
}

/// J05: the last sweep as an engine's cache sees it: each layer once for the five positions of the
/// prompt, every expert where it was used last, then seven single positions.
pub fn j05_a_union_prefill_gives_the_rates_of_its_single_positions() {
    let single = decode_order();
    let mut requests = Vec::new();
    let prompt = |demand: &&Demand| demand.position < 5;
    for layer in single.layers() {
        let demands = single.demands.iter().filter(prompt).filter(|demand| demand.layer == layer);
        let asked: Vec<u32> = demands.flat_map(|demand| single.experts(demand)).copied().collect();
        let last = |(at, expert): &(usize, &u32)| !asked[at + 1..].contains(expert);
        requests.extend(asked.iter().enumerate().filter(last).map(|(_, expert)| expert));
    }
    let later = single.demands.iter().filter(|demand| demand.position >= 5);
    requests.extend(later.flat_map(|demand| single.experts(demand)));
    assert_eq!((requests.len(), single.requests.len()), (15_986, 17_664));
    let mut union = headerless::from_requests(requests, &ModelShape::K3);
    let recognition = recognise(&union);
    mark_steps(&mut union, &recognition);
    for trace in [&single, &union] {
        let workload = Workload::new(trace, Requests::Batch);
        assert_eq!(sum_over(Window::DECODE, &workload.request_counts), 10_304);
        let distances = stack_distance::distances(&workload);
        let hits = stack_distance::lru_curve(&workload, &distances).by_window(2073);
        let rate = 100.0 * sum_over(Window::DECODE, &hits) as f64 / 10_304.0;
        assert_eq!(format!("{rate:.2}"), "35.98");
    }
}

pub fn f09_the_published_trace_and_its_cut() {
    let trace = real_trace();
    assert_eq!((trace.requests.len(), trace.distinct_count()), (100_096, 10_010));
    let bytes = std::fs::read(path()).unwrap();
    assert_eq!(bytes.len(), 800_768);
    let error = parse(&bytes[..800_764], &ModelShape::K3).unwrap_err();
    assert!(error.to_string().contains("half a record at the end"), "{error}");
}

pub fn the_published_trace_takes_less_than_half_a_second() {
    let (trace, ladder) = (path(), ladder());
    let arguments = ["simcache", arg(&trace), "--measured", arg(&ladder), "--format", "json"];
    let json = json(&expect(&arguments, 0).stdout);
    assert_eq!(json["measured"]["exact"], true);
    // Other work on the machine may slow one run; a generous bound still catches a quadratic pass.
    let seconds = json["provenance"]["seconds"].as_f64().unwrap();
    println!("{seconds} s");
    assert!(seconds < 5.0, "{seconds} s");
}
