//! How a subject rounds: the kinds of arithmetic, and the elementary functions under them.

use super::bounded::Bounded;
use crate::arithmetic::sigmoid;
use k3_core::Precision;

/// Unit roundoff of f64, the precision in which the expected values are evaluated here.
pub const EVALUATION: f64 = f64::EPSILON / 2.0;

/// The arithmetic a subject claims to compute in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    /// The engine's (MODEL.md section 3): f32 activations, sums of products in f64, each rounded to
    /// f32 once, every other step one f32 operation, exp, tanh and σ within one unit in the last
    /// place of f32 (A10).
    F64Sums,
    /// An f32 engine of others: sums in f32, in any order, fused or not; subnormal results may be
    /// flushed to zero. Of its functions it is asked what the OpenCL full profile asks: exp within
    /// 3 units in the last place, tanh within 5; σ is composed of exp, an addition, a division.
    F32Sums,
    /// An f64 subject. exp within 1 and tanh within 2 units in the last place, as the manual of
    /// the GNU C library states of its own; σ is composed.
    F64,
    /// An engine that keeps its activations in BF16: sums of products in f32 at least, in any
    /// order, every other step rounded to BF16 or not, save what no engine keeps narrower than f32
    /// (gates/PRECISION.md). exp and tanh within 1 unit in the last place of BF16; σ is composed.
    Bf16,
    /// The same in IEEE half.
    F16,
}

impl Arithmetic {
    /// What an engine other than ours computes in when it keeps its activations in `precision`.
    #[must_use]
    pub fn of(precision: Precision) -> Self {
        match precision {
            Precision::Bf16 => Self::Bf16,
            Precision::F16 => Self::F16,
            Precision::F32 => Self::F32Sums,
            Precision::F64 => Self::F64,
        }
    }

    /// What activations are kept in.
    #[must_use]
    pub fn precision(self) -> Precision {
        match self {
            Self::Bf16 => Precision::Bf16,
            Self::F16 => Precision::F16,
            Self::F64Sums | Self::F32Sums => Precision::F32,
            Self::F64 => Precision::F64,
        }
    }

    /// What storing a BF16 number of the checkpoint loses: nothing but in half, whose range is
    /// smaller.
    #[must_use]
    pub fn storing_loses(self, value: f64) -> f64 {
        (self.precision().round(value) - value).abs()
    }

    /// Whether activations are kept in less than f32.
    #[must_use]
    pub fn is_narrow(self) -> bool {
        self.precision() < Precision::F32
    }
}

/// One precision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unit {
    /// Unit roundoff: half the distance from 1 to the next number.
    pub roundoff: f64,
    /// What a rounding may lose besides, in the subnormal range.
    pub tiny: f64,
    /// In which a constant of a formula is exact: f32 even where the unit is that of f64.
    pub constants: Precision,
}

/// Largest errors of the elementary functions, in units in the last place of the result.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Functions {
    exp: f64,
    sigmoid: f64,
    tanh: f64,
}

/// The rounding points of an [`Arithmetic`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rounding {
    /// Inside sums of products and norms.
    pub wide: Unit,
    /// Of everything that is stored, and of every step that is no sum.
    pub step: Unit,
    functions: Functions,
    is_narrow: bool,
}

/// 2^exponent, subnormals included.
fn power_of_two(exponent: i32) -> f64 {
    2f64.powi(exponent)
}

impl Rounding {
    /// The units of an arithmetic.
    #[must_use]
    pub fn new(arithmetic: Arithmetic) -> Self {
        // Half the smallest subnormal; that of f64 has no half.
        let double =
            Unit { roundoff: EVALUATION, tiny: f64::from_bits(1), constants: Precision::F32 };
        let single = Unit {
            roundoff: power_of_two(-24),
            tiny: power_of_two(-150),
            constants: Precision::F32,
        };
        let flushing = Unit {
            roundoff: single.roundoff,
            tiny: f64::from(f32::MIN_POSITIVE),
            constants: Precision::F32,
        };
        // The range of BF16 is that of f32, so is its flushing. Half has subnormals.
        let bf16 =
            Unit { roundoff: power_of_two(-8), tiny: flushing.tiny, constants: Precision::Bf16 };
        let half = Unit {
            roundoff: power_of_two(-11),
            tiny: power_of_two(-25),
            constants: Precision::F16,
        };
        let functions = |exp, sigmoid, tanh| Functions { exp, sigmoid, tanh };
        let (wide, step, functions) = match arithmetic {
            Arithmetic::F64Sums => (double, single, functions(1.0, 1.0, 1.0)),
            Arithmetic::F32Sums => (flushing, flushing, functions(3.0, 4.0, 5.0)),
            Arithmetic::F64 => (double, double, functions(1.0, 2.0, 2.0)),
            Arithmetic::Bf16 => (flushing, bf16, functions(1.0, 2.0, 1.0)),
            Arithmetic::F16 => (flushing, half, functions(1.0, 2.0, 1.0)),
        };
        Self { wide, step, functions, is_narrow: arithmetic.is_narrow() }
    }

