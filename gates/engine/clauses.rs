//! Single operations on values worked out by hand or taken from the trials.

use approx::assert_abs_diff_eq;
use k3_engine::kernels::kda::DecayInputs;
use k3_engine::kernels::rows::Row;
use k3_engine::kernels::table::Kernels;

const KERNELS: Kernels = Kernels::SCALAR;

fn log_decay(z: &[f32], a_log: f32) -> Vec<f32> {
    let mut g = vec![9.0; z.len()];
    let dt_bias = vec![0.0; z.len()];
    let inputs = DecayInputs { z, dt_bias: &dt_bias, a_log, lower_bound: -5.0 };
    (KERNELS.log_decay)(&KERNELS, &inputs, &mut g);
    g
}

/// A01: the older softplus decay gives −0.313262, −0.693147, −1.313262 here.
#[test]
fn a01_decay_is_bound_times_sigmoid() {
    let g = log_decay(&[-1.0, 0.0, 1.0], 0.0);
    assert_abs_diff_eq!(g[..], [-1.344_707, -2.5, -3.655_293], epsilon = 1e-6);
}

/// A02: `dt_bias` is per channel and `A_log` per head: one changed channel moves one channel.
#[test]
fn a02_bias_is_per_channel() {
    let decay = |bias: [f32; 4]| {
        let mut g = [0.0; 4];
        let inputs = DecayInputs { z: &[0.5; 4], dt_bias: &bias, a_log: 0.25, lower_bound: -5.0 };
        (KERNELS.log_decay)(&KERNELS, &inputs, &mut g);
        g
    };
    let (plain, changed) = (decay([0.0; 4]), decay([0.0, 0.0, 0.0, 1.0]));
    assert_eq!(plain[..3], changed[..3]);
    assert!(changed[3] < plain[3]);
    assert_eq!(plain[0], log_decay(&[0.5], 0.25)[0]);
}

/// A strongly retaining channel saturates at α = 1 exactly, a forgetting one at the bound.
#[test]
fn decay_saturates_at_one_and_at_the_bound() {
    let mut g = log_decay(&[-200.0, -90.0, 200.0, 30.0], 0.0);
    assert!(g[1] < 0.0, "sigma(-90) is a subnormal, not zero");
    assert_eq!(g[2..], [-5.0, -5.0]);
    (KERNELS.exp)(&mut g);
    assert_eq!(g[..2], [1.0, 1.0]);
}

/// A07: norm first, then a sigmoid gate; SiLU gives 0 and −0.142278.
#[test]
fn a07_output_gate_is_a_sigmoid_after_the_norm() {
    for (gate, expected) in [(0.0, 0.5), (-3.0, 0.047_426)] {
        let (mut o, mut gate) = ([2.0_f32], [gate]);
        (KERNELS.gated_norm)(&KERNELS, &mut o, (&[1.0], 0.0), &mut gate);
        assert_abs_diff_eq!(o[0], expected, epsilon = 1e-6);
    }
}

/// S1, S2: σ takes the uncapped gate, both caps hold: |out| ≤ 100.
#[test]
fn situ_caps_and_uncapped_gate() {
    let caps = k3_engine::kernels::situ::Caps { beta: 4.0, linear_beta: 25.0 };
    let situ = |gate: f32, up: f32| {
        let mut out = [0.0];
        (KERNELS.situ)(&KERNELS, &[gate], &[up], caps, &mut out);
        out[0]
    };
    assert_eq!(situ(1e9, 1e9), 100.0);
    assert_eq!(situ(1e9, -1e9), -100.0);
    // 4·tanh(2)·σ(8)·25·tanh(0.2), from a calculation with 30 digits; a capped σ gives 18.633.
    assert_abs_diff_eq!(situ(8.0, 5.0), 19.021_144, epsilon = 1e-5);
    // The width is no multiple of the block.
    let mut out = vec![0.0; 131];
    (KERNELS.situ)(&KERNELS, &[8.0; 131], &[5.0; 131], caps, &mut out);
    assert!(out.iter().all(|value| *value == situ(8.0, 5.0)));
}

/// A18: widths that are no power of two read nothing past the row.
#[test]
fn a18_head_width_sixty_with_guards() {
    let mut guarded = vec![f32::NAN; 80];
    guarded[..60].fill(0.5);
    assert_eq!((KERNELS.row_sum)(Row::F32(&guarded[..60]), &guarded[..60]), 15.0);
    (KERNELS.l2_norm)(&mut guarded[..60], 1.0);
    assert!(guarded[..60].iter().all(|value| value.is_finite()));
    assert!(guarded[60..].iter().all(|value| value.is_nan()));
    let mut out = vec![0.0; 60];
    (KERNELS.rms_norm)(&guarded[..60], &[1.0; 60], 1e-5, &mut out);
    assert!(out.iter().all(|value| value.is_finite()));
}
