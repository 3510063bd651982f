//! The plots of a study, made from the report alone.

use super::report::{Forecast, Measured, Report, SplitCurve, View};
use k3_render::Document;
use k3_render::svg::{
    Axis, BarChart, Colour, HeatMap, LineChart, MARKERS, Mark, Marker, Series, number,
};

/// Most columns of the heat map; longer traces are averaged.
const HEAT_COLUMNS: usize = 64;

/// Adds the plots of one order.
pub(super) fn of_view(document: &mut Document, view: &View, report: &Report) {
    let name = |what: &str| format!("{what}-{}", view.order);
    document.figure(name("hit-rate"), hit_rates(view, report));
    document.figure(name("bytes-per-token"), bytes_per_token(view, report));
    document.figure(name("reuse-distance"), reuse_distances(view));
    if let Some(map) = reuse_heat(view, report) {
        document.figure(name("reuse"), map);
    }
    if let Some(chart) = reuse_by_layer(view, report) {
        document.figure(name("reuse-by-layer"), chart);
    }
}

/// Adds the plots of the forecast against what was measured.
pub(super) fn of_measured(document: &mut Document, measured: &Measured) {
    document.figure("measured-hit-rate", measured_rates(measured));
    if measured.rows.iter().any(|row| row.measured_seconds.is_some()) {
        document.figure("measured-seconds", measured_seconds(measured));
    }
}

fn line(name: &str, points: Vec<(f64, f64)>, colour: Colour, width: u32) -> Series {
    Series { name: name.to_string(), points, colour, width, dashed: false, marker: None }
}

fn of_requests(hits: u64, requests: u64) -> f64 {
    100.0 * hits as f64 / requests.max(1) as f64
}

/// A curve as steps of (slots, percent).
fn steps(view: &View, focus_hits: &[u64]) -> Vec<(f64, f64)> {
    let slots = |index: usize| (view.first_slot_count + index) as f64;
    let rate = |&hits: &u64| of_requests(hits, view.focus_request_count);
    focus_hits.iter().enumerate().map(|(index, hits)| (slots(index), rate(hits))).collect()
}

/// Colour, marker and width by policy: LRU and layer-cycle are emphasised, the others are thin.
fn look(policy: &str, place: usize) -> (Colour, Option<Marker>, u32) {
    match policy {
        "lru" => (Colour::Blue, None, 2),
        "layer-cycle" => (Colour::Vermillion, Some(Marker::Circle), 2),
        "random" => (Colour::Grey, Some(Marker::Cross), 1),
        _ => {
            let colours =
                [Colour::Sky, Colour::Orange, Colour::Olive, Colour::Purple, Colour::Green];
            let marker = MARKERS[(place + 1) % MARKERS.len()];
            (colours[place % colours.len()], Some(marker), 1)
        }
    }
}

/// The policies of the grid as series of (x by slots, y by result), ours last.
fn grid_series(view: &View, y: impl Fn(&super::report::PolicyResult) -> f64) -> Vec<Series> {
    let mut names: Vec<&str> = Vec::new();
    for result in view.rows.iter().flat_map(|row| &row.policies) {
        if !names.contains(&result.policy.as_str()) && result.policy != "lru" {
            names.push(&result.policy);
        }
    }
    names.sort_by_key(|name| *name == "layer-cycle");
    let series = names.iter().enumerate().map(|(place, name)| {
        let points = view.rows.iter().filter_map(|row| {
            let result = row.policies.iter().find(|result| result.policy == **name)?;
            Some((row.slot_count as f64, y(result)))
        });
        let (colour, marker, width) = look(name, place);
        Series { marker, ..line(name, points.collect(), colour, width) }
    });
    series.collect()
}

fn scope(view: &View) -> String {
    match view.focus {
        "decode" => format!(
            "order {}, {} requests of single new tokens",
            view.order,
            number(view.focus_request_count as f64)
        ),
        _ => format!(
            "order {}, all {} requests",
            view.order,
            number(view.focus_request_count as f64)
        ),
    }
}

