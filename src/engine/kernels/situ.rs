//! SiTU, the gated activation of every MLP (S1, S2, A9), and SiLU after the convolutions (K2).

/// Elements worked on together, so that the functions run over slices.
pub const BLOCK: usize = 64;

/// The two caps of SiTU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Caps {
    /// β: cap on the gate.
    pub beta: f32,
    /// Linear β: cap on the linear part.
    pub linear_beta: f32,
}

/// x = f32(x / cap) for every element: the argument of the tanh.
pub fn divide(values: &mut [f32], cap: f32) {
    for value in values {
        *value /= cap;
    }
}

/// out = (β·tanh_gate · σ_gate) · (linβ·tanh_up), f32 steps in this order.
pub fn combine(
    tanh_gate: &[f32],
    sigmoid_gate: &[f32],
    tanh_up: &[f32],
    caps: Caps,
    out: &mut [f32],
) {
    for (place, out) in out.iter_mut().enumerate() {
        let capped = caps.beta * tanh_gate[place];
        let activated = capped * sigmoid_gate[place];
        let linear = caps.linear_beta * tanh_up[place];
        *out = activated * linear;
    }
}
