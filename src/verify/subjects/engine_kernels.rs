//! The engine's single operations, for the kernel gates: a fixture case in, outputs out.
//!
//! Everything goes through the table of kernels, so that a mutant of its arithmetic is one here
//! too. Inputs are f32 values that the fixture file widened; narrowing them again is exact.

use super::inputs::{Inputs, named};
use crate::subject::{Answer, KernelCase, Outputs, SubjectError};
use k3_engine::kernels::convolution::shift_history;
use k3_engine::kernels::kda::{DecayInputs, StepInputs};
use k3_engine::kernels::matrix::Matrix;
use k3_engine::kernels::mla::HeadAttention;
use k3_engine::kernels::router::Weighting;
use k3_engine::kernels::rows::Row;
use k3_engine::kernels::situ::Caps;
use k3_engine::kernels::sums::Vectors;
use k3_engine::kernels::table::Kernels;

/// Runs `kernel` on a case; `None` for a kernel that the engine does not know.
pub fn run(kernels: &Kernels, case: KernelCase<'_>) -> Answer {
    let inputs = Inputs { tensors: case.inputs };
    let outputs = match case.kernel {
        "mxfp4-decode" => decode(kernels, &inputs),
        "bf16-widen" => {
            let codes: Vec<u16> = inputs.values("codes").iter().map(|code| *code as u16).collect();
            let mut values = vec![0.0; codes.len()];
            (kernels.widen)(Row::Bf16(&codes), &mut values);
            named([("values", values)])
        }
        "elementary" => elementary(kernels, &inputs),
        "row-product" => row_product(kernels, &inputs),
        "weighted-sum" => weighted_sum(kernels, &inputs),
        "rms-norm" => rms_norm(kernels, &inputs),
        "l2-norm" => l2_norm(kernels, &inputs),
        "convolution" => convolution(kernels, &inputs),
        "kda-decay" => decay(kernels, &inputs),
        "kda-steps" => steps(kernels, &inputs),
        "gated-norm" => gated_norm(kernels, &inputs),
        "softmax-sum" => {
            let (mut scores, values) = (inputs.f32("scores"), inputs.f32("values"));
            let stride = values.len() / scores.len();
            let mut out = vec![0.0; stride];
            let vectors = Vectors::Strided { data: &values, stride };
            (kernels.softmax_sum)(kernels, &mut scores, vectors, &mut out);
            named([("sum", widened(&out))])
        }
        "mla-attention" => return Some(attention(kernels, &inputs)),
        "residual-mix" => residual_mix(kernels, &inputs),
        "router" => return Some(router(kernels, &inputs)),
        "situ" => {
            let (gate, up) = (inputs.f32("gate"), inputs.f32("up"));
            let caps = Caps {
                beta: inputs.number("beta") as f32,
                linear_beta: inputs.number("linear_beta") as f32,
            };
            let mut out = vec![0.0; gate.len()];
            (kernels.situ)(kernels, &gate, &up, caps, &mut out);
            named([("y", widened(&out))])
        }
        "moe-sum" => moe_sum(kernels, &inputs),
        _ => return None,
    };
    Some(Ok(outputs))
}

fn widened(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

fn decode(kernels: &Kernels, inputs: &Inputs<'_>) -> Outputs {
    let shape = inputs.shape("packed");
    let (packed, scales) = (inputs.bytes("packed"), inputs.bytes("scales"));
    let groups = scales.len() / shape[0];
    let mut values = vec![0.0; packed.len() * 2];
    for (row, out) in values.chunks_mut(shape[1] * 2).enumerate() {
        let packed = &packed[row * shape[1]..][..shape[1]];
        let scales = &scales[row * groups..][..groups];
        (kernels.widen)(Row::Mxfp4 { packed, scales }, out);
    }
    named([("values", values)])
}

fn elementary(kernels: &Kernels, inputs: &Inputs<'_>) -> Outputs {
    let x = inputs.f32("x");
    let [mut exp, mut tanh, mut sigmoid] = [x.clone(), x.clone(), x];
    (kernels.exp)(&mut exp);
    (kernels.tanh)(&mut tanh);
    (kernels.sigmoid)(&mut sigmoid);
    named([("exp", widened(&exp)), ("tanh", widened(&tanh)), ("sigmoid", widened(&sigmoid))])
}

fn row_product(kernels: &Kernels, inputs: &Inputs<'_>) -> Outputs {
    let x = inputs.f32("x");
    let (mut sums, mut values) = (Vec::new(), Vec::new());
    let mut one = |row: Row<'_>| {
        sums.push((kernels.row_sum)(row, &x));
        values.push(f64::from(kernels.row_product(row, &x)));
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

fn weighted_sum(kernels: &Kernels, inputs: &Inputs<'_>) -> Outputs {
    let (weights, data) = (inputs.f32("weights"), inputs.f32("vectors"));
    let stride = data.len() / weights.len();
    let mut out = vec![0.0; stride];
    (kernels.weighted_sum)(&weights, Vectors::Strided { data: &data, stride }, &mut out);
    named([("sum", widened(&out))])
}

fn rms_norm(kernels: &Kernels, inputs: &Inputs<'_>) -> Outputs {
    let (x, weight, epsilon) = (inputs.f32("x"), inputs.f32("weight"), inputs.number("epsilon"));
    let mut y = vec![0.0; x.len()];
    for (x, y) in x.chunks(weight.len()).zip(y.chunks_mut(weight.len())) {
        (kernels.rms_norm)(x, &weight, epsilon, y);
    }
    named([("y", widened(&y))])
}

fn l2_norm(kernels: &Kernels, inputs: &Inputs<'_>) -> Outputs {
    let width = inputs.shape("x")[1];
    let (mut y, scale) = (inputs.f32("x"), inputs.number("scale") as f32);
    for head in y.chunks_mut(width) {
        (kernels.l2_norm)(head, scale);
    }
    named([("y", widened(&y))])
}

fn convolution(kernels: &Kernels, inputs: &Inputs<'_>) -> Outputs {
    let width = inputs.shape("x")[1];
    let (taps, mut history, x) = (inputs.f32("taps"), inputs.f32("history"), inputs.f32("x"));
    let mut sums = Vec::with_capacity(x.len());
    for newest in x.chunks(width) {
        let window: Vec<&[f32]> = history.chunks(width).chain([newest]).collect();
        let mut out = vec![0.0; width];
        (kernels.convolve)(&window, &taps, &mut out);
        sums.extend(out);
        shift_history(&mut history, newest);
    }
    let mut y = sums.clone();
    (kernels.silu)(kernels, &mut y);
    named([("conv", widened(&sums)), ("y", widened(&y)), ("history", widened(&history))])
}

fn decay(kernels: &Kernels, inputs: &Inputs<'_>) -> Outputs {
    let (z, bias, a_log) = (inputs.f32("z"), inputs.f32("dt_bias"), inputs.f32("a_log"));
    let width = bias.len() / a_log.len();
    let lower_bound = inputs.number("lower_bound") as f32;
    let mut g = vec![0.0; z.len()];
    for (index, (z, out)) in z.chunks(width).zip(g.chunks_mut(width)).enumerate() {
        let head = index % a_log.len();
        let (dt_bias, a_log) = (&bias[head * width..][..width], a_log[head]);
        let inputs = DecayInputs { z, dt_bias, a_log, lower_bound };
        (kernels.log_decay)(kernels, &inputs, out);
    }
    let mut alpha = g.clone();
    (kernels.exp)(&mut alpha);
    named([("g", widened(&g)), ("alpha", widened(&alpha))])
}

fn steps(kernels: &Kernels, inputs: &Inputs<'_>) -> Outputs {
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
            (kernels.kda_step)(state, &step, &mut o[at..at + width]);
        }
    }
    named([("o", widened(&o)), ("state", widened(&state))])
}

