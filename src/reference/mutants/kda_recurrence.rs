//! Mutants of KDA's recurrence, output and carried state (clauses K9 to K13).

use super::super::formulas::{
    Formulas, NormSite, Released, decay_rows, product, read, sigmoid, silu, write,
};
use super::super::kda::StepInputs;
use super::super::rows::Rows;
use super::ReferenceMutant;

/// S of one head, turned.
fn transpose(state: &mut [f64], width: usize) {
    for i in 0..width {
        for j in 0..i {
            state.swap(i * width + j, j * width + i);
        }
    }
}

/// β(v − u).
fn delta(s: &StepInputs<'_>, u: &[f64]) -> Vec<f64> {
    s.v.iter().zip(u).map(|(v, u)| s.beta * (v - u)).collect()
}

/// S·x, which is Sᵀx of the turned state.
fn read_turned(state: &[f64], x: &[f64]) -> Vec<f64> {
    let mut turned = state.to_vec();
    transpose(&mut turned, x.len());
    read(&turned, x)
}

mutants! {
    NoDecay "decay-not-applied" [K9]
    "the state does not decay" {
        fn delta_step(&self, state: &mut [f64], s: &StepInputs<'_>) -> Vec<f64> {
            let none = vec![0.0; s.log_decay.len()];
            Released.delta_step(state, &StepInputs { log_decay: &none, ..*s })
        }
    }

    DecayAfterRead "decay-after-read" [K9]
    "u is read before the rows decay" {
        fn delta_step(&self, state: &mut [f64], s: &StepInputs<'_>) -> Vec<f64> {
            let u = read(state, s.k);
            decay_rows(state, s.log_decay);
            write(state, s.k, &delta(s, &u));
            read(state, s.q)
        }
    }

    DecayAfterWrite "decay-after-write" [K9]
    "the rows decay after the write" {
        fn delta_step(&self, state: &mut [f64], s: &StepInputs<'_>) -> Vec<f64> {
            let u = read(state, s.k);
            write(state, s.k, &delta(s, &u));
            decay_rows(state, s.log_decay);
            read(state, s.q)
        }
    }

    DecayColumns "decay-columns" [K9]
    "the decay is applied to the value index instead of the key index" {
        fn delta_step(&self, state: &mut [f64], s: &StepInputs<'_>) -> Vec<f64> {
            transpose(state, s.k.len());
            decay_rows(state, s.log_decay);
            transpose(state, s.k.len());
            let none = vec![0.0; s.log_decay.len()];
            Released.delta_step(state, &StepInputs { log_decay: &none, ..*s })
        }
    }

    DecayPerHead "decay-mean-of-head" [K9]
    "one mean decay per head is applied, as in the scalar-gated delta rule" {
        fn delta_step(&self, state: &mut [f64], s: &StepInputs<'_>) -> Vec<f64> {
            let mean = s.log_decay.iter().sum::<f64>() / s.log_decay.len() as f64;
            let even = vec![mean; s.log_decay.len()];
            Released.delta_step(state, &StepInputs { log_decay: &even, ..*s })
        }
    }

    NoRead "delta-without-read" [K10]
    "the write is β·v, without what the state already holds" {
        fn delta_step(&self, state: &mut [f64], s: &StepInputs<'_>) -> Vec<f64> {
            decay_rows(state, s.log_decay);
            write(state, s.k, &delta(s, &vec![0.0; s.v.len()]));
            read(state, s.q)
        }
    }

    BetaOnValueOnly "delta-beta-on-v-only" [K10]
    "β scales v but not what is read" {
        fn delta_step(&self, state: &mut [f64], s: &StepInputs<'_>) -> Vec<f64> {
            decay_rows(state, s.log_decay);
            let u = read(state, s.k);
            let delta: Vec<f64> = s.v.iter().zip(&u).map(|(v, u)| s.beta * v - u).collect();
            write(state, s.k, &delta);
            read(state, s.q)
        }
    }

    ReadAdded "delta-read-added" [K10]
    "what is read is added to v instead of subtracted" {
        fn delta_step(&self, state: &mut [f64], s: &StepInputs<'_>) -> Vec<f64> {
            decay_rows(state, s.log_decay);
            let minus_u: Vec<f64> = read(state, s.k).iter().map(|u| -u).collect();
            write(state, s.k, &delta(s, &minus_u));
            read(state, s.q)
        }
    }

    KeyAndQuerySwapped "delta-key-query-swapped" [K10]
    "q and k change places in the recurrence" {
        fn delta_step(&self, state: &mut [f64], s: &StepInputs<'_>) -> Vec<f64> {
            Released.delta_step(state, &StepInputs { q: s.k, k: s.q, ..*s })
        }
    }

    ReadWithQuery "delta-read-with-query" [K10]
    "u is read with q" {
        fn delta_step(&self, state: &mut [f64], s: &StepInputs<'_>) -> Vec<f64> {
            decay_rows(state, s.log_decay);
            let u = read(state, s.q);
            write(state, s.k, &delta(s, &u));
            read(state, s.q)
        }
    }

    WriteTransposed "delta-write-transposed" [K10]
    "the write is δ ⊗ k" {
        fn delta_step(&self, state: &mut [f64], s: &StepInputs<'_>) -> Vec<f64> {
            decay_rows(state, s.log_decay);
            let u = read(state, s.k);
            write(state, &delta(s, &u), s.k);
            read(state, s.q)
        }
    }

    OutputBeforeWrite "output-before-write" [K11]
    "the output is read before the state is updated" {
        fn delta_step(&self, state: &mut [f64], s: &StepInputs<'_>) -> Vec<f64> {
            decay_rows(state, s.log_decay);
            let out = read(state, s.q);
            let u = read(state, s.k);
            write(state, s.k, &delta(s, &u));
            out
        }
    }

    OutputTransposed "output-state-transposed" [K11]
    "the output is S·q instead of Sᵀq" {
        fn delta_step(&self, state: &mut [f64], s: &StepInputs<'_>) -> Vec<f64> {
            Released.delta_step(state, s);
            read_turned(state, s.q)
        }
    }

    OutputWithKey "output-with-key" [K11]
    "the output is read with k" {
        fn delta_step(&self, state: &mut [f64], s: &StepInputs<'_>) -> Vec<f64> {
            Released.delta_step(state, s);
            read(state, s.k)
        }
    }

    GateBeforeNorm "kda-gate-before-norm" [K12]
    "the gate is applied before the norm" {
        fn kda_output(&self, o: &[f64], o_norm: &[f64], gate: &[f64], eps: f64) -> Vec<f64> {
            let gated: Vec<f64> = o.iter().zip(gate).map(|(o, g)| o * sigmoid(*g)).collect();
            let heads = gated.chunks_exact(o_norm.len());
            heads.flat_map(|o| self.rms_norm(NormSite::KdaOutput, o, o_norm, eps)).collect()
        }
    }

    SiluGate "kda-gate-silu" [K12]
    "the output gate is SiLU, the default of shared code" {
        fn kda_output(&self, o: &[f64], o_norm: &[f64], gate: &[f64], eps: f64) -> Vec<f64> {
            let heads = o.chunks_exact(o_norm.len());
            let normed = heads.flat_map(|o| self.rms_norm(NormSite::KdaOutput, o, o_norm, eps));
            normed.zip(gate).map(|(o, g)| o * silu(*g)).collect()
        }
    }

    NoKdaGate "kda-gate-skipped" [K12]
    "the output gate is left out" {
        fn kda_output(&self, o: &[f64], o_norm: &[f64], _gate: &[f64], eps: f64) -> Vec<f64> {
            let heads = o.chunks_exact(o_norm.len());
            heads.flat_map(|o| self.rms_norm(NormSite::KdaOutput, o, o_norm, eps)).collect()
        }
    }

    NormOverAllHeads "kda-norm-over-all-heads" [K12]
    "the output norm takes one mean square over all heads" {
        fn kda_output(&self, o: &[f64], o_norm: &[f64], gate: &[f64], eps: f64) -> Vec<f64> {
            let weights = o_norm.repeat(o.len() / o_norm.len());
            let normed = self.rms_norm(NormSite::KdaOutput, o, &weights, eps);
            let gates: Vec<f64> = gate.iter().map(|g| sigmoid(*g)).collect();
            product(&normed, &gates)
        }
    }

    StateNotCarried "kda-state-not-carried" [K13]
    "the recurrent state is zero at the start of every call" {
        fn carried_memory(&self, memory: &mut [f64]) {
            memory.fill(0.0);
        }
    }

    InputsNotCarried "conv-inputs-not-carried" [K1 K13]
    "the convolutions see zeros before every call" {
        fn carried_inputs(&self, history: &Rows, input: &Rows) -> Rows {
            Rows::zeros(history.count(), input.width)
        }
    }

    InputsReversed "conv-inputs-reversed" [K1 K13]
    "the carried convolution inputs are kept newest first" {
        fn carried_inputs(&self, history: &Rows, input: &Rows) -> Rows {
            let kept = Released.carried_inputs(history, input);
            let mut reversed = Rows::empty(kept.width);
            for row in kept.iter().rev() {
                reversed.push(row);
            }
            reversed
        }
    }

    InputsOverwritten "conv-inputs-overwritten" [K13]
    "a call shorter than the history overwrites it instead of shifting it" {
        fn carried_inputs(&self, history: &Rows, input: &Rows) -> Rows {
            Released.carried_inputs(&Rows::zeros(history.count(), history.width), input)
        }
    }

    InputsFromFront "conv-inputs-from-front" [K13]
    "the first inputs of a call are carried instead of the last" {
        fn carried_inputs(&self, history: &Rows, input: &Rows) -> Rows {
            let mut kept = Rows::empty(input.width);
            for row in input.iter().chain(history.iter()).take(history.count()) {
                kept.push(row);
            }
            kept
        }
    }
}
