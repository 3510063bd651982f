//! Forecast against measurement, by memory limit.
//!
//! The table gives the hit rate of the last single position. Three replays of an LRU cache are
//! compared with it: batches whose misses are reserved before the hits are refreshed (as in
//! kimi-k3-in-c), batches with hits first (as in our engine), and single requests, the LRU of the
//! literature. The admission order of the study decides between them; without one, the replay that
//! agrees best.

use rayon::prelude::*;

use super::forecast::{TimeFit, fit_time};
use super::measured::MeasuredLimit;
use super::replay::replay;
use super::report::{Measured, MeasuredModel, MeasuredRow};
use super::statistics::{percent, rounded, rounded_fine};
use super::study::StudyPlan;
use super::view::requests_per_token;
use super::workload::{Window, Workload};
use k3_cache::policy::PolicyName;
use k3_cache::slot_table::{Requests, Reserve};
use k3_cache::trace::Trace;

/// Name, description, unit, admission order.
type Model = (&'static str, &'static str, Requests, Reserve);

const MODELS: [Model; 3] = [
    (
        "early",
        "LRU, batches, misses reserved before the batch's hits are refreshed",
        Requests::Batch,
        Reserve::Early,
    ),
    ("late", "LRU, batches, hits first", Requests::Batch, Reserve::Late),
    ("plain", "LRU, requests one by one", Requests::Single, Reserve::Late),
];

/// Compares; None if the trace has no single position.
pub fn compare(trace: &Trace, measured: &[MeasuredLimit], plan: &StudyPlan) -> Option<Measured> {
    let batch = Workload::new(trace, Requests::Batch);
    let single = Workload::new(trace, Requests::Single);
    let request_count = batch.request_counts[Window::DecodeLast as usize];
    if request_count == 0 {
        return None;
    }
    let hits: Vec<Vec<Option<u64>>> = measured
        .par_iter()
        .map(|limit| {
            let last = |(_, _, requests, reserve): &Model| {
                let workload = if *requests == Requests::Batch { &batch } else { &single };
                let slots = limit.slot_count.min(trace.shape.expert_count());
                let policy = PolicyName::Lru.build(&trace.shape, slots);
                let hits = replay(workload, slots, policy, *reserve).ok()?;
                Some(hits[Window::DecodeLast as usize])
            };
            MODELS.iter().map(last).collect()
        })
        .collect();
    let models: Vec<MeasuredModel> =
        (0..MODELS.len()).map(|model| judge(model, measured, &hits, request_count)).collect();
    let deciding = (0..models.len()).max_by(|&a, &b| {
        let order = models[a].exact_rungs.cmp(&models[b].exact_rungs);
        let error = models[b].largest_error_points.total_cmp(&models[a].largest_error_points);
        // Ties go to the first.
        order.then(error).then(b.cmp(&a))
    })?;
    let gb = requests_per_token(trace) as f64 * trace.shape.expert_bytes as f64 / 1e9;
    let mut rows: Vec<MeasuredRow> = measured
        .iter()
        .zip(&hits)
        .map(|(limit, hits)| row(limit, hits, request_count, deciding, gb))
        .collect();
    let (time, time_is_fitted) = add_seconds(&mut rows, measured, plan);
    let differences = differences(measured, &hits, request_count, deciding);
    let largest = |errors: &mut dyn Iterator<Item = f64>| {
        errors.fold(None, |most: Option<f64>, e| Some(most.map_or(e, |most| most.max(e))))
    };
    let seconds = |row: &MeasuredRow| Some((row.measured_seconds? - row.forecast_seconds?).abs());
    let bytes = |row: &MeasuredRow| Some((row.measured_gb? - row.forecast_gb).abs());
    Some(Measured {
        request_count,
        model: models[deciding].name,
        exact: models[deciding].exact_rungs == measured.len(),
        largest_error_points: models[deciding].largest_error_points,
        tolerance_points: plan.tolerance_points,
        largest_seconds_error: largest(&mut rows.iter().filter_map(seconds)).map(rounded_fine),
        largest_gb_error: largest(&mut rows.iter().filter_map(bytes)).map(rounded_fine),
        models,
        rows,
        time,
        time_is_fitted,
        differences,
    })
}

/// Whether a forecast is the measured rate to the decimals the rate was printed with.
fn agrees(limit: &MeasuredLimit, forecast_percent: f64) -> bool {
    let printed = format!("{forecast_percent:.decimals$}", decimals = limit.hit_decimals);
    printed.parse() == Ok(limit.hit_percent)
}

