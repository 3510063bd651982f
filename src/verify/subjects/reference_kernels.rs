//! The reference's single operations, for the kernel gates: a fixture case in, outputs out.
//!
//! Every operation goes through the table of formulas, so that a mutant of the reference is a
//! mutant here too. Operations of the arithmetic contract alone (row products, weighted sums) have
//! no counterpart in the reference.

use half::bf16;
use ndarray::{Array3, Axis};

use super::inputs::{Inputs, named};
use crate::subject::{Answer, KernelCase, Outputs, SubjectError};
use k3_core::config::RawConfig;
use k3_reference::arithmetic::weighted_sum;
use k3_reference::formulas::{Formulas, NormSite, Part};
use k3_reference::kda::{DecayInputs, StepInputs};
use k3_reference::moe::decode_mxfp4;
use k3_reference::rows::{Rows, from_values, slices, values, widen};

/// Rows of an input, as wide as its last dimension.
fn rows_of(inputs: &Inputs<'_>, name: &str) -> Rows {
    let width = inputs.shape(name).last().copied().unwrap_or(1);
    from_values(width, inputs.values(name))
}

/// Runs `kernel` on a case; `None` where the reference has no such operation.
pub fn run(formulas: &Formulas, case: KernelCase<'_>) -> Answer {
    let (inputs, config) = (Inputs { tensors: case.inputs }, case.config);
    let outputs = match case.kernel {
        "mxfp4-decode" => return Some(decode(formulas, &inputs)),
        "bf16-widen" => {
            let widen = |code: &f64| widen(bf16::from_bits(*code as u16));
            named([("values", inputs.values("codes").iter().map(widen).collect())])
        }
        "rms-norm" => {
            let (weight, epsilon) = (inputs.values("weight"), inputs.number("epsilon"));
            let norm =
                |x: &[f64]| (formulas.rms_norm)(formulas, NormSite::Input, x, &weight, epsilon);
            named([("y", slices(&rows_of(&inputs, "x")).flat_map(norm).collect())])
        }
        "l2-norm" => {
            let scale = inputs.number("scale");
            let norm = |x: &[f64]| (formulas.l2_norm)(x).into_iter().map(move |y| y * scale);
            let rows = rows_of(&inputs, "x");
            named([("y", slices(&rows).flat_map(norm).collect())])
        }
        "convolution" => convolution(formulas, &inputs),
        "kda-decay" => decay(formulas, &inputs),
        "kda-steps" => steps(formulas, &inputs),
        "gated-norm" => gated_norm(formulas, &inputs),
        "softmax-sum" => {
            let weights = (formulas.attention_weights)(&inputs.values("scores"));
            let values = rows_of(&inputs, "values");
            let rows: Vec<&[f64]> = slices(&values).collect();
            named([("sum", weighted_sum(&rows, &weights, values.ncols()))])
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
    let taps = from_values(history.nrows() + 1, inputs.values("taps"));
    let sums = (formulas.convolve)(Part::Query, &history, &x, &taps);
    let activated = sums.mapv(|v| (formulas.convolution_activation)(Part::Query, v));
    let kept = (formulas.carried_inputs)(&history, &x);
    let out = [("conv", sums), ("y", activated), ("history", kept)];
    named(out.map(|(name, rows)| (name, values(&rows).to_vec())))
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
    let state = inputs.values("state");
    let mut state = Array3::from_shape_vec((heads, width, width), state).expect("S of every head");
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
            o.extend((formulas.delta_step)(&mut state.index_axis_mut(Axis(0), head), &step));
        }
    }
    named([("o", o), ("state", state.into_iter().collect())])
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
    let sources: Vec<&[f64]> = slices(&sources).collect();
    let score = |source: &&[f64]| (formulas.mix_score)(formulas, site, source, &fold, epsilon);
    let scores: Vec<f64> = sources.iter().map(score).collect();
    let weights = (formulas.mix_weights)(&scores);
    let mix = (formulas.mix)(formulas, site, &sources, &fold, epsilon);
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
