//! Family (c): roundings and orders outside the row product (A4…A9, A12).

use crate::kernels::functions;
use crate::kernels::kda::StepInputs;
use crate::kernels::norm;
use crate::kernels::rows::{Row, row_sum_f32};
use crate::kernels::situ::Caps;
use crate::kernels::softmax;
use crate::kernels::sums;
use crate::kernels::sums::Vectors;
use crate::model::{HeadAttention, Operations};

/// Element (i, j) of some vectors.
fn element(vectors: Vectors<'_>, i: usize, j: usize) -> f64 {
    vectors.row(i).value(j)
}

/// f32(Σ weights·vectors) per column by another way of adding.
fn sum_with(weights: &[f32], vectors: Vectors<'_>, out: &mut [f32], add: impl Fn(&[f64]) -> f64) {
    for (j, out) in out.iter_mut().enumerate() {
        let terms: Vec<f64> = weights
            .iter()
            .enumerate()
            .map(|(i, w)| f64::from(*w) * element(vectors, i, j))
            .collect();
        *out = add(&terms) as f32;
    }
}

/// Halves of the terms, each halved again.
fn pairwise(terms: &[f64]) -> f64 {
    match terms {
        [] => 0.0,
        [one] => *one,
        _ => {
            let (first, second) = terms.split_at(terms.len() / 2);
            pairwise(first) + pairwise(second)
        }
    }
}

/// exp(s − M) and the vectors, by a rule for the last step.
fn softmax_with(
    operations: &dyn Operations,
    scores: &mut [f32],
    finish: impl FnOnce(&[f32]),
) -> bool {
    let some = softmax::shift_by_maximum(scores);
    if some {
        operations.exp_all(scores);
        finish(scores);
    }
    some
}

/// Softmax over blocks of four, rescaling what has been summed whenever the maximum grows.
fn blocked_softmax(scores: &[f32], vectors: Vectors<'_>, out: &mut [f32]) {
    let mut maximum = f32::NEG_INFINITY;
    let (mut z, mut sums) = (0.0_f64, vec![0.0_f64; out.len()]);
    for (block, scores) in scores.chunks(4).enumerate() {
        let grown = maximum.max(softmax::maximum(scores));
        let rescale = f64::from(functions::exp(maximum - grown));
        z *= rescale;
        sums.iter_mut().for_each(|sum| *sum *= rescale);
        for (place, score) in scores.iter().enumerate() {
            let e = f64::from(functions::exp(score - grown));
            z += e;
            for (j, sum) in sums.iter_mut().enumerate() {
                *sum += e * element(vectors, 4 * block + place, j);
            }
        }
        maximum = grown;
    }
    out.iter_mut().zip(&sums).for_each(|(out, sum)| *out = (sum / z) as f32);
}

/// Keys and values made for every position, scores on the expanded keys.
fn attend_expanded(operations: &dyn Operations, head: &HeadAttention<'_>, out: &mut [f32]) {
    let shape = head.shape;
    let (nope, rope) = operations.query_parts(shape.nope, shape.rope);
    let (keys, values) = operations.kv_b_rows(shape, head.head);
    let query: Vec<f32> = [&head.query[nope], &head.query[rope]].concat();
    let scale = operations.attention_scale(shape.nope, shape.rope);
    let (mut scores, mut all) = (Vec::new(), Vec::new());
    let rows = head.rows.chunks_exact(shape.cache_width());
    for row in rows.take(head.position + 1) {
        let (latent, rope) = row.split_at(shape.kv_lora);
        let expand = |row| operations.row_product(head.kv_b.row(row), latent);
        let mut key: Vec<f32> = keys.clone().map(expand).collect();
        key.extend_from_slice(rope);
        scores.push(operations.row_product(Row::F32(&key), &query) * scale);
        all.extend(values.clone().map(expand));
    }
    let vectors = Vectors::Strided { data: &all, stride: shape.v_width };
    operations.softmax_sum(&mut scores, vectors, out);
}

