//! Measurements: hits and reads of an engine under each memory limit.
//!
//! A tab-separated table with a header line. Needed are `cache_slots` and `expert_hit_true` (hit
//! rate of the last token in percent); `total_gb`, `pin_gb`, `s_per_tok`, `gb_read` are used where
//! present, other columns are ignored. Lines that start with `#` are comments.

use serde::Serialize;
use thiserror::Error;

const NO_ROWS: &str = "the measured table has no rows";

/// Why a table was refused: line, column, expected and got.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct MeasuredError(String);

fn refused<T>(what: impl Into<String>) -> Result<T, MeasuredError> {
    Err(MeasuredError(what.into()))
}

/// One memory limit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeasuredLimit {
    /// Memory in all, GB.
    pub total_gb: Option<f64>,
    /// Trunk held in memory, GB.
    pub pinned_gb: Option<f64>,
    /// Expert slots.
    pub slot_count: usize,
    /// Measured hit rate, percent.
    pub hit_percent: f64,
    /// Decimals it was printed with: the precision of the comparison.
    pub hit_decimals: usize,
    /// Expert bytes read for a token, GB.
    pub expert_gb_per_token: Option<f64>,
    /// Seconds per token.
    pub seconds_per_token: Option<f64>,
}

/// Reads a table.
pub fn read(path: &std::path::Path) -> Result<Vec<MeasuredLimit>, MeasuredError> {
    match k3_core::host::files::read_to_string(path) {
        Ok(text) => parse(&text),
        Err(error) => refused(format!("cannot read the measured table: {error}")),
    }
}

/// Parses a table.
pub fn parse(text: &str) -> Result<Vec<MeasuredLimit>, MeasuredError> {
    let mut lines = text
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.trim_end_matches('\r')))
        .filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let Some((_, header)) = lines.next() else {
        return refused(NO_ROWS);
    };
    let names: Vec<&str> = header.split('\t').map(str::trim).collect();
    if let Some(twice) = (1..names.len()).find(|&i| names[..i].contains(&names[i])) {
        return refused(format!("the measured table has column {} twice", names[twice]));
    }
    for needed in ["cache_slots", "expert_hit_true"] {
        if !names.contains(&needed) {
            return refused(format!("the measured table has no column {needed}"));
        }
    }
    let measured: Vec<MeasuredLimit> =
        lines.map(|(line, text)| parse_row(line, text, &names)).collect::<Result<_, _>>()?;
    if measured.is_empty() { refused(NO_ROWS) } else { Ok(measured) }
}

fn parse_row(line: usize, text: &str, names: &[&str]) -> Result<MeasuredLimit, MeasuredError> {
    let fields: Vec<&str> = text.split('\t').map(str::trim).collect();
    if fields.len() != names.len() {
        let (fields, expected) = (fields.len(), names.len());
        return refused(format!("line {line}: {fields} fields, the header has {expected}"));
    }
    let field = |column: &str| names.iter().position(|name| *name == column).map(|at| fields[at]);
    let number = |column: &'static str, most: f64, expected: &'static str| {
        let Some(value) = field(column) else {
            return Ok(None);
        };
        match value.parse::<f64>() {
            Ok(number) if (0.0..=most).contains(&number) => Ok(Some(number)),
            _ => refused(format!("line {line}: {column} is '{value}', expected {expected}")),
        }
    };
    let size = "a size in GB";
    let slots = field("cache_slots").unwrap_or_default();
    let slot_count = slots.parse::<usize>().ok().filter(|&slots| slots > 0);
    let Some(slot_count) = slot_count else {
        return refused(format!(
            "line {line}: cache_slots is '{slots}', expected a number above 0"
        ));
    };
    let hit_percent = number("expert_hit_true", 100.0, "a percentage")?.unwrap_or_default();
    let decimals = field("expert_hit_true").and_then(|text| text.split_once('.'));
    Ok(MeasuredLimit {
        total_gb: number("total_gb", 1e9, size)?,
        pinned_gb: number("pin_gb", 1e9, size)?,
        slot_count,
        hit_percent,
        hit_decimals: decimals.map_or(0, |(_, decimals)| decimals.len()),
        expert_gb_per_token: number("gb_read", 1e9, size)?,
        seconds_per_token: number("s_per_tok", 1e9, "seconds")?,
    })
}
