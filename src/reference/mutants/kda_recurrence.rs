//! Mutants of KDA's recurrence, output and carried state (clauses K9 to K13).

use ndarray::{ArrayViewMut2, Axis, concatenate, s};

use super::super::arithmetic::{decay_rows, product, read, sigmoid, silu, write};
use super::super::formulas::{Formulas, NormSite, RELEASED};
use super::super::kda::StepInputs;
use super::super::released;
use super::super::rows::Rows;
use super::{ReferenceMutant, mutant};

/// S of one head, turned.
fn transpose(state: &mut ArrayViewMut2<'_, f64>) {
    let turned = state.t().to_owned();
    state.assign(&turned);
}

/// β(v − u).
fn delta(s: &StepInputs<'_>, u: &[f64]) -> Vec<f64> {
    s.v.iter().zip(u).map(|(v, u)| s.beta * (v - u)).collect()
}

/// The mutants of this area.
pub(super) const ALL: &[ReferenceMutant] = &[
    mutant(
        "decay-not-applied",
        &["K9"],
        "the state does not decay",
        Formulas {
            delta_step: |state, s| {
                let none = vec![0.0; s.log_decay.len()];
                released::delta_step(state, &StepInputs { log_decay: &none, ..*s })
            },
            ..RELEASED
        },
    ),
    mutant(
        "decay-after-read",
        &["K9"],
        "u is read before the rows decay",
        Formulas {
            delta_step: |state, s| {
                let u = read(state.view(), s.k);
                decay_rows(state, s.log_decay);
                write(state, s.k, &delta(s, &u));
                read(state.view(), s.q)
            },
            ..RELEASED
        },
    ),
    mutant(
        "decay-after-write",
        &["K9"],
        "the rows decay after the write",
        Formulas {
            delta_step: |state, s| {
                let u = read(state.view(), s.k);
                write(state, s.k, &delta(s, &u));
                decay_rows(state, s.log_decay);
                read(state.view(), s.q)
            },
            ..RELEASED
        },
    ),
    mutant(
        "decay-columns",
        &["K9"],
        "the decay is applied to the value index instead of the key index",
        Formulas {
            delta_step: |state, s| {
                transpose(state);
                decay_rows(state, s.log_decay);
                transpose(state);
                let none = vec![0.0; s.log_decay.len()];
                released::delta_step(state, &StepInputs { log_decay: &none, ..*s })
            },
            ..RELEASED
        },
    ),
    mutant(
        "decay-mean-of-head",
        &["K9"],
        "one mean decay per head is applied, as in the scalar-gated delta rule",
        Formulas {
            delta_step: |state, s| {
                let mean = s.log_decay.iter().sum::<f64>() / s.log_decay.len() as f64;
                let even = vec![mean; s.log_decay.len()];
                released::delta_step(state, &StepInputs { log_decay: &even, ..*s })
            },
            ..RELEASED
        },
    ),
    mutant(
        "delta-without-read",
        &["K10"],
        "the write is β·v, without what the state already holds",
        Formulas {
            delta_step: |state, s| {
                decay_rows(state, s.log_decay);
                write(state, s.k, &delta(s, &vec![0.0; s.v.len()]));
                read(state.view(), s.q)
            },
            ..RELEASED
        },
    ),
    mutant(
        "delta-beta-on-v-only",
        &["K10"],
        "β scales v but not what is read",
        Formulas {
            delta_step: |state, s| {
                decay_rows(state, s.log_decay);
                let u = read(state.view(), s.k);
                let delta: Vec<f64> = s.v.iter().zip(&u).map(|(v, u)| s.beta * v - u).collect();
                write(state, s.k, &delta);
                read(state.view(), s.q)
            },
            ..RELEASED
        },
    ),
    mutant(
        "delta-read-added",
        &["K10"],
        "what is read is added to v instead of subtracted",
        Formulas {
            delta_step: |state, s| {
                decay_rows(state, s.log_decay);
                let minus_u: Vec<f64> = read(state.view(), s.k).iter().map(|u| -u).collect();
                write(state, s.k, &delta(s, &minus_u));
                read(state.view(), s.q)
            },
            ..RELEASED
        },
    ),
    mutant(
        "delta-key-query-swapped",
        &["K10"],
        "q and k change places in the recurrence",
        Formulas {
            delta_step: |state, s| {
                released::delta_step(state, &StepInputs { q: s.k, k: s.q, ..*s })
            },
            ..RELEASED
        },
    ),
    mutant(
        "delta-read-with-query",
        &["K10"],
        "u is read with q",
        Formulas {
            delta_step: |state, s| {
                decay_rows(state, s.log_decay);
                let u = read(state.view(), s.q);
                write(state, s.k, &delta(s, &u));
                read(state.view(), s.q)
            },
            ..RELEASED
        },
    ),
    mutant(
        "delta-write-transposed",
        &["K10"],
        "the write is δ ⊗ k",
        Formulas {
            delta_step: |state, s| {
                decay_rows(state, s.log_decay);
                let u = read(state.view(), s.k);
                write(state, &delta(s, &u), s.k);
                read(state.view(), s.q)
            },
            ..RELEASED
        },
    ),
    mutant(
        "output-before-write",
        &["K11"],
        "the output is read before the state is updated",
        Formulas {
            delta_step: |state, s| {
                decay_rows(state, s.log_decay);
                let out = read(state.view(), s.q);
                let u = read(state.view(), s.k);
                write(state, s.k, &delta(s, &u));
                out
            },
            ..RELEASED
        },
    ),
    mutant(
        "output-state-transposed",
        &["K11"],
        "the output is S·q instead of Sᵀq",
        Formulas {
            delta_step: |state, s| {
                released::delta_step(state, s);
                read(state.t(), s.q)
            },
            ..RELEASED
        },
    ),
    mutant(
        "output-with-key",
        &["K11"],
        "the output is read with k",
        Formulas {
            delta_step: |state, s| {
                released::delta_step(state, s);
                read(state.view(), s.k)
            },
            ..RELEASED
        },
    ),
    mutant(
        "kda-gate-before-norm",
        &["K12"],
        "the gate is applied before the norm",
        Formulas {
            kda_output: |formulas, o, o_norm, gate, eps| {
                let gated: Vec<f64> = o.iter().zip(gate).map(|(o, g)| o * sigmoid(*g)).collect();
                released::norm_heads(formulas, &gated, o_norm, eps)
            },
            ..RELEASED
        },
    ),
    mutant(
        "kda-gate-silu",
        &["K12"],
        "the output gate is SiLU, the default of shared code",
        Formulas {
            kda_output: |formulas, o, o_norm, gate, eps| {
                let normed = released::norm_heads(formulas, o, o_norm, eps);
                normed.iter().zip(gate).map(|(o, g)| o * silu(*g)).collect()
            },
            ..RELEASED
        },
    ),
    mutant(
        "kda-gate-skipped",
        &["K12"],
        "the output gate is left out",
        Formulas {
            kda_output: |formulas, o, o_norm, _, eps| {
                released::norm_heads(formulas, o, o_norm, eps)
            },
            ..RELEASED
        },
    ),
    mutant(
        "kda-norm-over-all-heads",
        &["K12"],
        "the output norm takes one mean square over all heads",
        Formulas {
            kda_output: |formulas, o, o_norm, gate, eps| {
                let weights = o_norm.repeat(o.len() / o_norm.len());
                let normed = (formulas.rms_norm)(formulas, NormSite::KdaOutput, o, &weights, eps);
                let gates: Vec<f64> = gate.iter().map(|g| sigmoid(*g)).collect();
                product(&normed, &gates)
            },
            ..RELEASED
        },
    ),
    mutant(
        "kda-state-not-carried",
        &["K13"],
        "the recurrent state is zero at the start of every call",
        Formulas {
            recurrence: |pass, inputs, memory, stages| {
                memory.fill(0.0);
                released::recurrence(pass, inputs, memory, stages)
            },
            ..RELEASED
        },
    ),
    mutant(
        "conv-inputs-not-carried",
        &["K1", "K13"],
        "the convolutions see zeros before every call",
        Formulas { carried_inputs: |history, _| Rows::zeros(history.dim()), ..RELEASED },
    ),
    mutant(
        "conv-inputs-reversed",
        &["K1", "K13"],
        "the carried convolution inputs are kept newest first",
        Formulas {
            carried_inputs: |history, input| {
                let kept = released::carried_inputs(history, input);
                kept.slice(s![..;-1, ..]).as_standard_layout().into_owned()
            },
            ..RELEASED
        },
    ),
    mutant(
        "conv-inputs-overwritten",
        &["K13"],
        "a call shorter than the history overwrites it instead of shifting it",
        Formulas {
            carried_inputs: |history, input| {
                released::carried_inputs(&Rows::zeros(history.dim()), input)
            },
            ..RELEASED
        },
    ),
    mutant(
        "conv-inputs-from-front",
        &["K13"],
        "the first inputs of a call are carried instead of the last",
        Formulas {
            carried_inputs: |history, input| {
                let series = concatenate![Axis(0), *input, *history];
                series.slice(s![..history.nrows(), ..]).to_owned()
            },
            ..RELEASED
        },
    ),
];
