//! The release's tensor names, as data: one row per template with dtype and shape.
//!
//! Everything that needs a name (binding, the plan of files, synthetic checkpoints, messages)
//! gets it from these two tables. Layers are zero-based in names. The order of the rows of an
//! expert is the order in which the release stores them.

use std::fmt::Write;

use super::dtype::Dtype;
use super::shape::{LayerKind, LayerShape, MlpKind, ModelShape};
use k3_core::config::MXFP4_GROUP_COLUMNS;

/// Where every tensor of the text model's layers starts.
pub const LAYER_PREFIX: &str = "language_model.model.layers.";

/// Prefix of the text model.
pub const TEXT_PREFIX: &str = "language_model.";

/// Prefix of the vision tower: listed, not used.
pub const VISION_PREFIX: &str = "vision_tower.";

/// Prefix of the projector from the vision tower: listed, not used.
pub const PROJECTOR_PREFIX: &str = "mm_projector.";

/// Which parts of the model have a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Once.
    Model,
    /// Every layer.
    Layer,
    /// KDA layers.
    Kda,
    /// MLA layers.
    Mla,
    /// Layers with a dense MLP.
    Dense,
    /// Layers with routed experts.
    Moe,
    /// Every routed expert of such a layer.
    Expert,
}

impl Scope {
    /// Whether a layer has the tensor (of each expert, for [`Scope::Expert`]).
    #[must_use]
    pub fn covers(self, layer: &LayerShape) -> bool {
        match self {
            Self::Model => false,
            Self::Layer => true,
            Self::Kda => layer.kind == LayerKind::Kda,
            Self::Mla => layer.kind == LayerKind::Mla,
            Self::Dense => layer.mlp == MlpKind::Dense,
            Self::Moe | Self::Expert => layer.mlp == MlpKind::Moe,
        }
    }
}

/// A dimension by its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dim {
    /// 1
    One,
    /// E
    Hidden,
    /// V
    Vocab,
    /// Width of the layer's attention output: P for KDA, heads·v for MLA
    AttentionWidth,
    /// P = H·D
    KdaWidth,
    /// H
    KdaHeads,
    /// D
    KdaHeadDim,
    /// Convolution taps
    Taps,
    /// Rank of the query
    QLora,
    /// heads·(nope+rope)
    QueryWidth,
    /// kv_lora+rope
    CacheWidth,
    /// Width of the latent
    KvLora,
    /// heads·(nope+v)
    KvWidth,
    /// Inner width of the dense MLP
    DenseInner,
    /// Routed experts
    Experts,
    /// L
    Latent,
    /// L/2: two codes to a byte
    LatentPacked,
    /// L/32: one scale per group
    LatentGroups,
    /// I
    Inner,
    /// I/2
    InnerPacked,
    /// I/32
    InnerGroups,
    /// I times the number of shared experts
    SharedInner,
}

impl Dim {
    /// The size in a model, in a layer of the given kind.
    #[must_use]
    pub fn size(self, model: &ModelShape, kind: LayerKind) -> usize {
        let (kda, mla, moe) = (&model.kda, &model.mla, &model.moe);
        match self {
            Self::One => 1,
            Self::Hidden => model.hidden,
            Self::Vocab => model.vocab,
            Self::AttentionWidth => match kind {
                LayerKind::Kda => kda.width,
                LayerKind::Mla => mla.width,
            },
            Self::KdaWidth => kda.width,
            Self::KdaHeads => kda.heads,
            Self::KdaHeadDim => kda.head_dim,
            Self::Taps => kda.taps,
            Self::QLora => mla.q_lora,
            Self::QueryWidth => mla.query_width,
            Self::CacheWidth => mla.cache_width,
            Self::KvLora => mla.kv_lora,
            Self::KvWidth => mla.kv_width,
            Self::DenseInner => model.dense_inner,
            Self::Experts => moe.experts,
            Self::Latent => moe.latent,
            Self::LatentPacked => moe.latent / 2,
            Self::LatentGroups => moe.latent / MXFP4_GROUP_COLUMNS,
            Self::Inner => moe.inner,
            Self::InnerPacked => moe.inner / 2,
            Self::InnerGroups => moe.inner / MXFP4_GROUP_COLUMNS,
            Self::SharedInner => moe.shared_inner,
        }
    }
}