fn hit_rates(view: &View, report: &Report) -> LineChart {
    let mut series = vec![line("lru", steps(view, &view.lru_curve.focus_hits), Colour::Blue, 2)];
    series.push(Series {
        dashed: true,
        ..line("optimum (forced)", steps(view, &view.optimum_curve.focus_hits), Colour::Black, 2)
    });
    series.extend(grid_series(view, |result| result.hit_percent));
    let mut marks = vec![
        Mark::AtY(
            view.ceiling_percent,
            format!("ceiling {:.2} %: first uses miss", view.ceiling_percent),
        ),
        Mark::AtX(
            view.requests_per_token as f64,
            format!("one token: {} slots", number(view.requests_per_token as f64)),
        ),
    ];
    if let Some(plateau) = &view.plateau {
        let words = format!(
            "plateau {:.2} %, knee {}",
            plateau.hit_percent,
            number(plateau.to_slots as f64)
        );
        marks.push(Mark::Point(plateau.to_slots as f64, plateau.hit_percent, words));
    }
    let per_gb = 1e9 / report.trace.shape.expert_bytes as f64;
    LineChart {
        title: format!("Hit rate by cache size, {}", view.order),
        subtitle: scope(view),
        x: Axis::logarithmic(&format!("expert slots (log scale; 1 GB = {per_gb:.1} slots)")),
        y: Axis::linear("hit rate, %").within(0.0, percent_top(view.ceiling_percent)),
        series,
        marks,
    }
}

/// Upper end of an axis of percentages up to `highest`.
fn percent_top(highest: f64) -> f64 {
    (((highest + 8.0) / 10.0).ceil() * 10.0).clamp(10.0, 100.0)
}

/// The curves of all orders in one chart: what the order alone changes.
pub(super) fn orders(report: &Report) -> LineChart {
    let colours = [Colour::Blue, Colour::Vermillion, Colour::Green];
    let mut series = Vec::new();
    for (view, colour) in report.views.iter().zip(colours) {
        let order = view.order;
        let lru = steps(view, &view.lru_curve.focus_hits);
        series.push(line(&format!("lru, {order}"), lru, colour, 2));
        let optimum = steps(view, &view.optimum_curve.focus_hits);
        let name = format!("optimum, {order}");
        series.push(Series { dashed: true, ..line(&name, optimum, colour, 2) });
    }
    let highest = report.views.iter().map(|view| view.ceiling_percent).fold(0.0, f64::max);
    LineChart {
        title: "The same routing in two orders".to_string(),
        subtitle: "recorded computes the prefix again at every step; decode is what an engine \
                   with carried state asks"
            .to_string(),
        x: Axis::logarithmic("expert slots (log scale)"),
        y: Axis::linear("hit rate, %").within(0.0, percent_top(highest)),
        series,
        marks: Vec::new(),
    }
}

fn bytes_per_token(view: &View, report: &Report) -> LineChart {
    let expert_gb = report.trace.shape.expert_bytes as f64 / 1e9;
    let whole = view.requests_per_token as f64 * expert_gb;
    let read = |(slots, rate): (f64, f64)| (slots * expert_gb, whole * (1.0 - rate / 100.0));
    let curve = |hits: &[u64]| steps(view, hits).into_iter().map(read).collect();
    let mut series = vec![line("lru", curve(&view.lru_curve.focus_hits), Colour::Blue, 2)];
    series.push(Series {
        dashed: true,
        ..line("optimum (forced)", curve(&view.optimum_curve.focus_hits), Colour::Black, 2)
    });
    series.extend(grid_series(view, |result| result.expert_gb_per_token).into_iter().map(|s| {
        let points = s.points.iter().map(|&(slots, gb)| (slots * expert_gb, gb)).collect();
        Series { points, ..s }
    }));
    let marks = vec![Mark::AtX(whole, format!("one token: {whole:.2} GB"))];
    LineChart {
        title: format!("Experts read per token, {}", view.order),
        subtitle: scope(view),
        x: Axis::logarithmic("memory for experts, GB (log scale)"),
        y: Axis::linear("experts read per token, GB").within(0.0, (whole * 1.04).max(1e-9)),
        series,
        marks,
    }
}

