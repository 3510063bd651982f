//! The study as plain text: prose within 100 columns, tables as wide as they are. A pure function
//! of the report.

use std::fmt::Write as _;

use super::forecast::Machine;
use super::report::{Forecast, Measured, Report, Row, View};
use super::tables::{
    amount, capacity_table, columns, forecast_table, gb, grouped, measured_table, pinned_table,
    prefetch_table,
};

const RULE: &str = "----------------------------------------------------------------";

/// Heading of the study of reading ahead.
pub const PREFETCH_HEADING: &str = "Reading ahead";

/// What the columns of reading ahead mean, and what its seconds assume.
pub fn prefetch_words(report: &Report) -> Vec<String> {
    let machine = &report.settings.machine;
    vec![
        "before each layer at most N experts are read ahead; misses: experts that the computation \
         waits for, without and with; caused: misses of experts thrown out to read ahead"
            .to_owned(),
        "GB/token: read without reading ahead; waited and read: waited for, and read in all, with \
         it"
        .to_owned(),
        format!(
            "s/token at best, {:.2} GB/s and {} s of computing: with the trunk held, and with its \
             {} GB streamed beside the computation; the disk is never idle while there is \
             something to read",
            machine.disk_bytes_per_second / 1e9,
            machine.compute_seconds_per_token,
            amount(gb(machine.trunk_bytes))
        ),
    ]
}

/// The whole report.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    head(&mut out, report);
    for view in &report.views {
        view_text(&mut out, view, report);
    }
    if let Some(forecast) = &report.forecast {
        forecast_text(&mut out, forecast, &report.settings.machine);
    }
    if let Some(measured) = &report.measured {
        measured_text(&mut out, measured);
    }
    if !(report.prefetch.is_empty() && report.prefetch_refused.is_empty()) {
        heading(&mut out, PREFETCH_HEADING);
        for words in prefetch_words(report) {
            line(&mut out, &words);
        }
        out.push('\n');
        let (header, rows) = prefetch_table(&report.prefetch);
        columns(&mut out, &header, &rows);
        for refused in &report.prefetch_refused {
            line(&mut out, &format!("refused: {refused}"));
        }
    }
    for run in &report.recorded_runs {
        heading(&mut out, "Recorded run");
        let (policy, slots) = (&run.policy, run.slot_count);
        line(
            &mut out,
            &format!(
                "{policy}, {slots} slots: {} decisions, {} hits, {} reads, {} evictions",
                run.decision_count, run.recorded_hits, run.recorded_misses, run.recorded_evictions
            ),
        );
        match &run.difference {
            None => line(&mut out, "the replay of its settings decides the same, every time"),
            Some(difference) => line(&mut out, &format!("DIFFERS: {difference}")),
        }
    }
    if !report.notes.is_empty() {
        heading(&mut out, "Notes");
        for note in &report.notes {
            line(&mut out, &format!("- {note}"));
        }
    }
    out
}