fn judge(
    model: usize,
    measured: &[MeasuredLimit],
    hits: &[Vec<Option<u64>>],
    request_count: u64,
) -> MeasuredModel {
    let (name, description, ..) = MODELS[model];
    let (mut exact_rungs, mut largest) = (0, 0.0_f64);
    for (limit, hits) in measured.iter().zip(hits) {
        match hits[model] {
            Some(hits) => {
                let forecast = percent(hits, request_count);
                exact_rungs += usize::from(agrees(limit, forecast));
                largest = largest.max((forecast - limit.hit_percent).abs());
            }
            // A row that cannot be replayed is as wrong as can be.
            None => largest = 100.0,
        }
    }
    MeasuredModel { name, description, exact_rungs, largest_error_points: rounded(largest) }
}

fn row(
    limit: &MeasuredLimit,
    hits: &[Option<u64>],
    request_count: u64,
    deciding: usize,
    gb_per_token: f64,
) -> MeasuredRow {
    let hits: Vec<u64> = hits.iter().map(|hits| hits.unwrap_or(0)).collect();
    let forecast_percent: Vec<f64> =
        hits.iter().map(|&hits| percent(hits, request_count)).collect();
    let missed = 1.0 - hits[deciding] as f64 / request_count as f64;
    MeasuredRow {
        total_gb: limit.total_gb,
        slot_count: limit.slot_count,
        measured_percent: limit.hit_percent,
        error_points: rounded(forecast_percent[deciding] - limit.hit_percent),
        hits,
        forecast_percent,
        measured_gb: limit.expert_gb_per_token,
        forecast_gb: rounded_fine(missed * gb_per_token),
        measured_seconds: limit.seconds_per_token,
        forecast_seconds: None,
    }
}

/// Seconds by the machine given, or by a line through the measured rows.
fn add_seconds(
    rows: &mut [MeasuredRow],
    measured: &[MeasuredLimit],
    plan: &StudyPlan,
) -> (Option<TimeFit>, bool) {
    let trunk = plan.machine.trunk_bytes as f64 / 1e9;
    let read: Vec<f64> = rows
        .iter()
        .zip(measured)
        .map(|(row, limit)| row.forecast_gb + (trunk - limit.pinned_gb.unwrap_or(0.0)).max(0.0))
        .collect();
    let measured = |(gb, row): (&f64, &MeasuredRow)| Some((*gb, row.measured_seconds?));
    let points: Vec<(f64, f64)> = read.iter().zip(rows.iter()).filter_map(measured).collect();
    let given = plan.machine.disk_rate_given.then_some(TimeFit {
        compute_seconds: plan.machine.compute_seconds_per_token,
        disk_bytes_per_second: plan.machine.disk_bytes_per_second,
    });
    let time = given.or_else(|| fit_time(&points));
    if let Some(time) = time {
        for (row, gb) in rows.iter_mut().zip(read) {
            let seconds = time.compute_seconds + gb * 1e9 / time.disk_bytes_per_second;
            row.forecast_seconds = row.measured_seconds.map(|_| rounded_fine(seconds));
        }
    }
    (time, given.is_none() && time.is_some())
}

/// Where another model gets something else, in words.
fn differences(
    measured: &[MeasuredLimit],
    hits: &[Vec<Option<u64>>],
    request_count: u64,
    deciding: usize,
) -> Vec<String> {
    let mut words = Vec::new();
    for (limit, hits) in measured.iter().zip(hits) {
        let decided = hits[deciding];
        let others: Vec<String> = (0..MODELS.len())
            .filter(|&model| hits[model] != decided)
            .map(|model| match hits[model] {
                Some(hits) => {
                    let rate = percent(hits, request_count);
                    format!("{} ({}) {hits} hits = {rate:.2} %", MODELS[model].1, MODELS[model].0)
                }
                None => format!("{} cannot serve a batch", MODELS[model].1),
            })
            .collect();
        if let (Some(decided), false) = (decided, others.is_empty()) {
            let rate = percent(decided, request_count);
            words.push(format!(
                "at {} slots {} gives {decided} hits = {rate:.2} % (measured {}), {}",
                limit.slot_count,
                MODELS[deciding].0,
                limit.hit_percent,
                others.join(", ")
            ));
        }
    }
    words
}
