//! MXFP4: four-bit codes in groups of 32 columns under one power-of-two scale (A1, Q1…Q4).
//!
//! value = E2M1\[code\] · 2^(scale − 127). A byte holds two codes, the LOW nibble is the EVEN
//! column. Values are formed in f64, where every one is exact: scale byte 0 is 2⁻¹²⁷ (an f32
//! subnormal) and several codes at scale bytes 253 and 254 are beyond f32. Code 8 is −0 and keeps
//! its sign; in a row product it adds +0 or −0 to a lane that started at +0, so it changes
//! nothing. Scale byte 255 is NaN by the OCP MX specification and decodes to NaN: a damaged
//! group poisons its row, it is never turned into 0. [`first_nan_scale`] finds it beforehand.

/// Columns that share a scale byte.
pub const GROUP_COLUMNS: usize = 32;
/// The scale byte that means NaN.
pub const NAN_SCALE: u8 = 255;
/// Values of the sixteen codes (Q1): sign bit 3, two exponent bits, one mantissa bit.
pub const CODE_VALUES: [f64; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// 2^(byte − 127), exact; NaN for 255 (Q3, Q4).
#[inline(always)]
#[must_use]
pub const fn scale_value(byte: u8) -> f64 {
    if byte == NAN_SCALE {
        return f64::NAN;
    }
    f64::from_bits((byte as u64 + 1023 - 127) << 52)
}

/// Place (index) of the first NaN scale in a matrix of scales, row by row.
#[must_use]
pub fn first_nan_scale(scales: &[u8]) -> Option<usize> {
    scales.iter().position(|&byte| byte == NAN_SCALE)
}

/// The code of one column of a packed row (Q2).
#[inline(always)]
#[must_use]
pub fn code(packed: &[u8], column: usize) -> u8 {
    let byte = packed[column / 2];
    if column.is_multiple_of(2) { byte & 0x0F } else { byte >> 4 }
}

/// Decodes one packed row: `packed` \[columns/2\], `scales` \[columns/32\], `out` \[columns\].
pub fn decode_row(packed: &[u8], scales: &[u8], out: &mut [f64]) {
    for (column, out) in out.iter_mut().enumerate() {
        let value = CODE_VALUES[usize::from(code(packed, column))];
        *out = value * scale_value(scales[column / GROUP_COLUMNS]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B02: the NaN test compared the decoded value with 128 rather than the byte with 255.
    #[test]
    fn b02_scale_bytes_are_powers_of_two_and_only_255_is_nan() {
        assert_eq!(scale_value(134), 128.0);
        assert_eq!(scale_value(126), 0.5);
        assert_eq!(scale_value(127), 1.0);
        assert_eq!(scale_value(128), 2.0);
        assert_eq!(scale_value(0), 2.0_f64.powi(-127));
        assert_eq!(scale_value(253), 2.0_f64.powi(126));
        assert_eq!(scale_value(254), 2.0_f64.powi(127));
        assert!(scale_value(255).is_nan());
        assert_eq!((0..=254).filter(|&b| !scale_value(b).is_finite()).count(), 0);
        assert_eq!(first_nan_scale(&[0, 254, 255, 255]), Some(2));
        assert_eq!(first_nan_scale(&[0, 254, 128]), None);
    }

    /// B04: element 0 read from the high half swaps every pair of columns.
    #[test]
    fn b04_the_low_nibble_is_the_even_column() {
        let mut packed = [0_u8; 16];
        packed[0] = 0x21;
        let mut out = [9.0; 32];
        decode_row(&packed, &[127], &mut out);
        assert_eq!(&out[..3], &[0.5, 1.0, 0.0]);
    }

    /// B05: exponent field 0 taken for normal makes codes 0, 1, 8 and 9 wrong.
    #[test]
    fn b05_all_codes_under_all_scales() {
        let expected = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let packed: Vec<u8> = (0..8).map(|i| (2 * i) | ((2 * i + 1) << 4)).collect();
        let packed = [packed.clone(), packed].concat();
        let mut out = [0.0; 32];
        for scale in [0_u8, 1, 126, 127, 128, 253, 254] {
            decode_row(&packed, &[scale], &mut out);
            let power = 2.0_f64.powi(i32::from(scale) - 127);
            for code in 0..16 {
                let sign = if code < 8 { 1.0_f64 } else { -1.0 };
                let value = sign * expected[code % 8] * power;
                assert_eq!(out[code].to_bits(), value.to_bits(), "code {code} scale {scale}");
            }
        }
        decode_row(&packed, &[255], &mut out);
        assert!(out.iter().all(|value| value.is_nan()));
    }
}
