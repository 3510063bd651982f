//! BF16: exact widening (A1) and rounding to nearest even.
//!
//! A BF16 number is the upper half of an f32. Widening therefore only moves bits, subnormals and
//! the sign of zero included; no processor mode can flush it. Rounding exists for writers and
//! comparisons; the engine itself never narrows.

/// The f32 with these upper 16 bits; exact for every input, NaN included.
#[inline(always)]
#[must_use]
pub fn widen(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds to nearest, ties to even. A NaN stays a NaN (its quiet bit is set rather than letting
/// the rounding carry turn it into an infinity or a zero).
#[must_use]
pub fn round(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return ((bits >> 16) | 0x0040) as u16;
    }
    let half_minus_tie = 0x7FFF + ((bits >> 16) & 1);
    // A finite value above the largest BF16 carries into the exponent: that is +∞ or −∞, rightly.
    ((bits + half_minus_tie) >> 16) as u16
}

/// Widens a row.
pub fn widen_row(bits: &[u16], out: &mut [f32]) {
    for (bits, out) in bits.iter().zip(out) {
        *out = widen(*bits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B06: a rounding add that carries into the exponent of a NaN; truncation for nearest-even.
    #[test]
    fn b06_rounding_keeps_nan_and_ties_to_even() {
        let round_bits = |bits| round(f32::from_bits(bits));
        assert!(widen(round_bits(0x7F80_0001)).is_nan());
        assert!(widen(round_bits(0x7FFF_8C22)).is_nan());
        assert_eq!(widen(round_bits(0x7F7F_FFFF)), f32::INFINITY);
        assert_eq!(round_bits(0x3F80_8000), 0x3F80);
        assert_eq!(round_bits(0x3F81_8000), 0x3F82);
        assert_eq!(round_bits(0xBF80_8001), 0xBF81);
    }

    /// B07: a conversion that flushes subnormals.
    #[test]
    fn b07_subnormals_survive_both_ways() {
        let tiny = f32::from_bits(0x0040_0000);
        assert_eq!(f64::from(tiny), 2.0_f64.powi(-127));
        assert_eq!(round(tiny), 0x0040);
        assert_eq!(widen(0x0040), tiny);
        assert_eq!(f64::from(widen(0x0001)), 2.0_f64.powi(-133));
        assert_eq!(widen(0x8000).to_bits(), 0x8000_0000);
    }

    /// Every BF16 number comes back as itself.
    #[test]
    fn widening_then_rounding_is_the_identity() {
        for bits in 0..=u16::MAX {
            let wide = widen(bits);
            if wide.is_nan() {
                assert!(widen(round(wide)).is_nan());
            } else {
                assert_eq!(round(wide), bits);
            }
        }
    }
}
