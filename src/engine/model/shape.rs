//! What follows from the configuration: layer kinds, state slots, banks, widths.
//!
//! The engine's own derivation; the reference has another, and a shared mistake would be one.

use super::EngineError;
use crate::kernels::router::Weighting;
use crate::kernels::situ::Caps;
use k3_core::config::{MLA_NORM_EPS, RawConfig};

/// Which attention a layer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionKind {
    /// Kimi Delta Attention: recurrent state.
    Kda,
    /// Gated multi-head latent attention: latent cache.
    Mla,
}

/// One layer's place in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerShape {
    /// KDA or MLA (L1).
    pub attention: AttentionKind,
    /// Index among the layers of its kind: its state slot or cache slot.
    pub slot: usize,
    /// Dense MLP rather than LatentMoE (L2).
    pub dense: bool,
    /// Whether the running sum is banked and cleared here (R5).
    pub banks: bool,
}

/// Widths and layers, checked. Letters as in MODEL.md.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// E.
    pub hidden: usize,
    /// V.
    pub vocabulary: usize,
    /// ε of every RMSNorm but MLA's two.
    pub rms_norm_eps: f64,
    /// ε of MLA's two low-rank norms (N3): the released code's class default, unless a caller sets
    /// another before it loads weights. Every report prints it.
    pub mla_norm_eps: f64,
    /// KDA heads H.
    pub kda_heads: usize,
    /// KDA head width D; P = H·D.
    pub kda_width: usize,
    /// Taps of the convolutions.
    pub conv_kernel: usize,
    /// Lower bound of the log decay.
    pub gate_lower_bound: f32,
    /// MLA heads.
    pub mla_heads: usize,
    /// Rank of the query pair.
    pub q_lora: usize,
    /// Width of the cached latent.
    pub kv_lora: usize,
    /// Per-head width without the shared part.
    pub nope: usize,
    /// Width of the part shared by heads.
    pub rope: usize,
    /// Per-head value width of MLA.
    pub v_width: usize,
    /// Inner width of the dense MLP.
    pub dense_inner: usize,
    /// Routed experts.
    pub experts: usize,
    /// Chosen experts.
    pub top_k: usize,
    /// L.
    pub latent: usize,
    /// I.
    pub expert_inner: usize,
    /// Inner width of the shared MLP.
    pub shared_inner: usize,
    /// How scores become weights.
    pub weighting: Weighting,
    /// SiTU's caps.
    pub caps: Caps,
    /// The layers in order.
    pub layers: Vec<LayerShape>,
}

impl Shape {
    /// Derives the shape.
    ///
    /// # Errors
    /// Layer lists that are not a partition of 1..=n, a layer count of 0, more chosen experts
    /// than there are, or expert widths that MXFP4 groups do not divide.
    pub fn derive(raw: &RawConfig) -> Result<Self, EngineError> {
        check(raw)?;
        let mut layers: Vec<LayerShape> = Vec::with_capacity(raw.num_hidden_layers);
        for layer in 0..raw.num_hidden_layers {
            let attention = attention_kind(raw, layer)?;
            let slot = layers.iter().filter(|l| l.attention == attention).count();
            let dense = layer < raw.first_k_dense_replace;
            let banks = layer.is_multiple_of(raw.attn_res_block_size);
            layers.push(LayerShape { attention, slot, dense, banks });
        }
        Ok(Self {
            hidden: raw.hidden_size,
            vocabulary: raw.vocab_size,
            rms_norm_eps: raw.rms_norm_eps,
            mla_norm_eps: MLA_NORM_EPS,
            kda_heads: raw.kda_num_heads,
            kda_width: raw.kda_head_dim,
            conv_kernel: raw.short_conv_kernel_size,
            gate_lower_bound: raw.gate_lower_bound as f32,
            mla_heads: raw.num_attention_heads,
            q_lora: raw.q_lora_rank,
            kv_lora: raw.kv_lora_rank,
            nope: raw.qk_nope_head_dim,
            rope: raw.qk_rope_head_dim,
            v_width: raw.v_head_dim,
            dense_inner: raw.intermediate_size,
            experts: raw.num_experts,
            top_k: raw.num_experts_per_token,
            latent: raw.routed_expert_hidden_size,
            expert_inner: raw.moe_intermediate_size,
            shared_inner: raw.moe_intermediate_size * raw.num_shared_experts,
            weighting: Weighting {
                renormalise: raw.moe_renormalize,
                scaling_factor: raw.routed_scaling_factor as f32,
            },
            caps: Caps {
                beta: raw.activation_situ_beta as f32,
                linear_beta: raw.activation_situ_linear_beta as f32,
            },
            layers,
        })
    }

    /// P: width of KDA's q, k and v.
    #[must_use]
    pub fn kda_projection(&self) -> usize {
        self.kda_heads * self.kda_width
    }

    /// Width of a cached row, \[latent | rope\].
    #[must_use]
    pub fn cache_width(&self) -> usize {
        self.kv_lora + self.rope
    }

    /// Layers of a kind.
    #[must_use]
    pub fn count(&self, kind: AttentionKind) -> usize {
        self.layers.iter().filter(|layer| layer.attention == kind).count()
    }

    /// Banks after the last layer.
    #[must_use]
    pub fn banks(&self) -> usize {
        self.layers.iter().filter(|layer| layer.banks).count()
    }
}

/// L1: KDA iff index+1 is in `kda_layers`, MLA iff it is in `full_attn_layers`.
fn attention_kind(raw: &RawConfig, layer: usize) -> Result<AttentionKind, EngineError> {
    let one_based = layer + 1;
    let kda = raw.kda_layers.iter().filter(|&&l| l == one_based).count();
    let mla = raw.full_attn_layers.iter().filter(|&&l| l == one_based).count();
    match (kda, mla) {
        (1, 0) => Ok(AttentionKind::Kda),
        (0, 1) => Ok(AttentionKind::Mla),
        _ => Err(EngineError::at(
            "config field linear_attn_config.kda_layers".to_owned(),
            format!(
                "layer {one_based} (one-based) stands {kda} times there and {mla} times in \
                 full_attn_layers; every layer must stand once in one of them"
            ),
        )),
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
