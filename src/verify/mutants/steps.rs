//! Roundings and orders outside the row product (A4…A9, A12).

use super::EngineMutant;
use k3_engine::kernels::bf16;
use k3_engine::kernels::functions;
use k3_engine::kernels::kda::{DecayInputs, StepInputs};
use k3_engine::kernels::mla::{self, HeadAttention};
use k3_engine::kernels::norm;
use k3_engine::kernels::residual;
use k3_engine::kernels::rows::{Row, row_sum_f32};
use k3_engine::kernels::situ::Caps;
use k3_engine::kernels::softmax;
use k3_engine::kernels::sums::{self, Vectors};
use k3_engine::kernels::table::Kernels;

/// A list of mutants: id, clauses, sentence, the entries of the table that are replaced.
macro_rules! arithmetic {
    ($(
        $id:literal [$($clause:literal)+] $what:literal { $($entry:ident: $function:expr),+ };
    )*) => {
        vec![$($crate::mutants::EngineMutant {
            id: $id,
            clauses: &[$($clause),+],
            what: $what,
            mistake: $crate::mutants::Mistake::Kernels(|right| {
                k3_engine::kernels::table::Kernels { $($entry: $function,)+ ..right }
            }),
        }),*]
    };
}
pub(super) use arithmetic;

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
fn softmax_with(kernels: &Kernels, scores: &mut [f32], finish: impl FnOnce(&[f32])) {
    if softmax::shift_by_maximum(scores) {
        (kernels.exp)(scores);
        finish(scores);
    }
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
fn attend_expanded(kernels: &Kernels, head: &HeadAttention<'_>, out: &mut [f32]) {
    let (latent_width, width) = (head.keys.columns(), head.row_width());
    let scale = norm::inverse_root(head.query.len());
    let (mut scores, mut all) = (Vec::new(), Vec::new());
    for row in head.rows.chunks_exact(width).take(head.visible) {
        let (latent, rope) = row.split_at(latent_width);
        let expand = |row| kernels.row_product(row, latent);
        let mut key: Vec<f32> =
            (0..head.keys.rows()).map(|row| expand(head.keys.row(row))).collect();
        key.extend_from_slice(rope);
        scores.push(kernels.row_product(Row::F32(&key), head.query) * scale);
        all.extend((0..head.values.rows()).map(|row| expand(head.values.row(row))));
    }
    let vectors = Vectors::Strided { data: &all, stride: out.len() };
    (kernels.softmax_sum)(kernels, &mut scores, vectors, out);
}

fn expanded_in_prefill(kernels: &Kernels, head: &HeadAttention<'_>, out: &mut [f32]) {
    if head.visible * head.row_width() < head.rows.len() {
        attend_expanded(kernels, head, out);
    } else {
        mla::attend(kernels, head, out);
    }
}

/// The absorbed form with another query in the latent space, and another scale of the scores.
fn attend_with(
    kernels: &Kernels,
    head: &HeadAttention<'_>,
    change: impl Fn(f32) -> f32,
    scale: f32,
    out: &mut [f32],
) {
    let (latent_width, width) = (head.keys.columns(), head.row_width());
    let (nope, rope) = head.query.split_at(head.keys.rows());
    let mut query = vec![0.0; width];
    (kernels.weighted_sum)(nope, Vectors::Weights(head.keys), &mut query[..latent_width]);
    query[latent_width..].copy_from_slice(rope);
    query.iter_mut().for_each(|value| *value = change(*value));
    let rows = &head.rows[..head.visible * width];
    let score = |row| kernels.row_product(Row::F32(row), &query) * scale;
    let mut scores: Vec<f32> = rows.chunks_exact(width).map(score).collect();
    let mut latent = vec![0.0; latent_width];
    let latents = Vectors::Strided { data: rows, stride: width };
    (kernels.softmax_sum)(kernels, &mut scores, latents, &mut latent);
    for (row, out) in out.iter_mut().enumerate() {
        *out = kernels.row_product(head.values.row(row), &latent);
    }
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

fn f32_sum(terms: &[f64]) -> f64 {
    f64::from(terms.iter().fold(0.0_f32, |sum, term| sum + *term as f32))
}

fn mean_in_f32(x: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
    let mean = row_sum_f32(x, x) as f32 / x.len() as f32;
    let inverse = 1.0 / (mean + epsilon as f32).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * inverse * weight;
    }
}

fn rounded_before_the_weight(x: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
    norm::rms_norm_unit(x, epsilon, out);
    out.iter_mut().zip(weight).for_each(|(out, weight)| *out *= weight);
}

fn weight_first(x: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
    let inverse = norm::inverse_rms(x, epsilon);
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = (x * weight) * inverse as f32;
    }
}

