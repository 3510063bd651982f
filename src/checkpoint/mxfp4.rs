//! MXFP4 by its definition: value = E2M1\[code\] · 2^(scale − 127), exact in f64.
//!
//! Two codes lie in a byte, the even column in the low nibble; one scale byte serves 32 columns.
//! The widest values are 6·2^127 and 0.5·2^−127: neither fits f32 as a normal number, so
//! nothing here is single precision. Scale byte 255 is NaN by the OCP MX specification: a damaged
//! file, reported with its place, never turned into zero. Not here: anything fast (see the
//! kernels).

use std::fmt;

use thiserror::Error;

use k3_core::config::MXFP4_GROUP_COLUMNS;

/// Values of the sixteen codes: one sign bit, two exponent bits, one mantissa bit. Code 8 is −0.
pub const E2M1_VALUES: [f64; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The scale byte that stands for NaN.
pub const NAN_SCALE: u8 = 255;

/// Exponent of a scale byte is the byte less this.
const SCALE_BIAS: u64 = 127;

/// One of an expert's three matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExpertMatrix {
    /// w1, the gate: \[I, L\].
    Gate,
    /// w2, down: \[L, I\].
    Down,
    /// w3, up: \[I, L\].
    Up,
}

impl fmt::Display for ExpertMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gate => "w1",
            Self::Down => "w2",
            Self::Up => "w3",
        })
    }
}

/// Which matrix a message is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatrixPlace {
    /// Zero-based layer.
    pub layer: usize,
    /// Routed expert.
    pub expert: usize,
    /// Which of its matrices.
    pub matrix: ExpertMatrix,
}

impl fmt::Display for MatrixPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layer {}, expert {}, {}", self.layer, self.expert, self.matrix)
    }
}

/// One way a packed matrix can be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Mxfp4Error {
    /// Scale byte 255.
    #[error("{place}, row {row}, group {group}: scale byte 255 is NaN (damaged file)")]
    NanScale {
        /// Which matrix.
        place: MatrixPlace,
        /// Row of the matrix.
        row: usize,
        /// Group of 32 columns in the row.
        group: usize,
    },
    /// Columns that do not fill whole groups.
    #[error("{place}: {columns} columns are no multiple of the {MXFP4_GROUP_COLUMNS} of a group")]
    PartGroup {
        /// Which matrix.
        place: MatrixPlace,
        /// Its columns.
        columns: usize,
    },
    /// A buffer of another length than rows and columns need.
    #[error("{place}: {got} {what}, expected {expected}")]
    Length {
        /// Which matrix.
        place: MatrixPlace,
        /// Which buffer.
        what: &'static str,
        /// Length by rows and columns.
        expected: usize,
        /// Length of the buffer.
        got: usize,
    },
}

/// The value of a code; the upper four bits of `code` are not looked at.
#[must_use]
pub fn decode_code(code: u8) -> f64 {
    E2M1_VALUES[usize::from(code & 0x0F)]
}

/// 2^(byte − 127), or `None` for byte 255.
#[must_use]
pub fn decode_scale(byte: u8) -> Option<f64> {
    const F64_BIAS: u64 = 1023;
    const F64_MANTISSA_BITS: u32 = 52;
    // Between 2^-127 and 2^127 every power of two is a normal f64 with an empty mantissa.
    let exponent = u64::from(byte) + F64_BIAS - SCALE_BIAS;
    (byte != NAN_SCALE).then(|| f64::from_bits(exponent << F64_MANTISSA_BITS))
}

/// The first NaN scale of a matrix with `groups` scales to a row, as row and group.
#[must_use]
pub fn find_nan_scale(scales: &[u8], groups: usize) -> Option<(usize, usize)> {
    let place = scales.iter().position(|&byte| byte == NAN_SCALE)?;
    Some((place.checked_div(groups)?, place % groups))
}

