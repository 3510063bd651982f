//! Mutants of the MXFP4 decode (clauses Q1 to Q4).

use super::super::formulas::{Formulas, RELEASED};
use super::super::released::{self, GROUP_COLUMNS};
use super::{ReferenceMutant, mutant};

/// The mutants of this area.
pub(super) const ALL: &[ReferenceMutant] = &[
    mutant(
        "mxfp4-sign-ignored",
        &["Q1"],
        "bit 3 of a code is not read as the sign",
        Formulas { e2m1: |code| released::e2m1(code & 7), ..RELEASED },
    ),
    mutant(
        "mxfp4-code-one-normal",
        &["Q1"],
        "exponent field 0 is read as a normal number",
        Formulas {
            e2m1: |code| {
                let (exponent, mantissa) = (i32::from(code >> 1 & 3), f64::from(code & 1));
                let magnitude = 2f64.powi(exponent - 1) * (1.0 + mantissa / 2.0);
                if code & 8 == 0 { magnitude } else { -magnitude }
            },
            ..RELEASED
        },
    ),
    mutant(
        "mxfp4-codes-as-integers",
        &["Q1"],
        "codes are read as four-bit two's complement integers",
        Formulas { e2m1: |code| f64::from(((code << 4) as i8) >> 4), ..RELEASED },
    ),
    mutant(
        "mxfp4-code-seven-is-eight",
        &["Q1"],
        "the largest code is taken to be 8 instead of 6",
        Formulas {
            e2m1: |code| {
                let value = released::e2m1(code);
                if code & 7 == 7 { value / 6.0 * 8.0 } else { value }
            },
            ..RELEASED
        },
    ),
    mutant(
        "mxfp4-nibbles-swapped",
        &["Q2"],
        "the low nibble is taken for the odd column",
        Formulas { nibble_columns: |index, _| [2 * index + 1, 2 * index], ..RELEASED },
    ),
    mutant(
        "mxfp4-nibbles-planar",
        &["Q2"],
        "the low nibbles are taken for the first half of a row, the high ones for the second",
        Formulas { nibble_columns: |index, row_bytes| [index, row_bytes + index], ..RELEASED },
    ),
    mutant(
        "mxfp4-scale-doubled",
        &["Q3"],
        "the scale's bias is taken as 126",
        Formulas { scale: |byte| released::scale(byte).map(|scale| scale * 2.0), ..RELEASED },
    ),
    mutant(
        "mxfp4-scale-quartered",
        &["Q3"],
        "an offset of two is taken off the scale's exponent twice",
        Formulas { scale: |byte| released::scale(byte).map(|scale| scale / 4.0), ..RELEASED },
    ),
    mutant(
        "mxfp4-scale-as-number",
        &["Q3"],
        "the scale byte is used as a number",
        Formulas { scale: |byte| (byte != 255).then_some(f64::from(byte)), ..RELEASED },
    ),
    mutant(
        "mxfp4-scale-next-group",
        &["Q3"],
        "a group takes the scale of the next one",
        Formulas {
            scale_group: |column, groups| (column / GROUP_COLUMNS + 1) % groups,
            ..RELEASED
        },
    ),
    mutant(
        "mxfp4-groups-of-sixteen",
        &["Q3"],
        "a scale is taken to cover sixteen columns",
        Formulas { scale_group: |column, groups| (column / 16) % groups, ..RELEASED },
    ),
    mutant(
        "mxfp4-first-scale-for-row",
        &["Q3"],
        "the first scale of a row serves all of it",
        Formulas { scale_group: |_, _| 0, ..RELEASED },
    ),
    mutant(
        "mxfp4-scale-zero-flushed",
        &["Q3"],
        "scale byte 0, which is 2^−127, is flushed to zero",
        Formulas {
            scale: |byte| {
                if byte == 0 { Some(0.0) } else { released::scale(byte) }
            },
            ..RELEASED
        },
    ),
    mutant(
        "mxfp4-nan-scale-is-zero",
        &["Q4"],
        "scale byte 255 is turned into 0 in silence",
        Formulas { scale: |byte| released::scale(byte).or(Some(0.0)), ..RELEASED },
    ),
    mutant(
        "mxfp4-nan-scale-is-a-power",
        &["Q4"],
        "scale byte 255 is decoded as 2^128 in silence",
        Formulas { scale: |byte| released::scale(byte).or(Some(2f64.powi(128))), ..RELEASED },
    ),
];