macro_rules! roles {
    ($($role:ident, $scope:ident, $dtype:ident, [$($dim:ident),*], $template:literal;)*) => {
        /// What a tensor is in the model: one variant per name template.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Role { $(#[doc = concat!("`", $template, "`")] $role,)* }

        impl Role {
            /// Every role, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$role,)*];

            /// Number of roles.
            pub const COUNT: usize = Self::ALL.len();

            /// The full name with `{layer}` and `{expert}` left open.
            #[must_use]
            pub fn template(self) -> &'static str {
                match self { $(Self::$role => $template,)* }
            }

            /// Where the tensor exists.
            #[must_use]
            pub fn scope(self) -> Scope {
                match self { $(Self::$role => Scope::$scope,)* }
            }

            /// Its element type on disk.
            #[must_use]
            pub fn dtype(self) -> Dtype {
                match self { $(Self::$role => Dtype::$dtype,)* }
            }

            /// Its dimensions, outermost first.
            #[must_use]
            pub fn dims(self) -> &'static [Dim] {
                match self { $(Self::$role => &[$(Dim::$dim),*],)* }
            }
        }
    };
}

roles! {
    EmbedTokens, Model, Bf16, [Vocab, Hidden], "language_model.model.embed_tokens.weight";
    FinalNorm, Model, Bf16, [Hidden], "language_model.model.norm.weight";
    OutputResNorm, Model, Bf16, [Hidden], "language_model.model.output_attn_res_norm.weight";
    OutputResProj, Model, Bf16, [One, Hidden], "language_model.model.output_attn_res_proj.weight";
    LmHead, Model, Bf16, [Vocab, Hidden], "language_model.lm_head.weight";

    InputNorm, Layer, Bf16, [Hidden],
        "language_model.model.layers.{layer}.input_layernorm.weight";
    PostAttentionNorm, Layer, Bf16, [Hidden],
        "language_model.model.layers.{layer}.post_attention_layernorm.weight";
    AttentionResNorm, Layer, Bf16, [Hidden],
        "language_model.model.layers.{layer}.self_attention_res_norm.weight";
    AttentionResProj, Layer, Bf16, [One, Hidden],
        "language_model.model.layers.{layer}.self_attention_res_proj.weight";
    MlpResNorm, Layer, Bf16, [Hidden],
        "language_model.model.layers.{layer}.mlp_res_norm.weight";
    MlpResProj, Layer, Bf16, [One, Hidden],
        "language_model.model.layers.{layer}.mlp_res_proj.weight";
    AttentionGProj, Layer, Bf16, [AttentionWidth, Hidden],
        "language_model.model.layers.{layer}.self_attn.g_proj.weight";
    AttentionOProj, Layer, Bf16, [Hidden, AttentionWidth],
        "language_model.model.layers.{layer}.self_attn.o_proj.weight";

    KdaQProj, Kda, Bf16, [KdaWidth, Hidden],
        "language_model.model.layers.{layer}.self_attn.q_proj.weight";
    KdaKProj, Kda, Bf16, [KdaWidth, Hidden],
        "language_model.model.layers.{layer}.self_attn.k_proj.weight";
    KdaVProj, Kda, Bf16, [KdaWidth, Hidden],
        "language_model.model.layers.{layer}.self_attn.v_proj.weight";
    KdaQConv, Kda, F32, [KdaWidth, One, Taps],
        "language_model.model.layers.{layer}.self_attn.q_conv1d.weight";
    KdaKConv, Kda, F32, [KdaWidth, One, Taps],
        "language_model.model.layers.{layer}.self_attn.k_conv1d.weight";
    KdaVConv, Kda, F32, [KdaWidth, One, Taps],
        "language_model.model.layers.{layer}.self_attn.v_conv1d.weight";
    KdaALog, Kda, F32, [KdaHeadDim],
        "language_model.model.layers.{layer}.self_attn.A_log";
    KdaDtBias, Kda, F32, [KdaWidth],
        "language_model.model.layers.{layer}.self_attn.dt_bias";
    KdaFAProj, Kda, Bf16, [KdaHeadDim, Hidden],
        "language_model.model.layers.{layer}.self_attn.f_a_proj.weight";
    KdaFBProj, Kda, Bf16, [KdaWidth, KdaHeadDim],
        "language_model.model.layers.{layer}.self_attn.f_b_proj.weight";
    KdaBProj, Kda, Bf16, [KdaHeads, Hidden],
        "language_model.model.layers.{layer}.self_attn.b_proj.weight";
    KdaONorm, Kda, F32, [KdaHeadDim],
        "language_model.model.layers.{layer}.self_attn.o_norm.weight";

    MlaQAProj, Mla, Bf16, [QLora, Hidden],
        "language_model.model.layers.{layer}.self_attn.q_a_proj.weight";
    MlaQANorm, Mla, Bf16, [QLora],
        "language_model.model.layers.{layer}.self_attn.q_a_layernorm.weight";
    MlaQBProj, Mla, Bf16, [QueryWidth, QLora],
        "language_model.model.layers.{layer}.self_attn.q_b_proj.weight";
    MlaKvAProj, Mla, Bf16, [CacheWidth, Hidden],
        "language_model.model.layers.{layer}.self_attn.kv_a_proj_with_mqa.weight";
    MlaKvANorm, Mla, Bf16, [KvLora],
        "language_model.model.layers.{layer}.self_attn.kv_a_layernorm.weight";
    MlaKvBProj, Mla, Bf16, [KvWidth, KvLora],
        "language_model.model.layers.{layer}.self_attn.kv_b_proj.weight";

    DenseGateProj, Dense, Bf16, [DenseInner, Hidden],
        "language_model.model.layers.{layer}.mlp.gate_proj.weight";
    DenseUpProj, Dense, Bf16, [DenseInner, Hidden],
        "language_model.model.layers.{layer}.mlp.up_proj.weight";
    DenseDownProj, Dense, Bf16, [Hidden, DenseInner],
        "language_model.model.layers.{layer}.mlp.down_proj.weight";

    RouterWeight, Moe, Bf16, [Experts, Hidden],
        "language_model.model.layers.{layer}.block_sparse_moe.gate.weight";
    RouterBias, Moe, F32, [Experts],
        "language_model.model.layers.{layer}.block_sparse_moe.gate.e_score_correction_bias";
    LatentDownProj, Moe, Bf16, [Latent, Hidden],
        "language_model.model.layers.{layer}.block_sparse_moe.routed_expert_down_proj.weight";
    LatentUpProj, Moe, Bf16, [Hidden, Latent],
        "language_model.model.layers.{layer}.block_sparse_moe.routed_expert_up_proj.weight";
    LatentNorm, Moe, Bf16, [Latent],
        "language_model.model.layers.{layer}.block_sparse_moe.routed_expert_norm.weight";
    SharedGateProj, Moe, Bf16, [SharedInner, Hidden],
        "language_model.model.layers.{layer}.block_sparse_moe.shared_experts.gate_proj.weight";
    SharedUpProj, Moe, Bf16, [SharedInner, Hidden],
        "language_model.model.layers.{layer}.block_sparse_moe.shared_experts.up_proj.weight";
    SharedDownProj, Moe, Bf16, [Hidden, SharedInner],
        "language_model.model.layers.{layer}.block_sparse_moe.shared_experts.down_proj.weight";

    RoutedW1Packed, Expert, U8, [Inner, LatentPacked],
        "language_model.model.layers.{layer}.block_sparse_moe.experts.{expert}.w1.weight_packed";
    RoutedW1Scale, Expert, U8, [Inner, LatentGroups],
        "language_model.model.layers.{layer}.block_sparse_moe.experts.{expert}.w1.weight_scale";
    RoutedW2Packed, Expert, U8, [Latent, InnerPacked],
        "language_model.model.layers.{layer}.block_sparse_moe.experts.{expert}.w2.weight_packed";
    RoutedW2Scale, Expert, U8, [Latent, InnerGroups],
        "language_model.model.layers.{layer}.block_sparse_moe.experts.{expert}.w2.weight_scale";
    RoutedW3Packed, Expert, U8, [Inner, LatentPacked],
        "language_model.model.layers.{layer}.block_sparse_moe.experts.{expert}.w3.weight_packed";
    RoutedW3Scale, Expert, U8, [Inner, LatentGroups],
        "language_model.model.layers.{layer}.block_sparse_moe.experts.{expert}.w3.weight_scale";
}

