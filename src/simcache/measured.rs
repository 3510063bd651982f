//! Measurements: hits and reads of an engine under each memory limit.
//!
//! A tab-separated table with a header line. Needed are `cache_slots` and `expert_hit_true` (hit
//! rate of the last token in percent); `total_gb`, `pin_gb`, `s_per_tok`, `gb_read` are used where
//! present, other columns are ignored. Lines that start with `#` are comments.

use serde::Serialize;
use thiserror::Error;

/// Why a table was refused.
#[derive(Debug, Error)]
pub enum MeasuredError {
    /// The file cannot be read.
    #[error("cannot read the measured table: {0}")]
    Io(#[from] std::io::Error),
    /// Nothing but comments.
    #[error("the measured table has no rows")]
    Empty,
    /// A needed column is absent.
    #[error("the measured table has no column {0}")]
    MissingColumn(&'static str),
    /// A column occurs twice.
    #[error("the measured table has column {0} twice")]
    ColumnTwice(String),
    /// A line with another number of fields than the header.
    #[error("line {line}: {fields} fields, the header has {expected}")]
    Ragged {
        /// One-based line.
        line: usize,
        /// Fields in it.
        fields: usize,
        /// Fields in the header.
        expected: usize,
    },
    /// A field that is no sensible number.
    #[error("line {line}: {column} is '{value}', expected {expected}")]
    BadNumber {
        /// One-based line.
        line: usize,
        /// Column.
        column: &'static str,
        /// The text.
        value: String,
        /// What was expected.
        expected: &'static str,
    },
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
    parse(&std::fs::read_to_string(path)?)
}

/// Parses a table.
pub fn parse(text: &str) -> Result<Vec<MeasuredLimit>, MeasuredError> {
    let mut lines = text
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.trim_end_matches('\r')))
        .filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let (_, header) = lines.next().ok_or(MeasuredError::Empty)?;
    let names: Vec<&str> = header.split('\t').map(str::trim).collect();
    if let Some(twice) = (1..names.len()).find(|&i| names[..i].contains(&names[i])) {
        return Err(MeasuredError::ColumnTwice(names[twice].to_string()));
    }
    for needed in ["cache_slots", "expert_hit_true"] {
        if !names.contains(&needed) {
            return Err(MeasuredError::MissingColumn(needed));
        }
    }
    let measured: Vec<MeasuredLimit> =
        lines.map(|(line, text)| parse_row(line, text, &names)).collect::<Result<_, _>>()?;
    if measured.is_empty() { Err(MeasuredError::Empty) } else { Ok(measured) }
}

fn parse_row(line: usize, text: &str, names: &[&str]) -> Result<MeasuredLimit, MeasuredError> {
    let fields: Vec<&str> = text.split('\t').map(str::trim).collect();
    if fields.len() != names.len() {
        return Err(MeasuredError::Ragged { line, fields: fields.len(), expected: names.len() });
    }
    let field = |column: &str| names.iter().position(|name| *name == column).map(|at| fields[at]);
    let number = |column: &'static str, most: f64, expected: &'static str| {
        let Some(value) = field(column) else {
            return Ok(None);
        };
        match value.parse::<f64>() {
            Ok(number) if (0.0..=most).contains(&number) => Ok(Some(number)),
            _ => {
                let value = value.to_string();
                Err(MeasuredError::BadNumber { line, column, value, expected })
            }
        }
    };
    let size = "a size in GB";
    let slots = field("cache_slots").unwrap_or_default();
    let slot_count = slots.parse::<usize>().ok().filter(|&slots| slots > 0);
    let Some(slot_count) = slot_count else {
        let (column, value, expected) = ("cache_slots", slots.to_string(), "a number above 0");
        return Err(MeasuredError::BadNumber { line, column, value, expected });
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