/// A KDA step whose sums and update go through `add` and `update`.
fn step_with(
    state: &mut [f32],
    inputs: &StepInputs<'_>,
    out: &mut [f32],
    update: impl Fn(f32, f32, f32, f32) -> f32,
) {
    let width = inputs.v.len();
    let column = |state: &[f32], j: usize, x: &dyn Fn(usize) -> f32| -> f32 {
        let rows = 0..inputs.k.len();
        rows.map(|i| f64::from(state[i * width + j]) * f64::from(x(i))).sum::<f64>() as f32
    };
    for j in 0..width {
        let u = column(state, j, &|i| inputs.alpha[i] * inputs.k[i]);
        let delta = inputs.beta * (inputs.v[j] - u);
        for i in 0..inputs.k.len() {
            let s = &mut state[i * width + j];
            *s = update(inputs.alpha[i], *s, inputs.k[i], delta);
        }
        out[j] = column(state, j, &|i| inputs.q[i]);
    }
}

engine_mutants! { Arithmetic
    "a4-falling-order" ["A4"] "weighted sums run from the last vector" {
        fn weighted_sum(&self, weights: &[f32], vectors: Vectors<'_>, out: &mut [f32]) {
            sum_with(weights, vectors, out, |terms| terms.iter().rev().sum());
        }
    }
    "a4-pairwise" ["A4"] "weighted sums are pairwise" {
        fn weighted_sum(&self, weights: &[f32], vectors: Vectors<'_>, out: &mut [f32]) {
            sum_with(weights, vectors, out, pairwise);
        }
    }
    "a4-f32-accumulator" ["A4" "A12"] "weighted sums have f32 accumulators" {
        fn weighted_sum(&self, weights: &[f32], vectors: Vectors<'_>, out: &mut [f32]) {
            let add = |terms: &[f64]| terms.iter().fold(0.0_f32, |sum, term| sum + *term as f32);
            sum_with(weights, vectors, out, |terms| f64::from(add(terms)));
        }
    }
    "a4-sources-reversed" ["A4" "R1"] "a mix takes the running sum first" {
        fn mix_sources<'a>(&self, banks: &[&'a [f32]], running: &'a [f32]) -> Vec<&'a [f32]> {
            [running].into_iter().chain(banks.iter().copied()).collect()
        }
    }
    "a5-mean-in-f32" ["A5"] "RMSNorm's mean and root are f32" {
        fn rms_norm(&self, x: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
            let mean = row_sum_f32(x, x) as f32 / x.len() as f32;
            let inverse = 1.0 / (mean + epsilon as f32).sqrt();
            for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                *out = x * inverse * weight;
            }
        }
    }
    "a5-rounded-before-the-weight" ["A5"] "RMSNorm rounds before it multiplies by the weight" {
        fn rms_norm(&self, x: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
            norm::rms_norm_unit(x, epsilon, out);
            out.iter_mut().zip(weight).for_each(|(out, weight)| *out *= weight);
        }
    }
    "a5-weight-first" ["A5"] "RMSNorm multiplies by the weight before the root" {
        fn rms_norm(&self, x: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
            let inverse = norm::inverse_rms(x, epsilon);
            for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                *out = (x * weight) * inverse as f32;
            }
        }
    }
    "a5-l2-in-f32" ["A5"] "l2norm's root is f32" {
        fn l2_norm(&self, head: &mut [f32]) {
            let inverse = 1.0 / (row_sum_f32(head, head) as f32 + 1e-6).sqrt();
            head.iter_mut().for_each(|x| *x *= inverse);
        }
    }
    "a5-l2-sum-in-f32" ["A5" "A12"] "l2norm sums its squares in f32" {
        fn l2_norm(&self, head: &mut [f32]) {
            let sum: f32 = head.iter().map(|x| x * x).sum();
            let inverse = 1.0 / (f64::from(sum) + 1e-6).sqrt();
            head.iter_mut().for_each(|x| *x = (f64::from(*x) * inverse) as f32);
        }
    }
    "a6-blocked-and-rescaled" ["A6"] "softmax runs over blocks of four and rescales" {
        fn softmax_sum(&self, scores: &mut [f32], vectors: Vectors<'_>, out: &mut [f32]) {
            blocked_softmax(scores, vectors, out);
        }
    }
    "a6-probabilities-rounded" ["A6"] "probabilities are rounded to f32 before the sum" {
        fn softmax_sum(&self, scores: &mut [f32], vectors: Vectors<'_>, out: &mut [f32]) {
            let finish = |e: &[f32]| {
                let z = sums::scalar_sum(e) as f32;
                let p: Vec<f32> = e.iter().map(|e| e / z).collect();
                sums::weighted_sum(&p, vectors, out);
            };
            softmax_with(self, scores, finish);
        }
    }
    "a6-z-in-f32" ["A4" "A6"] "softmax's Z is summed in f32" {
        fn softmax_sum(&self, scores: &mut [f32], vectors: Vectors<'_>, out: &mut [f32]) {
            let finish = |e: &[f32]| {
                let z: f32 = e.iter().sum();
                sums::weighted_sum_over(e, vectors, f64::from(z), out);
            };
            softmax_with(self, scores, finish);
        }
    }
    "a6-quotient-of-rounded-sums" ["A6"] "N and Z are rounded to f32 before they are divided" {
        fn softmax_sum(&self, scores: &mut [f32], vectors: Vectors<'_>, out: &mut [f32]) {
            let finish = |e: &[f32]| {
                sums::weighted_sum(e, vectors, out);
                let z = sums::scalar_sum(e) as f32;
                out.iter_mut().for_each(|out| *out /= z);
            };
            softmax_with(self, scores, finish);
        }
    }
    "a6-maximum-not-subtracted" ["A6"] "softmax does not subtract the maximum" {
        fn softmax_sum(&self, scores: &mut [f32], vectors: Vectors<'_>, out: &mut [f32]) {
            self.exp_all(scores);
            softmax::normalised_sum(scores, vectors, out);
        }
    }
    "a6-falling-order" ["A4" "A6"] "softmax sums from the last position" {
        fn softmax_sum(&self, scores: &mut [f32], vectors: Vectors<'_>, out: &mut [f32]) {
            let finish = |e: &[f32]| {
                let z: f64 = e.iter().rev().map(|e| f64::from(*e)).sum();
                for (j, out) in out.iter_mut().enumerate() {
                    let terms = e.iter().enumerate().rev();
                    let n: f64 = terms.map(|(i, e)| f64::from(*e) * element(vectors, i, j)).sum();
                    *out = (n / z) as f32;
                }
            };
            softmax_with(self, scores, finish);
        }
    }
    "a7-expanded" ["A7"] "MLA expands keys and values for every position" {
        fn attend(&self, head: &HeadAttention<'_>, out: &mut [f32]) {
            attend_expanded(self, head, out);
        }
    }
    "a7-expanded-in-prefill-only" ["A7" "A11"] "MLA is expanded unless the token is the last one" {
        fn attend(&self, head: &HeadAttention<'_>, out: &mut [f32]) {
            let cached = head.rows.len() / head.shape.cache_width();
            if head.position + 1 < cached {
                attend_expanded(self, head, out);
            } else {
                crate::model::mla::attend_absorbed(self, head, out);
            }
        }
    }
    "a7-scale-on-the-query" ["A7" "A12"] "the absorbed query is scaled instead of the score" {
        fn attention_scale(&self, _nope: usize, _rope: usize) -> f32 {
            1.0
        }
        fn absorbed_query(&self, head: &HeadAttention<'_>, out: &mut [f32]) {
            crate::model::mla::absorbed_query(self, head, out);
            let scale = norm::inverse_root(head.shape.nope + head.shape.rope);
            out.iter_mut().for_each(|value| *value *= scale);
        }
    }
    "a8-decayed-state-rounded" ["A8"] "the decayed state is rounded before the write is added" {
        fn kda_step(&self, state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32]) {
            step_with(state, inputs, out, |alpha, s, k, delta| alpha * s + k * delta);
        }
    }
    "a8-write-rounded" ["A8"] "the write is rounded, the decay fused" {
        fn kda_step(&self, state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32]) {
            step_with(state, inputs, out, |alpha, s, k, delta| {
                (f64::from(alpha) * f64::from(s) + f64::from(k * delta)) as f32
            });
        }
    }
    "a8-decayed-key-not-rounded" ["A8" "A12"] "u uses alpha times k without its rounding" {
        fn kda_step(&self, state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32]) {
            let width = inputs.v.len();
            for j in 0..width {
                let pairs = inputs.k.iter().zip(inputs.alpha).enumerate();
                let u: f64 = pairs
                    .map(|(i, (k, a))| {
                        f64::from(*a) * f64::from(*k) * f64::from(state[i * width + j])
                    })
                    .sum();
                let delta = f64::from(inputs.beta * (inputs.v[j] - u as f32));
                let mut o = 0.0;
                for i in 0..inputs.k.len() {
                    let s = &mut state[i * width + j];
                    let decayed = f64::from(inputs.alpha[i]) * f64::from(*s);
                    *s = (decayed + f64::from(inputs.k[i]) * delta) as f32;
                    o += f64::from(*s) * f64::from(inputs.q[i]);
                }
                out[j] = o as f32;
            }
        }
    }
    "a8-f32-sums" ["A8" "A12"] "u and o are summed in f32" {
        fn kda_step(&self, state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32]) {
            let width = inputs.v.len();
            for j in 0..width {
                let mut u = 0.0_f32;
                for (i, (k, alpha)) in inputs.k.iter().zip(inputs.alpha).enumerate() {
                    u += state[i * width + j] * (alpha * k);
                }
                let delta = f64::from(inputs.beta * (inputs.v[j] - u));
                let mut o = 0.0_f32;
                for i in 0..inputs.k.len() {
                    let s = &mut state[i * width + j];
                    let decayed = f64::from(inputs.alpha[i]) * f64::from(*s);
                    *s = (decayed + f64::from(inputs.k[i]) * delta) as f32;
                    o += *s * inputs.q[i];
                }
                out[j] = o;
            }
        }
    }
    "a9-order-of-arrival" ["A9" "A4"] "expert outputs are summed as they arrive" {
        fn expert_sum(&self, ids: &[usize], w: &[f32], outputs: Vectors<'_>, out: &mut [f32]) {
            let arrival: Vec<usize> = (0..ids.len()).collect();
            sums::expert_sum(&arrival, w, outputs, out);
        }
    }
    "a9-f32-expert-sum" ["A9" "A4"] "expert outputs are summed in f32" {
        fn expert_sum(&self, _: &[usize], w: &[f32], outputs: Vectors<'_>, out: &mut [f32]) {
            let add = |terms: &[f64]| terms.iter().fold(0.0_f32, |sum, term| sum + *term as f32);
            sum_with(w, outputs, out, |terms| f64::from(add(terms)));
        }
    }
    "a9-situ-in-f64" ["A9"] "SiTU is computed in f64 and rounded once" {
        fn situ(&self, gate: &[f32], up: &[f32], caps: Caps, out: &mut [f32]) {
            let (beta, linear) = (f64::from(caps.beta), f64::from(caps.linear_beta));
            for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                let (gate, up) = (f64::from(*gate), f64::from(*up));
                let activated = beta * (gate / beta).tanh() / (1.0 + (-gate).exp());
                *out = (activated * linear * (up / linear).tanh()) as f32;
            }
        }
    }
    "a9-situ-other-order" ["A9"] "SiTU multiplies the linear part before the sigmoid" {
        fn situ(&self, gate: &[f32], up: &[f32], caps: Caps, out: &mut [f32]) {
            for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                let capped = caps.beta * functions::tanh(gate / caps.beta);
                let linear = caps.linear_beta * functions::tanh(up / caps.linear_beta);
                *out = capped * linear * functions::sigmoid(*gate);
            }
        }
    }
    "a12-decay-contracted" ["A12"] "rate times (z + bias) is one fused operation" {
        fn log_decay(
            &self, head: usize, z: &[f32], bias: &[f32], gate: (&[f32], f32), out: &mut [f32],
        ) {
            let rate = functions::exp(gate.0[head]);
            for ((out, z), bias) in out.iter_mut().zip(z).zip(bias) {
                *out = rate.mul_add(*z, rate * bias);
            }
            self.sigmoid_all(out);
            out.iter_mut().for_each(|value| *value *= gate.1);
        }
    }
    "a12-convolution-in-f32" ["A12"] "the convolution sums in f32" {
        fn convolve(&self, window: &[&[f32]], taps: &[f32], out: &mut [f32]) {
            for (channel, out) in out.iter_mut().enumerate() {
                let taps = &taps[channel * window.len()..][..window.len()];
                *out = taps.iter().zip(window).map(|(tap, x)| tap * x[channel]).sum();
            }
        }
    }
    "a12-silu-in-f64" ["A12"] "SiLU is rounded once instead of twice" {
        fn silu_all(&self, values: &mut [f32]) {
            for value in values {
                let x = f64::from(*value);
                *value = (x / (1.0 + (-x).exp())) as f32;
            }
        }
    }
}
