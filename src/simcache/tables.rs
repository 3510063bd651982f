//! The tables of a study.

use super::forecast::{ForecastRow, Machine};
use super::prefetch::PrefetchRow;
use super::report::{Forecast, Measured, PolicyResult, Row, View};
use k3_render::Table;
use k3_render::svg::number;

/// Bytes as GB (10^9).
pub fn gb(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}

/// A count with thousands separators.
pub fn grouped(value: u64) -> String {
    number(value as f64)
}

/// GB or seconds: two decimals, more where two would show nothing.
pub fn amount(value: f64) -> String {
    match value.abs() {
        0.0 | 0.1.. => format!("{value:.2}"),
        0.001.. => format!("{value:.4}"),
        _ => format!("{value:.2e}"),
    }
}

/// A rate in percent, or a dash.
fn rate(value: Option<f64>) -> String {
    value.map_or("-".to_string(), |value| format!("{value:.2}"))
}

/// An amount, or a dash.
fn optional(value: Option<f64>) -> String {
    value.map_or("-".to_string(), amount)
}

/// Hit rates in percent by capacity and policy.
pub fn capacity_table(rows: &[Row], machine: &Machine) -> Table {
    let policies: Vec<String> = rows
        .iter()
        .map(|row| row.policies.iter().map(|result| result.policy.clone()).collect::<Vec<_>>())
        .max_by_key(Vec::len)
        .unwrap_or_default();
    let mut header: Vec<String> = vec!["slots".into(), "GB".into()];
    header.extend(policies.iter().cloned());
    let bypass = rows.iter().any(|row| row.bypass.is_some());
    header.push("optimum".into());
    if bypass {
        header.push("(bypass)".into());
    }
    header.extend(["GB/token".into(), "s/token".into()]);
    let cells = |row: &Row| {
        let mut cells = vec![grouped(row.slot_count as u64), amount(gb(row.slot_bytes))];
        for policy in &policies {
            let result = row.policies.iter().find(|result| result.policy == *policy);
            cells.push(rate(result.map(|result| result.hit_percent)));
        }
        let hit =
            |result: &Option<PolicyResult>| rate(result.as_ref().map(|result| result.hit_percent));
        cells.push(hit(&row.optimum));
        if bypass {
            cells.push(hit(&row.bypass));
        }
        let read = row.policies.iter().map(|result| result.expert_gb_per_token);
        let least = read.fold(f64::INFINITY, f64::min);
        for value in [least, least * 1e9 / machine.disk_bytes_per_second] {
            cells.push(optional(Some(value).filter(|value| value.is_finite())));
        }
        cells
    };
    Table::new(header).with(rows.iter().map(cells))
}

/// The pinned study.
pub fn pinned_table(view: &View) -> Table {
    let header = ["slots", "pins", "pinned + lru", "lru", "best", "which is"];
    let rows = view.pinned.iter().map(|row| {
        let rate = |hits: u64| {
            format!("{:.2}", 100.0 * hits as f64 / row.judged_request_count.max(1) as f64)
        };
        vec![
            grouped(row.slot_count as u64),
            grouped(row.pin_count as u64),
            rate(row.pinned_hits),
            rate(row.lru_hits),
            rate(row.best_hits),
            row.best_policy.clone(),
        ]
    });
    Table::new(header).with(rows)
}

/// Reading ahead.
pub fn prefetch_table(rows: &[PrefetchRow]) -> Table {
    let header = "\
        predictor|policy|slots|misses|with|read ahead|used %|caused|GB/token|\
        waited|read|s/token held|ahead|s/token streamed|ahead"
        .split('|');
    let cells = rows.iter().map(|row| {
        let counts = &row.counts;
        vec![
            format!("{}:{}", row.plan.predictor.as_str(), row.plan.count),
            row.policy.to_owned(),
            grouped(row.slot_count as u64),
            grouped(row.plain_misses),
            grouped(counts.demand_misses),
            grouped(counts.reads_ahead),
            format!("{:.1}", row.used_percent),
            grouped(counts.caused_misses),
            amount(row.plain_gb_per_token),
            amount(row.waited_gb_per_token),
            amount(row.read_gb_per_token),
            amount(row.trunk_held.plain),
            amount(row.trunk_held.ahead),
            amount(row.trunk_streamed.plain),
            amount(row.trunk_streamed.ahead),
        ]
    });
    Table::new(header).with(cells)
}

/// The forecast: one row per memory limit.
pub fn forecast_table(forecast: &Forecast) -> Table {
    let header = "\
        memory|trunk|slots|policy|hit %|GB/token|trunk s|expert s|s/token|lru|\
        optimum|prefill GB|prefill s|pins"
        .split('|');
    let rows = forecast.recommendations.iter().map(|advice| {
        let of_limit: Vec<&ForecastRow> = forecast
            .rows
            .iter()
            .filter(|row| (row.memory_bytes, row.preset) == (advice.memory_bytes, advice.preset))
            .collect();
        let by = |policy: &str| of_limit.iter().find(|row| row.policy == policy);
        let seconds = |row: Option<&&ForecastRow>| {
            row.map_or("-".to_string(), |row| amount(row.seconds_per_token))
        };
        let Some(row) = by(&advice.policy) else {
            return Vec::new();
        };
        let memory = format!("{:.1}", gb(row.memory_bytes));
        vec![
            row.preset.map_or(memory.clone(), |preset| format!("{preset} {memory}")),
            amount(gb(row.trunk_held_bytes)),
            grouped(row.slot_count as u64),
            row.policy.clone(),
            format!("{:.2}", row.hit_percent),
            amount(row.trunk_gb_per_token + row.expert_gb_per_token),
            amount(row.trunk_seconds),
            amount(row.expert_seconds),
            amount(row.seconds_per_token),
            seconds(by("lru")),
            seconds(by("optimum")),
            optional(row.prefill_gb),
            optional(row.prefill_seconds),
            advice.pins.len().to_string(),
        ]
    });
    Table::new(header).with(rows.filter(|row| !row.is_empty()))
}

/// Forecast against measured.
pub fn measured_table(measured: &Measured) -> Table {
    let mut header: Vec<String> = vec!["total GB".into(), "slots".into(), "measured %".into()];
    header.extend(measured.models.iter().map(|model| format!("{} %", model.name)));
    let rest = ["hits", "error", "measured GB", "forecast GB", "measured s", "forecast s"];
    header.extend(rest.map(String::from));
    let deciding = measured.models.iter().position(|model| model.name == measured.model);
    let rows = measured.rows.iter().map(|row| {
        let mut cells = vec![
            row.total_gb.map_or("-".into(), |gb| format!("{gb:.0}")),
            grouped(row.slot_count as u64),
            format!("{:.2}", row.measured_percent),
        ];
        cells.extend(row.forecast_percent.iter().map(|percent| format!("{percent:.2}")));
        cells.push(grouped(deciding.map_or(0, |model| row.hits[model])));
        let error = row.error_points;
        cells.push(if error.abs() < 0.005 { "0.00".into() } else { format!("{error:+.2}") });
        cells.push(optional(row.measured_gb));
        cells.push(amount(row.forecast_gb));
        cells.push(optional(row.measured_seconds));
        cells.push(optional(row.forecast_seconds));
        cells
    });
    Table::new(header).with(rows)
}
