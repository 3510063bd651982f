//! The stage tensors: one naming scheme, one order, one container, used everywhere.
//!
//! A stage is a named intermediate value of the forward pass (`layers.7.kda.q`). The reference,
//! the engine, the oracle's files, dumps of foreign engines and every comparison use the names,
//! the execution order and the shapes of this module. Values are kept as f64: an f32 value widens
//! exactly, so nothing is lost, and ids are kept as i32.

use std::collections::BTreeMap;
use std::fmt;

/// One intermediate value of the forward pass. Variants are in execution order within a layer; T is
/// the number of rows (tokens), E the hidden width, H heads, D head width, P = H·D.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// `embed`: embedding rows \[T, E\]; no layer prefix.
    Embed,
    /// `attn_mix`: after the attention-side residual mix, or the running sum while there is no
    /// bank \[T, E\].
    AttnMix,
    /// `attn_norm`: after `input_layernorm` \[T, E\].
    AttnNorm,
    /// `kda.q`: after convolution, SiLU, l2norm and D^-1/2 \[T, H, D\].
    KdaQ,
    /// `kda.k`: after convolution, SiLU, l2norm \[T, H, D\].
    KdaK,
    /// `kda.v`: after convolution and SiLU \[T, H, D\].
    KdaV,
    /// `kda.z`: f_b(f_a x), before `dt_bias` \[T, H, D\].
    KdaZ,
    /// `kda.g`: the log decay \[T, H, D\].
    KdaG,
    /// `kda.beta`: after the logistic \[T, H\].
    KdaBeta,
    /// `kda.o`: Sᵀq, before `o_norm` and the gate \[T, H, D\].
    KdaO,
    /// `kda.state`: S after the last token, rows = key index \[H, D, D\].
    KdaState,
    /// `kda.conv`: the last kernel−1 inputs of the q, k, v convolutions, oldest first
    /// \[3, kernel−1, P\].
    KdaConv,
    /// `mla.q`: output of `q_b_proj` \[T, heads, nope+rope\].
    MlaQ,
    /// `mla.latent`: after `kv_a_layernorm` \[T, kv_lora\].
    MlaLatent,
    /// `mla.k_rope`: the raw rope part \[T, rope\].
    MlaKRope,
    /// `mla.o`: attention output before the gate \[T, heads, v\].
    MlaO,
    /// `attn_out`: after `o_proj` \[T, E\].
    AttnOut,
    /// `mlp_mix`: after the MLP-side residual mix \[T, E\].
    MlpMix,
    /// `mlp_norm`: after `post_attention_layernorm` \[T, E\].
    MlpNorm,
    /// `router_scores`: σ(logits) \[T, experts\].
    RouterScores,
    /// `router_ids`: the chosen experts, ascending \[T, k\], i32.
    RouterIds,
    /// `router_weights`: final weights in the order of the ids \[T, k\].
    RouterWeights,
    /// `moe.latent`: down·x \[T, L\].
    MoeLatent,
    /// `moe.sum`: the weighted sum before its norm \[T, L\].
    MoeSum,
    /// `moe.shared`: the shared MLP's output \[T, E\].
    MoeShared,
    /// `mlp_out`: after the MLP, dense or MoE \[T, E\].
    MlpOut,
    /// `out`: the running sum after the layer \[T, E\].
    Out,
    /// `final_mix`: after the output mix \[T, E\]; no layer prefix.
    FinalMix,
    /// `final_norm`: after the final norm \[T, E\]; no layer prefix.
    FinalNorm,
    /// `logits` \[T, V\]; no layer prefix.
    Logits,
}

impl Stage {
    /// Every stage, in execution order.
    pub const ALL: [Self; 30] = [
        Self::Embed,
        Self::AttnMix,
        Self::AttnNorm,
        Self::KdaQ,
        Self::KdaK,
        Self::KdaV,
        Self::KdaZ,
        Self::KdaG,
        Self::KdaBeta,
        Self::KdaO,
        Self::KdaState,
        Self::KdaConv,
        Self::MlaQ,
        Self::MlaLatent,
        Self::MlaKRope,
        Self::MlaO,
        Self::AttnOut,
        Self::MlpMix,
        Self::MlpNorm,
        Self::RouterScores,
        Self::RouterIds,
        Self::RouterWeights,
        Self::MoeLatent,
        Self::MoeSum,
        Self::MoeShared,
        Self::MlpOut,
        Self::Out,
        Self::FinalMix,
        Self::FinalNorm,
        Self::Logits,
    ];