/// Appends a text, broken at spaces before column 100, continuation lines indented.
fn line(out: &mut String, text: &str) {
    let mut column = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > 98 {
            out.push_str("\n  ");
            column = 2;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out.push('\n');
}

fn heading(out: &mut String, text: &str) {
    let _ = writeln!(out, "\n{text}\n{}", &RULE[..text.len().min(RULE.len())]);
}

fn head(out: &mut String, report: &Report) {
    let (trace, settings) = (&report.trace, &report.settings);
    let shape = &trace.shape;
    line(
        out,
        &format!(
            "Expert cache study: {} requests ({}), {} distinct experts, {} MoE layers, top-{} \
             of {}",
            grouped(trace.request_count as u64),
            trace.formats.join(", "),
            grouped(trace.distinct_count as u64),
            trace.moe_layer_count,
            shape.top_k,
            shape.experts_per_layer
        ),
    );
    let pool = trace.moe_layer_count as u64 * u64::from(shape.experts_per_layer);
    let distinct = trace.distinct_count as u64;
    line(
        out,
        &format!(
            "one expert {} bytes; distinct ones {} GB = {:.2} % of those layers' {} GB",
            grouped(shape.expert_bytes),
            amount(gb(distinct * shape.expert_bytes)),
            100.0 * distinct as f64 / pool.max(1) as f64,
            amount(gb(pool * shape.expert_bytes))
        ),
    );
    if let Some(identity) = &trace.checkpoint_identity {
        line(out, &format!("checkpoint {identity}"));
    }
    for filter in &trace.filters {
        line(out, &format!("filter: {filter} (next uses and distances are those of what is left)"));
    }
    line(out, &format!("order: {}", report.order.finding));
    let requests = format!("{:?}", settings.requests).to_lowercase();
    let reserve = format!("{:?}", settings.reserve).to_lowercase();
    line(out, &format!("requests: {requests}; reserve: {reserve}; optimum: {}", settings.optimum));
}

fn view_text(out: &mut String, view: &View, report: &Report) {
    heading(out, &format!("Order: {}", view.order));
    if let Some(caveat) = &view.caveat {
        line(out, &format!("NOT WHAT AN ENGINE SEES: {caveat}"));
    }
    let expert_bytes = report.trace.shape.expert_bytes;
    line(
        out,
        &format!(
            "{} requests, {} of the prompt; rates are about {} requests ({}); one token asks for \
             {} experts = {} GB: its working set",
            grouped(view.request_count),
            grouped(view.prefill_request_count),
            grouped(view.focus_request_count),
            if view.focus == "decode" { "single new tokens" } else { "all" },
            grouped(view.requests_per_token),
            amount(gb(view.requests_per_token * expert_bytes))
        ),
    );
    line(
        out,
        &format!(
            "{} distinct experts = {} GB; a cache that holds them all hits {:.2} %",
            grouped(view.distinct_count as u64),
            amount(gb(view.distinct_count as u64 * expert_bytes)),
            view.ceiling_percent
        ),
    );
    if let Some(plateau) = &view.plateau {
        line(
            out,
            &format!(
                "LRU is flat at {:.2} % from {} to {} slots: the knee is at {} GB",
                plateau.hit_percent,
                grouped(plateau.from_slots as u64),
                grouped(plateau.to_slots as u64),
                amount(gb(plateau.to_slots as u64 * expert_bytes))
            ),
        );
    }
    table(out, &view.rows, &report.settings.machine);
    statistics(out, view);
}

fn table(out: &mut String, rows: &[Row], machine: &Machine) {
    out.push('\n');
    let (header, cells) = capacity_table(rows, machine);
    columns(out, &header, &cells);
    let refused = rows.iter().filter_map(|row| row.refused.as_ref());
    for refused in refused {
        line(out, &format!("refused: {refused}"));
    }
    line(
        out,
        "hit rates in percent; GB/token and s/token: reading experts, with the best policy shown",
    );
}

fn statistics(out: &mut String, view: &View) {
    if !view.pinned.is_empty() {
        out.push('\n');
        line(
            out,
            &format!(
                "Pinned hottest and LRU: pins learned on the first part, judged on the last {} \
                 requests",
                grouped(view.pinned[0].judged_request_count)
            ),
        );
        let (header, rows) = pinned_table(view);
        columns(out, &header, &rows);
    }
    out.push('\n');
    let hottest: Vec<String> = view
        .hottest
        .iter()
        .map(|hot| format!("L{}/e{} x{}", hot.layer, hot.expert, hot.request_count))
        .collect();
    line(out, &format!("hottest: {}", hottest.join(", ")));
    if let Some(reuse) = &view.reuse {
        let least = reuse.mean_by_layer.iter().copied().fold(f64::INFINITY, f64::min);
        let most = reuse.mean_by_layer.iter().copied().fold(0.0, f64::max);
        line(
            out,
            &format!(
                "a position shares {:.2} experts of a layer with the position before, on average \
             ({least:.2} to {most:.2} by layer)",
                reuse.mean
            ),
        );
    }
    let ranges: Vec<String> = view
        .distances
        .iter()
        .filter(|bucket| bucket.count > 0)
        .map(|bucket| format!("{}-{}: {}", bucket.from, bucket.to, grouped(bucket.count)))
        .collect();
    line(
        out,
        &format!(
            "reuse distances (distinct experts since the last use): {}; first uses: {}",
            if ranges.is_empty() { "none".to_string() } else { ranges.join(", ") },
            grouped(view.first_use_count)
        ),
    );
}

fn forecast_text(out: &mut String, forecast: &Forecast, machine: &Machine) {
    heading(out, &format!("Forecast, order {}", forecast.order));
    line(out, &machine_words(machine));
    out.push('\n');
    let (header, rows) = forecast_table(forecast);
    columns(out, &header, &rows);
    for small in &forecast.too_small {
        line(
            out,
            &format!(
                "{} GB is too small: {} GB are needed",
                amount(gb(small.memory_bytes)),
                amount(gb(small.needed_bytes))
            ),
        );
    }
    out.push('\n');
    line(out, FORECAST_LEGEND);
    line(out, &forecast.split_advice);
    for advice in forecast.recommendations.iter().filter(|advice| !advice.pins.is_empty()) {
        let pins: Vec<String> =
            advice.pins.iter().map(|pin| format!("L{}/e{}", pin.layer, pin.expert)).collect();
        line(out, &format!("pins at {:.1} GB: {}", gb(advice.memory_bytes), pins.join(" ")));
    }
}

/// What the columns of the forecast are.
pub(super) const FORECAST_LEGEND: &str = "\
    memory and trunk (held in memory) in GB; the policy is the recommended one; trunk s and expert \
     s: seconds of reading for a decoded token; lru and optimum: seconds per token with them, each \
     at its own best split; pins: experts to pin, learned on the first part and judged on the rest";

/// The assumptions of a forecast.
pub(super) fn machine_words(machine: &Machine) -> String {
    format!(
        "disk {} GB/s ({}), {} s of computing per token, trunk {} GB, {} GB besides trunk \
         and experts; reading and computing do not overlap",
        amount(machine.disk_bytes_per_second / 1e9),
        if machine.disk_rate_given { "given" } else { "assumed: give --disk-gbs" },
        machine.compute_seconds_per_token,
        amount(gb(machine.trunk_bytes)),
        amount(gb(machine.fixed_bytes))
    )
}

fn measured_text(out: &mut String, measured: &Measured) {
    heading(out, "Forecast against measured");
    for sentence in measured_words(measured) {
        line(out, &sentence);
    }
    out.push('\n');
    let (header, rows) = measured_table(measured);
    columns(out, &header, &rows);
    for difference in &measured.differences {
        line(out, difference);
    }
}

/// What came of the comparison, in sentences.
pub(super) fn measured_words(measured: &Measured) -> Vec<String> {
    let mut words: Vec<String> = measured
        .models
        .iter()
        .map(|model| {
            format!(
                "{}: {}: {} of {} rungs to the printed precision, largest error {:.2} points",
                model.name,
                model.description,
                model.exact_rungs,
                measured.rows.len(),
                model.largest_error_points
            )
        })
        .collect();
    words.push(if measured.exact {
        format!("EXACT at all {} rungs with model {}", measured.rows.len(), measured.model)
    } else {
        format!(
            "largest error {:.2} points with model {} (tolerance {:.2})",
            measured.largest_error_points, measured.model, measured.tolerance_points
        )
    });
    if let Some(error) = measured.largest_gb_error {
        words.push(format!("largest error of the experts read: {} GB a token", amount(error)));
    }
    if let (Some(time), Some(error)) = (measured.time, measured.largest_seconds_error) {
        words.push(format!(
            "seconds: {} s of computing and {} GB/s ({}); largest error {} s",
            amount(time.compute_seconds),
            amount(time.disk_bytes_per_second / 1e9),
            if measured.time_is_fitted {
                "a line through these very rows: only the scatter is a test"
            } else {
                "given"
            },
            amount(error)
        ));
    }
    words
}
