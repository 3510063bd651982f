//! Sites in the kernels.

use super::{Delta, Place, Site};
use crate::mutants::rows::products_by_rows;
use k3_core::stages::Stage;
use k3_engine::kernels::contract::{L2_NORM_EPS, RENORMALISATION_EPS, fold_lanes};
use k3_engine::kernels::functions::{self, sigmoid, tanh};
use k3_engine::kernels::kda::{DecayInputs, StepInputs};
use k3_engine::kernels::mla::HeadAttention;
use k3_engine::kernels::norm::{gated_norm, rms_norm, rms_norm_unit};
use k3_engine::kernels::products::{self, Product};
use k3_engine::kernels::router::{Choice, NanScore, Weighting, select};
use k3_engine::kernels::rows::{self, Row, row_sum, row_sum_f32};
use k3_engine::kernels::situ::{Caps, silu, situ};
use k3_engine::kernels::sums::{self, Vectors};
use k3_engine::kernels::table::Kernels;
use k3_engine::kernels::threads::Threads;
use k3_engine::kernels::{convolution, kda, mla, mxfp4, norm, residual, softmax};

macro_rules! sites {
    ($($id:literal $clause:literal $what:literal $place:ident $(($stage:expr))?
        { $($entry:ident: $function:expr),+ };)*
    ) => {
        vec![$(Site {
            id: $id,
            clause: $clause,
            what: $what,
            place: Place::$place($($stage,)? |right| Kernels { $($entry: $function,)+ ..right }),
        }),*]
    };
}