fn l2_in_f32(head: &mut [f32], factor: f32) {
    let inverse = 1.0 / (row_sum_f32(head, head) as f32 + 1e-6).sqrt();
    head.iter_mut().for_each(|x| *x = *x * inverse * factor);
}

fn l2_sum_in_f32(head: &mut [f32], factor: f32) {
    let sum: f32 = head.iter().map(|x| x * x).sum();
    let inverse = 1.0 / (f64::from(sum) + 1e-6).sqrt();
    head.iter_mut().for_each(|x| *x = (f64::from(*x) * inverse) as f32 * factor);
}

fn probabilities_rounded(k: &Kernels, scores: &mut [f32], vectors: Vectors<'_>, out: &mut [f32]) {
    softmax_with(k, scores, |e| {
        let z = sums::scalar_sum(e) as f32;
        let p: Vec<f32> = e.iter().map(|e| e / z).collect();
        sums::weighted_sum(&p, vectors, out);
    });
}

fn z_in_f32(k: &Kernels, scores: &mut [f32], vectors: Vectors<'_>, out: &mut [f32]) {
    softmax_with(k, scores, |e| {
        let z: f32 = e.iter().sum();
        sums::weighted_sum_over(e, vectors, f64::from(z), out);
    });
}

fn quotient_of_rounded_sums(
    k: &Kernels,
    scores: &mut [f32],
    vectors: Vectors<'_>,
    out: &mut [f32],
) {
    softmax_with(k, scores, |e| {
        sums::weighted_sum(e, vectors, out);
        let z = sums::scalar_sum(e) as f32;
        out.iter_mut().for_each(|out| *out /= z);
    });
}

fn maximum_not_subtracted(k: &Kernels, scores: &mut [f32], vectors: Vectors<'_>, out: &mut [f32]) {
    (k.exp)(scores);
    sums::weighted_sum_over(scores, vectors, sums::scalar_sum(scores), out);
}

fn falling_softmax(k: &Kernels, scores: &mut [f32], vectors: Vectors<'_>, out: &mut [f32]) {
    softmax_with(k, scores, |e| {
        let z: f64 = e.iter().rev().map(|e| f64::from(*e)).sum();
        for (j, out) in out.iter_mut().enumerate() {
            let terms = e.iter().enumerate().rev();
            let n: f64 = terms.map(|(i, e)| f64::from(*e) * element(vectors, i, j)).sum();
            *out = (n / z) as f32;
        }
    });
}

fn decayed_key_not_rounded(state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32]) {
    let width = inputs.v.len();
    for j in 0..width {
        let pairs = inputs.k.iter().zip(inputs.alpha).enumerate();
        let term = |(i, (k, a)): (usize, (&f32, &f32))| {
            f64::from(*a) * f64::from(*k) * f64::from(state[i * width + j])
        };
        let u = pairs.map(term).sum::<f64>() as f32;
        let mut o = 0.0_f64;
        write(state, inputs, (j, u), |s, q| o += f64::from(s) * f64::from(q));
        out[j] = o as f32;
    }
}

fn f32_sums(state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32]) {
    let width = inputs.v.len();
    for j in 0..width {
        let mut u = 0.0_f32;
        for (i, (k, alpha)) in inputs.k.iter().zip(inputs.alpha).enumerate() {
            u += state[i * width + j] * (alpha * k);
        }
        let mut o = 0.0_f32;
        write(state, inputs, (j, u), |s, q| o += s * q);
        out[j] = o;
    }
}

