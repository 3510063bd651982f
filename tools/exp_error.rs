//! Measures the worst error of the engine's exp, tanh and σ over all 2³² inputs.
//!
//! `cargo run --release --example exp_error [STRIDE [FIRST LAST]]` looks at every STRIDEth bit
//! pattern from FIRST to LAST (both included; all of them by default, some minutes on one core)
//! and prints, per function, the worst error in units in the last place of the true value, where
//! it is, and how many results are not the correctly rounded ones.
//!
//! The true value comes from an evaluation that shares nothing with the kernel: a table of
//! 2^(j/64) as pairs of f64 (made by repeated square roots of 2), a reduction by ln 2/64 in three
//! parts, a short series, all carried as unevaluated sums of two f64. Its own relative error is
//! about 2⁻⁶⁰, so the figures are exact to about 2⁻³⁵ ULP. For σ and tanh the error is taken from
//! the defining equation (y·(1 + e) − 1, y·(m + 2) − m) and not from a quotient.

use k3_engine::kernels::functions;

/// A number as the unevaluated sum of two f64, the second far smaller.
type Pair = (f64, f64);

/// Steps of the table per factor of two.
const STEPS: usize = 64;
/// ln 2/64 in three parts; products of the first with integers below 2¹⁵ are exact.
const STEP_PARTS: [f64; 3] = [
    f64::from_bits(0x3F86_2E42_FEF0_0000),
    f64::from_bits(0x3D74_73DE_6AF2_78ED),
    f64::from_bits(0xB9F9_FF03_4254_2FC3),
];

/// a + b with its rounding error.
fn two_sum(a: f64, b: f64) -> Pair {
    let sum = a + b;
    let b_part = sum - a;
    (sum, (a - (sum - b_part)) + (b - b_part))
}

/// The upper 26 bits of a number and the rest.
fn split(a: f64) -> Pair {
    let high = f64::from_bits(a.to_bits() & !0x07FF_FFFF);
    (high, a - high)
}

/// a·b with its rounding error.
fn two_product(a: f64, b: f64) -> Pair {
    let ((a_high, a_low), (b_high, b_low)) = (split(a), split(b));
    let product = a * b;
    let error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low;
    (product, error)
}

fn multiply(a: Pair, b: Pair) -> Pair {
    let (high, low) = two_product(a.0, b.0);
    two_sum(high, low + (a.0 * b.1 + a.1 * b.0))
}

/// √a by one correction of the f64 root.
fn root(a: Pair) -> Pair {
    let first = a.0.sqrt();
    let (square, square_low) = two_product(first, first);
    let rest = (a.0 - square) - square_low + a.1;
    two_sum(first, rest / (2.0 * first))
}

/// The independent evaluation.
struct Truth {
    /// 2^(j/64).
    powers: Vec<Pair>,
}

impl Truth {
    fn new() -> Self {
        let mut step = (2.0, 0.0);
        for _ in 0..STEPS.trailing_zeros() {
            step = root(step);
        }
        let mut powers = vec![(1.0, 0.0)];
        for j in 1..STEPS {
            powers.push(multiply(powers[j - 1], step));
        }
        Self { powers }
    }

    /// e^y = 2^n · 2^(j/64) · (1 + e): returns 2^n, the table value, and e as a pair.
    fn parts(&self, y: f64) -> (f64, Pair, Pair) {
        let k = (y * (STEPS as f64 * std::f64::consts::LOG2_E)).round_ties_even();
        let (t, t_low) = two_sum(y - k * STEP_PARTS[0], -k * STEP_PARTS[1]);
        let t_low = t_low - k * STEP_PARTS[2];
        let mut series = 1.0 / 40_320.0;
        for factorial in [5040.0, 720.0, 120.0, 24.0, 6.0, 2.0] {
            series = series * t + 1.0 / factorial;
        }
        let e = two_sum(t, series * t * t + t_low * (1.0 + t));
        let k = k as i64;
        let n = k.div_euclid(STEPS as i64);
        let power = f64::from_bits(((n + 1023) as u64) << 52);
        (power, self.powers[k.rem_euclid(STEPS as i64) as usize], e)
    }

    /// e^y.
    fn exp(&self, y: f64) -> Pair {
        let (power, (high, low), e) = self.parts(y);
        let (high, low) = two_sum(high, low + (high * e.1 + (high + low) * e.0));
        (high * power, low * power)
    }

    /// e^y − 1, accurate relative to its own value, for y ≥ 0.
    fn exp_minus_one(&self, y: f64) -> Pair {
        let (power, (high, low), e) = self.parts(y);
        let (whole, rest) = two_sum(high * power, -1.0);
        let product = two_product(high * power, e.0);
        let small = rest + low * power + product.1 + power * (high * e.1 + low * e.0);
        let (sum, error) = two_sum(whole, product.0);
        two_sum(sum, error + small)
    }
}

