//! Stored weights read wrongly by the engine's own decoders (A1, A12). Codes, signs, nibbles,
//! groups and the NaN scale (Q1…Q4) have mutants on the reference.

use super::rows::products_by_rows;
use super::{EngineMutant, Mistake};
use k3_engine::kernels::contract::fold_lanes;
use k3_engine::kernels::mxfp4::{CODE_VALUES, code, scale_value};
use k3_engine::kernels::rows::Row;
use k3_engine::kernels::table::Kernels;

/// MXFP4 by (code, scale byte) of a column; other types as they are.
fn by_code(row: Row<'_>, column: usize, value: impl Fn(f64, u8) -> f64) -> f64 {
    match row {
        Row::Mxfp4 { packed, scales } => {
            value(CODE_VALUES[usize::from(code(packed, column))], scales[column / 32])
        }
        other => other.value(column),
    }
}

/// BF16 by its value; other types as they are.
fn by_bf16(row: Row<'_>, column: usize, value: impl Fn(f64) -> f64) -> f64 {
    match row {
        Row::Bf16(_) => value(row.value(column)),
        other => other.value(column),
    }
}

/// The row rule over elements that are read wrongly.
fn sum(value: impl Fn(Row<'_>, usize) -> f64, row: Row<'_>, x: &[f32]) -> f64 {
    let mut lanes = [0.0; 16];
    for (column, x) in x.iter().enumerate() {
        lanes[column % 16] += value(row, column) * f64::from(*x);
    }
    fold_lanes(lanes)
}

macro_rules! value_mutants {
    ($($id:literal [$($clause:literal)+] $what:literal $value:expr;)*) => {
        vec![$(EngineMutant {
            id: $id,
            clauses: &[$($clause),+],
            what: $what,
            mistake: Mistake::Kernels(|right| Kernels {
                widen: |row, out| {
                    let value: fn(Row<'_>, usize) -> f64 = $value;
                    out.iter_mut().enumerate().for_each(|(c, out)| *out = value(row, c));
                },
                row_sum: |row, x| {
                    let value: fn(Row<'_>, usize) -> f64 = $value;
                    sum(value, row, x)
                },
                products: products_by_rows,
                ..right
            }),
        }),*]
    };
}

/// The mutants of this file.
pub(super) fn list() -> Vec<EngineMutant> {
    value_mutants! {
        "a1-scale-zero-flushed" ["A1"] "scale byte 0 is zero"
            |row, column| by_code(row, column, |value, scale| {
                if scale == 0 { 0.0 } else { value * scale_value(scale) }
            });
        "a1-largest-scales-clamped" ["A1"] "scale bytes 253 and 254 act as 252"
            |row, column| by_code(row, column, |value, scale| {
                value * scale_value(if scale < 255 { scale.min(252) } else { 255 })
            });
        "a1-bf16-subnormals-flushed" ["A1" "A12"] "BF16 subnormals are zero"
            |row, column| by_bf16(row, column, |value| {
                if value.abs() < f64::from(f32::MIN_POSITIVE) { 0.0 } else { value }
            });
        "a1-bf16-through-f16" ["A1"] "BF16 weights are cut to seven exponent bits"
            |row, column| by_bf16(row, column, |value| {
                if value.abs() < 2.0_f64.powi(-63) && value != 0.0 { 0.0 } else { value }
            });
    }
}
