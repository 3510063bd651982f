//! A number with a running error bound, and the operations the formulas need on it.
//!
//! `value` is what this program computes in f64; `error` bounds how far a right subject's number
//! may be from it. Every operation propagates the errors of its operands to all orders (no term is
//! dropped, the derivations are at the functions), then [`Unit::round`] adds the subject's own
//! rounding and that of the f64 evaluation here. The bounds themselves are evaluated in f64; their
//! own rounding, some 2⁻⁵⁰ of a bound, is not chased.

use super::arithmetic::{EVALUATION, Unit};

/// A value and a bound on the distance of a right subject's value from it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Bounded {
    /// As computed here.
    pub value: f64,
    /// At least |subject's − value|; never negative.
    pub error: f64,
}

impl Bounded {
    /// A number that both sides have in the same bits: a stored weight, or a value out of the
    /// subject's own dump.
    #[must_use]
    pub fn exact(value: f64) -> Self {
        Self { value, error: 0.0 }
    }

    /// The largest magnitude the subject's number can have.
    #[must_use]
    pub fn magnitude(self) -> f64 {
        self.value.abs() + self.error
    }

    /// The same value with something added to its error.
    #[must_use]
    pub(super) fn widened(self, error: f64) -> Self {
        Self { value: self.value, error: self.error + error }
    }
}

/// γ(n, u) = n·u / (1 − n·u): what n roundings of unit u in a row do to a product of factors
/// (1 + δ), |δ| ≤ u, at most. Infinite where n·u ≥ 1.
#[must_use]
pub fn gamma(roundings: usize, roundoff: f64) -> f64 {
    let first_order = roundings as f64 * roundoff;
    if first_order < 1.0 { first_order / (1.0 - first_order) } else { f64::INFINITY }
}

/// What a sum of products is made of, whatever the order of its additions.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Terms {
    /// Number of terms.
    pub count: usize,
    /// Σ w·x as computed here.
    pub value: f64,
    /// Σ |w·x| over the largest magnitudes the subject can have.
    pub magnitude: f64,
    /// What the errors of the factors do to the sum.
    pub propagated: f64,
}

impl Terms {
    /// Adds one product of two numbers.
    pub fn push(&mut self, a: Bounded, b: Bounded) {
        self.count += 1;
        self.value += a.value * b.value;
        self.magnitude += a.magnitude() * b.magnitude();
        self.propagated += product_error(a, b);
    }
}

/// |ãb̃ − ab| ≤ |a|·e_b + |b|·e_a + e_a·e_b.
fn product_error(a: Bounded, b: Bounded) -> f64 {
    a.value.abs() * b.error + b.magnitude() * a.error
}

impl Unit {
    /// One rounding to this precision: u·|x| with x the subject's number, plus what a result in
    /// the subnormal range loses. The evaluation here rounds once too.
    #[must_use]
    pub fn round(self, x: Bounded) -> Bounded {
        x.widened(self.roundoff * x.magnitude() + self.tiny + EVALUATION * x.value.abs())
    }

    /// A constant of a formula as this precision stores it; exact where f32, or a narrower
    /// precision of the subject, holds it.
    #[must_use]
    pub fn constant(self, value: f64) -> Bounded {
        let is_short = self.constants.round(value) == value;
        let error = if is_short { 0.0 } else { self.roundoff * value.abs() };
        Bounded { value, error }
    }

    /// a + b.
    #[must_use]
    pub fn add(self, a: Bounded, b: Bounded) -> Bounded {
        self.round(Bounded { value: a.value + b.value, error: a.error + b.error })
    }

    /// a − b.
    #[must_use]
    pub fn sub(self, a: Bounded, b: Bounded) -> Bounded {
        self.round(Bounded { value: a.value - b.value, error: a.error + b.error })
    }

    /// a · b.
    #[must_use]
    pub fn mul(self, a: Bounded, b: Bounded) -> Bounded {
        self.round(Bounded { value: a.value * b.value, error: product_error(a, b) })
    }

    /// a / b. ã/b̃ − a/b = ((ã − a) − (a/b)·(b̃ − b)) / b̃, so the error is at most
    /// (e_a + |a/b|·e_b) / (|b| − e_b); infinite where b̃ may be zero.
    #[must_use]
    pub fn div(self, a: Bounded, b: Bounded) -> Bounded {
        let value = a.value / b.value;
        let smallest = b.value.abs() - b.error;
        let error = if smallest > 0.0 {
            (a.error + value.abs() * b.error) / smallest
        } else {
            f64::INFINITY
        };
        self.round(Bounded { value, error })
    }

