//! Family (b): MXFP4 and BF16 decoded wrongly (Q1…Q4, A1).

use std::sync::Arc;

use super::rows::products_by_rows;
use super::{EngineMutant, Family};
use crate::kernels::contract::fold_lanes;
use crate::kernels::mxfp4::{CODE_VALUES, code, scale_value};
use crate::kernels::products::Product;
use crate::kernels::rows::Row;
use crate::kernels::threads::Threads;
use crate::model::{EngineError, Expert, Operations};

/// A stored element read wrongly; sums follow the rule.
#[derive(Debug)]
struct WrongValues {
    value: fn(Row<'_>, usize) -> f64,
    nan_scales_pass: bool,
}

impl Operations for WrongValues {
    fn as_dyn(&self) -> &dyn Operations {
        self
    }

    fn widen_row(&self, row: Row<'_>, out: &mut [f64]) {
        for (column, out) in out.iter_mut().enumerate() {
            *out = (self.value)(row, column);
        }
    }

    fn row_sum(&self, row: Row<'_>, x: &[f32]) -> f64 {
        let mut lanes = [0.0; 16];
        for (column, x) in x.iter().enumerate() {
            lanes[column % 16] += (self.value)(row, column) * f64::from(*x);
        }
        fold_lanes(lanes)
    }

    fn products(&self, threads: &Threads, products: Vec<Product<'_>>) {
        products_by_rows(self, threads, products);
    }

    fn check_expert(&self, layer: usize, id: usize, expert: &Expert) -> Result<(), EngineError> {
        if self.nan_scales_pass { Ok(()) } else { expert.check_scales(layer, id) }
    }
}

/// MXFP4 by (code, scale byte) of a column; other types as they are.
fn by_code(row: Row<'_>, column: usize, value: impl Fn(u8, u8) -> f64) -> f64 {
    match row {
        Row::Mxfp4 { packed, scales } => value(code(packed, column), scales[column / 32]),
        other => other.value(column),
    }
}

fn times_scale(value: f64, scale: u8) -> f64 {
    value * scale_value(scale)
}

fn code_value(code: u8) -> f64 {
    CODE_VALUES[usize::from(code)]
}

macro_rules! value_mutants {
    ($($id:literal [$($clause:literal)+] $what:literal $value:expr;)*) => {
        vec![$(EngineMutant {
            id: $id,
            clauses: &[$($clause),+],
            family: Family::Composition,
            what: $what,
            make: || Arc::new(WrongValues { value: $value, nan_scales_pass: false }),
        }),*]
    };
}

/// The mutants of this file.
pub(super) fn list() -> Vec<EngineMutant> {
    let mut list = values();
    list.push(EngineMutant {
        id: "q4-nan-scale-is-zero",
        clauses: &["Q4"],
        family: Family::Composition,
        what: "a group under scale byte 255 counts as zero",
        make: || {
            let value = |row: Row<'_>, column| {
                by_code(row, column, |code, scale| {
                    if scale == 255 { 0.0 } else { times_scale(code_value(code), scale) }
                })
            };
            Arc::new(WrongValues { value, nan_scales_pass: true })
        },
    });
    list.push(EngineMutant {
        id: "q4-nan-scale-not-reported",
        clauses: &["Q4"],
        family: Family::Composition,
        what: "a scale byte 255 goes unreported when the expert is loaded",
        make: || Arc::new(WrongValues { value: |row, c| row.value(c), nan_scales_pass: true }),
    });
    list
}

#[allow(clippy::too_many_lines, reason = "a table")]
fn values() -> Vec<EngineMutant> {
    value_mutants! {
        "q1-first-code-treated-as-normal" ["Q1"] "codes 1 and 9 are 0.25"
            |row, column| by_code(row, column, |code, scale| {
                let value = if code & 7 == 1 { 0.5 * code_value(code) } else { code_value(code) };
                times_scale(value, scale)
            });
        "q1-last-code-is-five" ["Q1"] "codes 7 and 15 are 5"
            |row, column| by_code(row, column, |code, scale| {
                let factor = if code & 7 == 7 { 5.0 / 6.0 } else { 1.0 };
                times_scale(code_value(code) * factor, scale)
            });
        "q1-sign-lost" ["Q1"] "bit 3 of a code is ignored"
            |row, column| by_code(row, column, |code, scale| {
                times_scale(code_value(code & 7), scale)
            });
        "q1-minus-zero-lost" ["Q1"] "code 8 decodes to plus zero"
            |row, column| by_code(row, column, |code, scale| {
                times_scale(if code == 8 { 0.0 } else { code_value(code) }, scale)
            });
        "q1-integer-codes" ["Q1"] "codes are signed integers"
            |row, column| by_code(row, column, |code, scale| {
                let value = f64::from(code & 7);
                times_scale(if code < 8 { value } else { -value }, scale)
            });
        "q2-high-nibble-first" ["Q2"] "the high nibble is the even column"
            |row, column| match row {
                Row::Mxfp4 { packed, scales } => {
                    times_scale(code_value(code(packed, column ^ 1)), scales[column / 32])
                }
                other => other.value(column),
            };
        "q3-bias-of-126" ["Q3"] "the scale's bias is 126"
            |row, column| by_code(row, column, |code, scale| {
                2.0 * times_scale(code_value(code), scale)
            });
        "q3-byte-as-number" ["Q3"] "the scale byte is used as a number"
            |row, column| by_code(row, column, |code, scale| code_value(code) * f64::from(scale));
        "q3-groups-of-sixteen" ["Q3"] "a scale covers sixteen columns"
            |row, column| match row {
                Row::Mxfp4 { packed, scales } => {
                    let scale = scales[(column / 16).min(scales.len() - 1)];
                    times_scale(code_value(code(packed, column)), scale)
                }
                other => other.value(column),
            };
        "q3-scales-of-the-first-group" ["Q3"] "the first scale holds for the whole row"
            |row, column| match row {
                Row::Mxfp4 { packed, scales } => {
                    times_scale(code_value(code(packed, column)), scales[0])
                }
                other => other.value(column),
            };
        "q3-nan-test-on-the-value" ["Q3" "Q4"] "scale 128 (byte 134) is taken for the NaN mark"
            |row, column| by_code(row, column, |code, scale| {
                if scale == 134 { f64::NAN } else { times_scale(code_value(code), scale) }
            });
        "a1-scale-zero-flushed" ["A1" "Q3"] "scale byte 0 is zero"
            |row, column| by_code(row, column, |code, scale| {
                if scale == 0 { 0.0 } else { times_scale(code_value(code), scale) }
            });
        "a1-largest-scales-clamped" ["A1" "Q3"] "scale bytes 253 and 254 act as 252"
            |row, column| by_code(row, column, |code, scale| {
                times_scale(code_value(code), if scale < 255 { scale.min(252) } else { 255 })
            });
        "a1-bf16-subnormals-flushed" ["A1" "A12"] "BF16 subnormals are zero"
            |row, column| {
                let value = row.value(column);
                let subnormal = value.abs() < f64::from(f32::MIN_POSITIVE);
                if subnormal && matches!(row, Row::Bf16(_)) { 0.0 } else { value }
            };
        "a1-bf16-through-f16" ["A1"] "BF16 weights are cut to seven exponent bits"
            |row, column| match row {
                Row::Bf16(bits) => {
                    let value = row.value(column);
                    let small = value.abs() < 2.0_f64.powi(-63) && bits[column] & 0x7FFF != 0;
                    if small { 0.0 } else { value }
                }
                other => other.value(column),
            };
    }
}
