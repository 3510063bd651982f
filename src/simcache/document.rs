//! The study for people: text, tables and plots, made from the report alone.

use super::forecast::Machine;
use super::plots;
use super::report::{Forecast, Measured, Report, View};
use super::statistics::HotExpert;
use super::tables::{
    amount, capacity_table, forecast_table, gb, grouped, measured_table, pinned_table,
    prefetch_table,
};
use k3_render::Document;

impl Report {
    /// The study for people.
    #[must_use]
    pub fn document(&self) -> Document {
        let mut document = Document::new("Expert cache study");
        head(&mut document, self);
        for (index, view) in self.views.iter().enumerate() {
            view_section(&mut document, view, self);
            if index == 0 && self.views.len() > 1 {
                document.figure("orders", plots::orders(self));
            }
        }
        if let Some(forecast) = &self.forecast {
            forecast_section(&mut document, forecast, self);
        }
        if let Some(measured) = &self.measured {
            measured_section(&mut document, measured);
        }
        prefetch_section(&mut document, self);
        for run in &self.recorded_runs {
            document.heading("Recorded run");
            document.note(format!(
                "{}, {} slots: {} decisions, {} hits, {} reads, {} evictions",
                run.policy,
                run.slot_count,
                run.decision_count,
                run.recorded_hits,
                run.recorded_misses,
                run.recorded_evictions
            ));
            document.note(match &run.difference {
                None => "the replay of its settings decides the same, every time".to_owned(),
                Some(difference) => format!("DIFFERS: {difference}"),
            });
        }
        if !self.notes.is_empty() {
            document.heading("Notes");
            for note in &self.notes {
                document.note(format!("- {note}"));
            }
        }
        document
    }
}

fn head(document: &mut Document, report: &Report) {
    let (trace, settings) = (&report.trace, &report.settings);
    let shape = &trace.shape;
    document.note(format!(
        "{} requests ({}), {} distinct experts, {} MoE layers, top-{} of {}",
        grouped(trace.request_count as u64),
        trace.formats.join(", "),
        grouped(trace.distinct_count as u64),
        trace.moe_layer_count,
        shape.top_k,
        shape.experts_per_layer
    ));
    let pool = trace.moe_layer_count as u64 * u64::from(shape.experts_per_layer);
    let distinct = trace.distinct_count as u64;
    document.note(format!(
        "one expert {} bytes; distinct ones {} GB = {:.2} % of those layers' {} GB",
        grouped(shape.expert_bytes),
        amount(gb(distinct * shape.expert_bytes)),
        100.0 * distinct as f64 / pool.max(1) as f64,
        amount(gb(pool * shape.expert_bytes))
    ));
    if let Some(identity) = &trace.checkpoint_identity {
        document.line(format!("checkpoint {identity}"));
    }
    for filter in &trace.filters {
        document.note(format!("filter: {filter} (next uses and distances are those of the rest)"));
    }
    document.note(format!("order: {}", report.order.finding));
    let requests = format!("{:?}", settings.requests).to_lowercase();
    let reserve = format!("{:?}", settings.reserve).to_lowercase();
    let optimum = settings.optimum;
    document.note(format!("requests: {requests}; reserve: {reserve}; optimum: {optimum}"));
}

fn view_section(document: &mut Document, view: &View, report: &Report) {
    document.heading(format!("Order: {}", view.order));
    if let Some(caveat) = &view.caveat {
        document.note(format!("NOT WHAT AN ENGINE SEES: {caveat}"));
    }
    let expert_bytes = report.trace.shape.expert_bytes;
    document.note(format!(
        "{} requests, {} of the prompt; rates are about {} requests ({}); one token asks for {} \
         experts = {} GB: its working set",
        grouped(view.request_count),
        grouped(view.prefill_request_count),
        grouped(view.focus_request_count),
        if view.focus == "decode" { "single new tokens" } else { "all" },
        grouped(view.requests_per_token),
        amount(gb(view.requests_per_token * expert_bytes))
    ));
    document.note(format!(
        "{} distinct experts = {} GB; a cache that holds them all hits {:.2} %",
        grouped(view.distinct_count as u64),
        amount(gb(view.distinct_count as u64 * expert_bytes)),
        view.ceiling_percent
    ));
    if let Some(plateau) = &view.plateau {
        document.note(format!(
            "LRU is flat at {:.2} % from {} to {} slots: the knee is at {} GB",
            plateau.hit_percent,
            grouped(plateau.from_slots as u64),
            grouped(plateau.to_slots as u64),
            amount(gb(plateau.to_slots as u64 * expert_bytes))
        ));
    }
    document.table(capacity_table(&view.rows, &report.settings.machine));
    for refused in view.rows.iter().filter_map(|row| row.refused.as_ref()) {
        document.note(format!("refused: {refused}"));
    }
    document.note(
        "hit rates in percent; GB/token and s/token: reading experts, with the best policy shown",
    );
    plots::of_view(document, view, report);
    statistics(document, view);
}

/// Layer and expert.
fn name(hot: &HotExpert) -> String {
    format!("L{}/e{}", hot.layer, hot.expert)
}