/// The sites of this file.
#[allow(clippy::too_many_lines, reason = "a table")]
pub(super) fn list() -> Vec<Site> {
    sites! {
        "n1-norm" "N1" "the result of every RMSNorm"
            Kernels { rms_norm: off_norm, rms_norm_unit: off_key };
        "n1-epsilon" "N1" "epsilon of every RMSNorm" Kernels {
            rms_norm: |x, weight, eps, out| rms_norm(x, weight, Delta::here().of(eps), out),
            rms_norm_unit: |x, eps, out| rms_norm_unit(x, Delta::here().of(eps), out)
        };
        "r1-running-sum" "R1" "the running sum among a mix's sources"
            Kernels { residual_mix: off_running_sum };
        "r2-keys" "R2" "the normed keys of every mix" Kernels { rms_norm_unit: off_key };
        "r2-values" "R2" "the values of every mix" Kernels {
            residual_mix: |kernels, sources, mixer, out| {
                residual::mix(kernels, sources, mixer, out);
                Delta::here().all(out);
            }
        };
        "r5-banks" "R5" "the banks among a mix's sources" Kernels { residual_mix: off_banks };
        "r6-addend" "R6" "what a layer's attention and MLP add to the running sum" Kernels {
            add: |running, addend| sums::add(running, &Delta::here().copy(addend))
        };
        "k1-newest-tap" "K1" "the newest tap of the three convolutions"
            Kernels { convolve: off_newest_tap };
        "k2-silu" "K2" "SiLU after the three convolutions" Kernels {
            silu: |kernels, values| {
                silu(kernels, values);
                Delta::here().all(values);
            }
        };
        "k3-l2norm" "K3" "the l2norm of q and k" Kernels {
            l2_norm: |head, factor| {
                norm::l2_norm(head, 1.0);
                Delta::here().all(head);
                head.iter_mut().for_each(|value| *value *= factor);
            }
        };
        "k3-epsilon" "K3" "epsilon of the l2norm" Kernels { l2_norm: off_l2_epsilon };
        // The scale of q is the factor that is not 1.
        "k4-query-scale" "K4" "the scale of q" Kernels {
            l2_norm: |head, factor| {
                let off = if factor == 1.0 { factor } else { Delta::here().single(factor) };
                norm::l2_norm(head, off);
            }
        };
        "k5-write-strength" "K5" "beta" After(Stage::KdaBeta) { kda_step: off_strength };
        "k6-dt-bias" "K6" "dt_bias" Kernels {
            log_decay: |kernels, inputs, out| {
                let dt_bias = Delta::here().copy(inputs.dt_bias);
                kda::log_decay(kernels, &DecayInputs { dt_bias: &dt_bias, ..*inputs }, out);
            }
        };
        "k7-lower-bound" "K7" "the gate's lower bound" Kernels {
            log_decay: |kernels, inputs, out| {
                let lower_bound = Delta::here().single(inputs.lower_bound);
                kda::log_decay(kernels, &DecayInputs { lower_bound, ..*inputs }, out);
            }
        };
        "k7-rate" "K7" "A_log" Kernels {
            log_decay: |kernels, inputs, out| {
                let a_log = Delta::here().single(inputs.a_log);
                kda::log_decay(kernels, &DecayInputs { a_log, ..*inputs }, out);
            }
        };
        "k9-decay" "K9" "the decay alpha in the step" Kernels {
            kda_step: |state, inputs, out| {
                let alpha = Delta::here().copy(inputs.alpha);
                kda::step(state, &StepInputs { alpha: &alpha, ..*inputs }, out);
            }
        };
        "k10-delta-write" "K10" "what the delta rule writes" Kernels { kda_step: off_strength };
        "k11-output" "K11" "what is read from the state" Kernels {
            kda_step: |state, inputs, out| {
                kda::step(state, inputs, out);
                Delta::here().all(out);
            }
        };
        "k12-normed-output" "K12" "the head output after norm and gate" Kernels {
            gated_norm: |kernels, o, norm, gate| {
                gated_norm(kernels, o, norm, gate);
                Delta::here().all(o);
            }
        };
        "k12-gate" "K12" "the argument of KDA's output gate" Kernels {
            gated_norm: |kernels, o, norm, gate| {
                Delta::here().all(gate);
                gated_norm(kernels, o, norm, gate);
            }
        };
        "m4-scale" "M4" "the scale of the scores" Kernels { attend: off_scale };
        "m5-leak" "M5" "blend: attention that sees one later token of the chunk"
            Kernels { attend: leaking };
        // The absorbed keys are linear in the nope part of the query.
        "m6-keys" "M6" "kv_b's keys" Kernels {
            attend: |kernels, head, out| {
                let mut query = head.query.to_vec();
                Delta::here().all(&mut query[..head.keys.rows()]);
                mla::attend(kernels, &HeadAttention { query: &query, ..*head }, out);
            }
        };
        "m6-values" "M6" "kv_b's values" Kernels {
            attend: |kernels, head, out| {
                mla::attend(kernels, head, out);
                Delta::here().all(out);
            }
        };
        "e2-bias" "E2" "the selection bias" Kernels {
            choose: |scores, bias, k, weighting| {
                let ids = select(scores, &Delta::here().copy(bias), k)?;
                Ok(weighed(scores, ids, weighting, |sum| sum + RENORMALISATION_EPS))
            }
        };
        "e3-bias-in-weights" "E3" "blend: weights from the biased scores"
            Kernels { choose: biased_weights };
        "e4-divisor" "E4" "the divisor of the renormalisation" Kernels {
            choose: |scores, bias, k, weighting| {
                let divisor = |sum: f32| Delta::here().single(sum + RENORMALISATION_EPS);
                Ok(weighed(scores, select(scores, bias, k)?, weighting, divisor))
            }
        };
        "e4-epsilon" "E4" "the 1e-20 of the renormalisation" Kernels {
            choose: |scores, bias, k, weighting| {
                let divisor = |sum: f32| sum + Delta::here().single(RENORMALISATION_EPS);
                Ok(weighed(scores, select(scores, bias, k)?, weighting, divisor))
            }
        };
        "e5-scaling-factor" "E5" "the scaling factor" Kernels {
            choose: |scores, bias, k, weighting| {
                let scaling_factor = Delta::here().single(weighting.scaling_factor);
                let weighting = Weighting { scaling_factor, ..weighting };
                let ids = select(scores, bias, k)?;
                Ok(weighed(scores, ids, weighting, |sum| sum + RENORMALISATION_EPS))
            }
        };
        "e9-routed" "E9" "the up-projection of the routed experts" Kernels {
            combine: |routed, shared, out| {
                sums::combine(&Delta::here().copy(routed), shared, out);
            }
        };
        "e10-shared" "E10" "the shared MLP's output" Kernels {
            combine: |routed, shared, out| {
                sums::combine(routed, &Delta::here().copy(shared), out);
            }
        };
        "s1-capped-gate" "S1" "blend: the logistic of the capped gate"
            Kernels { situ: half_capped_gate };
        "s2-beta" "S2" "beta, the cap on the gate" Kernels {
            situ: |kernels, gate, up, caps, out| {
                let beta = Delta::here().single(caps.beta);
                situ(kernels, gate, up, Caps { beta, ..caps }, out);
            }
        };
        "s2-linear-beta" "S2" "linear beta, the cap on the linear part" Kernels {
            situ: |kernels, gate, up, caps, out| {
                let linear_beta = Delta::here().single(caps.linear_beta);
                situ(kernels, gate, up, Caps { linear_beta, ..caps }, out);
            }
        };
        "q1-largest-code" "Q1" "the value of codes 7 and 15" Kernels {
            widen: |row, out| widen(row, out, |column| has_largest_code(row, column)),
            row_sum: row_sum_of_codes,
            products: products_of_codes
        };
        "q3-scale" "Q3" "every MXFP4 scale" Kernels {
            widen: |row, out| widen(row, out, |_| is_mxfp4(row)),
            row_sum: |row, x| off_sum(row, x, is_mxfp4(row)),
            products: |kernels, threads, all| off_products(kernels, threads, all, is_mxfp4)
        };
        "a1-bf16" "A1" "every BF16 weight" Kernels {
            widen: |row, out| widen(row, out, |_| is_bf16(row)),
            row_sum: |row, x| off_sum(row, x, is_bf16(row)),
            products: |kernels, threads, all| off_products(kernels, threads, all, is_bf16)
        };
        "a2-row-product" "A2" "every row product" Kernels {
            row_sum: |row, x| off_sum(row, x, true),
            products: |kernels, threads, all| off_products(kernels, threads, all, |_| true)
        };
        "a4-weighted-sum" "A4" "the weighted sum of vectors in the absorbed query" Kernels {
            weighted_sum: |weights, vectors, out| {
                sums::weighted_sum(weights, vectors, out);
                Delta::here().all(out);
            }
        };
        "a6-softmax" "A6" "every softmax-weighted sum" Kernels { softmax_sum: off_softmax };
        "a9-expert-sum" "A9" "the weighted sum over experts" Kernels {
            expert_sum: |ids, weights, outputs, out| {
                sums::expert_sum(ids, weights, outputs, out);
                Delta::here().all(out);
            }
        };
        "a10-exp" "A10" "every exp" Kernels {
            exp: |values| {
                functions::exp_all(values);
                Delta::here().all(values);
            }
        };
        "a10-tanh" "A10" "every tanh" Kernels {
            tanh: |values| {
                functions::tanh_all(values);
                Delta::here().all(values);
            }
        };
        "a10-logistic" "A10" "every logistic" Kernels {
            sigmoid: |values| {
                functions::sigmoid_all(values);
                Delta::here().all(values);
            }
        };
    }
}

