//! SiTU, the gated activation of every MLP (S1, S2, A9), SiLU after the convolutions (K2), and the
//! output gate of both attentions (K12, M7).

use super::table::Kernels;

/// Elements worked on together, so that the functions run over slices.
const BLOCK: usize = 64;

/// The two caps of SiTU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Caps {
    /// β: cap on the gate.
    pub beta: f32,
    /// Linear β: cap on the linear part.
    pub linear_beta: f32,
}

/// SiTU(gate, up) in f32 steps, block by block.
pub fn situ(kernels: &Kernels, gate: &[f32], up: &[f32], caps: Caps, out: &mut [f32]) {
    let mut buffers = [[0.0; BLOCK]; 3];
    let blocks = gate.chunks(BLOCK).zip(up.chunks(BLOCK));
    for ((gate, up), out) in blocks.zip(out.chunks_mut(BLOCK)) {
        let [tanh_gate, sigmoid_gate, tanh_up] = &mut buffers;
        let n = gate.len();
        tanh_gate[..n].copy_from_slice(gate);
        sigmoid_gate[..n].copy_from_slice(gate);
        tanh_up[..n].copy_from_slice(up);
        divide(&mut tanh_gate[..n], caps.beta);
        divide(&mut tanh_up[..n], caps.linear_beta);
        (kernels.tanh)(&mut tanh_gate[..n]);
        (kernels.sigmoid)(&mut sigmoid_gate[..n]);
        (kernels.tanh)(&mut tanh_up[..n]);
        combine(tanh_gate, sigmoid_gate, tanh_up, caps, out);
    }
}

/// SiLU: x·σ(x) of every element, in place.
pub fn silu(kernels: &Kernels, values: &mut [f32]) {
    let mut logistic = [0.0; BLOCK];
    for block in values.chunks_mut(BLOCK) {
        let logistic = &mut logistic[..block.len()];
        logistic.copy_from_slice(block);
        (kernels.sigmoid)(logistic);
        for (value, logistic) in block.iter_mut().zip(logistic) {
            *value *= *logistic;
        }
    }
}

/// values · σ(gate), the output gate of both attentions (K12, M7); `gate` is overwritten.
pub fn gate(kernels: &Kernels, values: &mut [f32], gate: &mut [f32]) {
    (kernels.sigmoid)(gate);
    for (value, gate) in values.iter_mut().zip(gate) {
        *value *= *gate;
    }
}

/// x = f32(x / cap) for every element: the argument of the tanh.
fn divide(values: &mut [f32], cap: f32) {
    for value in values {
        *value /= cap;
    }
}

/// out = (β·tanh_gate · σ_gate) · (linβ·tanh_up), f32 steps in this order.
fn combine(tanh_gate: &[f32], sigmoid_gate: &[f32], tanh_up: &[f32], caps: Caps, out: &mut [f32]) {
    for (place, out) in out.iter_mut().enumerate() {
        let capped = caps.beta * tanh_gate[place];
        let activated = capped * sigmoid_gate[place];
        let linear = caps.linear_beta * tanh_up[place];
        *out = activated * linear;
    }
}