    /// The stage's name without a layer prefix.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::AttnMix => "attn_mix",
            Self::AttnNorm => "attn_norm",
            Self::KdaQ => "kda.q",
            Self::KdaK => "kda.k",
            Self::KdaV => "kda.v",
            Self::KdaZ => "kda.z",
            Self::KdaG => "kda.g",
            Self::KdaBeta => "kda.beta",
            Self::KdaO => "kda.o",
            Self::KdaState => "kda.state",
            Self::KdaConv => "kda.conv",
            Self::MlaQ => "mla.q",
            Self::MlaLatent => "mla.latent",
            Self::MlaKRope => "mla.k_rope",
            Self::MlaO => "mla.o",
            Self::AttnOut => "attn_out",
            Self::MlpMix => "mlp_mix",
            Self::MlpNorm => "mlp_norm",
            Self::RouterScores => "router_scores",
            Self::RouterIds => "router_ids",
            Self::RouterWeights => "router_weights",
            Self::MoeLatent => "moe.latent",
            Self::MoeSum => "moe.sum",
            Self::MoeShared => "moe.shared",
            Self::MlpOut => "mlp_out",
            Self::Out => "out",
            Self::FinalMix => "final_mix",
            Self::FinalNorm => "final_norm",
            Self::Logits => "logits",
        }
    }

    /// Whether the name carries a `layers.N.` prefix.
    #[must_use]
    pub fn is_per_layer(self) -> bool {
        !matches!(self, Self::Embed | Self::FinalMix | Self::FinalNorm | Self::Logits)
    }

    /// Whether the value is the carried state after the last token (it replaces the value of an
    /// earlier chunk) rather than one row per token (rows of later chunks are appended).
    #[must_use]
    pub fn is_state(self) -> bool {
        matches!(self, Self::KdaState | Self::KdaConv)
    }
}

/// A stage at a place: the layer (zero-based) where the stage has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StageKey {
    /// Zero-based layer, `None` for `embed`, `final_mix`, `final_norm` and `logits`.
    pub layer: Option<usize>,
    /// Which value.
    pub stage: Stage,
}

impl StageKey {
    /// A stage inside layer `layer` (zero-based).
    #[must_use]
    pub fn layer(layer: usize, stage: Stage) -> Self {
        debug_assert!(stage.is_per_layer());
        Self { layer: Some(layer), stage }
    }

    /// A stage of the whole model.
    #[must_use]
    pub fn model(stage: Stage) -> Self {
        debug_assert!(!stage.is_per_layer());
        Self { layer: None, stage }
    }

    /// Reads a full name such as `layers.3.kda.q` or `final_norm`; `None` for anything else.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let (layer, rest) = match name.strip_prefix("layers.") {
            Some(tail) => {
                let (number, rest) = tail.split_once('.')?;
                if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
                    return None;
                }
                (Some(number.parse().ok()?), rest)
            }
            None => (None, name),
        };
        let stage = Stage::ALL.into_iter().find(|s| s.name() == rest)?;
        (stage.is_per_layer() == layer.is_some()).then_some(Self { layer, stage })
    }

    /// Sort key of the execution order: `embed`, the layers in order, the closing stages.
    fn order(self) -> (usize, Stage) {
        match (self.layer, self.stage) {
            (Some(layer), stage) => (layer + 1, stage),
            (None, Stage::Embed) => (0, Stage::Embed),
            (None, stage) => (usize::MAX, stage),
        }
    }
}

impl Ord for StageKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialOrd for StageKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for StageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "layers.{layer}.{}", self.stage.name()),
            None => f.write_str(self.stage.name()),
        }
    }
}