fn statistics(document: &mut Document, view: &View) {
    document.gap();
    if let Some(first) = view.pinned.first() {
        document.note(format!(
            "Pinned hottest and LRU: pins learned on the first part, judged on the last {} \
             requests; hits in percent",
            grouped(first.judged_request_count)
        ));
        document.table(pinned_table(view));
        document.gap();
    }
    let hottest = view.hottest.iter().map(|hot| format!("{} x{}", name(hot), hot.request_count));
    document.note(format!("hottest: {}", hottest.collect::<Vec<_>>().join(", ")));
    if let Some(reuse) = &view.reuse {
        let least = reuse.mean_by_layer.iter().copied().fold(f64::INFINITY, f64::min);
        let most = reuse.mean_by_layer.iter().copied().fold(0.0, f64::max);
        document.note(format!(
            "a position shares {:.2} experts of a layer with the position before, on average \
             ({least:.2} to {most:.2} by layer)",
            reuse.mean
        ));
    }
    let ranges: Vec<String> = view
        .distances
        .iter()
        .filter(|bucket| bucket.count > 0)
        .map(|bucket| format!("{}-{}: {}", bucket.from, bucket.to, grouped(bucket.count)))
        .collect();
    document.note(format!(
        "reuse distances (distinct experts since the last use): {}; first uses: {}",
        if ranges.is_empty() { "none".to_owned() } else { ranges.join(", ") },
        grouped(view.first_use_count)
    ));
}

fn forecast_section(document: &mut Document, forecast: &Forecast, report: &Report) {
    document.heading(format!("Forecast, order {}", forecast.order));
    document.note(machine_words(&report.settings.machine));
    document.table(forecast_table(forecast));
    for small in &forecast.too_small {
        document.note(format!(
            "{} GB is too small: {} GB are needed",
            amount(gb(small.memory_bytes)),
            amount(gb(small.needed_bytes))
        ));
    }
    document.gap();
    document.note(FORECAST_LEGEND);
    document.note(forecast.split_advice.as_str());
    if !forecast.splits.is_empty() {
        document.figure("split", plots::splits(forecast, report));
    }
    for advice in &forecast.recommendations {
        document.note(format!(
            "{:.1} GB: {}, {} slots, {:.2} GB of trunk held; {}",
            gb(advice.memory_bytes),
            advice.policy,
            grouped(advice.slot_count as u64),
            advice.trunk_held_gb,
            advice.reason
        ));
        if !advice.pins.is_empty() {
            let pins: Vec<String> = advice.pins.iter().map(name).collect();
            document.note(format!("pins at {:.1} GB: {}", gb(advice.memory_bytes), pins.join(" ")));
        }
    }
}

/// What the columns of the forecast are.
const FORECAST_LEGEND: &str = "\
    memory and trunk (held in memory) in GB; the policy is the recommended one; trunk s and expert \
     s: seconds of reading for a decoded token; lru and optimum: seconds per token with them, each \
     at its own best split; pins: experts to pin, learned on the first part and judged on the rest";

/// The assumptions of a forecast.
fn machine_words(machine: &Machine) -> String {
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

fn measured_section(document: &mut Document, measured: &Measured) {
    document.heading("Forecast against measured");
    let count = measured.rows.len();
    for model in &measured.models {
        document.note(format!(
            "{}: {}: {} of {count} limits to the printed precision, largest error {:.2} points",
            model.name, model.description, model.exact_rungs, model.largest_error_points
        ));
    }
    document.note(if measured.exact {
        format!("EXACT at all {count} limits with model {}", measured.model)
    } else {
        format!(
            "largest error {:.2} points with model {} (tolerance {:.2})",
            measured.largest_error_points, measured.model, measured.tolerance_points
        )
    });
    if let Some(error) = measured.largest_gb_error {
        document.note(format!("largest error of the experts read: {} GB a token", amount(error)));
    }
    if let (Some(time), Some(error)) = (measured.time, measured.largest_seconds_error) {
        document.note(format!(
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
    document.table(measured_table(measured));
    plots::of_measured(document, measured);
    for difference in &measured.differences {
        document.note(difference.as_str());
    }
}

/// Reading ahead: what the columns mean, what the seconds assume, and the table.
fn prefetch_section(document: &mut Document, report: &Report) {
    if report.prefetch.is_empty() && report.prefetch_refused.is_empty() {
        return;
    }
    let machine = &report.settings.machine;
    document.heading("Reading ahead");
    document.note(
        "before each layer at most N experts are read ahead; misses: experts that the computation \
         waits for, without and with; caused: misses of experts thrown out to read ahead",
    );
    document.note(
        "GB/token: read without reading ahead; waited and read: waited for, and read in all, with \
         it",
    );
    document.note(format!(
        "s/token at best, {:.2} GB/s and {} s of computing: with the trunk held, and with its {} \
         GB streamed beside the computation; the disk is never idle while there is something to \
         read",
        machine.disk_bytes_per_second / 1e9,
        machine.compute_seconds_per_token,
        amount(gb(machine.trunk_bytes))
    ));
    document.table(prefetch_table(&report.prefetch));
    for refused in &report.prefetch_refused {
        document.note(format!("refused: {refused}"));
    }
}
