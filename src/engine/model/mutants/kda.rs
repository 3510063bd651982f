//! Family (b): Kimi Delta Attention (K1…K13).

use crate::kernels::convolution;
use crate::kernels::kda::StepInputs;
use crate::kernels::norm;
use crate::kernels::rows::row_sum_f32;
use crate::model::{Operations, Projection, State};

/// A recurrence with one of its steps done wrong.
#[derive(Clone, Copy)]
struct Step {
    /// The decay of S_ij from α, i and j.
    decay: fn(&[f32], usize, usize) -> f32,
    /// Whether the decay comes after the write.
    decay_last: bool,
    /// Whether u is read from the undecayed state.
    u_from_undecayed: bool,
    /// δ from β, v and u.
    delta: fn(f32, f32, f32) -> f32,
    /// Whether o is read before the write.
    output_before_write: bool,
}

const RIGHT: Step = Step {
    decay: |alpha, i, _| alpha[i],
    decay_last: false,
    u_from_undecayed: false,
    delta: |beta, v, u| beta * (v - u),
    output_before_write: false,
};

/// Σ_i S_ij x_i for every j.
fn read(state: &[f32], x: &[f32], width: usize) -> Vec<f32> {
    let column = |j: usize| {
        let terms = x.iter().enumerate();
        terms.map(|(i, x)| f64::from(state[i * width + j]) * f64::from(*x)).sum::<f64>() as f32
    };
    (0..width).map(column).collect()
}

fn run(step: Step, state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32]) {
    let width = inputs.v.len();
    let decay = |state: &[f32]| -> Vec<f32> {
        let places = state.iter().enumerate();
        places.map(|(p, s)| s * (step.decay)(inputs.alpha, p / width, p % width)).collect()
    };
    let old = state.to_vec();
    let base = if step.decay_last { old.clone() } else { decay(&old) };
    let u = read(if step.u_from_undecayed { &old } else { &base }, inputs.k, width);
    for (place, s) in state.iter_mut().enumerate() {
        let (i, j) = (place / width, place % width);
        *s = base[place] + inputs.k[i] * (step.delta)(inputs.beta, inputs.v[j], u[j]);
    }
    if step.decay_last {
        let decayed = decay(state);
        state.copy_from_slice(&decayed);
    }
    let from = if step.output_before_write { &base } else { &*state };
    out.copy_from_slice(&read(from, inputs.q, width));
}

/// bound · σ(argument) with the argument made from (rate, z, bias).
fn decay_with(
    operations: &dyn Operations,
    a_log: f32,
    inputs: (&[f32], &[f32], f32),
    argument: impl Fn(f32, f32, f32) -> f32,
    out: &mut [f32],
) {
    let (z, bias, bound) = inputs;
    let mut rate = [a_log];
    operations.exp_all(&mut rate);
    for ((out, z), bias) in out.iter_mut().zip(z).zip(bias) {
        *out = argument(rate[0], *z, *bias);
    }
    operations.sigmoid_all(out);
    out.iter_mut().for_each(|value| *value *= bound);
}

fn norm_in_place(o: &mut [f32], weight: &[f32], epsilon: f64) {
    let raw = o.to_vec();
    norm::rms_norm(&raw, weight, epsilon, o);
}

