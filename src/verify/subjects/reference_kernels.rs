//! The reference's single operations, for the kernel gates: a fixture case in, outputs out.
//!
//! Every operation goes through the table of formulas, so that a mutant of the reference is a
//! mutant here too. Operations of the arithmetic contract alone (row products, weighted sums) have
//! no counterpart in the reference.

use super::inputs::{Inputs, named};
use crate::subject::{Answer, KernelCase, Outputs, SubjectError};
use k3_core::config::RawConfig;
use k3_reference::formulas::{Formulas, NormSite, Part};
use k3_reference::kda::{DecayInputs, StepInputs};
use k3_reference::moe::decode_mxfp4;
use k3_reference::rows::{Rows, bf16_to_f64};

/// Rows of an input, as wide as its last dimension.
fn rows_of(inputs: &Inputs<'_>, name: &str) -> Rows {
    let width = inputs.shape(name).last().copied().unwrap_or(1);
    Rows { width, values: inputs.values(name) }
}

/// Runs `kernel` on a case; `None` where the reference has no such operation.
pub fn run(formulas: &Formulas, case: KernelCase<'_>) -> Answer {
    let (inputs, config) = (Inputs { tensors: case.inputs }, case.config);
    let outputs = match case.kernel {
        "mxfp4-decode" => return Some(decode(formulas, &inputs)),
        "bf16-widen" => {
            let widen = |code: &f64| bf16_to_f64(*code as u16);
            named([("values", inputs.values("codes").iter().map(widen).collect())])
        }
        "rms-norm" => {
            let (weight, epsilon) = (inputs.values("weight"), inputs.number("epsilon"));
            let norm =
                |x: &[f64]| (formulas.rms_norm)(formulas, NormSite::Input, x, &weight, epsilon);
            named([("y", rows_of(&inputs, "x").iter().flat_map(norm).collect())])
        }
        "l2-norm" => {
            let scale = inputs.number("scale");
            let norm = |x: &[f64]| (formulas.l2_norm)(x).into_iter().map(|y| y * scale);
            let rows = rows_of(&inputs, "x");
            named([("y", rows.iter().flat_map(|x| norm(x).collect::<Vec<_>>()).collect())])
        }
        "convolution" => convolution(formulas, &inputs),
        "kda-decay" => decay(formulas, &inputs),
        "kda-steps" => steps(formulas, &inputs),
        "gated-norm" => gated_norm(formulas, &inputs),
        "softmax-sum" => {
            let weights = (formulas.attention_weights)(&inputs.values("scores"));
            named([("sum", weighted_sum(&weights, &rows_of(&inputs, "values")))])
        }
        "residual-mix" => residual_mix(formulas, &inputs),
        "router" => router(formulas, &inputs, config),
        "situ" => {
            let (beta, linear) = (inputs.number("beta"), inputs.number("linear_beta"));
            let (gate, up) = (inputs.values("gate"), inputs.values("up"));
            let situ = |(g, u): (&f64, &f64)| (formulas.situ)(*g, *u, beta, linear);
            named([("y", gate.iter().zip(&up).map(situ).collect())])
        }
        _ => return None,
    };
    Some(Ok(outputs))
}

fn weighted_sum(weights: &[f64], values: &Rows) -> Vec<f64> {
    let column = |j: usize| weights.iter().zip(values.iter()).map(|(w, row)| w * row[j]).sum();
    (0..values.width).map(column).collect()
}

fn decode(formulas: &Formulas, inputs: &Inputs<'_>) -> Result<Outputs, SubjectError> {
    let columns = inputs.shape("packed").last().copied().unwrap_or(0) * 2;
    decode_mxfp4(formulas, columns, &inputs.bytes("packed"), &inputs.bytes("scales"))
        .map(|values| named([("values", values)]))
        .map_err(|(row, group)| {
            SubjectError::Failed(format!("scale byte 255 at row {row}, group {group}"))
        })
}

fn convolution(formulas: &Formulas, inputs: &Inputs<'_>) -> Outputs {
    let (history, x) = (rows_of(inputs, "history"), rows_of(inputs, "x"));
    let sums = (formulas.convolve)(Part::Query, &history, &x, &inputs.values("taps"));
    let activated =
        sums.values.iter().map(|v| (formulas.convolution_activation)(Part::Query, *v)).collect();
    let kept = (formulas.carried_inputs)(&history, &x);
    named([("conv", sums.values), ("y", activated), ("history", kept.values)])
}

