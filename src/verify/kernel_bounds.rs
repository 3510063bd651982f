//! What an f32 kernel may differ from the mathematical value by, element by element, where no bits
//! are prescribed because `exp`, `tanh` or the logistic come in.
//!
//! Notation: u = 2⁻²⁴, the relative error of one rounding to f32; γ(n) = n·u/(1 − n·u) bounds n
//! roundings in a row. Our `exp`, `tanh` and logistic are within 1 ULP, so each counts as two
//! roundings. An error in an argument passes through `exp` as itself, through the logistic by at
//! most |x|·(1 − σ(x)) relative, through `tanh` by at most 1 relative. Every bound has the
//! smallest subnormal added, below which f32 has no digits. Nothing here was fitted.

use super::kernels::{Case, Tensors, real};
use crate::tensor_file::TensorValues;
use k3_core::compare::Tolerance;
use k3_core::stages::StageValues;

/// Relative error of one rounding to f32.
const U: f64 = 1.0 / 16_777_216.0;
/// Smallest positive f32.
const SMALLEST: f64 = 1.401_298_464_324_817e-45;
/// Roundings that an elementary function within 1 ULP counts as.
const ELEMENTARY: f64 = 2.0;

/// Below this argument `exp` is less than half the smallest f32, with room for the argument's own
/// rounding.
const VANISHED: f64 = -105.0;

fn gamma(roundings: f64) -> f64 {
    roundings * U / (1.0 - roundings * U)
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The bound for output `name` of a case of `kernel`; ids are exact.
#[must_use]
pub fn f32_bound(kernel: &str, name: &str, case: &Case, expected: &TensorValues) -> Tolerance {
    let StageValues::Real(values) = &expected.values else {
        return Tolerance::Bits;
    };
    let inputs = &case.inputs;
    let relative: Vec<f64> = match (kernel, name) {
        ("elementary", _) => vec![gamma(ELEMENTARY); values.len()],
        // β·tanh(g/β)·σ(g) · linβ·tanh(up/linβ): two divisions, three functions, four products.
        ("situ", _) => vec![gamma(6.0 + 3.0 * ELEMENTARY); values.len()],
        // One rounding of the norm, one logistic of an exact argument, one product.
        ("gated-norm", _) => vec![gamma(2.0 + ELEMENTARY); values.len()],
        // The sum of the chosen scores, the quotient, the product.
        ("router", _) => vec![gamma(3.0); values.len()],
        ("convolution", "y") => convolution(case, values.len()),
        ("kda-decay", output) => decay(inputs, output, values.len()),
        ("softmax-sum", _) => return softmax_sum(inputs, values),
        ("residual-mix", output) => return residual_mix(inputs, output, values),
        ("mla-attention", _) => return attention(inputs, values),
        _ => vec![gamma(1.0); values.len()],
    };
    let bounds = values.iter().zip(relative).map(|(value, r)| value.abs() * r + SMALLEST);
    Tolerance::PerElement(bounds.collect())
}

fn input(inputs: &Tensors, name: &str) -> Vec<f64> {
    inputs.get(name).map(real).unwrap_or_default()
}

/// SiLU of a convolution that was rounded once: y = x·σ(x), x off by u relative. The derivative
/// gives 1 + |x|·(1 − σ(x)) of that, then the logistic and the product.
fn convolution(case: &Case, count: usize) -> Vec<f64> {
    let sums = case.values.get("conv").map(real).unwrap_or_default();
    let bound = |x: &f64| gamma(1.0 + x.abs() * (1.0 - sigmoid(*x)) + ELEMENTARY + 1.0);
    sums.iter().map(bound).take(count).collect()
}

/// g = bound·σ(e·s), e = exp(A) and s = z + dt_bias rounded, p = e·s rounded: p is off by
/// ELEMENTARY + 2 roundings relative. α = exp(g) turns the absolute error of g into a relative one.
fn decay(inputs: &Tensors, output: &str, count: usize) -> Vec<f64> {
    let (z, bias, a_log) = (input(inputs, "z"), input(inputs, "dt_bias"), input(inputs, "a_log"));
    let lower_bound = input(inputs, "lower_bound")[0];
    let width = bias.len() / a_log.len();
    (0..count)
        .map(|index| {
            let channel = index % bias.len();
            let p = a_log[channel / width].exp() * (z[index] + bias[channel]);
            let sigma = sigmoid(p);
            let of_g = gamma((ELEMENTARY + 2.0) * p.abs() * (1.0 - sigma) + ELEMENTARY + 1.0);
            match output {
                "g" => of_g,
                _ => (lower_bound * sigma).abs() * of_g + gamma(ELEMENTARY),
            }
        })
        .collect()
}

/// Softmax weights and the relative error of each unnormalised one, for scores with absolute
/// errors: e = exp(f32(s − M)).
fn softmax(scores: &[f64], score_errors: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exponentials: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
    let total: f64 = exponentials.iter().sum();
    let worst_maximum = score_errors.iter().copied().fold(0.0, f64::max);
    let errors = scores.iter().zip(score_errors).map(|(score, error)| {
        // Far below the maximum the weight is no f32 but 0, rounded argument or not: SMALLEST in
        // `weighted` covers it, and a relative error of nothing is nothing.
        if score - largest < VANISHED {
            return 0.0;
        }
        let argument = U * (score - largest).abs() + error + worst_maximum;
        argument.exp_m1() + gamma(ELEMENTARY)
    });
    (exponentials.iter().map(|e| e / total).collect(), errors.collect())
}

/// Σ p·v with weights off by `errors` relative in numerator and denominator, then one rounding.
/// Weights too small for f32 are off by all of themselves, which SMALLEST·Σ|v| covers.
fn weighted(p: &[f64], errors: &[f64], values: &[f64], width: usize, out: &[f64]) -> Vec<f64> {
    let denominator: f64 = p.iter().zip(errors).map(|(p, error)| p * error).sum();
    (0..width)
        .map(|column| {
            let column_values = values.iter().skip(column).step_by(width);
            let spread: f64 = p
                .iter()
                .zip(errors)
                .zip(column_values)
                .map(|((p, error), v)| (p * (error + denominator) + SMALLEST) * v.abs())
                .sum();
            spread / (1.0 - denominator) + U * out[column].abs() + SMALLEST
        })
        .collect()
}

fn softmax_sum(inputs: &Tensors, out: &[f64]) -> Tolerance {
    let (scores, values) = (input(inputs, "scores"), input(inputs, "values"));
    let (p, errors) = softmax(&scores, &vec![0.0; scores.len()]);
    Tolerance::PerElement(weighted(&p, &errors, &values, out.len(), out))
}

/// The key of a source is RMSNorm rounded once per element, its score one rounded row product.
fn residual_mix(inputs: &Tensors, output: &str, out: &[f64]) -> Tolerance {
    let (sources, fold) = (input(inputs, "sources"), input(inputs, "fold"));
    let epsilon = input(inputs, "epsilon")[0];
    let width = fold.len();
    let mut scores = Vec::new();
    let mut score_errors = Vec::new();
    for source in sources.chunks(width) {
        let mean = source.iter().map(|v| v * v).sum::<f64>() / width as f64;
        let terms = source.iter().zip(&fold).map(|(v, f)| v * f / (mean + epsilon).sqrt());
        let (score, size) = terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs()));
        scores.push(score);
        score_errors.push(U * size + U * score.abs() + SMALLEST);
    }
    let (p, errors) = softmax(&scores, &score_errors);
    if output == "weights" {
        let total: f64 = p.iter().zip(&errors).map(|(p, e)| p * e).sum();
        let bounds = p.iter().zip(&errors).map(|(p, e)| p * (e + total) + U * p + SMALLEST);
        return Tolerance::PerElement(bounds.collect());
    }
    Tolerance::PerElement(weighted(&p, &errors, &sources, width, out))
}

