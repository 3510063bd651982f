//! The same run under several memory limits, as a table that the laboratory reads.
//!
//! Each row is a memory limit: hits and bytes of the last token, as in the published table, and
//! seconds as the median over repeats. Ids must be the same under every limit: runs that disagree
//! are different computations.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use crate::memory::plan::in_units;
use k3_render::svg::{Axis, Colour, LineChart, Marker, Series};
use k3_render::{Document, Table};

/// Schema of the report.
pub const SCHEMA: &str = "k3-verify/ladder/1";

/// One limit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LimitRow {
    /// As typed.
    #[serde(rename = "budget")]
    pub limit: String,
    /// The limit, bytes.
    #[serde(rename = "budget_bytes")]
    pub limit_bytes: u64,
    /// Trunk in memory, bytes.
    pub pinned_bytes: u64,
    /// Layers in memory.
    pub pinned_layers: u64,
    /// Slots of the ring.
    pub ring_slots: u64,
    /// Expert slots.
    pub expert_slots: u64,
    /// Expert requests of the last token.
    pub requests: u64,
    /// Of them, hits.
    pub hits: u64,
    /// Expert bytes read for the last token.
    pub expert_bytes: u64,
    /// Trunk bytes read for the last token.
    pub trunk_bytes: u64,
    /// Seconds of the last token, median over the repeats.
    pub seconds: f64,
    /// Seconds of the last token in each repeat.
    pub each_seconds: Vec<f64>,
    /// Most resident bytes of any repeat.
    pub peak_resident_bytes: u64,
    /// Share of the last token's time in which the computation waited for the disk, percent.
    pub io_share_percent: f64,
}

/// The runs under each limit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryLimits {
    /// Schema.
    pub schema: &'static str,
    /// Ids of every run.
    pub generated_ids: Vec<u64>,
    /// Policy of the expert cache.
    pub policy: String,
    /// Rows, in the order asked for.
    pub rows: Vec<LimitRow>,
}

/// Why there is no table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitsError {
    /// Two runs chose different ids.
    #[error("{0}")]
    DifferentIds(String),
    /// A run report without a field.
    #[error("{0}")]
    NoField(String),
}

/// A limit and the reports of its runs.
#[derive(Debug, Clone)]
pub struct Runs {
    /// As typed.
    pub limit: String,
    /// Bytes.
    pub limit_bytes: u64,
    /// Run reports of `generate`.
    pub reports: Vec<Value>,
}

fn ids(report: &Value) -> Option<Vec<u64>> {
    let list = report["generated_ids"].as_array()?;
    list.iter().map(Value::as_u64).collect()
}

fn say(ids: &[u64]) -> String {
    let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
    ids.join(",")
}

/// Makes the table; every limit has at least one report.
///
/// # Errors
/// [`LimitsError`].
pub fn memory_limits(policy: &str, runs: &[Runs]) -> Result<MemoryLimits, LimitsError> {
    let mut first: Option<(String, Vec<u64>)> = None;
    for run in runs {
        for report in &run.reports {
            let got = ids(report).ok_or_else(|| no_field(run, "generated_ids"))?;
            match &first {
                None => first = Some((run.limit.clone(), got)),
                Some((_, expected)) if *expected == got => {}
                Some((first_limit, expected)) => {
                    let (got, expected) = (say(&got), say(expected));
                    let what = format!("ids {got}, under {first_limit} they were {expected}");
                    return Err(LimitsError::DifferentIds(format!("{}: {what}", run.limit)));
                }
            }
        }
    }
    let rows: Result<Vec<LimitRow>, LimitsError> = runs.iter().map(row).collect();
    Ok(MemoryLimits {
        schema: SCHEMA,
        generated_ids: first.map(|(_, ids)| ids).unwrap_or_default(),
        policy: policy.to_owned(),
        rows: rows?,
    })
}

fn no_field(run: &Runs, field: &'static str) -> LimitsError {
    LimitsError::NoField(format!("the run under {} reports no {field}", run.limit))
}