/// The contract's write to column j, each new element with its q handed to `read`.
fn write(
    state: &mut [f32],
    inputs: &StepInputs<'_>,
    (j, u): (usize, f32),
    mut read: impl FnMut(f32, f32),
) {
    let width = inputs.v.len();
    let delta = f64::from(inputs.beta * (inputs.v[j] - u));
    for i in 0..inputs.k.len() {
        let s = &mut state[i * width + j];
        let decayed = f64::from(inputs.alpha[i]) * f64::from(*s);
        *s = (decayed + f64::from(inputs.k[i]) * delta) as f32;
        read(*s, inputs.q[i]);
    }
}

fn situ_in_f64(_: &Kernels, gate: &[f32], up: &[f32], caps: Caps, out: &mut [f32]) {
    let (beta, linear) = (f64::from(caps.beta), f64::from(caps.linear_beta));
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        let (gate, up) = (f64::from(*gate), f64::from(*up));
        let activated = beta * (gate / beta).tanh() / (1.0 + (-gate).exp());
        *out = (activated * linear * (up / linear).tanh()) as f32;
    }
}

fn situ_in_another_order(_: &Kernels, gate: &[f32], up: &[f32], caps: Caps, out: &mut [f32]) {
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        let capped = caps.beta * functions::tanh(gate / caps.beta);
        let linear = caps.linear_beta * functions::tanh(up / caps.linear_beta);
        *out = capped * linear * functions::sigmoid(*gate);
    }
}

fn decay_contracted(kernels: &Kernels, inputs: &DecayInputs<'_>, out: &mut [f32]) {
    let rate = functions::exp(inputs.a_log);
    for ((out, z), bias) in out.iter_mut().zip(inputs.z).zip(inputs.dt_bias) {
        *out = rate.mul_add(*z, rate * bias);
    }
    (kernels.sigmoid)(out);
    out.iter_mut().for_each(|value| *value *= inputs.lower_bound);
}

fn convolution_in_f32(window: &[&[f32]], taps: &[f32], out: &mut [f32]) {
    for (channel, out) in out.iter_mut().enumerate() {
        let taps = &taps[channel * window.len()..][..window.len()];
        *out = taps.iter().zip(window).map(|(tap, x)| tap * x[channel]).sum();
    }
}

fn silu_in_f64(_: &Kernels, values: &mut [f32]) {
    for value in values {
        let x = f64::from(*value);
        *value = (x / (1.0 + (-x).exp())) as f32;
    }
}

fn mix_from_the_last(kernels: &Kernels, sources: &[&[f32]], mixer: (&[f32], f64), out: &mut [f32]) {
    let reversed: Vec<&[f32]> = sources.iter().rev().copied().collect();
    residual::mix(kernels, &reversed, mixer, out);
}