engine_mutants! { Composition
    "k1-taps-reversed" ["K1"] "the convolution's taps run newest to oldest" {
        fn convolve(&self, window: &[&[f32]], taps: &[f32], out: &mut [f32]) {
            let reversed: Vec<&[f32]> = window.iter().rev().copied().collect();
            convolution::convolve(&reversed, taps, out);
        }
    }
    "k1-one-token-late" ["K1"] "the convolution sees the token before in the newest place" {
        fn convolve(&self, window: &[&[f32]], taps: &[f32], out: &mut [f32]) {
            let mut late = window.to_vec();
            late.rotate_right(1);
            late[0] = window[0];
            convolution::convolve(&late, taps, out);
        }
    }
    "k1-history-overwritten-in-front" ["K1" "K13"] "a new input replaces the oldest, unshifted" {
        fn shift_history(&self, history: &mut [f32], newest: &[f32]) {
            history[..newest.len()].copy_from_slice(newest);
        }
    }
    "k2-no-silu" ["K2"] "no SiLU after the convolutions" {
        fn after_convolution(&self, _projection: Projection, _values: &mut [f32]) {}
    }
    "k2-no-silu-on-values" ["K2"] "SiLU on q and k only" {
        fn after_convolution(&self, projection: Projection, values: &mut [f32]) {
            if projection != Projection::Value {
                self.silu_all(values);
            }
        }
    }
    "k2-no-silu-on-queries" ["K2"] "SiLU on k and v only" {
        fn after_convolution(&self, projection: Projection, values: &mut [f32]) {
            if projection != Projection::Query {
                self.silu_all(values);
            }
        }
    }
    "k2-sigmoid-for-silu" ["K2"] "the convolutions end in a sigmoid" {
        fn after_convolution(&self, _projection: Projection, values: &mut [f32]) {
            self.sigmoid_all(values);
        }
    }
    "k3-epsilon-on-the-mean" ["K3"] "l2norm adds its epsilon to the mean of squares" {
        fn l2_norm(&self, head: &mut [f32]) {
            let n = head.len() as f64;
            let inverse = 1.0 / (row_sum_f32(head, head) + 1e-6 * n).sqrt();
            head.iter_mut().for_each(|x| *x = (f64::from(*x) * inverse) as f32);
        }
    }
    "k3-epsilon-as-floor" ["K3"] "l2norm divides by max(norm, 1e-6)" {
        fn l2_norm(&self, head: &mut [f32]) {
            let inverse = 1.0 / row_sum_f32(head, head).sqrt().max(1e-6);
            head.iter_mut().for_each(|x| *x = (f64::from(*x) * inverse) as f32);
        }
    }
    "k3-rms-epsilon" ["K3"] "l2norm uses 1e-5" {
        fn l2_norm(&self, head: &mut [f32]) {
            let inverse = 1.0 / (row_sum_f32(head, head) + 1e-5).sqrt();
            head.iter_mut().for_each(|x| *x = (f64::from(*x) * inverse) as f32);
        }
    }
    "k3-values-normed" ["K3"] "v is normed too" {
        fn condition_head(&self, projection: Projection, head: &mut [f32]) {
            self.l2_norm(head);
            if projection == Projection::Query {
                let scale = self.query_scale(head.len());
                head.iter_mut().for_each(|value| *value *= scale);
            }
        }
    }
    "k3-keys-not-normed" ["K3"] "k is not normed" {
        fn condition_head(&self, projection: Projection, head: &mut [f32]) {
            if projection == Projection::Query {
                self.l2_norm(head);
                let scale = self.query_scale(head.len());
                head.iter_mut().for_each(|value| *value *= scale);
            }
        }
    }
    "k4-queries-not-scaled" ["K4"] "q is not scaled" {
        fn query_scale(&self, _width: usize) -> f32 {
            1.0
        }
    }
    "k4-scaled-by-the-width" ["K4"] "q is divided by D instead of its root" {
        fn query_scale(&self, width: usize) -> f32 {
            1.0 / width as f32
        }
    }
    "k4-keys-scaled-too" ["K4"] "k is scaled as q is" {
        fn condition_head(&self, projection: Projection, head: &mut [f32]) {
            if projection != Projection::Value {
                self.l2_norm(head);
                let scale = self.query_scale(head.len());
                head.iter_mut().for_each(|value| *value *= scale);
            }
        }
    }
    "k5-strength-doubled" ["K5"] "beta is twice the sigmoid" {
        fn write_strength(&self, beta: &mut [f32]) {
            self.sigmoid_all(beta);
            beta.iter_mut().for_each(|value| *value *= 2.0);
        }
    }
    "k5-strength-raw" ["K5"] "beta is the projection without a sigmoid" {
        fn write_strength(&self, _beta: &mut [f32]) {}
    }
    "k5-one-strength-for-all-heads" ["K5"] "every head takes head 0's beta" {
        fn write_strength(&self, beta: &mut [f32]) {
            self.sigmoid_all(beta);
            let first = beta[0];
            beta.fill(first);
        }
    }
    "k6-silu-in-the-low-rank-pair" ["K6"] "SiLU between f_a and f_b" {
        fn between_low_rank(&self, low_rank: &mut [f32]) {
            self.silu_all(low_rank);
        }
    }
    "k6-bias-outside-the-rate" ["K6"] "dt_bias is added after the rate has been multiplied" {
        fn log_decay(
            &self, head: usize, z: &[f32], bias: &[f32], gate: (&[f32], f32), out: &mut [f32],
        ) {
            let argument = |rate, z, bias| rate * z + bias;
            decay_with(self, gate.0[head], (z, bias, gate.1), argument, out);
        }
    }
    "k6-no-bias" ["K6"] "dt_bias is left out" {
        fn log_decay(
            &self, head: usize, z: &[f32], bias: &[f32], gate: (&[f32], f32), out: &mut [f32],
        ) {
            let argument = |rate, z, _| rate * z;
            decay_with(self, gate.0[head], (z, bias, gate.1), argument, out);
        }
    }
    "k7-softplus" ["K7"] "the older decay: -exp(A_log) softplus(z + bias), clamped at the bound" {
        fn log_decay(
            &self, head: usize, z: &[f32], bias: &[f32], gate: (&[f32], f32), out: &mut [f32],
        ) {
            for ((out, z), bias) in out.iter_mut().zip(z).zip(bias) {
                let rate = f64::from(gate.0[head]).exp();
                let softplus = f64::from(z + bias).exp().ln_1p();
                *out = (-rate * softplus).max(f64::from(gate.1)) as f32;
            }
        }
    }
    "k7-rate-per-channel" ["K7"] "A_log is taken per channel of the head" {
        fn log_decay(
            &self, _: usize, z: &[f32], bias: &[f32], gate: (&[f32], f32), out: &mut [f32],
        ) {
            for (channel, out) in out.chunks_mut(1).enumerate() {
                let a_log = gate.0[channel % gate.0.len()];
                let inputs = (&z[channel..=channel], &bias[channel..=channel], gate.1);
                decay_with(self, a_log, inputs, |rate, z, bias| rate * (z + bias), out);
            }
        }
    }
    "k7-rate-of-head-0" ["K7"] "every head takes head 0's A_log" {
        fn log_decay(
            &self, _: usize, z: &[f32], bias: &[f32], gate: (&[f32], f32), out: &mut [f32],
        ) {
            let argument = |rate, z, bias| rate * (z + bias);
            decay_with(self, gate.0[0], (z, bias, gate.1), argument, out);
        }
    }
    "k7-rate-without-exp" ["K7"] "A_log itself is the rate" {
        fn log_decay(
            &self, head: usize, z: &[f32], bias: &[f32], gate: (&[f32], f32), out: &mut [f32],
        ) {
            let argument = |_, z, bias| gate.0[head] * (z + bias);
            decay_with(self, 0.0, (z, bias, gate.1), argument, out);
        }
    }
    "k7-bound-is-minus-one" ["K7"] "the lower bound is taken as -1" {
        fn log_decay(
            &self, head: usize, z: &[f32], bias: &[f32], gate: (&[f32], f32), out: &mut [f32],
        ) {
            let argument = |rate, z, bias| rate * (z + bias);
            decay_with(self, gate.0[head], (z, bias, -1.0), argument, out);
        }
    }
    "k8-tail-taken" ["K8"] "the last H values of A_log are taken" {
        fn a_log(&self, stored: &[f32], heads: usize) -> Result<Vec<f32>, (usize, f32)> {
            Ok(stored[stored.len() - heads..].to_vec())
        }
    }
    "k8-tail-not-looked-at" ["K8"] "a non-zero tail of A_log goes unnoticed" {
        fn a_log(&self, stored: &[f32], heads: usize) -> Result<Vec<f32>, (usize, f32)> {
            Ok(stored[..heads].to_vec())
        }
    }
    "k9-decay-after-the-write" ["K9"] "the state decays after the write" {
        fn kda_step(&self, state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32]) {
            run(Step { decay_last: true, ..RIGHT }, state, inputs, out);
        }
    }
    "k9-columns-decay" ["K9"] "alpha runs over the value index" {
        fn kda_step(&self, state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32]) {
            run(Step { decay: |alpha, _, j| alpha[j], ..RIGHT }, state, inputs, out);
        }
    }
    "k9-no-decay" ["K9"] "the state does not decay" {
        fn kda_step(&self, state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32]) {
            run(Step { decay: |_, _, _| 1.0, ..RIGHT }, state, inputs, out);
        }
    }
    "k9-one-decay-for-the-head" ["K9"] "the whole head decays by its first channel" {
        fn kda_step(&self, state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32]) {
            run(Step { decay: |alpha, _, _| alpha[0], ..RIGHT }, state, inputs, out);
        }
    }
    "k9-u-from-the-undecayed-state" ["K9"] "u is read before the decay" {
        fn kda_step(&self, state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32]) {
            run(Step { u_from_undecayed: true, ..RIGHT }, state, inputs, out);
        }
    }
    "k10-no-correction" ["K10"] "beta v is written, as in plain linear attention" {
        fn kda_step(&self, state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32]) {
            run(Step { delta: |beta, v, _| beta * v, ..RIGHT }, state, inputs, out);
        }
    }
    "k10-strength-on-v-only" ["K10"] "beta v - u is written" {
        fn kda_step(&self, state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32]) {
            run(Step { delta: |beta, v, u| beta * v - u, ..RIGHT }, state, inputs, out);
        }
    }
    "k10-no-strength" ["K10"] "v - u is written in full" {
        fn kda_step(&self, state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32]) {
            run(Step { delta: |_, v, u| v - u, ..RIGHT }, state, inputs, out);
        }
    }
    "k11-output-before-the-write" ["K11"] "o is read before the write" {
        fn kda_step(&self, state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32]) {
            run(Step { output_before_write: true, ..RIGHT }, state, inputs, out);
        }
    }
    "k12-gate-before-norm" ["K12"] "o is gated, then normed" {
        fn kda_head_output(&self, o: &mut [f32], w: &[f32], epsilon: f64, gate: &mut [f32]) {
            self.output_gate(o, gate);
            norm_in_place(o, w, epsilon);
        }
    }
    "k12-silu-gate" ["K12"] "the output gate is SiLU" {
        fn kda_head_output(&self, o: &mut [f32], w: &[f32], epsilon: f64, gate: &mut [f32]) {
            norm_in_place(o, w, epsilon);
            self.silu_all(gate);
            o.iter_mut().zip(gate).for_each(|(o, gate)| *o *= *gate);
        }
    }
    "k12-no-norm" ["K12"] "o is gated without a norm" {
        fn kda_head_output(&self, o: &mut [f32], _: &[f32], _: f64, gate: &mut [f32]) {
            self.output_gate(o, gate);
        }
    }
    "k12-no-gate" ["K12"] "o is normed and not gated" {
        fn kda_head_output(&self, o: &mut [f32], w: &[f32], epsilon: f64, _: &mut [f32]) {
            norm_in_place(o, w, epsilon);
        }
    }
    "k13-state-not-carried" ["K13"] "the recurrent state starts from zero with every call" {
        fn before_chunk(&self, state: &mut State) {
            state.kda.iter_mut().for_each(|slot| slot.recurrent.fill(0.0));
        }
    }
    "k13-convolution-inputs-not-carried" ["K13"] "every call's convolutions start from zero" {
        fn before_chunk(&self, state: &mut State) {
            state.kda.iter_mut().for_each(|slot| slot.convolution.fill(0.0));
        }
    }
}