/// The six tensors of a routed expert, in the order of [`super::binding::ExpertTensors`].
pub const EXPERT_ROLES: [Role; 6] = [
    Role::RoutedW1Packed,
    Role::RoutedW1Scale,
    Role::RoutedW2Packed,
    Role::RoutedW2Scale,
    Role::RoutedW3Packed,
    Role::RoutedW3Scale,
];

impl Role {
    /// Puts the full name into `name` (cleared first). Numbers that the template does not ask for
    /// are not looked at.
    pub fn write_name(self, layer: usize, expert: usize, name: &mut String) {
        name.clear();
        let mut rest = self.template();
        while let Some((before, after)) = rest.split_once('{') {
            name.push_str(before);
            let (slot, after) = after.split_once('}').unwrap_or((after, ""));
            let number = if slot == "layer" { layer } else { expert };
            // Writing to a String cannot fail.
            let _ = write!(name, "{number}");
            rest = after;
        }
        name.push_str(rest);
    }

    /// What follows the expert's number in the name; empty for other tensors.
    #[must_use]
    pub fn expert_suffix(self) -> &'static str {
        self.template().split_once("{expert}").map_or("", |(_, suffix)| suffix)
    }

    /// The full name; see [`Self::write_name`].
    #[must_use]
    pub fn name(self, layer: usize, expert: usize) -> String {
        let mut name = String::new();
        self.write_name(layer, expert, &mut name);
        name
    }

    /// The shape in a model, in a layer of the given kind.
    #[must_use]
    pub fn shape(self, model: &ModelShape, kind: LayerKind) -> Vec<usize> {
        self.dims().iter().map(|dim| dim.size(model, kind)).collect()
    }
}