fn gated_norm(kernels: &Kernels, inputs: &Inputs<'_>) -> Outputs {
    let (weight, epsilon) = (inputs.f32("weight"), inputs.number("epsilon"));
    let (mut o, mut gate) = (inputs.f32("o"), inputs.f32("gate"));
    for (o, gate) in o.chunks_mut(weight.len()).zip(gate.chunks_mut(weight.len())) {
        (kernels.gated_norm)(kernels, o, (&weight, epsilon), gate);
    }
    named([("y", widened(&o))])
}

fn attention(kernels: &Kernels, inputs: &Inputs<'_>) -> Result<Outputs, SubjectError> {
    let [nope, rope, v] = ["nope", "rope", "v"].map(|name| inputs.number(name) as usize);
    let shape = inputs.shape("q");
    let (tokens, heads) = (shape[0], shape[1]);
    let latent = inputs.shape("cache")[1] - rope;
    let kv_b = Matrix::from_f32(heads * (nope + v), latent, &inputs.f32("kv_b"))
        .map_err(|error| SubjectError::Failed(error.to_string()))?;
    let (q, rows) = (inputs.f32("q"), inputs.f32("cache"));
    let mut o = vec![0.0; tokens * heads * v];
    for (index, out) in o.chunks_mut(v).enumerate() {
        let (token, first) = (index / heads, index % heads * (nope + v));
        let head = HeadAttention {
            query: &q[index * (nope + rope)..][..nope + rope],
            keys: kv_b.view().range(first..first + nope),
            values: kv_b.view().range(first + nope..first + nope + v),
            rows: &rows,
            visible: token + 1,
        };
        (kernels.attend)(kernels, &head, out);
    }
    Ok(named([("o", widened(&o))]))
}

/// The fixture's last source is the running sum, those before it are the banks.
fn residual_mix(kernels: &Kernels, inputs: &Inputs<'_>) -> Outputs {
    let (data, fold) = (inputs.f32("sources"), inputs.f32("fold"));
    let sources: Vec<&[f32]> = data.chunks(fold.len()).collect();
    let mut mix = vec![0.0; fold.len()];
    (kernels.residual_mix)(kernels, &sources, (&fold, inputs.number("epsilon")), &mut mix);
    named([("mix", widened(&mix))])
}

fn router(kernels: &Kernels, inputs: &Inputs<'_>) -> Result<Outputs, SubjectError> {
    let (scores, bias) = (inputs.f32("scores"), inputs.f32("bias"));
    let weighting = Weighting {
        renormalise: inputs.number("renormalize") != 0.0,
        scaling_factor: inputs.number("scaling") as f32,
    };
    let top_k = inputs.number("top_k") as usize;
    let choice = (kernels.choose)(&scores, &bias, top_k, weighting)
        .map_err(|error| SubjectError::Failed(format!("{error:?}")))?;
    let ids = choice.ids.iter().map(|id| *id as f64).collect();
    Ok(named([("ids", ids), ("weights", widened(&choice.weights))]))
}

fn moe_sum(kernels: &Kernels, inputs: &Inputs<'_>) -> Outputs {
    let ids: Vec<usize> = inputs.values("ids").iter().map(|id| *id as usize).collect();
    let (data, weights) = (inputs.f32("outputs"), inputs.f32("weights"));
    let stride = data.len() / ids.len();
    let mut out = vec![0.0; stride];
    (kernels.expert_sum)(&ids, &weights, Vectors::Strided { data: &data, stride }, &mut out);
    named([("sum", widened(&out))])
}
