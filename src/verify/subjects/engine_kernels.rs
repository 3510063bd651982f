//! The engine's single operations, for the kernel gates: a fixture case in, outputs out.
//!
//! Everything goes through [`Operations`], so that a mutant of the engine is a mutant here too.
//! Inputs are f32 values that the fixture file widened; narrowing them again is exact.

use super::inputs::{Inputs, named};
use crate::subject::{Answer, KernelCase, Outputs, SubjectError};
use k3_core::config::RawConfig;
use k3_engine::kernels::kda::StepInputs;
use k3_engine::kernels::matrix::Matrix;
use k3_engine::kernels::router::Weighting;
use k3_engine::kernels::rows::Row;
use k3_engine::kernels::situ::Caps;
use k3_engine::kernels::sums::Vectors;
use k3_engine::model::{HeadAttention, Operations, Projection, Shape};

/// Runs `kernel` on a case; `None` for a kernel that the engine does not know.
pub fn run(operations: &(impl Operations + ?Sized), case: KernelCase<'_>) -> Answer {
    let (inputs, config) = (Inputs { tensors: case.inputs }, case.config);
    let outputs = match case.kernel {
        "mxfp4-decode" => decode(operations, &inputs),
        "bf16-widen" => {
            let codes: Vec<u16> = inputs.values("codes").iter().map(|code| *code as u16).collect();
            let mut values = vec![0.0; codes.len()];
            operations.widen_row(Row::Bf16(&codes), &mut values);
            named([("values", values)])
        }
        "elementary" => elementary(operations, &inputs),
        "row-product" => row_product(operations, &inputs),
        "weighted-sum" => weighted_sum(operations, &inputs),
        "rms-norm" => rms_norm(operations, &inputs),
        "l2-norm" => l2_norm(operations, &inputs),
        "convolution" => convolution(operations, &inputs),
        "kda-decay" => decay(operations, &inputs),
        "kda-steps" => steps(operations, &inputs),
        "gated-norm" => gated_norm(operations, &inputs),
        "softmax-sum" => {
            let (mut scores, values) = (inputs.f32("scores"), inputs.f32("values"));
            let stride = values.len() / scores.len();
            let mut out = vec![0.0; stride];
            let vectors = Vectors::Strided { data: &values, stride };
            operations.softmax_sum(&mut scores, vectors, &mut out);
            named([("sum", widened(&out))])
        }
        "mla-attention" => return Some(attention(operations, &inputs, config)),
        "residual-mix" => residual_mix(operations, &inputs),
        "router" => return Some(router(operations, &inputs)),
        "situ" => {
            let (gate, up) = (inputs.f32("gate"), inputs.f32("up"));
            let caps = Caps {
                beta: inputs.number("beta") as f32,
                linear_beta: inputs.number("linear_beta") as f32,
            };
            let mut out = vec![0.0; gate.len()];
            operations.situ(&gate, &up, caps, &mut out);
            named([("y", widened(&out))])
        }
        "moe-sum" => moe_sum(operations, &inputs),
        _ => return None,
    };
    Some(Ok(outputs))
}

fn widened(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

fn decode(operations: &(impl Operations + ?Sized), inputs: &Inputs<'_>) -> Outputs {
    let shape = inputs.shape("packed");
    let (packed, scales) = (inputs.bytes("packed"), inputs.bytes("scales"));
    let groups = scales.len() / shape[0];
    let mut values = vec![0.0; packed.len() * 2];
    for (row, out) in values.chunks_mut(shape[1] * 2).enumerate() {
        let packed = &packed[row * shape[1]..][..shape[1]];
        let scales = &scales[row * groups..][..groups];
        operations.widen_row(Row::Mxfp4 { packed, scales }, out);
    }
    named([("values", values)])
}

fn elementary(operations: &(impl Operations + ?Sized), inputs: &Inputs<'_>) -> Outputs {
    let x = inputs.f32("x");
    let [mut exp, mut tanh, mut sigmoid] = [x.clone(), x.clone(), x];
    operations.exp_all(&mut exp);
    operations.tanh_all(&mut tanh);
    operations.sigmoid_all(&mut sigmoid);
    named([("exp", widened(&exp)), ("tanh", widened(&tanh)), ("sigmoid", widened(&sigmoid))])
}

fn row_product(operations: &(impl Operations + ?Sized), inputs: &Inputs<'_>) -> Outputs {
    let x = inputs.f32("x");
    let (mut sums, mut values) = (Vec::new(), Vec::new());
    let mut one = |row: Row<'_>| {
        sums.push(operations.row_sum(row, &x));
        values.push(f64::from(operations.row_product(row, &x)));
    };
    if inputs.has("packed") {
        let (packed, scales) = (inputs.bytes("packed"), inputs.bytes("scales"));
        for (packed, scales) in packed.chunks(x.len() / 2).zip(scales.chunks(x.len() / 32)) {
            one(Row::Mxfp4 { packed, scales });
        }
    } else if inputs.has("codes") {
        let codes: Vec<u16> = inputs.values("codes").iter().map(|code| *code as u16).collect();
        codes.chunks(x.len()).for_each(|row| one(Row::Bf16(row)));
    } else {
        inputs.f32("weights").chunks(x.len()).for_each(|row| one(Row::F32(row)));
    }
    named([("sum", sums), ("value", values)])
}