fn reuse_distances(view: &View) -> BarChart {
    let mut bars: Vec<(String, f64)> = view
        .distances
        .iter()
        .map(|bucket| (number(f64::from(bucket.from)), bucket.count as f64))
        .collect();
    let accent_from = bars.len();
    bars.push(("first".to_string(), view.first_use_count as f64));
    BarChart {
        title: format!("Reuse distances, {}", view.order),
        subtitle: "an LRU cache hits what lies left of its number of slots; orange: first uses"
            .to_string(),
        x_label: "distinct experts since the last use, from this many to twice as many".to_string(),
        y_label: "lookups".to_string(),
        bars,
        accent_from,
    }
}

fn reuse_heat(view: &View, report: &Report) -> Option<HeatMap> {
    let reuse = view.reuse.as_ref()?;
    let width = reuse.positions.len().div_ceil(HEAT_COLUMNS);
    let average = |cells: &[Option<u32>]| {
        let known: Vec<f64> = cells.iter().flatten().map(|&count| f64::from(count)).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    };
    Some(HeatMap {
        title: format!("Experts shared with the token before, {}", view.order),
        subtitle: format!("mean {:.2} of {}", reuse.mean, report.trace.shape.top_k),
        x_label: if width == 1 {
            "position".to_string()
        } else {
            format!("position (first of {width} averaged)")
        },
        y_label: "layer".to_string(),
        value_label: "experts shared".to_string(),
        columns: reuse.positions.chunks(width).map(|part| part[0].to_string()).collect(),
        rows: reuse.layers.iter().map(u16::to_string).collect(),
        values: reuse
            .shared_counts
            .iter()
            .map(|row| row.chunks(width).map(average).collect())
            .collect(),
        range: (0.0, f64::from(report.trace.shape.top_k)),
    })
}

fn reuse_by_layer(view: &View, report: &Report) -> Option<LineChart> {
    let reuse = view.reuse.as_ref()?;
    let layers = reuse.layers.iter().map(|&layer| f64::from(layer));
    let points = layers.zip(reuse.mean_by_layer.iter().copied()).collect();
    let top_k = f64::from(report.trace.shape.top_k);
    Some(LineChart {
        title: format!("Experts shared with the token before, by layer, {}", view.order),
        subtitle: format!("mean over {} positions", reuse.positions.len()),
        x: Axis::linear("layer"),
        y: Axis::linear(&format!("experts shared, of {top_k}")).within(0.0, top_k),
        series: vec![line("mean of the layer", points, Colour::Blue, 2)],
        marks: vec![Mark::AtY(reuse.mean, format!("mean {:.2}", reuse.mean))],
    })
}

pub(super) fn splits(forecast: &Forecast, report: &Report) -> LineChart {
    let colours = [Colour::Blue, Colour::Green, Colour::Vermillion, Colour::Purple];
    let policy = if report.settings.policies.contains(&"layer-cycle") {
        "layer-cycle"
    } else {
        report.settings.policies.first().copied().unwrap_or("lru")
    };
    let mut series = Vec::new();
    let mut marks = Vec::new();
    for (split, colour) in forecast.splits.iter().zip(colours) {
        let memory = split.memory_bytes as f64 / 1e9;
        let share = |gb: f64| gb / memory * 100.0;
        let lru = split.points.iter().map(|p| (share(p.expert_slot_gb), p.lru_seconds));
        let name = format!("{memory:.0} GB lru");
        series.push(Series { dashed: true, ..line(&name, lru.collect(), colour, 1) });
        let ours = split
            .points
            .iter()
            .filter_map(|point| Some((share(point.expert_slot_gb), point.policy_seconds?)));
        let name = format!("{memory:.0} GB {policy}");
        let marker = Some(Marker::Circle);
        series.push(Series { marker, ..line(&name, ours.collect(), colour, 2) });
        if let Some((x, y)) = quickest(split) {
            marks.push(Mark::Point(share(x), y, format!("{y:.1} s")));
        }
    }
    LineChart {
        title: "Which part of the memory should hold experts?".to_string(),
        subtitle: "the rest, less what is fixed, holds trunk; the ring marks the quickest split"
            .to_string(),
        x: Axis::linear("memory given to experts, % of the limit"),
        y: Axis::linear("seconds per token").within(0.0, highest_split(forecast) * 1.06),
        series,
        marks,
    }
}

