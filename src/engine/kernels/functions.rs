//! exp, tanh and the logistic σ, f32 to f32: one definition for every machine (A10).
//!
//! Each is computed in f64 with separate multiplications and additions (one division in σ and
//! tanh), selections and bit moves, then rounded to f32 once. No fused operation, no platform
//! library, no table: a vector unit does the same steps in its lanes and gets the same bits.
//!
//! e^y = 2^n · e^r with n = the integer nearest to y·log₂e and r = y − n·ln 2, |r| < 0.3466.
//! e^r − 1 is its own Taylor series up to r¹¹ (what is left out is below 2⁻⁴⁶ of it), so the
//! coefficients are just 1/k!. Keeping e^r − 1 rather than e^r makes tanh accurate for small x:
//! tanh|x| = −m/(m + 2) with m = e^(−2|x|) − 1, and there is no cancellation near zero.
//!
//! Error over all 2³² inputs against a double-double evaluation, in units in the last place of
//! the true value (`cargo run --release --example exp_error`, about eight minutes of one core):
//!
//! | function | worst error | where | results that are not the correctly rounded ones |
//! | --- | --- | --- | --- |
//! | exp | 0.500000042 ULP | 65.51379 (bits 4283070f) | 2 of 4,278,190,082 |
//! | σ | 0.500000003 ULP | −1.5676022e-5 (bits b7838000) | 66 |
//! | tanh | 0.499999991 ULP | 1.4914835e-3 (bits 3ac37de2) | 0: correctly rounded everywhere |
//!
//! NaN in gives NaN out, for every NaN.

/// log₂ e.
const LOG2_E: f64 = std::f64::consts::LOG2_E;
/// The upper 32 bits of ln 2: its product with a small integer is exact.
const LN_2_HIGH: f64 = f64::from_bits(0x3FE6_2E42_FEE0_0000);
/// The rest of ln 2.
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
/// 1.5 · 2⁵²: adding it leaves the nearest integer in the low bits of the sum.
const ROUNDER: f64 = 6_755_399_441_055_744.0;
/// Taylor coefficients of (e^r − 1)/r from the highest power: 1/11!, 1/10!, …, 1/2!, 1.
const COEFFICIENTS: [f64; 11] = [
    1.0 / 39_916_800.0,
    1.0 / 3_628_800.0,
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    1.0 / 2.0,
    1.0,
];
/// Beyond ±this, e^y has left f32 for good (0 or ∞ after rounding); f64 holds both comfortably.
const EXP_LIMIT: f64 = 110.0;
/// From here on tanh rounds to 1 (already from 9.01 on).
const TANH_LIMIT: f64 = 20.0;

/// e^y as `(scale, part)` with e^y = scale + scale·part, for |y| ≤ [`EXP_LIMIT`].
#[inline(always)]
fn exp_parts(y: f64) -> (f64, f64) {
    let shifted = y * LOG2_E + ROUNDER;
    let n = shifted - ROUNDER;
    let r = (y - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut quotient = COEFFICIENTS[0];
    for coefficient in &COEFFICIENTS[1..] {
        quotient = quotient * r + coefficient;
    }
    // The low bits of `shifted` are n: move n + 1023 into the exponent field.
    let scale = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1023 << 52));
    (scale, quotient * r)
}

/// Limits to [−limit, limit]; a NaN passes through.
#[inline(always)]
fn limited(y: f64, limit: f64) -> f64 {
    let low = if y < -limit { -limit } else { y };
    if low > limit { limit } else { low }
}

/// e^x. e^−∞ = 0, e^+∞ = ∞; results below the normal range are rounded once, like the others.
#[inline(always)]
#[must_use]
pub fn exp(x: f32) -> f32 {
    let (scale, part) = exp_parts(limited(f64::from(x), EXP_LIMIT));
    (scale * part + scale) as f32
}

/// σ(x) = 1/(1 + e^−x), accurate relative to its value down to the smallest subnormal.
#[inline(always)]
#[must_use]
pub fn sigmoid(x: f32) -> f32 {
    let (scale, part) = exp_parts(limited(-f64::from(x), EXP_LIMIT));
    (1.0 / (1.0 + (scale * part + scale))) as f32
}

/// tanh(x); odd in bits, so tanh(−0) = −0, and tanh(x) = x where |x| is small.
#[inline(always)]
#[must_use]
pub fn tanh(x: f32) -> f32 {
    let y = limited(f64::from(x).abs(), TANH_LIMIT);
    let (scale, part) = exp_parts(-2.0 * y);
    let m = scale * part + (scale - 1.0);
    ((-m / (m + 2.0)) as f32).copysign(x)
}

/// [`exp`] of every element, in place.
#[inline(always)]
pub fn exp_all(values: &mut [f32]) {
    for value in values {
        *value = exp(*value);
    }
}

/// [`sigmoid`] of every element, in place.
#[inline(always)]
pub fn sigmoid_all(values: &mut [f32]) {
    for value in values {
        *value = sigmoid(*value);
    }
}

/// [`tanh`] of every element, in place.
#[inline(always)]
pub fn tanh_all(values: &mut [f32]) {
    for value in values {
        *value = tanh(*value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Infinities, zeros and NaN: the edges a range reduction gets wrong first.
    #[test]
    fn edges_are_exact() {
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(88.8), f32::INFINITY);
        assert_eq!(exp(-104.0), 0.0);
        assert_eq!(sigmoid(f32::INFINITY), 1.0);
        assert_eq!(sigmoid(f32::NEG_INFINITY), 0.0);
        assert_eq!(sigmoid(0.0), 0.5);
        assert_eq!(tanh(f32::INFINITY), 1.0);
        assert_eq!(tanh(f32::NEG_INFINITY), -1.0);
        assert_eq!(tanh(0.0).to_bits(), 0);
        assert_eq!(tanh(-0.0).to_bits(), 0x8000_0000);
        for function in [exp, sigmoid, tanh] {
            assert!(function(f32::NAN).is_nan());
            assert!(function(f32::from_bits(0xFF80_0001)).is_nan());
        }
    }

    /// e^−103 is a subnormal: 1.2 e-45 rounds to the smallest one, not to zero. e^88.7 is the
    /// last binade. Values from a 50-digit calculation.
    #[test]
    fn results_at_both_ends_of_the_range_are_rounded_once() {
        assert_eq!(exp(-103.0).to_bits(), 1);
        assert_eq!(exp(-100.0).to_bits(), 27);
        assert_eq!(exp(-90.0).to_bits(), 584744);
        assert_eq!(exp(88.7), 3.325_976_8e38);
        assert_eq!(sigmoid(-100.0).to_bits(), 27);
        assert_eq!(sigmoid(-20.0), 2.061_153_6e-9);
    }

    /// A tanh taken from (1−t)/(1+t) loses small arguments; ours returns them unchanged.
    #[test]
    fn tanh_keeps_small_arguments() {
        for bits in [1_u32, 2, 0x0000_FFFF, 0x0080_0000, 0x2000_0001, 0x3900_0000] {
            let x = f32::from_bits(bits);
            assert_eq!(tanh(x).to_bits(), bits);
            assert_eq!(tanh(-x), -x);
        }
        assert_eq!(tanh(0.01), 0.009_999_666);
        assert_eq!(tanh(0.5), 0.462_117_16);
    }
}
