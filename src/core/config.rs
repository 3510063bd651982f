//! The raw fields of `config.json`, as a plain record: names, units and nothing else.
//!
//! The engine's reader and the reference's each fill it from the file by code of their own; what
//! follows from the fields (layer kinds, banks, derived widths) is worked out by each for itself.

/// Largest width or count accepted. Six times the released vocabulary, the largest size there is;
/// any tensor of the plan, a product of at most three widths and an element size, then stays
/// below 2^63 bytes, so no product of sizes can wrap.
pub const MAX_SIZE: usize = 1 << 20;

/// Most layers accepted: 44 times the released number.
pub const MAX_LAYERS: usize = 4096;

/// Columns that share one scale in MXFP4.
pub const MXFP4_GROUP_COLUMNS: usize = 32;

/// ε of the two low-rank norms in MLA (`q_a_layernorm`, `kv_a_layernorm`): the released code
/// builds them without an ε, so its class default holds, not `rms_norm_eps`.
pub const MLA_NORM_EPS: f64 = 1e-6;

/// How a report states the ε of MLA's two low-rank norms.
#[must_use]
pub fn epsilon_line(eps: f64) -> String {
    let note = if eps == MLA_NORM_EPS {
        "the released value".to_owned()
    } else {
        format!("OVERRIDDEN, released {MLA_NORM_EPS:e}")
    };
    format!("epsilon of the MLA low-rank norms: {eps:e} ({note})")
}

/// The raw fields of `text_config` (and `text_config.linear_attn_config`), as written in the file.
/// Sizes are checked to be non-zero and sane, numbers to be finite; nothing is derived here.
#[derive(Debug, Clone, PartialEq)]
pub struct RawConfig {
    /// E: width of the running sum.
    pub hidden_size: usize,
    /// V: rows of the embedding table and of the head.
    pub vocab_size: usize,
    /// Number of decoder layers.
    pub num_hidden_layers: usize,
    /// ε of every RMSNorm but the two low-rank norms of MLA (see [`MLA_NORM_EPS`]).
    pub rms_norm_eps: f64,
    /// `linear_attn_config.num_heads`: KDA heads H.
    pub kda_num_heads: usize,
    /// `linear_attn_config.head_dim`: KDA key and value width D.
    pub kda_head_dim: usize,
    /// `linear_attn_config.short_conv_kernel_size`: taps of the depthwise convolutions.
    pub short_conv_kernel_size: usize,
    /// `linear_attn_config.gate_lower_bound`: lower bound of the log decay, negative.
    pub gate_lower_bound: f64,
    /// `linear_attn_config.full_attn_layers`: MLA layers, ONE-based, as written.
    pub full_attn_layers: Vec<usize>,
    /// `linear_attn_config.kda_layers`: KDA layers, ONE-based, as written.
    pub kda_layers: Vec<usize>,
    /// MLA heads (`num_key_value_heads` is checked to be equal).
    pub num_attention_heads: usize,
    /// Rank of the query's low-rank pair.
    pub q_lora_rank: usize,
    /// Width of the cached latent.
    pub kv_lora_rank: usize,
    /// Per-head query and key width without the shared part.
    pub qk_nope_head_dim: usize,
    /// Width of the key part shared by all heads (never rotated in K3).
    pub qk_rope_head_dim: usize,
    /// Per-head value width of MLA.
    pub v_head_dim: usize,
    /// A bank is pushed at every layer whose index is a multiple of this.
    pub attn_res_block_size: usize,
    /// Layers with a smaller index have a dense MLP.
    pub first_k_dense_replace: usize,
    /// Inner width of the dense MLP.
    pub intermediate_size: usize,
    /// Routed experts per MoE layer.
    pub num_experts: usize,
    /// Experts chosen per token (top-k).
    pub num_experts_per_token: usize,
    /// L: latent width the routed experts work on.
    pub routed_expert_hidden_size: usize,
    /// I: inner width of a routed expert; the shared MLP's is this times `num_shared_experts`.
    pub moe_intermediate_size: usize,
    /// Shared experts, stored as one MLP.
    pub num_shared_experts: usize,
    /// Whether the chosen scores are divided by their sum (when top-k > 1).
    pub moe_renormalize: bool,
    /// Factor on the routing weights.
    pub routed_scaling_factor: f64,
    /// SiTU's cap on the gate.
    pub activation_situ_beta: f64,
    /// SiTU's cap on the linear part.
    pub activation_situ_linear_beta: f64,
    /// Ids of the control tokens, wherever the file names them. No computation reads them.
    pub token_ids: TokenIds,
}

/// The control ids of the two places that name them; the release has them in both.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenIds {
    /// At the root of the file.
    pub root: SpecialIds,
    /// Under `text_config`.
    pub text: SpecialIds,
}

/// `bos_token_id`, `eos_token_id`, `pad_token_id`: optional, since no computation depends on them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Start of a text.
    pub bos: Option<u32>,
    /// Where generation ends; one id or a list in the file, empty where absent or null.
    pub eos: Vec<u32>,
    /// Padding.
    pub pad: Option<u32>,
}
