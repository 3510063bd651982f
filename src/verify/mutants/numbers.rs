//! Another exp, tanh or σ (A10).

use super::EngineMutant;
use super::steps::arithmetic;
use k3_engine::kernels::functions;

/// Every element by itself.
fn each(values: &mut [f32], function: impl Fn(f32) -> f32) {
    values.iter_mut().for_each(|value| *value = function(*value));
}

fn flushed(value: f32) -> f32 {
    let value = functions::exp(value);
    if value < f32::MIN_POSITIVE { 0.0 } else { value }
}

fn by_quotient(x: f32) -> f32 {
    let t = functions::exp(-2.0 * x.abs());
    ((1.0 - t) / (1.0 + t)).copysign(x)
}

fn by_squaring(x: f32) -> f32 {
    (1.0 + f64::from(x).max(-1024.0) / 1024.0).powi(1024) as f32
}

/// The mutants of this file.
pub(super) fn list() -> Vec<EngineMutant> {
    arithmetic! {
        "a10-exp-of-the-platform" ["A10"] "exp is the platform's single-precision one"
            { exp: |values| each(values, f32::exp) };
        "a10-tanh-of-the-platform" ["A10"] "tanh is the platform's single-precision one"
            { tanh: |values| each(values, f32::tanh) };
        "a10-sigmoid-in-f32" ["A10"] "sigma is 1/(1 + exp(-x)) in f32 steps"
            { sigmoid: |values| each(values, |x| 1.0 / (1.0 + functions::exp(-x))) };
        "a10-sigmoid-by-tanh" ["A10"] "sigma is (1 + tanh(x/2))/2, which is 0 for large negative x"
            { sigmoid: |values| each(values, |x| 0.5 + 0.5 * functions::tanh(0.5 * x)) };
        "a10-tanh-by-quotient" ["A10"] "tanh is (1 - t)/(1 + t), which loses small arguments"
            { tanh: |values| each(values, by_quotient) };
        "a10-exp-flushes-subnormals" ["A10" "A12"] "exp gives zero below the normal range"
            { exp: |values| each(values, flushed) };
        "a10-exp-by-squaring" ["A10"] "exp is (1 + x/1024) to the power 1024"
            { exp: |values| each(values, by_squaring) };
    }
}