fn off_norm(x: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
    rms_norm(x, weight, epsilon, out);
    Delta::here().all(out);
}

fn off_key(x: &[f32], epsilon: f64, out: &mut [f32]) {
    rms_norm_unit(x, epsilon, out);
    Delta::here().all(out);
}

fn off_running_sum(kernels: &Kernels, sources: &[&[f32]], mixer: (&[f32], f64), out: &mut [f32]) {
    let mut all = sources.to_vec();
    let running = all.pop().map(|running| Delta::here().copy(running)).unwrap_or_default();
    all.push(&running);
    residual::mix(kernels, &all, mixer, out);
}

fn off_banks(kernels: &Kernels, sources: &[&[f32]], mixer: (&[f32], f64), out: &mut [f32]) {
    let mut all: Vec<Vec<f32>> = sources.iter().map(|source| source.to_vec()).collect();
    all.iter_mut().rev().skip(1).for_each(|bank| Delta::here().all(bank));
    let all: Vec<&[f32]> = all.iter().map(Vec::as_slice).collect();
    residual::mix(kernels, &all, mixer, out);
}

fn off_newest_tap(window: &[&[f32]], taps: &[f32], out: &mut [f32]) {
    let mut taps = taps.to_vec();
    for channel in taps.chunks_exact_mut(window.len()) {
        Delta::here().all(&mut channel[window.len() - 1..]);
    }
    convolution::convolve(window, &taps, out);
}

fn off_l2_epsilon(head: &mut [f32], factor: f32) {
    let epsilon = Delta::here().of(L2_NORM_EPS);
    let inverse = 1.0 / (row_sum_f32(head, head) + epsilon).sqrt();
    head.iter_mut().for_each(|x| *x = (f64::from(*x) * inverse) as f32 * factor);
}

fn off_strength(state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32]) {
    let beta = Delta::here().single(inputs.beta);
    kda::step(state, &StepInputs { beta, ..*inputs }, out);
}

/// The row products of `attend` are the scores before their scale, and linear in it.
fn off_scale(kernels: &Kernels, head: &HeadAttention<'_>, out: &mut [f32]) {
    let row_sum = |row: Row<'_>, x: &[f32]| off_sum(row, x, true);
    mla::attend(&Kernels { row_sum, ..*kernels }, head, out);
}

