//! What the engine derives from the raw config: layer kinds, banks, widths.
//!
//! The reference derives the same for itself and must not use this module: two derivations are
//! two chances to notice a slip.

use thiserror::Error;

use k3_core::config::{MXFP4_GROUP_COLUMNS, RawConfig};

/// The attention of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LayerKind {
    /// Kimi delta attention: a recurrent state.
    Kda,
    /// Gated multi-head latent attention: a cache.
    Mla,
}

/// The MLP of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MlpKind {
    /// One dense SiTU MLP.
    Dense,
    /// Routed experts on a latent, plus the shared MLP.
    Moe,
}

/// One layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerShape {
    /// Its attention (L1).
    pub kind: LayerKind,
    /// Its number among the layers of its kind: its slot for state or cache.
    pub slot: usize,
    /// Its MLP.
    pub mlp: MlpKind,
    /// Banks that its attention-side mix sees, before it pushes one itself; 0 in layer 0 only.
    pub attention_banks: usize,
    /// Whether it banks the running sum and clears it.
    pub pushes_bank: bool,
    /// Banks that its MLP-side mix sees, its own included.
    pub mlp_banks: usize,
}

/// Widths of KDA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KdaShape {
    /// H.
    pub heads: usize,
    /// D: key and value width of a head, rank of the decay's low-rank pair, length of `A_log`.
    pub head_dim: usize,
    /// P = H·D.
    pub width: usize,
    /// Taps of the convolutions.
    pub taps: usize,
}

/// Widths of MLA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MlaShape {
    /// Heads.
    pub heads: usize,
    /// Rank of the query.
    pub q_lora: usize,
    /// Width of the latent.
    pub kv_lora: usize,
    /// Unshared key width of a head.
    pub nope: usize,
    /// Shared key width.
    pub rope: usize,
    /// Value width of a head.
    pub v: usize,
    /// heads·(nope+rope): rows of `q_b_proj`.
    pub query_width: usize,
    /// kv_lora+rope: what is cached per position.
    pub cache_width: usize,
    /// heads·(nope+v): rows of `kv_b_proj`.
    pub kv_width: usize,
    /// heads·v: columns of `o_proj`.
    pub width: usize,
}

/// Widths of LatentMoE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoeShape {
    /// Routed experts of a layer.
    pub experts: usize,
    /// Experts per token.
    pub top_k: usize,
    /// L: what the experts work on.
    pub latent: usize,
    /// I: inner width of an expert.
    pub inner: usize,
    /// Inner width of the shared MLP.
    pub shared_inner: usize,
}

impl MoeShape {
    /// Bytes of one expert: three matrices of L·I weights in half a byte each, and their scales.
    #[must_use]
    pub fn expert_bytes(&self) -> u64 {
        let weights = 3 * self.latent as u64 * self.inner as u64;
        weights / 2 + weights / MXFP4_GROUP_COLUMNS as u64
    }
}

/// The whole model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelShape {
    /// E.
    pub hidden: usize,
    /// V.
    pub vocab: usize,
    /// The layers, zero-based.
    pub layers: Vec<LayerShape>,
    /// KDA.
    pub kda: KdaShape,
    /// MLA.
    pub mla: MlaShape,
    /// Inner width of the dense MLP.
    pub dense_inner: usize,
    /// LatentMoE.
    pub moe: MoeShape,
    /// Banks after the last layer.
    pub banks: usize,
}

/// A raw config that was not made by the reader that refuses.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ShapeError {
    /// No kind, or two.
    #[error("layer {layer} (ONE-based) stands in {lists} of the two layer lists, expected one")]
    NotAPartition {
        /// ONE-based.
        layer: usize,
        /// In how many lists it stands.
        lists: usize,
    },
    /// A block of no layers.
    #[error("attn_res_block_size is 0")]
    EmptyBlock,
}

impl ModelShape {
    /// Derives everything from the raw fields.
    ///
    /// # Errors
    /// Only for fields that [`crate::config::read`] refuses: see [`ShapeError`].
    pub fn derive(config: &RawConfig) -> Result<Self, ShapeError> {
        let block = config.attn_res_block_size;
        if block == 0 {
            return Err(ShapeError::EmptyBlock);
        }
        let mut layers: Vec<LayerShape> = Vec::with_capacity(config.num_hidden_layers);
        for index in 0..config.num_hidden_layers {
            let mut layer = layer_shape(config, index)?;
            layer.slot = layers.iter().filter(|other| other.kind == layer.kind).count();
            layers.push(layer);
        }
        let kda_width = config.kda_num_heads * config.kda_head_dim;
        let heads = config.num_attention_heads;
        let (nope, rope, v) = (config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim);
        Ok(Self {
            hidden: config.hidden_size,
            vocab: config.vocab_size,
            layers,
            kda: KdaShape {
                heads: config.kda_num_heads,
                head_dim: config.kda_head_dim,
                width: kda_width,
                taps: config.short_conv_kernel_size,
            },
            mla: MlaShape {
                heads,
                q_lora: config.q_lora_rank,
                kv_lora: config.kv_lora_rank,
                nope,
                rope,
                v,
                query_width: heads * (nope + rope),
                cache_width: config.kv_lora_rank + rope,
                kv_width: heads * (nope + v),
                width: heads * v,
            },
            dense_inner: config.intermediate_size,
            moe: MoeShape {
                experts: config.num_experts,
                top_k: config.num_experts_per_token,
                latent: config.routed_expert_hidden_size,
                inner: config.moe_intermediate_size,
                shared_inner: config.moe_intermediate_size * config.num_shared_experts,
            },
            banks: config.num_hidden_layers.div_ceil(block),
        })
    }

    /// Layers with routed experts, zero-based.
    pub fn moe_layers(&self) -> impl Iterator<Item = usize> {
        self.layers_where(|layer| layer.mlp == MlpKind::Moe)
    }

    /// Layers of one attention kind, zero-based.
    pub fn layers_of(&self, kind: LayerKind) -> impl Iterator<Item = usize> {
        self.layers_where(move |layer| layer.kind == kind)
    }

    /// Layers of one attention kind.
    #[must_use]
    pub fn count(&self, kind: LayerKind) -> usize {
        self.layers_of(kind).count()
    }

    fn layers_where(&self, keep: impl Fn(&LayerShape) -> bool) -> impl Iterator<Item = usize> {
        let numbered = self.layers.iter().enumerate();
        numbered.filter(move |(_, layer)| keep(layer)).map(|(index, _)| index)
    }
}

fn layer_shape(config: &RawConfig, index: usize) -> Result<LayerShape, ShapeError> {
    let layer = index + 1;
    let is_kda = config.kda_layers.contains(&layer);
    let is_mla = config.full_attn_layers.contains(&layer);
    let kind = match (is_kda, is_mla) {
        (true, false) => LayerKind::Kda,
        (false, true) => LayerKind::Mla,
        _ => {
            let lists = usize::from(is_kda) + usize::from(is_mla);
            return Err(ShapeError::NotAPartition { layer, lists });
        }
    };
    let is_dense = index < config.first_k_dense_replace;
    let block = config.attn_res_block_size;
    Ok(LayerShape {
        kind,
        slot: 0,
        mlp: if is_dense { MlpKind::Dense } else { MlpKind::Moe },
        attention_banks: index.div_ceil(block),
        pushes_bank: index.is_multiple_of(block),
        mlp_banks: index / block + 1,
    })
}