/// One unit in the last place of an f32 of this size.
fn ulp(value: f64) -> f64 {
    let exponent = ((value.abs().to_bits() >> 52) as i64 - 1023).max(-126) - 23;
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// y·d − c for a 24-bit y near c/d; exact but for the last low parts.
fn residual(y: f64, d: Pair, c: Pair) -> f64 {
    let (d_high, d_low) = split(d.0);
    (y * d_high - c.0) + (y * d_low + (y * d.1 - c.1))
}

/// Error of `y` as exp(x), in ULP.
fn exp_error(truth: &Truth, x: f64, y: f64) -> f64 {
    // From here on the true value rounds to infinity: half an ULP above the largest f32.
    const OVERFLOW: f64 = 340_282_356_779_733_661_637_539_395_458_142_568_448.0;
    if x < -120.0 {
        return if y == 0.0 { 0.0 } else { f64::INFINITY };
    }
    if x > 120.0 {
        return if y == f64::INFINITY { 0.0 } else { f64::INFINITY };
    }
    let (high, low) = truth.exp(x);
    if high >= OVERFLOW || y == f64::INFINITY {
        let right = (high >= OVERFLOW) == (y == f64::INFINITY);
        return if right { 0.0 } else { f64::INFINITY };
    }
    ((y - high) - low).abs() / ulp(high)
}

/// Error of `y` as σ(x), in ULP.
fn sigmoid_error(truth: &Truth, x: f64, y: f64) -> f64 {
    if x.abs() > 120.0 {
        let right = y == if x > 0.0 { 1.0 } else { 0.0 };
        return if right { 0.0 } else { f64::INFINITY };
    }
    let (high, low) = truth.exp(-x);
    let (one_more, rest) = two_sum(1.0, high);
    let divisor = two_sum(one_more, rest + low);
    let relative = residual(y, divisor, (1.0, 0.0)).abs();
    relative / divisor.0 / ulp(1.0 / divisor.0)
}

/// Error of `y` as tanh(x), in ULP.
fn tanh_error(truth: &Truth, x: f64, y: f64) -> f64 {
    if y.is_sign_negative() != x.is_sign_negative() {
        return f64::INFINITY;
    }
    if x == 0.0 || x.abs() > 20.0 {
        let right = y.abs() == if x == 0.0 { 0.0 } else { 1.0 };
        return if right { 0.0 } else { f64::INFINITY };
    }
    let m = truth.exp_minus_one(2.0 * x.abs());
    let (sum, rest) = two_sum(2.0, m.0);
    let divisor = two_sum(sum, rest + m.1);
    residual(y.abs(), divisor, m).abs() / divisor.0 / ulp(m.0 / divisor.0)
}

/// What was found for one function.
#[derive(Debug, Clone)]
pub struct Finding {
    /// Name of the function.
    pub name: &'static str,
    /// Inputs looked at (NaN excepted).
    pub inputs: u64,
    /// Worst error in ULP.
    pub worst_ulp: f64,
    /// Bits of the input where it occurs.
    pub worst_input_bits: u32,
    /// Results that are not the correctly rounded ones.
    pub misrounded: u64,
    /// NaN inputs that did not give NaN.
    pub nan_lost: u64,
}

/// Looks at every `stride`th bit pattern from `first` to `last`.
pub fn measure(stride: u32, first: u32, last: u32) -> [Finding; 3] {
    type Function = (&'static str, fn(f32) -> f32, fn(&Truth, f64, f64) -> f64);
    let all: [Function; 3] = [
        ("exp", functions::exp, exp_error),
        ("sigmoid", functions::sigmoid, sigmoid_error),
        ("tanh", functions::tanh, tanh_error),
    ];
    let truth = Truth::new();
    all.map(|(name, function, error)| {
        let (inputs, worst_ulp, worst_input_bits) = (0, 0.0, 0);
        let mut found =
            Finding { name, inputs, worst_ulp, worst_input_bits, misrounded: 0, nan_lost: 0 };
        for bits in (first..=last).step_by(stride as usize) {
            let x = f32::from_bits(bits);
            let y = function(x);
            if x.is_nan() {
                found.nan_lost += u64::from(!y.is_nan());
                continue;
            }
            let ulp = error(&truth, f64::from(x), f64::from(y));
            found.inputs += 1;
            found.misrounded += u64::from(ulp > 0.5);
            if ulp > found.worst_ulp || ulp.is_nan() {
                (found.worst_ulp, found.worst_input_bits) = (ulp, bits);
            }
        }
        found
    })
}

#[expect(clippy::print_stdout, reason = "a program that a person runs")]
fn main() -> std::process::ExitCode {
    let numbers: Result<Vec<u32>, _> = std::env::args().skip(1).map(|a| a.parse()).collect();
    let (stride, first, last) = match numbers.as_deref() {
        Ok([]) => (1, 0, u32::MAX),
        Ok(&[stride]) if stride > 0 => (stride, 0, u32::MAX),
        Ok(&[stride, first, last]) if stride > 0 => (stride, first, last),
        _ => {
            eprintln!("usage: exp_error [STRIDE [FIRST LAST]], whole numbers, STRIDE not 0");
            return std::process::ExitCode::from(2);
        }
    };
    for found in measure(stride, first, last) {
        println!(
            "{:8} {:>10} inputs: worst {:.9} ULP at {:#010x} ({:e}), {} not correctly rounded, \
             {} NaN lost",
            found.name,
            found.inputs,
            found.worst_ulp,
            found.worst_input_bits,
            f32::from_bits(found.worst_input_bits),
            found.misrounded,
            found.nan_lost,
        );
    }
    std::process::ExitCode::SUCCESS
}