/// Absorbed attention: q' = Σ q·k rows (one rounding), the score a row product of [q' | q_rope]
/// with the cached row (one rounding) times a rounded constant (two), softmax over the positions,
/// the weighted latent (one), the value rows (one).
fn attention(inputs: &Tensors, out: &[f64]) -> Tolerance {
    let size = |name| input(inputs, name)[0] as usize;
    let (nope, rope, v) = (size("nope"), size("rope"), size("v"));
    let (q, cache, kv_b) = (input(inputs, "q"), input(inputs, "cache"), input(inputs, "kv_b"));
    let rows = inputs.get("q").map_or(0, |tensor| tensor.shape[0]);
    let heads = q.len() / rows / (nope + rope);
    let row_width = cache.len() / rows;
    let latent = row_width - rope;
    let scale = 1.0 / ((nope + rope) as f64).sqrt();
    let mut bounds = Vec::with_capacity(out.len());
    for token in 0..rows {
        for head in 0..heads {
            let query = &q[(token * heads + head) * (nope + rope)..][..nope + rope];
            let weights = &kv_b[head * (nope + v) * latent..][..(nope + v) * latent];
            let mut absorbed: Vec<f64> = (0..latent)
                .map(|c| (0..nope).map(|i| query[i] * weights[i * latent + c]).sum())
                .collect();
            absorbed.extend_from_slice(&query[nope..]);
            let mut scores = Vec::new();
            let mut score_errors = Vec::new();
            for row in cache.chunks(row_width).take(token + 1) {
                let score: f64 = absorbed.iter().zip(row).map(|(a, b)| a * b).sum();
                let size: f64 =
                    absorbed[..latent].iter().zip(row).map(|(a, b)| (a * b).abs()).sum();
                scores.push(score * scale);
                score_errors.push(scale * U * size + gamma(3.0) * (score * scale).abs());
            }
            let (p, errors) = softmax(&scores, &score_errors);
            let latents: Vec<f64> = cache
                .chunks(row_width)
                .take(token + 1)
                .flat_map(|r| &r[..latent])
                .copied()
                .collect();
            let mean: Vec<f64> = (0..latent)
                .map(|c| p.iter().enumerate().map(|(t, p)| p * latents[t * latent + c]).sum())
                .collect();
            let latent_errors = weighted(&p, &errors, &latents, latent, &mean);
            for j in 0..v {
                let row = &weights[(nope + j) * latent..][..latent];
                let carried: f64 = row.iter().zip(&latent_errors).map(|(w, e)| w.abs() * e).sum();
                let value = out[(token * heads + head) * v + j];
                bounds.push(carried + U * (value.abs() + carried) + SMALLEST);
            }
        }
    }
    Tolerance::PerElement(bounds)
}