fn weighted_sum(operations: &(impl Operations + ?Sized), inputs: &Inputs<'_>) -> Outputs {
    let (weights, data) = (inputs.f32("weights"), inputs.f32("vectors"));
    let stride = data.len() / weights.len();
    let mut out = vec![0.0; stride];
    operations.weighted_sum(&weights, Vectors::Strided { data: &data, stride }, &mut out);
    named([("sum", widened(&out))])
}

fn rms_norm(operations: &(impl Operations + ?Sized), inputs: &Inputs<'_>) -> Outputs {
    let (x, weight, epsilon) = (inputs.f32("x"), inputs.f32("weight"), inputs.number("epsilon"));
    let mut y = vec![0.0; x.len()];
    for (x, y) in x.chunks(weight.len()).zip(y.chunks_mut(weight.len())) {
        operations.rms_norm(x, &weight, epsilon, y);
    }
    named([("y", widened(&y))])
}

fn l2_norm(operations: &(impl Operations + ?Sized), inputs: &Inputs<'_>) -> Outputs {
    let width = inputs.shape("x")[1];
    let (mut y, scale) = (inputs.f32("x"), inputs.number("scale") as f32);
    for head in y.chunks_mut(width) {
        operations.l2_norm(head);
        head.iter_mut().for_each(|value| *value *= scale);
    }
    named([("y", widened(&y))])
}

fn convolution(operations: &(impl Operations + ?Sized), inputs: &Inputs<'_>) -> Outputs {
    let width = inputs.shape("x")[1];
    let (taps, mut history, x) = (inputs.f32("taps"), inputs.f32("history"), inputs.f32("x"));
    let mut sums = Vec::with_capacity(x.len());
    for newest in x.chunks(width) {
        let window: Vec<&[f32]> = history.chunks(width).chain([newest]).collect();
        let mut out = vec![0.0; width];
        operations.convolve(&window, &taps, &mut out);
        sums.extend(out);
        operations.shift_history(&mut history, newest);
    }
    let mut y = sums.clone();
    operations.after_convolution(Projection::Query, &mut y);
    named([("conv", widened(&sums)), ("y", widened(&y)), ("history", widened(&history))])
}

fn decay(operations: &(impl Operations + ?Sized), inputs: &Inputs<'_>) -> Outputs {
    let (z, bias, a_log) = (inputs.f32("z"), inputs.f32("dt_bias"), inputs.f32("a_log"));
    let width = bias.len() / a_log.len();
    let gate = (a_log.as_slice(), inputs.number("lower_bound") as f32);
    let mut g = vec![0.0; z.len()];
    for (index, (z, out)) in z.chunks(width).zip(g.chunks_mut(width)).enumerate() {
        let head = index % a_log.len();
        operations.log_decay(head, z, &bias[head * width..][..width], gate, out);
    }
    let mut alpha = g.clone();
    operations.exp_all(&mut alpha);
    named([("g", widened(&g)), ("alpha", widened(&alpha))])
}

fn steps(operations: &(impl Operations + ?Sized), inputs: &Inputs<'_>) -> Outputs {
    let shape = inputs.shape("q");
    let [tokens, heads, width] = [shape[0], shape[1], shape[2]];
    let [q, k, v, alpha] = ["q", "k", "v", "alpha"].map(|name| inputs.f32(name));
    let (beta, mut state) = (inputs.f32("beta"), inputs.f32("state"));
    let mut o = vec![0.0; q.len()];
    for token in 0..tokens {
        for head in 0..heads {
            let at = (token * heads + head) * width;
            let step = StepInputs {
                q: &q[at..at + width],
                k: &k[at..at + width],
                v: &v[at..at + width],
                alpha: &alpha[at..at + width],
                beta: beta[token * heads + head],
            };
            let square = width * width;
            let state = &mut state[head * square..][..square];
            operations.kda_step(state, &step, &mut o[at..at + width]);
        }
    }
    named([("o", widened(&o)), ("state", widened(&state))])
}