fn decay(formulas: &Formulas, inputs: &Inputs<'_>) -> Outputs {
    let (bias, mut a_log) = (inputs.values("dt_bias"), inputs.values("a_log"));
    let (z, lower_bound) = (inputs.values("z"), inputs.number("lower_bound"));
    let head_dim = bias.len() / a_log.len();
    // As stored on disk, where the heads' values are followed by zeros up to the head width.
    a_log.resize(a_log.len().max(head_dim), 0.0);
    let mut g = Vec::with_capacity(z.len());
    for z in z.chunks(bias.len()) {
        for index in 0..bias.len() {
            let (head, channel) = (index / head_dim, index % head_dim);
            let of_channel = DecayInputs {
                z,
                dt_bias: &bias,
                a_log: &a_log,
                head,
                channel,
                head_dim,
                lower_bound,
            };
            g.push((formulas.log_decay)(&of_channel));
        }
    }
    let alpha = g.iter().map(|g| g.exp()).collect();
    named([("g", g), ("alpha", alpha)])
}

fn steps(formulas: &Formulas, inputs: &Inputs<'_>) -> Outputs {
    let shape = inputs.shape("q");
    let [tokens, heads, width] = [shape[0], shape[1], shape[2]];
    let [q, k, v] = ["q", "k", "v"].map(|name| inputs.values(name));
    let log_decay: Vec<f64> = inputs.values("alpha").iter().map(|alpha| alpha.ln()).collect();
    let beta = inputs.values("beta");
    let mut state = inputs.values("state");
    let mut o = Vec::with_capacity(v.len());
    for token in 0..tokens {
        for head in 0..heads {
            let at = (token * heads + head) * width;
            let step = StepInputs {
                q: &q[at..at + width],
                k: &k[at..at + width],
                v: &v[at..at + width],
                log_decay: &log_decay[at..at + width],
                beta: beta[token * heads + head],
            };
            let square = width * width;
            o.extend((formulas.delta_step)(&mut state[head * square..][..square], &step));
        }
    }
    named([("o", o), ("state", state)])
}

fn gated_norm(formulas: &Formulas, inputs: &Inputs<'_>) -> Outputs {
    let (weight, epsilon) = (inputs.values("weight"), inputs.number("epsilon"));
    let shape = inputs.shape("o");
    let width = shape[1] * shape[2];
    let (o, gate) = (inputs.values("o"), inputs.values("gate"));
    let tokens = o.chunks(width).zip(gate.chunks(width));
    let output = |(o, g)| (formulas.kda_output)(formulas, o, &weight, g, epsilon);
    named([("y", tokens.flat_map(output).collect())])
}

fn residual_mix(formulas: &Formulas, inputs: &Inputs<'_>) -> Outputs {
    let (sources, fold) = (rows_of(inputs, "sources"), inputs.values("fold"));
    let (site, epsilon) = (NormSite::MlpMix, inputs.number("epsilon"));
    let score = |source: &[f64]| (formulas.mix_score)(formulas, site, source, &fold, epsilon);
    let scores: Vec<f64> = sources.iter().map(score).collect();
    let weights = (formulas.mix_weights)(&scores);
    let value = |source: &[f64]| (formulas.mix_value)(site, source, epsilon);
    let values = Rows { width: sources.width, values: sources.iter().flat_map(value).collect() };
    let mix = weighted_sum(&weights, &values);
    named([("mix", mix), ("weights", weights)])
}

fn router(formulas: &Formulas, inputs: &Inputs<'_>, config: &RawConfig) -> Outputs {
    let (scores, bias) = (inputs.values("scores"), inputs.values("bias"));
    let mut config = config.clone();
    config.num_experts_per_token = inputs.number("top_k") as usize;
    config.moe_renormalize = inputs.number("renormalize") != 0.0;
    config.routed_scaling_factor = inputs.number("scaling");
    let mut chosen = (formulas.select)(&scores, &bias, config.num_experts_per_token);
    chosen.sort_unstable();
    let weights = (formulas.routing_weights)(&scores, &bias, &chosen, &config);
    let ids = chosen.iter().map(|id| *id as f64).collect();
    named([("ids", ids), ("weights", weights)])
}
