//! Kimi Delta Attention (MODEL.md section 2.3, clauses K1 to K13).
//!
//! Plain steps for all tokens of a call, then the recurrence token by token; its equation is
//! [`super::released::delta_step`]. No chunked form: the state is exactly what one token after the
//! other leaves.

use super::error::ReferenceError;
use super::formulas::{Formulas, NormSite, Part};
use super::layer::Pass;
use super::reader::Reader;
use super::rows::{Matrix, Rows, from_values, map_rows, row, slices, stack, values, values_mut};
use super::stage_hook::Stages;
use ndarray::{Array2, Array3, Axis};

use k3_core::config::RawConfig;
use k3_core::stages::Stage;

/// Weights of one KDA layer. H heads of width D, P = H·D.
#[derive(Debug, Clone)]
pub struct KdaWeights {
    /// `q_proj`, `k_proj`, `v_proj`, each \[P, E\].
    pub projections: [Matrix; 3],
    /// `q_conv1d`, `k_conv1d`, `v_conv1d`, each \[P, kernel\], oldest tap first.
    pub taps: [Array2<f64>; 3],
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
    pub memory: Array3<f64>,
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
    /// D, channels of a head.
    pub head_dim: usize,
    /// `gate_lower_bound`, below 0.
    pub lower_bound: f64,
}