/// Decodes a matrix \[rows, columns\] from its codes \[rows, columns/2\] and scales
/// \[rows, columns/32\] into `values` \[rows, columns\]; `place` is for messages.
///
/// # Errors
/// Every variant of [`Mxfp4Error`]; `values` is then not to be used.
pub fn decode_matrix(
    place: MatrixPlace,
    (rows, columns): (usize, usize),
    codes: &[u8],
    scales: &[u8],
    values: &mut [f64],
) -> Result<(), Mxfp4Error> {
    if columns == 0 || !columns.is_multiple_of(MXFP4_GROUP_COLUMNS) {
        return Err(Mxfp4Error::PartGroup { place, columns });
    }
    let groups = columns / MXFP4_GROUP_COLUMNS;
    for (what, expected, got) in [
        ("bytes of codes", rows * columns / 2, codes.len()),
        ("scale bytes", rows * groups, scales.len()),
        ("values", rows * columns, values.len()),
    ] {
        if got != expected {
            return Err(Mxfp4Error::Length { place, what, expected, got });
        }
    }
    let group_codes = codes.chunks_exact(MXFP4_GROUP_COLUMNS / 2);
    let group_values = values.chunks_exact_mut(MXFP4_GROUP_COLUMNS);
    for (index, ((codes, values), &byte)) in group_codes.zip(group_values).zip(scales).enumerate() {
        let Some(scale) = decode_scale(byte) else {
            let (row, group) = (index / groups, index % groups);
            return Err(Mxfp4Error::NanScale { place, row, group });
        };
        for (pair, &byte) in values.chunks_exact_mut(2).zip(codes) {
            pair[0] = decode_code(byte & 0x0F) * scale;
            pair[1] = decode_code(byte >> 4) * scale;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: MatrixPlace = MatrixPlace { layer: 5, expert: 17, matrix: ExpertMatrix::Down };

    /// Code 8 read as +0, or a table in another order, would still look plausible.
    #[test]
    fn all_sixteen_codes_by_their_fields() {
        for code in 0..16_u8 {
            let (exponent, mantissa) = (i32::from(code >> 1 & 3), f64::from(code & 1));
            let size = match exponent {
                0 => mantissa * 0.5,
                _ => (1.0 + mantissa / 2.0) * 2_f64.powi(exponent - 1),
            };
            let expected = if code & 8 == 0 { size } else { -size };
            assert_eq!(decode_code(code).to_bits(), expected.to_bits(), "code {code}");
        }
        assert_eq!(decode_code(8).to_bits(), (-0.0_f64).to_bits());
    }

    /// Byte 0 must not be flushed to zero, 253 and 254 must not overflow, 255 must not be a number.
    #[test]
    fn scales_are_powers_of_two_and_255_is_none() {
        for (byte, exponent) in [(0, -127), (126, -1), (127, 0), (128, 1), (134, 7)] {
            assert_eq!(decode_scale(byte), Some(2_f64.powi(exponent)));
        }
        assert_eq!(decode_scale(253), Some(2_f64.powi(126)));
        assert_eq!(decode_scale(254).map(|scale| scale * 6.0), Some(6.0 * 2_f64.powi(127)));
        assert!(6.0 * 2_f64.powi(127) > f64::from(f32::MAX));
        assert_eq!(decode_scale(NAN_SCALE), None);
    }

    /// Low nibble = even column, each row with its own scales.
    #[test]
    fn nibbles_and_groups_land_in_their_columns() {
        let (rows, columns) = (2, 64);
        let mut codes = vec![0; rows * columns / 2];
        codes[0] = 0x21; // row 0: column 0 is 0.5, column 1 is 1
        codes[32 + 16] = 0xF7; // row 1: column 32 is 6, column 33 is −6
        let scales = [127, 0, 127, 128];
        let mut values = vec![f64::NAN; rows * columns];
        decode_matrix(PLACE, (rows, columns), &codes, &scales, &mut values).expect("decodes");
        assert_eq!(values[..3], [0.5, 1.0, 0.0]);
        assert_eq!(values[64 + 32..64 + 35], [12.0, -12.0, 0.0]);
    }

    /// The message must lead to the byte.
    #[test]
    fn a_nan_scale_is_reported_with_its_place() {
        let mut scales = [127; 6];
        scales[5] = NAN_SCALE;
        let mut values = vec![0.0; 2 * 96];
        let error = decode_matrix(PLACE, (2, 96), &[0; 96], &scales, &mut values);
        let expected = Mxfp4Error::NanScale { place: PLACE, row: 1, group: 2 };
        assert_eq!(error, Err(expected));
        assert_eq!(
            expected.to_string(),
            "layer 5, expert 17, w2, row 1, group 2: scale byte 255 is NaN (damaged file)"
        );
        assert_eq!(find_nan_scale(&scales, 3), Some((1, 2)));
        assert_eq!(find_nan_scale(&scales[..5], 3), None);
    }

    /// A buffer of the wrong length must be refused before any multiply.
    #[test]
    fn lengths_are_checked_first() {
        let mut values = vec![0.0; 32];
        let part = decode_matrix(PLACE, (1, 30), &[0; 15], &[127], &mut values[..30]);
        assert!(matches!(part, Err(Mxfp4Error::PartGroup { columns: 30, .. })));
        for (codes, scales, room) in [(15, 1, 32), (16, 0, 32), (16, 2, 32), (16, 1, 31)] {
            let (codes, scales) = (vec![0; codes], vec![127; scales]);
            let refused = decode_matrix(PLACE, (1, 32), &codes, &scales, &mut values[..room]);
            assert!(matches!(refused, Err(Mxfp4Error::Length { .. })), "{refused:?}");
        }
    }
}
