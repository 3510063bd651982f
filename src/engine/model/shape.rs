//! The shape of the model, with the numbers of the configuration that the computation needs.

use std::ops::{Deref, DerefMut};

use super::EngineError;
use crate::kernels::router::Weighting;
use crate::kernels::situ::Caps;
pub use k3_checkpoint::{LayerKind, LayerShape, MlpKind, ModelShape};
use k3_core::config::{MLA_NORM_EPS, RawConfig};

/// Widths and layers, checked, and the constants of norms, gates and weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// Widths and layers; reached without its name.
    pub model: ModelShape,
    /// ε of every RMSNorm but MLA's two.
    pub rms_norm_eps: f64,
    /// ε of MLA's two low-rank norms (N3): the released code's class default, unless a caller sets
    /// another before it loads weights. Every report prints it.
    pub mla_norm_eps: f64,
    /// Lower bound of the log decay.
    pub gate_lower_bound: f32,
    /// How scores become weights.
    pub weighting: Weighting,
    /// SiTU's caps.
    pub caps: Caps,
}

impl Deref for Shape {
    type Target = ModelShape;

    fn deref(&self) -> &ModelShape {
        &self.model
    }
}

impl DerefMut for Shape {
    fn deref_mut(&mut self) -> &mut ModelShape {
        &mut self.model
    }
}

impl Shape {
    /// Derives the shape.
    ///
    /// # Errors
    /// Layer lists that are not a partition of 1..=n, a layer count of 0, or more chosen experts
    /// than there are.
    pub fn derive(raw: &RawConfig) -> Result<Self, EngineError> {
        check(raw)?;
        let model = ModelShape::derive(raw).map_err(|error| {
            EngineError::at("config field linear_attn_config.kda_layers".to_owned(), error)
        })?;
        Ok(Self {
            model,
            rms_norm_eps: raw.rms_norm_eps,
            mla_norm_eps: MLA_NORM_EPS,
            gate_lower_bound: raw.gate_lower_bound as f32,
            weighting: Weighting {
                renormalise: raw.moe_renormalize,
                scaling_factor: raw.routed_scaling_factor as f32,
            },
            caps: Caps {
                beta: raw.activation_situ_beta as f32,
                linear_beta: raw.activation_situ_linear_beta as f32,
            },
        })
    }
}

/// What the derivation relies on.
fn check(raw: &RawConfig) -> Result<(), EngineError> {
    let refuse = |field: &str, problem: String| {
        Err(EngineError::at(format!("config field {field}"), problem))
    };
    if raw.num_hidden_layers == 0 {
        return refuse("num_hidden_layers", "there are no layers".into());
    }
    let lists = raw.kda_layers.iter().chain(&raw.full_attn_layers);
    if let Some(layer) = lists.into_iter().find(|&&l| l == 0 || l > raw.num_hidden_layers) {
        let problem = format!("layer {layer} is outside 1..={}", raw.num_hidden_layers);
        return refuse("linear_attn_config.kda_layers", problem);
    }
    if raw.num_experts_per_token == 0 || raw.num_experts_per_token > raw.num_experts {
        let problem = format!("{} of {}", raw.num_experts_per_token, raw.num_experts);
        return refuse("num_experts_per_token", problem);
    }
    if raw.short_conv_kernel_size == 0 || raw.attn_res_block_size == 0 {
        return refuse("attn_res_block_size", "sizes must not be 0".into());
    }
    if raw.kda_num_heads > raw.kda_head_dim {
        let problem = format!("A_log holds {} values, fewer than heads", raw.kda_head_dim);
        return refuse("linear_attn_config.num_heads", problem);
    }
    Ok(())
}
