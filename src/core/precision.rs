//! The precisions in which an engine keeps its activations, and rounding to them.

use half::{bf16, f16};
use serde::Serialize;

use crate::choice::Choice;

/// A storage precision. Its tolerances follow from the noise that rounding to it makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// bfloat16: 8 significant bits.
    Bf16,
    /// IEEE half: 11 significant bits.
    F16,
    /// IEEE single: 24 significant bits.
    F32,
    /// IEEE double: 53 significant bits.
    F64,
}

impl Choice for Precision {
    /// F64 is the reference's own and is never asked for.
    const ALL: &'static [Self] = &[Self::Bf16, Self::F16, Self::F32];

    fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Bf16 => "bfloat16: 8 significant bits",
            Self::F16 => "IEEE half: 11 significant bits",
            Self::F32 => "IEEE single: 24 significant bits",
            Self::F64 => "IEEE double: 53 significant bits",
        }
    }
}

impl Precision {
    /// The nearest value of this precision, ties to even, in f64; an overflow becomes infinite.
    #[must_use]
    pub fn round(self, value: f64) -> f64 {
        match self {
            Self::Bf16 => bf16::from_f64(value).to_f64(),
            Self::F16 => f16::from_f64(value).to_f64(),
            Self::F32 => f64::from(value as f32),
            Self::F64 => value,
        }
    }

    /// This precision, or single where it is narrower: what stays in single in any engine.
    #[must_use]
    pub fn at_least_single(self) -> Self {
        self.max(Self::F32)
    }
}

#[cfg(test)]
mod tests {
    use super::Precision;

    /// The neighbours of 1 in each precision, and a tie that must go to the even one.
    #[test]
    fn rounding_goes_to_the_nearest_and_ties_to_even() {
        for (precision, bits) in [(Precision::Bf16, 8), (Precision::F16, 11), (Precision::F32, 24)]
        {
            let step = 2f64.powi(1 - bits);
            assert_eq!(precision.round(1.0 + 0.4 * step), 1.0);
            assert_eq!(precision.round(1.0 + 0.6 * step), 1.0 + step);
            assert_eq!(precision.round(1.0 + 0.5 * step), 1.0);
            assert_eq!(precision.round(1.0 + 1.5 * step), 1.0 + 2.0 * step);
            assert_eq!(precision.at_least_single(), Precision::F32);
        }
        assert_eq!(Precision::F64.round(0.1), 0.1);
        assert!(Precision::F16.round(1e6).is_infinite());
    }
}