/// A tensor that the release has and the text model does not use; all are BF16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VisionTemplate {
    /// Full name, with `{block}` left open where `blocks` is above 1.
    pub template: &'static str,
    /// How many of them there are.
    pub blocks: usize,
    /// Dimensions in the release.
    pub shape: &'static [usize],
}

const fn vision(template: &'static str, blocks: usize, shape: &'static [usize]) -> VisionTemplate {
    VisionTemplate { template, blocks, shape }
}

/// The vision tower and its projector as released: 168 tensors, for lists and replicas.
pub const VISION: [VisionTemplate; 12] = [
    vision("vision_tower.patch_embed.proj.weight", 1, &[1024, 3, 14, 14]),
    vision("vision_tower.patch_embed.pos_emb.weight", 1, &[64, 64, 1024]),
    vision("vision_tower.encoder.blocks.{block}.norm0.weight", 27, &[1024]),
    vision("vision_tower.encoder.blocks.{block}.norm1.weight", 27, &[1024]),
    vision("vision_tower.encoder.blocks.{block}.wqkv.weight", 27, &[4608, 1024]),
    vision("vision_tower.encoder.blocks.{block}.wo.weight", 27, &[1024, 1536]),
    vision("vision_tower.encoder.blocks.{block}.mlp.fc0.weight", 27, &[4096, 1024]),
    vision("vision_tower.encoder.blocks.{block}.mlp.fc1.weight", 27, &[1024, 4096]),
    vision("vision_tower.encoder.final_layernorm.weight", 1, &[1024]),
    vision("mm_projector.post_norm.weight", 1, &[7168]),
    vision("mm_projector.proj.0.weight", 1, &[4096, 4096]),
    vision("mm_projector.proj.2.weight", 1, &[7168, 4096]),
];

impl VisionTemplate {
    /// The full names.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let template = self.template;
        (0..self.blocks).map(move |block| template.replace("{block}", &block.to_string()))
    }
}