/// The mutants of this file.
#[allow(clippy::too_many_lines, reason = "a table")]
pub(super) fn list() -> Vec<EngineMutant> {
    arithmetic! {
        "a4-falling-order" ["A4"] "weighted sums run from the last vector"
            { weighted_sum: |w, v, out| sum_with(w, v, out, |terms| terms.iter().rev().sum()) };
        "a4-pairwise" ["A4"] "weighted sums are pairwise"
            { weighted_sum: |w, v, out| sum_with(w, v, out, pairwise) };
        "a4-f32-accumulator" ["A4" "A12"] "weighted sums have f32 accumulators"
            { weighted_sum: |w, v, out| sum_with(w, v, out, f32_sum) };
        "a4-sources-reversed" ["A4" "R1"] "a mix takes the running sum first"
            { residual_mix: mix_from_the_last };
        "a5-mean-in-f32" ["A5"] "RMSNorm's mean and root are f32" { rms_norm: mean_in_f32 };
        "a5-rounded-before-the-weight" ["A5"] "RMSNorm rounds before it multiplies by the weight"
            { rms_norm: rounded_before_the_weight };
        "a5-weight-first" ["A5"] "RMSNorm multiplies by the weight before the root"
            { rms_norm: weight_first };
        "a5-l2-in-f32" ["A5"] "l2norm's root is f32" { l2_norm: l2_in_f32 };
        "a5-l2-sum-in-f32" ["A5" "A12"] "l2norm sums its squares in f32" { l2_norm: l2_sum_in_f32 };
        "a6-blocked-and-rescaled" ["A6"] "softmax runs over blocks of four and rescales"
            { softmax_sum: |_, scores, vectors, out| blocked_softmax(scores, vectors, out) };
        "a6-probabilities-rounded" ["A6"] "probabilities are rounded to f32 before the sum"
            { softmax_sum: probabilities_rounded };
        "a6-z-in-f32" ["A4" "A6"] "softmax's Z is summed in f32" { softmax_sum: z_in_f32 };
        "a6-quotient-of-rounded-sums" ["A6"] "N and Z are rounded to f32 before they are divided"
            { softmax_sum: quotient_of_rounded_sums };
        "a6-maximum-not-subtracted" ["A6"] "softmax does not subtract the maximum"
            { softmax_sum: maximum_not_subtracted };
        "a6-falling-order" ["A4" "A6"] "softmax sums from the last position"
            { softmax_sum: falling_softmax };
        "a7-expanded" ["A7"] "MLA expands keys and values for every position"
            { attend: attend_expanded };
        "a7-expanded-in-prefill-only" ["A7" "A11"]
            "MLA is expanded unless the token is the last one" { attend: expanded_in_prefill };
        "a7-scale-on-the-query" ["A7" "A12"] "the absorbed query is scaled instead of the score"
            { attend: |kernels, head, out| {
                let scale = norm::inverse_root(head.query.len());
                attend_with(kernels, head, |value| value * scale, 1.0, out);
            } };
        "a12-query-in-bf16" ["A7" "A12"] "the absorbed query is kept in BF16"
            { attend: |kernels, head, out| {
                let scale = norm::inverse_root(head.query.len());
                attend_with(kernels, head, |value| bf16::widen(bf16::round(value)), scale, out);
            } };
        "a8-decayed-state-rounded" ["A8"] "the decayed state is rounded before the write is added"
            { kda_step: |state, inputs, out| {
                step_with(state, inputs, out, |alpha, s, k, delta| alpha * s + k * delta);
            } };
        "a8-write-rounded" ["A8"] "the write is rounded, the decay fused"
            { kda_step: |state, inputs, out| {
                step_with(state, inputs, out, |alpha, s, k, delta| {
                    (f64::from(alpha) * f64::from(s) + f64::from(k * delta)) as f32
                });
            } };
        "a8-decayed-key-not-rounded" ["A8" "A12"] "u uses alpha times k without its rounding"
            { kda_step: decayed_key_not_rounded };
        "a8-f32-sums" ["A8" "A12"] "u and o are summed in f32" { kda_step: f32_sums };
        "a9-order-of-arrival" ["A9" "A4"] "expert outputs are summed as they arrive"
            { expert_sum: |_, weights, outputs, out| sums::weighted_sum(weights, outputs, out) };
        "a9-f32-expert-sum" ["A9" "A4"] "expert outputs are summed in f32"
            { expert_sum: |_, weights, outputs, out| sum_with(weights, outputs, out, f32_sum) };
        "a9-situ-in-f64" ["A9"] "SiTU is computed in f64 and rounded once" { situ: situ_in_f64 };
        "a9-situ-other-order" ["A9"] "SiTU multiplies the linear part before the sigmoid"
            { situ: situ_in_another_order };
        "a12-decay-contracted" ["A12"] "rate times (z + bias) is one fused operation"
            { log_decay: decay_contracted };
        "a12-convolution-in-f32" ["A12"] "the convolution sums in f32"
            { convolve: convolution_in_f32 };
        "a12-silu-in-f64" ["A12"] "SiLU is rounded once instead of twice" { silu: silu_in_f64 };
    }
}