fn highest_split(forecast: &Forecast) -> f64 {
    let points = forecast.splits.iter().flat_map(|split| &split.points);
    points.map(|point| point.lru_seconds).fold(0.0, f64::max).max(1e-9)
}

/// Expert GB and seconds of the quickest split with any policy.
fn quickest(split: &SplitCurve) -> Option<(f64, f64)> {
    let all = split.points.iter().flat_map(|point| {
        [Some(point.lru_seconds), point.policy_seconds]
            .into_iter()
            .flatten()
            .map(|seconds| (point.expert_slot_gb, seconds))
    });
    all.fold(None, |best: Option<(f64, f64)>, point| match best {
        Some(best) if best.1 <= point.1 => Some(best),
        _ => Some(point),
    })
}

fn measured_rates(measured: &Measured) -> LineChart {
    let deciding = measured.models.iter().position(|model| model.name == measured.model);
    let forecast = measured.rows.iter().map(|row| {
        (row.slot_count as f64, deciding.map_or(0.0, |model| row.forecast_percent[model]))
    });
    let points = measured.rows.iter().map(|row| (row.slot_count as f64, row.measured_percent));
    let rates = measured
        .rows
        .iter()
        .flat_map(|row| row.forecast_percent.iter().copied().chain([row.measured_percent]));
    let highest_rate = rates.fold(0.0, f64::max);
    let verdict = if measured.exact {
        format!("exact at all {} limits", measured.rows.len())
    } else {
        format!("largest error {:.2} points", measured.largest_error_points)
    };
    LineChart {
        title: "Forecast against measured: hit rate of the last token".to_string(),
        subtitle: format!("model {}: {verdict}", measured.model),
        x: Axis::logarithmic("expert slots (log scale)"),
        y: Axis::linear("hit rate, %").within(0.0, percent_top(highest_rate)),
        series: vec![
            Series {
                marker: Some(Marker::Cross),
                ..line("forecast", forecast.collect(), Colour::Blue, 1)
            },
            Series {
                marker: Some(Marker::Ring),
                ..line("measured", points.collect(), Colour::Vermillion, 0)
            },
        ],
        marks: Vec::new(),
    }
}

fn measured_seconds(measured: &Measured) -> LineChart {
    let x = |row: &super::report::MeasuredRow| row.total_gb.unwrap_or(row.slot_count as f64);
    let limits = measured.rows.iter().all(|row| row.total_gb.is_some());
    let pick = |value: fn(&super::report::MeasuredRow) -> Option<f64>| {
        let points = measured.rows.iter().filter_map(|row| Some((x(row), value(row)?)));
        points.collect::<Vec<_>>()
    };
    let how = if measured.time_is_fitted { "fitted to these rows" } else { "as given" };
    let error = measured.largest_seconds_error.unwrap_or(0.0);
    LineChart {
        title: "Forecast against measured: seconds per token".to_string(),
        subtitle: format!("disk rate and computing {how}; largest error {error:.2} s"),
        x: Axis::logarithmic(if limits {
            "memory, GB (log scale)"
        } else {
            "expert slots (log scale)"
        }),
        y: Axis::linear("seconds per token").within(0.0, highest(measured) * 1.1),
        series: vec![
            line("forecast", pick(|row| row.forecast_seconds), Colour::Blue, 2),
            Series {
                marker: Some(Marker::Ring),
                ..line("measured", pick(|row| row.measured_seconds), Colour::Vermillion, 0)
            },
        ],
        marks: Vec::new(),
    }
}

fn highest(measured: &Measured) -> f64 {
    let values = measured.rows.iter().flat_map(|row| [row.measured_seconds, row.forecast_seconds]);
    values.flatten().fold(0.0, f64::max).max(1e-9)
}