fn gated_norm(operations: &(impl Operations + ?Sized), inputs: &Inputs<'_>) -> Outputs {
    let (weight, epsilon) = (inputs.f32("weight"), inputs.number("epsilon"));
    let (mut o, mut gate) = (inputs.f32("o"), inputs.f32("gate"));
    for (o, gate) in o.chunks_mut(weight.len()).zip(gate.chunks_mut(weight.len())) {
        operations.kda_head_output(o, &weight, epsilon, gate);
    }
    named([("y", widened(&o))])
}

fn attention(
    operations: &(impl Operations + ?Sized),
    inputs: &Inputs<'_>,
    config: &RawConfig,
) -> Result<Outputs, SubjectError> {
    let failed = |error: &dyn std::fmt::Display| SubjectError::Failed(error.to_string());
    let [nope, rope, v] = ["nope", "rope", "v"].map(|name| inputs.number(name) as usize);
    let shape = inputs.shape("q");
    let (tokens, heads) = (shape[0], shape[1]);
    let latent = inputs.shape("cache")[1] - rope;
    let mut config = config.clone();
    config.num_attention_heads = heads;
    config.kv_lora_rank = latent;
    config.qk_nope_head_dim = nope;
    config.qk_rope_head_dim = rope;
    config.v_head_dim = v;
    let shape = Shape::derive(operations, &config).map_err(|error| failed(&error))?;
    let kv_b = Matrix::from_f32(heads * (nope + v), latent, &inputs.f32("kv_b"))
        .map_err(|error| failed(&error))?;
    let (q, rows) = (inputs.f32("q"), inputs.f32("cache"));
    let mut o = vec![0.0; tokens * heads * v];
    for (index, out) in o.chunks_mut(v).enumerate() {
        let head = HeadAttention {
            shape: &shape,
            head: index % heads,
            position: index / heads,
            query: &q[index * (nope + rope)..][..nope + rope],
            kv_b: kv_b.view(),
            rows: &rows,
        };
        operations.attend(&head, out);
    }
    Ok(named([("o", widened(&o))]))
}

/// The fixture's last source is the running sum, those before it are the banks.
fn residual_mix(operations: &(impl Operations + ?Sized), inputs: &Inputs<'_>) -> Outputs {
    let (data, fold) = (inputs.f32("sources"), inputs.f32("fold"));
    let banks: Vec<&[f32]> = data.chunks(fold.len()).collect();
    let sources = match banks.split_last() {
        Some((running, banks)) => operations.mix_sources(banks, running),
        None => Vec::new(),
    };
    let (mut keys, mut mix) = (vec![0.0; fold.len()], vec![0.0; fold.len()]);
    operations.residual_mix(&sources, &fold, inputs.number("epsilon"), &mut keys, &mut mix);
    named([("mix", widened(&mix))])
}

fn router(
    operations: &(impl Operations + ?Sized),
    inputs: &Inputs<'_>,
) -> Result<Outputs, SubjectError> {
    let (scores, bias) = (inputs.f32("scores"), inputs.f32("bias"));
    let weighting = Weighting {
        renormalise: inputs.number("renormalize") != 0.0,
        scaling_factor: inputs.number("scaling") as f32,
    };
    let ids = operations
        .select(&scores, &bias, inputs.number("top_k") as usize)
        .map_err(|error| SubjectError::Failed(format!("{error:?}")))?;
    let weights = operations.routing_weights(&scores, &bias, &ids, weighting);
    let ids = ids.iter().map(|id| *id as f64).collect();
    Ok(named([("ids", ids), ("weights", widened(&weights))]))
}

fn moe_sum(operations: &(impl Operations + ?Sized), inputs: &Inputs<'_>) -> Outputs {
    let ids: Vec<usize> = inputs.values("ids").iter().map(|id| *id as usize).collect();
    let (data, weights) = (inputs.f32("outputs"), inputs.f32("weights"));
    let stride = data.len() / ids.len();
    let mut out = vec![0.0; stride];
    operations.expert_sum(&ids, &weights, Vectors::Strided { data: &data, stride }, &mut out);
    named([("sum", widened(&out))])
}
