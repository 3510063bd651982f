//! How each kind of tensor is drawn.
//!
//! A matrix \[out, in\] has entries of deviation gain/√in, so that an input of RMS 1, as every norm
//! leaves it, comes out with RMS gain at any width. From that alone: scores of the mixes and the
//! router's logits have deviation 1, attention scores about 1.5, decays spread over their range,
//! SiTU works around its bend, and what a layer adds to the running sum has about its own size.
//! `synth` prints what the engine measures on the result; it is not taken from here.

use k3_checkpoint::Role;

/// How the values of a tensor are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// A bell around a centre.
    Bell {
        /// Mean.
        centre: f32,
        /// Standard deviation.
        deviation: f32,
    },
    /// Evenly over a range.
    Even {
        /// Smallest value.
        low: f32,
        /// Bound above.
        high: f32,
    },
    /// Evenly over a range for the first `heads` values, the rest exactly zero (K8).
    PerHead {
        /// How many are drawn.
        heads: usize,
        /// Smallest value.
        low: f32,
        /// Bound above.
        high: f32,
    },
    /// MXFP4 codes and scales of a bell around zero with another width in each block.
    Quantised {
        /// What an input of RMS 1 comes out with.
        gain: f32,
    },
}

/// Weights of norms stay near 1.
const NORM: Rule = Rule::Bell { centre: 1.0, deviation: 0.1 };

impl Rule {
    /// The rule for a tensor of this role and shape, in a model with so many KDA heads.
    #[must_use]
    pub fn of(role: Role, shape: &[usize], kda_heads: usize) -> Self {
        match role {
            Role::FinalNorm
            | Role::OutputResNorm
            | Role::InputNorm
            | Role::PostAttentionNorm
            | Role::AttentionResNorm
            | Role::MlpResNorm
            | Role::KdaONorm
            | Role::MlaQANorm
            | Role::MlaKvANorm
            | Role::LatentNorm => NORM,
            Role::EmbedTokens => bell(1.0),
            Role::KdaQConv | Role::KdaKConv | Role::KdaVConv => bell(0.5),
            Role::RouterBias => bell(0.05),
            // exp of it is a rate between 0.5 and 2.
            Role::KdaALog => Self::PerHead { heads: kda_heads, low: -0.7, high: 0.7 },
            // From decays near 1 (long memory) to half-way down to the bound.
            Role::KdaDtBias => Self::Even { low: -6.0, high: 1.0 },
            Role::RoutedW1Packed
            | Role::RoutedW1Scale
            | Role::RoutedW2Packed
            | Role::RoutedW2Scale
            | Role::RoutedW3Packed
            | Role::RoutedW3Scale => Self::Quantised { gain: 1.0 },
            _ => by_fan_in(role, shape),
        }
    }
}

fn bell(deviation: f32) -> Rule {
    Rule::Bell { centre: 0.0, deviation }
}

/// gain/√in.
fn by_fan_in(role: Role, shape: &[usize]) -> Rule {
    let gain = match role {
        // Gates average one half, so what passes them is doubled.
        Role::AttentionOProj => 2.0,
        Role::MlaQBProj | Role::MlaKvBProj => 1.25,
        Role::LmHead => 3.0,
        Role::DenseDownProj | Role::SharedDownProj => 1.5,
        Role::LatentUpProj => 0.75,
        _ => 1.0,
    };
    bell(deviation(gain, shape))
}

/// gain/√in, correctly rounded at every step.
#[must_use]
pub fn deviation(gain: f64, shape: &[usize]) -> f32 {
    let fan_in = shape.last().copied().unwrap_or(1);
    (gain / (fan_in as f64).sqrt()) as f32
}
