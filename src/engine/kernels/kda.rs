//! Kimi Delta Attention per head: the log decay (K6, K7), the recurrent step (A8, K9…K11).
//!
//! The state S is \[key width, value width\] in f32, rows = key index. The two widths may differ.

use super::contract::add_product;
use super::simd::prefetch;
use super::table::Kernels;

/// What one head's log decay is made of.
#[derive(Debug, Clone, Copy)]
pub struct DecayInputs<'a> {
    /// z of the head's channels \[key width\].
    pub z: &'a [f32],
    /// dt_bias of the head's channels \[key width\].
    pub dt_bias: &'a [f32],
    /// A_log of the head.
    pub a_log: f32,
    /// Lower bound of the log decay.
    pub lower_bound: f32,
}

/// Log decay of one head: bound · σ(exp(A_log) · (z + dt_bias)) (K6, K7). K3's form; the older
/// softplus form agrees with it only in the far tail.
pub fn log_decay(kernels: &Kernels, inputs: &DecayInputs<'_>, out: &mut [f32]) {
    let mut rate = [inputs.a_log];
    (kernels.exp)(&mut rate);
    for ((out, z), bias) in out.iter_mut().zip(inputs.z).zip(inputs.dt_bias) {
        *out = rate[0] * (z + bias);
    }
    (kernels.sigmoid)(out);
    out.iter_mut().for_each(|value| *value *= inputs.lower_bound);
}

/// What one head's step reads.
#[derive(Debug, Clone, Copy)]
pub struct StepInputs<'a> {
    /// Query, normed and scaled \[key width\].
    pub q: &'a [f32],
    /// Key, normed \[key width\].
    pub k: &'a [f32],
    /// Value \[value width\].
    pub v: &'a [f32],
    /// Decay α = exp(g), in \[e^bound, 1\]; exactly 1 is legal \[key width\].
    pub alpha: &'a [f32],
    /// Write strength β.
    pub beta: f32,
}

/// One step of one head: decays S, writes β(v − u) along k, reads o = Sᵀq from the updated S.
/// `state` is \[key width, value width\], `out` \[value width\].
pub fn step(state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32]) {
    step_by::<false, 32>(state, inputs, out);
}

/// The step by N columns at a time: their sums stay in registers, and they are still in the
/// first-level cache when they are read again to be updated.
///
/// An element costs 8 bytes of memory traffic and 8 operations, of which widening and rounding are
/// 4. In decode AVX-512 is bound by memory, in prefill, where a head's state stays in cache, by the
/// operations.
#[inline(always)]
pub(super) fn step_by<const FUSED: bool, const N: usize>(
    state: &mut [f32],
    inputs: &StepInputs<'_>,
    out: &mut [f32],
) {
    let width = inputs.v.len();
    let whole = width / N * N;
    for first in (0..whole).step_by(N) {
        step_columns::<FUSED, N>(state, inputs, first, out);
    }
    for first in whole..width {
        step_columns::<FUSED, 1>(state, inputs, first, out);
    }
}