    /// √a. √ã − √a = (ã − a) / (√ã + √a), at most e / (√a + √max(a − e, 0)).
    #[must_use]
    pub fn sqrt(self, a: Bounded) -> Bounded {
        let value = a.value.sqrt();
        let least = value + (a.value - a.error).max(0.0).sqrt();
        let error = if a.error == 0.0 {
            0.0
        } else if least > 0.0 {
            a.error / least
        } else {
            a.error.sqrt()
        };
        self.round(Bounded { value, error })
    }

    /// A sum of products in this precision, in any order, fused or not: each term meets at most
    /// `count` roundings (its product and count − 1 additions), so γ(count)·Σ|w·x|. The result is
    /// not rounded to another precision here.
    #[must_use]
    pub fn sum(self, terms: Terms) -> Bounded {
        let Terms { count, magnitude, .. } = terms;
        let own = gamma(count, self.roundoff) * magnitude + count as f64 * self.tiny;
        Bounded {
            value: terms.value,
            error: terms.propagated + own + gamma(count, EVALUATION) * magnitude,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::arithmetic::{Arithmetic, Rounding};
    use super::*;

    /// A number of an f32 subject with its bound: `true_value` is somewhere within `error`.
    fn within(bounded: Bounded, subject: f64) -> bool {
        (subject - bounded.value).abs() <= bounded.error
    }

    const ALMOST: f64 = 1.0 - 1e-9;

    /// A propagation rule that forgets a term lets a perturbed operand out of its bound: every
    /// operation at the corners and the middle of its operands' intervals.
    /// (A hair inside the corners: the test's own operands are rounded.)
    #[test]
    fn every_operation_holds_all_of_its_operands_interval() {
        let exact = Rounding::new(Arithmetic::F64);
        let wide = exact.wide;
        for a in [-30.0, -1.25, -1e-3, 0.5, 2.0, 40.0] {
            for b in [-7.0, -0.3, 0.2, 11.0] {
                for (e, f) in [(0.0, 0.1), (0.15, 0.0), (0.1, 0.19), (1e-6, 1e-9)] {
                    let (x, y) = (bounded(a, e), bounded(b, f));
                    for s in [-ALMOST, 0.0, ALMOST] {
                        for t in [-ALMOST, 0.0, ALMOST] {
                            let (p, q) = (a + s * e, b + t * f);
                            assert!(within(wide.add(x, y), p + q));
                            assert!(within(wide.sub(x, y), p - q));
                            assert!(within(wide.mul(x, y), p * q));
                            assert!(within(wide.div(x, y), p / q), "{p} / {q}");
                        }
                        let p = a + s * e;
                        assert!(within(wide.sqrt(bounded(a * a, e)), (a * a + s * e).abs().sqrt()));
                        assert!(within(exact.exp(x), p.exp()), "exp {p}");
                        assert!(within(exact.tanh(x), p.tanh()), "tanh {p}");
                        let sigmoid = 1.0 / (1.0 + (-p).exp());
                        assert!(within(exact.sigmoid(x), sigmoid), "sigmoid {p}");
                    }
                }
            }
        }
    }

    fn bounded(value: f64, error: f64) -> Bounded {
        Bounded { value, error }
    }

    /// A divisor that may be zero must not come out with a finite bound.
    #[test]
    fn division_by_what_may_be_zero_has_no_bound() {
        let wide = Rounding::new(Arithmetic::F64).wide;
        let out = wide.div(bounded(1.0, 0.0), bounded(0.1, 0.1));
        assert_eq!(out.error, f64::INFINITY);
        assert_eq!(gamma(2, 0.5), f64::INFINITY);
    }

    /// One rounding to f32 is half a unit in the last place, not less and not two.
    #[test]
    fn one_rounding_is_half_an_ulp() {
        let step = Rounding::new(Arithmetic::F64Sums).step;
        let one = step.round(Bounded::exact(1.0));
        let half_ulp = f64::from(f32::EPSILON) / 2.0;
        assert!(one.error >= half_ulp && one.error < 1.001 * half_ulp);
        assert!(step.round(Bounded::exact(0.0)).error > 0.0);
    }
}