/// The inputs of all tokens to the recurrence.
#[derive(Debug, Clone, PartialEq)]
pub struct RecurrenceInputs {
    /// q (normed and scaled), k (normed) and v, each \[T, P\].
    pub qkv: [Rows; 3],
    /// g \[T, P\].
    pub log_decay: Rows,
    /// β \[T, H\].
    pub beta: Rows,
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
    /// β of the head, in 0 to 1.
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
            let taps = reader.f32_vector(&tensor, &[inner, 1, kernel])?;
            Ok::<_, ReferenceError>(from_values(kernel, taps))
        };
        let stored_a_log = reader.f32_vector(&name("A_log"), &[head_dim])?;
        let a_log = (formulas.decay_rates)(&stored_a_log, heads).map_err(|(index, got)| {
            let what = format!("expected 0, since it is padding, got {got}");
            reader.malformed(&name("A_log"), format!("layer {layer}: A_log[{index}]"), what)
        })?;
        Ok(Self {
            projections: [projection("q")?, projection("k")?, projection("v")?],
            taps: [taps("q")?, taps("k")?, taps("v")?],
            f_a: matrix("f_a_proj", head_dim, width)?,
            f_b: matrix("f_b_proj", inner, head_dim)?,
            b: matrix("b_proj", heads, width)?,
            a_log,
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
        let history = Rows::zeros((config.short_conv_kernel_size - 1, heads * head_dim));
        Self {
            memory: Array3::zeros((heads, head_dim, head_dim)),
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
    let per_channel = [x.nrows(), heads, head_dim];

    // 1, 2. projections, convolutions, SiLU; q and k normed, q scaled
    let mut qkv = [(); 3].map(|()| Rows::default((0, 0)));
    for (index, (part, stage)) in PARTS.into_iter().enumerate() {
        let input = weights.projections[index].apply(x);
        let history = &state.inputs[index];
        let mut heads_of_part = kda_part(pass, part, history, &input, &weights.taps[index]);
        state.inputs[index] = (formulas.carried_inputs)(history, &input);
        stages.put(stage, &per_channel, values_mut(&mut heads_of_part));
        qkv[index] = heads_of_part;
    }

    // 3. decay and write strength
    let mut z = (formulas.decay_input)(weights, x);
    stages.put(Stage::KdaZ, &per_channel, values_mut(&mut z));
    let mut log_decay = log_decay(pass, weights, &z);
    stages.put(Stage::KdaG, &per_channel, values_mut(&mut log_decay));
    let of_head = |logits: &[f64], head| (formulas.beta)(logits, head);
    let of_token = |logits: &[f64]| (0..heads).map(|head| of_head(logits, head)).collect();
    let mut beta = map_rows(&weights.b.apply(x), heads, of_token);
    stages.put_rows(Stage::KdaBeta, &mut beta);

    // 4. the recurrence
    let inputs = RecurrenceInputs { qkv, log_decay, beta };
    let mut o = (formulas.recurrence)(pass, &inputs, &mut state.memory, stages);
    stages.put(Stage::KdaO, &per_channel, values_mut(&mut o));
    let memory = state.memory.as_slice_mut().expect("made row-major");
    stages.put(Stage::KdaState, &[heads, head_dim, head_dim], memory);
    put_inputs(state, stages);

    // 5. norm, then gate, then o_proj
    let eps = pass.norm_eps(NormSite::KdaOutput);
    let gates = weights.gate.apply(x);
    let gated = slices(&o).zip(slices(&gates));
    let gated =
        gated.map(|(o, gate)| (formulas.kda_output)(formulas, o, &weights.o_norm, gate, eps));
    weights.output.apply(&stack(heads * head_dim, gated))
}

/// Convolution, SiLU and the head-wise norm of one of q, k, v; `input` and the result \[T, P\].
fn kda_part(pass: &Pass<'_>, part: Part, history: &Rows, input: &Rows, taps: &Array2<f64>) -> Rows {
    let formulas = pass.formulas;
    let head_dim = pass.config.kda_head_dim;
    let scale = match part {
        Part::Query => (formulas.kda_query_scale)(head_dim),
        Part::Key | Part::Value => 1.0,
    };
    let mut mixed = (formulas.convolve)(part, history, input, taps);
    mixed.mapv_inplace(|value| (formulas.convolution_activation)(part, value));
    map_rows(&mixed, input.ncols(), |row| {
        let heads = row.chunks_exact(head_dim);
        let normed = heads.flat_map(|head| (formulas.kda_head)(formulas, part, head));
        normed.map(|t| t * scale).collect()
    })
}

/// The log decay g of every channel, from z = f_b(f_a x); both \[T, P\].
fn log_decay(pass: &Pass<'_>, weights: &KdaWeights, z: &Rows) -> Rows {
    let head_dim = pass.config.kda_head_dim;
    map_rows(z, z.ncols(), |z| {
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

/// The recurrence: one [`super::released::delta_step`] (K9 to K11) after the other, head by head,
/// from the S \[H, D, D\] that the last call left (K13); gives o \[T, P\].
pub fn recurrence(
    pass: &Pass<'_>,
    inputs: &RecurrenceInputs,
    memory: &mut Array3<f64>,
    stages: &Stages<'_>,
) -> Rows {
    let (head_dim, [q, k, v]) = (pass.config.kda_head_dim, &inputs.qkv);
    let mut o = Rows::zeros(q.dim());
    for token in 0..q.nrows() {
        for (head, mut state) in memory.axis_iter_mut(Axis(0)).enumerate() {
            let of_head = |rows| &row(rows, token)[head * head_dim..][..head_dim];
            let step = StepInputs {
                q: of_head(q),
                k: of_head(k),
                v: of_head(v),
                log_decay: of_head(&inputs.log_decay),
                beta: inputs.beta[[token, head]],
            };
            let out = (pass.formulas.delta_step)(&mut state, &step);
            stages.show(Stage::KdaState, state.as_slice_mut().expect("made row-major"));
            values_mut(&mut o)[token * q.ncols() + head * head_dim..][..head_dim]
                .copy_from_slice(&out);
        }
    }
    o
}

/// The carried convolution inputs as one stage \[3, kernel−1, P\].
fn put_inputs(state: &mut KdaState, stages: &mut Stages<'_>) {
    let shape = [3, state.inputs[0].nrows(), state.inputs[0].ncols()];
    let mut all = state.inputs.each_ref().map(values).concat();
    stages.put(Stage::KdaConv, &shape, &mut all);
    let each = shape[1] * shape[2];
    for (index, inputs) in state.inputs.iter_mut().enumerate() {
        values_mut(inputs).copy_from_slice(&all[index * each..][..each]);
    }
}
