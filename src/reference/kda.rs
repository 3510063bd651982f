//! Kimi Delta Attention (MODEL.md section 2.3, clauses K1 to K13).
//!
//! Plain steps for all tokens of a call, then the recurrence token by token. No chunked form: the
//! state is exactly what one token after the other leaves.

use super::error::ReferenceError;
use super::formulas::{Formulas, NormSite, Part};
use super::layer::Pass;
use super::reader::Reader;
use super::rows::{Matrix, Rows};
use super::stage_hook::Stages;
use k3_core::config::RawConfig;
use k3_core::stages::Stage;

/// Weights of one KDA layer. H heads of width D, P = H·D.
#[derive(Debug, Clone)]
pub struct KdaWeights {
    /// `q_proj`, `k_proj`, `v_proj`, each \[P, E\].
    pub projections: [Matrix; 3],
    /// `q_conv1d`, `k_conv1d`, `v_conv1d`, each \[P, kernel\], oldest tap first.
    pub taps: [Vec<f64>; 3],
    /// `f_a_proj` \[D, E\].
    pub f_a: Matrix,
    /// `f_b_proj` \[P, D\].
    pub f_b: Matrix,
    /// `b_proj` \[H, E\].
    pub b: Matrix,
    /// `A_log` \[H\], without its padding.
    pub a_log: Vec<f64>,
    /// `dt_bias` \[P\].
    pub dt_bias: Vec<f64>,
    /// `g_proj` \[P, E\].
    pub gate: Matrix,
    /// `o_norm` \[D\].
    pub o_norm: Vec<f64>,
    /// `o_proj` \[E, P\].
    pub output: Matrix,
}

/// What KDA carries between calls (clause K13).
#[derive(Debug, Clone, PartialEq)]
pub struct KdaState {
    /// S \[H, D, D\], rows = key index.
    pub memory: Vec<f64>,
    /// The last kernel−1 inputs of the q, k, v convolutions \[kernel−1, P\], oldest first.
    pub inputs: [Rows; 3],
}

/// What the log decay of one channel is computed from.
#[derive(Debug, Clone, Copy)]
pub struct DecayInputs<'a> {
    /// f_b(f_a x) \[P\].
    pub z: &'a [f64],
    /// \[P\].
    pub dt_bias: &'a [f64],
    /// \[H\].
    pub a_log: &'a [f64],
    /// Head of the channel.
    pub head: usize,
    /// Channel within the head.
    pub channel: usize,
    /// D.
    pub head_dim: usize,
    /// `gate_lower_bound`.
    pub lower_bound: f64,
}

/// One token's inputs to the recurrence of one head.
#[derive(Debug, Clone, Copy)]
pub struct StepInputs<'a> {
    /// Normed and scaled \[D\].
    pub q: &'a [f64],
    /// Normed \[D\].
    pub k: &'a [f64],
    /// \[D\].
    pub v: &'a [f64],
    /// g \[D\], by key index.
    pub log_decay: &'a [f64],
    /// Write strength.
    pub beta: f64,
}

const PARTS: [(Part, Stage); 3] =
    [(Part::Query, Stage::KdaQ), (Part::Key, Stage::KdaK), (Part::Value, Stage::KdaV)];

impl KdaWeights {
    /// Reads the `self_attn.*` tensors below `prefix` (`…layers.N.`) of layer `layer`.
    ///
    /// # Errors
    /// A tensor is missing or not as the config implies, or the padding of `A_log` is not zero.
    pub fn load(
        reader: &Reader,
        config: &RawConfig,
        formulas: &Formulas,
        layer: usize,
        prefix: &str,
    ) -> Result<Self, ReferenceError> {
        let width = config.hidden_size;
        let (heads, head_dim) = (config.kda_num_heads, config.kda_head_dim);
        let (inner, kernel) = (heads * head_dim, config.short_conv_kernel_size);
        let name = |rest: &str| format!("{prefix}self_attn.{rest}");
        let matrix = |rest: &str, rows, columns| {
            reader.bf16_matrix(&name(&format!("{rest}.weight")), rows, columns)
        };
        let projection = |part: &str| matrix(&format!("{part}_proj"), inner, width);
        let taps = |part: &str| {
            let tensor = name(&format!("{part}_conv1d.weight"));
            reader.f32_vector(&tensor, &[inner, 1, kernel])
        };
        let stored_a_log = reader.f32_vector(&name("A_log"), &[head_dim])?;
        Ok(Self {
            projections: [projection("q")?, projection("k")?, projection("v")?],
            taps: [taps("q")?, taps("k")?, taps("v")?],
            f_a: matrix("f_a_proj", head_dim, width)?,
            f_b: matrix("f_b_proj", inner, head_dim)?,
            b: matrix("b_proj", heads, width)?,
            a_log: (formulas.decay_rates)(layer, &stored_a_log, heads)?,
            dt_bias: reader.f32_vector(&name("dt_bias"), &[inner])?,
            gate: matrix("g_proj", inner, width)?,
            o_norm: reader.f32_vector(&name("o_norm.weight"), &[head_dim])?,
            output: matrix("o_proj", width, inner)?,
        })
    }
}

impl KdaState {
    /// The state before the first token: zeros.
    #[must_use]
    pub fn new(config: &RawConfig) -> Self {
        let (heads, head_dim) = (config.kda_num_heads, config.kda_head_dim);
        let history = Rows::zeros(config.short_conv_kernel_size - 1, heads * head_dim);
        Self {
            memory: vec![0.0; heads * head_dim * head_dim],
            inputs: [history.clone(), history.clone(), history],
        }
    }
}

