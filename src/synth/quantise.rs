//! MXFP4 from real numbers, as the OCP MX specification says: per block of 32 the scale is the
//! power of two of the largest magnitude, less the two binary orders that E2M1 spans above 1; every
//! value then goes to the nearest code, ties to the even one, and values above 6 to 6.
//!
//! A block of zeros has no such scale and is refused: in a weight it is a mistake of the caller.
//! Only the scale bytes 1 to 254 can come out; NaN (255) never.

use thiserror::Error;

use k3_core::config::MXFP4_GROUP_COLUMNS;

/// Largest binary exponent of E2M1: 4 and 6 are 2^2 and 1.5·2^2.
const E2M1_MAX_EXPONENT: i32 = 2;
/// Exponent of scale byte 0.
const SCALE_BIAS: i32 = 127;
/// Exponent of an f32's field value 0.
const F32_BIAS: i32 = 127;
/// Bits of an f32's mantissa.
const F32_MANTISSA_BITS: u32 = 23;

/// A block without a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("group {group}: all {MXFP4_GROUP_COLUMNS} values are zero, subnormal or not finite")]
pub struct AllZeroBlock {
    /// Group of 32 columns in the row.
    pub group: usize,
}

/// Codes (two to a byte, the even column in the low nibble) and scale byte of one block.
pub type Block = ([u8; MXFP4_GROUP_COLUMNS / 2], u8);

/// Quantises one block; `None` for a block whose largest magnitude is zero, subnormal in f32, or
/// not finite.
#[must_use]
pub fn quantise_block(values: &[f32; MXFP4_GROUP_COLUMNS]) -> Option<Block> {
    // Of non-negative floats the bits are in the order of the values; a NaN is above all.
    let largest = values.iter().fold(0, |largest: u32, value| largest.max(value.abs().to_bits()));
    let field = (largest >> F32_MANTISSA_BITS) as i32;
    if field == 0 || field == 0xFF {
        return None;
    }
    let exponent = (field - F32_BIAS - E2M1_MAX_EXPONENT).max(-SCALE_BIAS + 1);
    // 2^-exponent is a normal f32: the exponent is in -126..=125.
    let inverse = f32::from_bits(((F32_BIAS - exponent) as u32) << F32_MANTISSA_BITS);
    let mut codes = [0; MXFP4_GROUP_COLUMNS / 2];
    let mut nearest = [0; MXFP4_GROUP_COLUMNS];
    for (code, value) in nearest.iter_mut().zip(values) {
        *code = nearest_code(value * inverse);
    }
    for (byte, pair) in codes.iter_mut().zip(nearest.as_chunks::<2>().0) {
        *byte = (pair[0] | pair[1] << 4) as u8;
    }
    Some((codes, (exponent + SCALE_BIAS) as u8))
}

/// The code of the E2M1 value nearest to `scaled`; a tie goes to the code with an even mantissa.
#[inline]
fn nearest_code(scaled: f32) -> u32 {
    let size = scaled.abs();
    // The midpoints between neighbours; equality counts as above where the upper code is even.
    let magnitude = u32::from(size > 0.25)
        + u32::from(size >= 0.75)
        + u32::from(size > 1.25)
        + u32::from(size >= 1.75)
        + u32::from(size > 2.5)
        + u32::from(size >= 3.5)
        + u32::from(size > 5.0);
    magnitude | scaled.to_bits() >> 31 << 3
}

/// Quantises a row of whole blocks into its codes \[columns/2\] and scales \[columns/32\].
///
/// # Errors
/// The first block without a scale.
pub fn quantise_row(
    values: &[f32],
    codes: &mut [u8],
    scales: &mut [u8],
) -> Result<(), AllZeroBlock> {
    let blocks = values.as_chunks::<MXFP4_GROUP_COLUMNS>().0;
    let places = codes.as_chunks_mut::<{ MXFP4_GROUP_COLUMNS / 2 }>().0;
    for (group, ((values, codes), scale)) in blocks.iter().zip(places).zip(scales).enumerate() {
        (*codes, *scale) = quantise_block(values).ok_or(AllZeroBlock { group })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use k3_checkpoint::mxfp4::{E2M1_VALUES, decode_code, decode_scale};

    /// A step misplaced between two codes: every code against a search for the nearest value.
    #[test]
    fn codes_are_the_nearest_values_ties_to_even() {
        for step in -2000..=2000_i32 {
            let scaled = step as f32 / 250.0;
            let code = nearest_code(scaled) as u8;
            let distance = |code: u8| (decode_code(code) - f64::from(scaled)).abs();
            let sign = if scaled.is_sign_negative() { 8 } else { 0 };
            let best = (sign..sign + 8).map(distance).fold(f64::INFINITY, f64::min);
            assert_eq!(distance(code), best, "{scaled}");
        }
        let ties = [(0.25, 0), (0.75, 2), (1.25, 2), (1.75, 4), (2.5, 4), (3.5, 6), (5.0, 6)];
        for (tie, even) in ties {
            assert_eq!((nearest_code(tie), nearest_code(-tie)), (even, even | 8));
        }
        assert_eq!((nearest_code(0.0), nearest_code(-0.0)), (0, 8));
    }

    /// An offset of two binary orders applied twice makes weights four times too small.
    #[test]
    fn b03_every_block_comes_back_within_half_a_step() {
        for exponent in [-120, -60, -6, 0, 40, 127] {
            let mut values = [0.0_f32; 32];
            for (index, value) in values.iter_mut().enumerate() {
                let share = (index as f32 - 15.7) / 16.0;
                *value = share * 2_f32.powi(exponent);
            }
            let (codes, byte) = quantise_block(&values).expect("not zero");
            let scale = decode_scale(byte).expect("not NaN");
            let largest = values.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
            let share = f64::from(largest) / scale;
            assert!((4.0..8.0).contains(&share), "{share}");
            for (index, value) in values.iter().enumerate() {
                let nibble = codes[index / 2] >> (4 * (index % 2)) & 15;
                let got = E2M1_VALUES[usize::from(nibble)] * scale;
                // The widest gap is 2 steps, and at most 2 steps are cut off above 6.
                let limit = if value.abs() > 6.0 * scale as f32 { 2.0 } else { 1.0 };
                assert!((got - f64::from(*value)).abs() <= limit * scale, "{index}");
            }
        }
    }

    /// Zeros, subnormals and numbers that are none must not get a scale in silence.
    #[test]
    fn blocks_without_a_scale_are_refused() {
        assert_eq!(quantise_block(&[0.0; 32]), None);
        assert_eq!(quantise_block(&[-0.0; 32]), None);
        assert_eq!(quantise_block(&[f32::MIN_POSITIVE / 2.0; 32]), None);
        for bad in [f32::NAN, f32::INFINITY] {
            let mut values = [1.0; 32];
            values[7] = bad;
            assert_eq!(quantise_block(&values), None);
        }
        let smallest = quantise_block(&[f32::MIN_POSITIVE; 32]).expect("a normal number");
        assert_eq!(smallest.1, 1);
        let mut values = [1.0; 96];
        values[32..64].fill(0.0);
        let refused = quantise_row(&values, &mut [0; 48], &mut [0; 3]);
        assert_eq!(refused, Err(AllZeroBlock { group: 1 }));
    }
}
