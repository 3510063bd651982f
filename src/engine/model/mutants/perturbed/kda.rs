//! Sites of KDA (K1…K13).

use crate::kernels::contract::L2_NORM_EPS;
use crate::kernels::kda::StepInputs;
use crate::kernels::norm;
use crate::kernels::rows::row_sum_f32;
use crate::kernels::simd::compiled;
use crate::model::{Contract, Projection, State};

sites! {
    "k1-newest-tap" "K1" "the newest tap of the three convolutions" {
        fn convolve(&self, window: &[&[f32]], taps: &[f32], out: &mut [f32]) {
            let mut taps = taps.to_vec();
            for channel in taps.chunks_exact_mut(window.len()) {
                channel.iter_mut().rev().take(1).for_each(|tap| *tap = self.0.single(*tap));
            }
            compiled::convolve(self.path(), window, &taps, out);
        }
    }
    "k2-silu" "K2" "SiLU after the three convolutions" {
        fn after_convolution(&self, _projection: Projection, values: &mut [f32]) {
            self.silu_all(values);
            self.0.all(values);
        }
    }
    "k3-l2norm" "K3" "the l2norm of q and k" {
        fn l2_norm(&self, head: &mut [f32]) {
            norm::l2_norm(head);
            self.0.all(head);
        }
    }
    "k3-epsilon" "K3" "epsilon of the l2norm" {
        fn l2_norm(&self, head: &mut [f32]) {
            let epsilon = self.0.of(L2_NORM_EPS);
            let inverse = 1.0 / (row_sum_f32(head, head) + epsilon).sqrt();
            head.iter_mut().for_each(|x| *x = (f64::from(*x) * inverse) as f32);
        }
    }
    "k4-query-scale" "K4" "the scale of q" {
        fn query_scale(&self, width: usize) -> f32 {
            self.0.single(norm::inverse_root(width))
        }
    }
    "k5-write-strength" "K5" "beta" {
        fn write_strength(&self, beta: &mut [f32]) {
            self.sigmoid_all(beta);
            self.0.all(beta);
        }
    }
    "k6-low-rank" "K6" "f_a's output" {
        fn between_low_rank(&self, low_rank: &mut [f32]) {
            self.0.all(low_rank);
        }
    }
    "k6-dt-bias" "K6" "dt_bias" {
        fn log_decay(
            &self, head: usize, z: &[f32], dt_bias: &[f32], gate: (&[f32], f32), out: &mut [f32],
        ) {
            let dt_bias = self.0.copy(dt_bias);
            Contract { path: self.path() }.log_decay(head, z, &dt_bias, gate, out);
        }
    }
    "k7-lower-bound" "K7" "the gate's lower bound" {
        fn log_decay(
            &self, head: usize, z: &[f32], dt_bias: &[f32], gate: (&[f32], f32), out: &mut [f32],
        ) {
            let gate = (gate.0, self.0.single(gate.1));
            Contract { path: self.path() }.log_decay(head, z, dt_bias, gate, out);
        }
    }
    "k7-rate" "K7" "A_log" {
        fn log_decay(
            &self, head: usize, z: &[f32], dt_bias: &[f32], gate: (&[f32], f32), out: &mut [f32],
        ) {
            let a_log = self.0.copy(gate.0);
            Contract { path: self.path() }.log_decay(head, z, dt_bias, (&a_log, gate.1), out);
        }
    }
    "k9-decay" "K9" "the decay alpha in the step" {
        fn kda_step(&self, state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32]) {
            let alpha = self.0.copy(inputs.alpha);
            let inputs = StepInputs { alpha: &alpha, ..*inputs };
            compiled::kda_step(self.path(), state, &inputs, out);
        }
    }
    "k10-delta-write" "K10" "what the delta rule writes" {
        fn kda_step(&self, state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32]) {
            let inputs = StepInputs { beta: self.0.single(inputs.beta), ..*inputs };
            compiled::kda_step(self.path(), state, &inputs, out);
        }
    }
    "k11-output" "K11" "what is read from the state" {
        fn kda_step(&self, state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32]) {
            compiled::kda_step(self.path(), state, inputs, out);
            self.0.all(out);
        }
    }
    "k12-normed-output" "K12" "the head output after norm and gate" {
        fn kda_head_output(&self, o: &mut [f32], weight: &[f32], epsilon: f64, gate: &mut [f32]) {
            Contract { path: self.path() }.kda_head_output(o, weight, epsilon, gate);
            self.0.all(o);
        }
    }
    "k12-gate" "K12" "the argument of KDA's output gate" {
        fn kda_head_output(&self, o: &mut [f32], weight: &[f32], epsilon: f64, gate: &mut [f32]) {
            self.0.all(gate);
            Contract { path: self.path() }.kda_head_output(o, weight, epsilon, gate);
        }
    }
    "k13-state" "K13" "the recurrent state carried into a call" {
        fn before_chunk(&self, state: &mut State) {
            state.kda.iter_mut().for_each(|slot| self.0.all(&mut slot.recurrent));
        }
    }
    "k13-history" "K13" "the convolution inputs carried into a call" {
        fn before_chunk(&self, state: &mut State) {
            state.kda.iter_mut().for_each(|slot| self.0.all(&mut slot.convolution));
        }
    }
}