/// KDA over `x` \[T, E\], the normed input; gives \[T, E\] and leaves the new state.
pub fn kda(
    pass: &Pass<'_>,
    weights: &KdaWeights,
    x: &Rows,
    state: &mut KdaState,
    stages: &mut Stages<'_>,
) -> Rows {
    let (heads, head_dim) = (pass.config.kda_num_heads, pass.config.kda_head_dim);
    let formulas = pass.formulas;
    let per_channel = [x.count(), heads, head_dim];

    // 1, 2. projections, convolutions, SiLU; q and k normed, q scaled
    let mut qkv = [(); 3].map(|()| Rows::empty(heads * head_dim));
    for (index, (part, stage)) in PARTS.into_iter().enumerate() {
        let input = weights.projections[index].apply(x);
        let history = &state.inputs[index];
        let mut heads_of_part = kda_part(pass, part, history, &input, &weights.taps[index]);
        state.inputs[index] = (formulas.carried_inputs)(history, &input);
        stages.put(stage, &per_channel, &mut heads_of_part.values);
        qkv[index] = heads_of_part;
    }

    // 3. decay and write strength
    let hidden = weights.f_a.apply(x);
    let hidden = hidden.map(head_dim, |row| (formulas.decay_hidden)(row.to_vec()));
    let mut z = weights.f_b.apply(&hidden);
    stages.put(Stage::KdaZ, &per_channel, &mut z.values);
    let mut log_decay = log_decay(pass, weights, &z);
    stages.put(Stage::KdaG, &per_channel, &mut log_decay.values);
    let logits = weights.b.apply(x);
    let of_head = |logits: &[f64], head| (formulas.beta)(logits, head);
    let mut beta = logits.map(heads, |l| (0..heads).map(|head| of_head(l, head)).collect());
    stages.put_rows(Stage::KdaBeta, &mut beta);

    // 4. the recurrence
    let mut o = recurrence(pass, &qkv, &log_decay, &beta, &mut state.memory, stages);
    stages.put(Stage::KdaO, &per_channel, &mut o.values);
    let shape = [heads, head_dim, head_dim];
    stages.put(Stage::KdaState, &shape, &mut state.memory);
    put_inputs(state, stages);

    // 5. norm, then gate, then o_proj
    let eps = pass.norm_eps(NormSite::KdaOutput);
    let gates = weights.gate.apply(x);
    let mut gated = Rows::empty(heads * head_dim);
    for (o, gate) in o.iter().zip(gates.iter()) {
        gated.push(&(formulas.kda_output)(formulas, o, &weights.o_norm, gate, eps));
    }
    weights.output.apply(&gated)
}

/// Convolution, SiLU and the head-wise norm of one of q, k, v; `input` and the result \[T, P\].
fn kda_part(pass: &Pass<'_>, part: Part, history: &Rows, input: &Rows, taps: &[f64]) -> Rows {
    let formulas = pass.formulas;
    let head_dim = pass.config.kda_head_dim;
    let scale = match part {
        Part::Query => (formulas.kda_query_scale)(head_dim),
        Part::Key | Part::Value => 1.0,
    };
    let mut mixed = (formulas.convolve)(part, history, input, taps);
    for value in &mut mixed.values {
        *value = (formulas.convolution_activation)(part, *value);
    }
    mixed.map(input.width, |row| {
        let heads = row.chunks_exact(head_dim);
        let normed = heads.flat_map(|head| (formulas.kda_head)(formulas, part, head));
        normed.map(|t| t * scale).collect()
    })
}

/// The log decay g of every channel, from z = f_b(f_a x); both \[T, P\].
fn log_decay(pass: &Pass<'_>, weights: &KdaWeights, z: &Rows) -> Rows {
    let head_dim = pass.config.kda_head_dim;
    z.map(z.width, |z| {
        let channel = |p: usize| {
            (pass.formulas.log_decay)(&DecayInputs {
                z,
                dt_bias: &weights.dt_bias,
                a_log: &weights.a_log,
                head: p / head_dim,
                channel: p % head_dim,
                head_dim,
                lower_bound: pass.config.gate_lower_bound,
            })
        };
        (0..z.len()).map(channel).collect()
    })
}

/// The delta rule, token by token, head by head; gives o \[T, P\].
fn recurrence(
    pass: &Pass<'_>,
    [q, k, v]: &[Rows; 3],
    log_decay: &Rows,
    beta: &Rows,
    memory: &mut [f64],
    stages: &Stages<'_>,
) -> Rows {
    let head_dim = pass.config.kda_head_dim;
    let mut o = Rows::zeros(q.count(), q.width);
    (pass.formulas.carried_memory)(memory);
    for token in 0..q.count() {
        for (head, state) in memory.chunks_exact_mut(head_dim * head_dim).enumerate() {
            let channels = head * head_dim..(head + 1) * head_dim;
            let inputs = StepInputs {
                q: &q.row(token)[channels.clone()],
                k: &k.row(token)[channels.clone()],
                v: &v.row(token)[channels.clone()],
                log_decay: &log_decay.row(token)[channels.clone()],
                beta: beta.row(token)[head],
            };
            let out = (pass.formulas.delta_step)(state, &inputs);
            o.row_mut(token)[channels].copy_from_slice(&out);
            stages.show(Stage::KdaState, state);
        }
    }
    o
}

/// The carried convolution inputs as one stage \[3, kernel−1, P\].
fn put_inputs(state: &mut KdaState, stages: &mut Stages<'_>) {
    let [q, k, v] = &mut state.inputs;
    let shape = [3, q.count(), q.width];
    let mut values = [&q.values[..], &k.values, &v.values].concat();
    stages.put(Stage::KdaConv, &shape, &mut values);
    let each = shape[1] * shape[2];
    for (index, inputs) in [q, k, v].into_iter().enumerate() {
        let kept = &values[index * each..][..each];
        inputs.values.copy_from_slice(kept);
    }
}