/// The step on N columns from `first` on.
#[inline(always)]
fn step_columns<const FUSED: bool, const N: usize>(
    state: &mut [f32],
    inputs: &StepInputs<'_>,
    first: usize,
    out: &mut [f32],
) {
    let width = inputs.v.len();
    let keys = || inputs.k.iter().zip(inputs.alpha);
    let mut sums = [0.0_f64; N];
    for (row, (k, alpha)) in state.chunks_exact(width).zip(keys()) {
        let a = f64::from(alpha * k);
        let row = &row[first..first + N];
        for column in 0..N {
            sums[column] = add_product::<FUSED>(sums[column], f64::from(row[column]), a);
        }
    }
    let mut delta = [0.0_f64; N];
    let v = &inputs.v[first..first + N];
    for column in 0..N {
        delta[column] = f64::from(inputs.beta * (v[column] - sums[column] as f32));
    }
    sums = [0.0; N];
    // What is read after these columns: the next ones, or the first of the head that follows.
    let next = if first + 2 * N <= width { N } else { state.len() - first };
    let rows = state.chunks_exact_mut(width).zip(keys()).zip(inputs.q);
    for ((row, (k, alpha)), q) in rows {
        let (k, alpha, q) = (f64::from(*k), f64::from(*alpha), f64::from(*q));
        let row = &mut row[first..first + N];
        for line in row.chunks(16) {
            prefetch(line.as_ptr().wrapping_add(next).cast());
        }
        for column in 0..N {
            let written = k * delta[column];
            let updated = add_product::<FUSED>(written, alpha, f64::from(row[column])) as f32;
            row[column] = updated;
            sums[column] = add_product::<FUSED>(sums[column], f64::from(updated), q);
        }
    }
    let out = &mut out[first..first + N];
    for column in 0..N {
        out[column] = sums[column] as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K9…K11 by hand, with widths that differ so that a transposed state shows (A03).
    #[test]
    fn a03_one_step_by_hand() {
        // S = [[8, 0, 0], [0, 16, 0]], alpha = (1/2, 1/4), k = (1, 2), beta = 1/2.
        let mut state = vec![8.0, 0.0, 0.0, 0.0, 16.0, 0.0];
        let inputs = StepInputs {
            q: &[1.0, 1.0],
            k: &[1.0, 2.0],
            v: &[6.0, 6.0, 2.0],
            alpha: &[0.5, 0.25],
            beta: 0.5,
        };
        let mut out = [0.0; 3];
        step(&mut state, &inputs, &mut out);
        // u = (4, 8, 0); delta = (1, -1, 1); S = [[5, -1, 1], [2, 2, 2]]; o = column sums.
        assert_eq!(state, [5.0, -1.0, 1.0, 2.0, 2.0, 2.0]);
        assert_eq!(out, [7.0, 1.0, 3.0]);
    }

    /// Correlated keys under slow decay: the f32 state stays near a plain f64 recurrence.
    #[test]
    fn three_hundred_steps_with_correlated_keys() {
        let width = 128;
        let mut state = vec![0.0_f32; width * width];
        let mut exact = vec![0.0_f64; width * width];
        let (mut out, mut exact_out) = (vec![0.0_f32; width], vec![0.0_f64; width]);
        let wave = |i: usize, step: usize, f: f64| (i as f64 * f + step as f64 * 0.01).sin();
        for t in 0..300 {
            let scale = 1.0 / (width as f64 / 2.0).sqrt();
            let k: Vec<f32> = (0..width).map(|i| (wave(i, t, 0.3) * scale) as f32).collect();
            let q: Vec<f32> = (0..width).map(|i| (wave(i, t, 0.31) * 0.01) as f32).collect();
            let v: Vec<f32> = (0..width).map(|i| wave(i, 50 * t, 1.7) as f32).collect();
            let alpha = vec![0.999_f32; width];
            let inputs = StepInputs { q: &q, k: &k, v: &v, alpha: &alpha, beta: 0.9 };
            step(&mut state, &inputs, &mut out);
            plain_step(&mut exact, &inputs, &mut exact_out);
        }
        for (out, exact) in out.iter().zip(&exact_out) {
            assert!((f64::from(*out) - exact).abs() < 2e-6, "{out} against {exact}");
        }
    }

    /// The recurrence K9 to K11 in plain f64.
    fn plain_step(state: &mut [f64], inputs: &StepInputs<'_>, out: &mut [f64]) {
        let width = inputs.v.len();
        for (i, alpha) in inputs.alpha.iter().enumerate() {
            for s in &mut state[i * width..(i + 1) * width] {
                *s *= f64::from(*alpha);
            }
        }
        for j in 0..width {
            let column = |state: &[f64], x: &[f32]| -> f64 {
                x.iter().enumerate().map(|(i, x)| state[i * width + j] * f64::from(*x)).sum()
            };
            let delta = f64::from(inputs.beta) * (f64::from(inputs.v[j]) - column(state, inputs.k));
            for (i, k) in inputs.k.iter().enumerate() {
                state[i * width + j] += f64::from(*k) * delta;
            }
            out[j] = column(state, inputs.q);
        }
    }
}