/// The values of a stage: numbers as f64 (f32 widens exactly), ids as i32.
#[derive(Debug, Clone, PartialEq)]
pub enum StageValues {
    /// Numbers.
    Real(Vec<f64>),
    /// Expert ids.
    Ids(Vec<i32>),
}

/// A named value with its shape; the first dimension is T unless the stage is a state.
#[derive(Debug, Clone, PartialEq)]
pub struct StageTensor {
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Row-major values; their number is the product of the shape.
    pub values: StageValues,
}

/// Where a computation puts its stage values. Called once per stage and chunk, in execution order.
pub trait StageSink {
    /// Whether the value is wanted at all; a computation may skip work for unwanted values.
    fn wants(&self, key: StageKey) -> bool;
    /// Takes a real-valued stage. `values.len()` is the product of `shape`.
    fn put(&mut self, key: StageKey, shape: &[usize], values: &[f64]);
    /// Takes expert ids.
    fn put_ids(&mut self, key: StageKey, shape: &[usize], ids: &[i32]);
}

/// A sink that wants nothing.
#[derive(Debug, Default, Clone, Copy)]
pub struct NoStages;

impl StageSink for NoStages {
    fn wants(&self, _key: StageKey) -> bool {
        false
    }
    fn put(&mut self, _key: StageKey, _shape: &[usize], _values: &[f64]) {}
    fn put_ids(&mut self, _key: StageKey, _shape: &[usize], _ids: &[i32]) {}
}

/// Keeps every stage in memory, in execution order. Rows of later chunks are appended; a state
/// replaces the earlier one.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct StageDump {
    /// The tensors by place.
    pub tensors: BTreeMap<StageKey, StageTensor>,
}

impl StageSink for StageDump {
    fn wants(&self, _key: StageKey) -> bool {
        true
    }

    fn put(&mut self, key: StageKey, shape: &[usize], values: &[f64]) {
        debug_assert_eq!(shape.iter().product::<usize>(), values.len(), "{key}");
        if let Some(tensor) = self.tensors.get_mut(&key)
            && !key.stage.is_state()
            && let StageValues::Real(rows) = &mut tensor.values
        {
            rows.extend_from_slice(values);
            tensor.shape[0] += shape[0];
            return;
        }
        let values = StageValues::Real(values.to_vec());
        self.tensors.insert(key, StageTensor { shape: shape.to_vec(), values });
    }

    fn put_ids(&mut self, key: StageKey, shape: &[usize], ids: &[i32]) {
        debug_assert_eq!(shape.iter().product::<usize>(), ids.len(), "{key}");
        if let Some(tensor) = self.tensors.get_mut(&key)
            && let StageValues::Ids(rows) = &mut tensor.values
        {
            rows.extend_from_slice(ids);
            tensor.shape[0] += shape[0];
            return;
        }
        let values = StageValues::Ids(ids.to_vec());
        self.tensors.insert(key, StageTensor { shape: shape.to_vec(), values });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that does not come back as itself would make two engines' dumps miss each other.
    #[test]
    fn every_name_parses_back_to_its_key() {
        for stage in Stage::ALL {
            let key = StageKey { layer: stage.is_per_layer().then_some(12), stage };
            assert_eq!(StageKey::parse(&key.to_string()), Some(key));
        }
        for wrong in ["", "layers.x.out", "layers..out", "layers.1.embed", "out", "layers.+1.out"] {
            assert_eq!(StageKey::parse(wrong), None, "{wrong}");
        }
    }

    /// First divergence means first in execution order, not in the order of the alphabet.
    #[test]
    fn keys_sort_in_execution_order() {
        let names = ["logits", "layers.10.out", "embed", "layers.2.out", "layers.2.attn_mix"];
        let mut keys: Vec<_> = names.iter().filter_map(|n| StageKey::parse(n)).collect();
        keys.sort();
        let sorted: Vec<_> = keys.iter().map(ToString::to_string).collect();
        let expected = ["embed", "layers.2.attn_mix", "layers.2.out", "layers.10.out", "logits"];
        assert_eq!(sorted, expected);
    }
}