    /// The same subject where it computes in f32 at least: log decay, KDA state, router, the keys
    /// and scores of the mixes.
    #[must_use]
    pub fn single(self) -> Self {
        if self.is_narrow { Self::new(Arithmetic::F32Sums) } else { self }
    }

    /// A place where some narrow subjects store and others do not, or where some have cast an F32
    /// weight: one rounding of a narrow subject, nothing of any other.
    #[must_use]
    pub fn narrow_store(self, x: Bounded) -> Bounded {
        if self.is_narrow { self.step.round(x) } else { x }
    }

    /// Adds a function's own error: `ulps` units in the last place of the subject's result (one
    /// is at most 2u of it), and those of the evaluation here (`own_ulps`, in f64).
    fn function(self, x: Bounded, ulps: f64, own_ulps: f64) -> Bounded {
        let subject = ulps * 2.0 * (self.step.roundoff * x.magnitude() + self.step.tiny);
        x.widened(subject + own_ulps * 2.0 * EVALUATION * x.value.abs())
    }

    /// The relative error of the subject's exp, and what it may lose absolutely to underflow.
    pub(super) fn exp_error(self) -> (f64, f64) {
        let units = 2.0 * self.functions.exp;
        let relative = units * self.step.roundoff + 2.0 * EVALUATION;
        (relative, units * self.step.tiny)
    }

    /// e^x: e^(x+δ) − e^x is at most e^x·(e^|δ| − 1).
    #[must_use]
    pub fn exp(self, x: Bounded) -> Bounded {
        let value = x.value.exp();
        let error = value * x.error.exp_m1();
        self.function(Bounded { value, error }, self.functions.exp, 1.0)
    }

    /// σ(x). σ' = σ(1−σ) and |(ln σ')'| = |1 − 2σ| ≤ 1, so σ' grows at most by e^|δ| on the way,
    /// and the error is at most σ'(x)·(e^|δ| − 1). 1 − σ(x) is σ(−x), without cancellation.
    #[must_use]
    pub fn sigmoid(self, x: Bounded) -> Bounded {
        let value = sigmoid(x.value);
        let error = value * sigmoid(-x.value) * x.error.exp_m1();
        self.function(Bounded { value, error }, self.functions.sigmoid, 2.0)
    }

    /// tanh(x). tanh' = 4σ(2x)σ(−2x) and |(ln tanh')'| = 2|tanh| ≤ 2, so the error is at most
    /// tanh'(x)·(e^(2|δ|) − 1)/2; it is never above 2.
    #[must_use]
    pub fn tanh(self, x: Bounded) -> Bounded {
        let value = x.value.tanh();
        let slope = 4.0 * sigmoid(2.0 * x.value) * sigmoid(-2.0 * x.value);
        let error = (slope * (2.0 * x.error).exp_m1() / 2.0).min(2.0);
        self.function(Bounded { value, error }, self.functions.tanh, 2.0)
    }

    /// x·σ(x) as two steps.
    #[must_use]
    pub fn silu(self, x: Bounded) -> Bounded {
        self.step.mul(x, self.sigmoid(x))
    }

    /// SiTU (S1, S2) in the steps of the contract: t = β·tanh(g/β), a = t·σ(g),
    /// b = linβ·tanh(up/linβ), a·b.
    #[must_use]
    pub fn situ(self, gate: Bounded, up: Bounded, beta: f64, linear_beta: f64) -> Bounded {
        let cap = |x: Bounded, cap: f64| {
            let cap = self.step.constant(cap);
            self.step.mul(cap, self.tanh(self.step.div(x, cap)))
        };
        let activated = self.step.mul(cap(gate, beta), self.sigmoid(gate));
        self.step.mul(activated, cap(up, linear_beta))
    }
}