fn leaking(kernels: &Kernels, head: &HeadAttention<'_>, out: &mut [f32]) {
    mla::attend(kernels, head, out);
    if head.visible * head.row_width() < head.rows.len() {
        let mut leaked = vec![0.0; out.len()];
        let later = HeadAttention { visible: head.visible + 1, ..*head };
        mla::attend(kernels, &later, &mut leaked);
        for (out, leaked) in out.iter_mut().zip(leaked) {
            *out = Delta::here().blend(*out, leaked);
        }
    }
}

fn biased_weights(
    scores: &[f32],
    bias: &[f32],
    k: usize,
    weighting: Weighting,
) -> Result<Choice, NanScore> {
    let ids = select(scores, bias, k)?;
    let pairs = scores.iter().zip(bias);
    let scores: Vec<f32> = pairs.map(|(s, b)| Delta::here().blend(*s, s + b)).collect();
    Ok(weighed(&scores, ids, weighting, |sum| sum + RENORMALISATION_EPS))
}

/// The router's rule for weights with a divisor made from the sum of the chosen scores.
fn weighed(
    scores: &[f32],
    ids: Vec<usize>,
    weighting: Weighting,
    divisor: impl Fn(f32) -> f32,
) -> Choice {
    let mut weights: Vec<f32> = ids.iter().map(|&id| scores[id]).collect();
    if weighting.renormalise && weights.len() > 1 {
        let divisor = divisor(sums::scalar_sum(&weights) as f32);
        weights.iter_mut().for_each(|weight| *weight /= divisor);
    }
    weights.iter_mut().for_each(|weight| *weight *= weighting.scaling_factor);
    Choice { ids, weights }
}

fn half_capped_gate(_: &Kernels, gate: &[f32], up: &[f32], caps: Caps, out: &mut [f32]) {
    for ((gate, up), out) in gate.iter().zip(up).zip(out) {
        let capped = caps.beta * tanh(gate / caps.beta);
        let activated = capped * sigmoid(Delta::here().blend(*gate, capped));
        *out = activated * (caps.linear_beta * tanh(up / caps.linear_beta));
    }
}

fn off_softmax(kernels: &Kernels, scores: &mut [f32], vectors: Vectors<'_>, out: &mut [f32]) {
    softmax::softmax_sum(kernels, scores, vectors, out);
    Delta::here().all(out);
}

fn widen(row: Row<'_>, out: &mut [f64], chosen: impl Fn(usize) -> bool) {
    rows::widen(row, out);
    for (column, out) in out.iter_mut().enumerate() {
        if chosen(column) {
            *out = Delta::here().of(*out);
        }
    }
}

/// Whether a column has the code of the largest magnitude, 7 or 15.
fn has_largest_code(row: Row<'_>, column: usize) -> bool {
    matches!(row, Row::Mxfp4 { packed, .. } if mxfp4::code(packed, column) & 7 == 7)
}

fn is_mxfp4(row: Row<'_>) -> bool {
    matches!(row, Row::Mxfp4 { .. })
}

fn is_bf16(row: Row<'_>) -> bool {
    matches!(row, Row::Bf16(_))
}

fn off_sum(row: Row<'_>, x: &[f32], is_off: bool) -> f64 {
    let sum = row_sum(row, x);
    if is_off { Delta::here().of(sum) } else { sum }
}

fn row_sum_of_codes(row: Row<'_>, x: &[f32]) -> f64 {
    if !is_mxfp4(row) {
        return row_sum(row, x);
    }
    let mut weights = vec![0.0; x.len()];
    widen(row, &mut weights, |column| has_largest_code(row, column));
    let mut lanes = [0.0; 16];
    for (column, (weight, x)) in weights.iter().zip(x).enumerate() {
        lanes[column % 16] += weight * f64::from(*x);
    }
    fold_lanes(lanes)
}

fn products_of_codes(kernels: &Kernels, threads: &Threads, all: Vec<Product<'_>>) {
    let by_rows = |product: &Product<'_>| is_mxfp4(product.matrix.row(0));
    let (slow, fast) = all.into_iter().partition(by_rows);
    products_by_rows(kernels, threads, slow);
    products::products(kernels, threads, fast);
}

/// The products, and those of chosen matrices off by δ.
fn off_products(
    kernels: &Kernels,
    threads: &Threads,
    mut all: Vec<Product<'_>>,
    chosen: impl Fn(Row<'_>) -> bool,
) {
    let reborrow = |product| {
        let Product { matrix, vectors, out }: &mut Product<'_> = product;
        Product { matrix: *matrix, vectors, out }
    };
    products::products(kernels, threads, all.iter_mut().map(reborrow).collect());
    for product in all {
        if chosen(product.matrix.row(0)) {
            Delta::here().all(product.out);
        }
    }
}