fn row(run: &Runs) -> Result<LimitRow, LimitsError> {
    let report = run.reports.first().ok_or_else(|| no_field(run, "report"))?;
    let last = |report: &Value| report["steps"].as_array()?.last().cloned();
    let step = last(report).ok_or_else(|| no_field(run, "steps"))?;
    let number = |value: &Value, field: &'static str| {
        value[field].as_u64().ok_or_else(|| no_field(run, field))
    };
    let seconds = |report: &Value| last(report)?["seconds"].as_f64();
    let each_seconds: Option<Vec<f64>> = run.reports.iter().map(seconds).collect();
    let each_seconds = each_seconds.ok_or_else(|| no_field(run, "seconds"))?;
    let mut sorted = each_seconds.clone();
    sorted.sort_by(f64::total_cmp);
    let median = sorted[(sorted.len() - 1) / 2];
    let waited = step["wait_seconds"].as_f64().unwrap_or(0.0);
    let own = step["seconds"].as_f64().unwrap_or(0.0);
    let plan = &report["plan"];
    let pinned = plan["components"].as_array().into_iter().flatten();
    let pinned = pinned.filter(|line| line["name"] == "trunk pinned");
    let peaks = run.reports.iter();
    let peaks = peaks.filter_map(|report| report["peak"]["peak_resident_bytes"].as_u64());
    Ok(LimitRow {
        limit: run.limit.clone(),
        limit_bytes: run.limit_bytes,
        pinned_bytes: pinned.filter_map(|line| line["bytes"].as_u64()).sum(),
        pinned_layers: plan["pinned_layers"].as_array().map_or(0, Vec::len) as u64,
        ring_slots: number(plan, "ring_slots")?,
        expert_slots: number(plan, "expert_slots")?,
        requests: number(&step, "requests")?,
        hits: number(&step, "hits")?,
        expert_bytes: number(&step, "expert_bytes")?,
        trunk_bytes: number(&step, "trunk_bytes")?,
        seconds: median,
        each_seconds,
        peak_resident_bytes: peaks.max().unwrap_or(0),
        io_share_percent: if own > 0.0 { 100.0 * waited / own } else { 0.0 },
    })
}

impl LimitRow {
    fn hit_percent(&self) -> f64 {
        if self.requests == 0 {
            return 0.0;
        }
        100.0 * self.hits as f64 / self.requests as f64
    }
}

impl MemoryLimits {
    /// The table that `simcache --measured` reads: tab-separated, with a header line.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!("# memory limits, policy {}, the last token\n", self.policy);
        text.push_str(
            "total_gb\tpin_gb\tcache_slots\texpert_hit_true\tgb_read\ttrunk_gb_read\ts_per_tok\t\
             peak_rss_gb\tio_share\n",
        );
        let gb = |bytes: u64| bytes as f64 / 1e9;
        for row in &self.rows {
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{}\t{:.6}\t{}\t{:.2}\t{:.6}\t{:.6}\t{:.6}\t{:.6}\t{:.1}",
                gb(row.limit_bytes),
                gb(row.pinned_bytes),
                row.expert_slots,
                row.hit_percent(),
                gb(row.expert_bytes),
                gb(row.trunk_bytes),
                row.seconds,
                gb(row.peak_resident_bytes),
                row.io_share_percent
            );
        }
        text
    }

    /// The runs for people.
    #[must_use]
    pub fn document(&self) -> Document {
        let mut document = Document::new("k3-verify bench: memory limits");
        document.line(format!("ids, the same under every limit: {}", say(&self.generated_ids)));
        document.line(format!(
            "policy {}; the last token, seconds as median of {} runs",
            self.policy,
            self.rows.first().map_or(0, |row| row.each_seconds.len())
        ));
        let columns = "\
            limit|trunk pinned|layers|ring|expert slots|hit %|experts read|\
            trunk read|s/token|peak resident|waiting %"
            .split('|');
        let row = |row: &LimitRow| {
            vec![
                row.limit.clone(),
                in_units(row.pinned_bytes),
                row.pinned_layers.to_string(),
                row.ring_slots.to_string(),
                row.expert_slots.to_string(),
                format!("{:.2}", row.hit_percent()),
                in_units(row.expert_bytes),
                in_units(row.trunk_bytes),
                format!("{:.4}", row.seconds),
                in_units(row.peak_resident_bytes),
                format!("{:.1}", row.io_share_percent),
            ]
        };
        document.table(Table::new(columns).with(self.rows.iter().map(row)));
        document.figure("ladder", self.plot());
        document
    }

    /// Seconds per token over the limits.
    fn plot(&self) -> LineChart {
        let largest = self.rows.iter().map(|row| row.limit_bytes).max();
        let (unit, bytes) =
            if largest.unwrap_or(0) >= 1_000_000_000 { ("GB", 1e9) } else { ("MB", 1e6) };
        let all = self.rows.iter().flat_map(|row| &row.each_seconds);
        let slowest = all.copied().fold(f64::MIN_POSITIVE, f64::max);
        let x = |row: &LimitRow| row.limit_bytes as f64 / bytes;
        let median = self.rows.iter().map(|row| (x(row), row.seconds));
        let each = self.rows.iter().flat_map(|row| {
            let seconds = row.each_seconds.iter();
            seconds.map(move |&seconds| (x(row), seconds))
        });
        let series = |name: &str, points, width, marker, colour| Series {
            name: name.to_owned(),
            points,
            colour,
            width,
            dashed: false,
            marker: Some(marker),
        };
        LineChart {
            title: "Seconds per token by memory limit".to_owned(),
            subtitle: format!("the last token; expert cache: {}", self.policy),
            x: Axis::linear(&format!("memory limit, {unit}")),
            // From zero: what a limit costs is read off as a share of the whole.
            y: Axis::linear("seconds per token").within(0.0, slowest * 1.05),
            series: vec![
                series("repeats", each.collect(), 0, Marker::Circle, Colour::Grey),
                series("median", median.collect(), 2, Marker::Square, Colour::Blue),
            ],
            marks: Vec::new(),
        }
    }
}
