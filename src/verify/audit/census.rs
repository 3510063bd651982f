//! Tensors by class and by layer: how many, how many bytes and parameters, and what is absent.
//!
//! Every tensor the config implies is looked up by its full name; what the config does not imply
//! is the vision tower, its projector, or unknown. The map of layers is read twice: from the
//! config's lists, and from which of `A_log` and `kv_a_proj_with_mqa` a layer's tensors hold.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Finding, Findings};
use k3_checkpoint::names::{PROJECTOR_PREFIX, Role, VISION_PREFIX};
use k3_checkpoint::plan::{ExpectedTensor, visit_layer, visit_model};
use k3_checkpoint::{Checkpoint, Dtype, LayerKind, MlpKind, ModelShape};

/// What a tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// `experts.*`.
    RoutedExperts,
    /// `shared_experts.*`.
    SharedExperts,
    /// `routed_expert_{down,up}_proj`, `routed_expert_norm`.
    LatentProjections,
    /// `gate.*`.
    Router,
    /// `self_attn.*` of KDA layers.
    KdaAttention,
    /// `self_attn.*` of MLA layers.
    MlaAttention,
    /// The dense MLP.
    DenseMlp,
    /// `*_res_norm`, `*_res_proj`.
    Residual,
    /// Norms before attention, before the MLP, and the last.
    Norms,
    /// `embed_tokens`.
    Embedding,
    /// `lm_head`.
    Head,
    /// `vision_tower.*`, `mm_projector.*`: not used by the text model.
    Vision,
    /// No known name.
    Unknown,
}

impl Class {
    /// Every class, in the order of the report.
    pub const ALL: [Self; 13] = [
        Self::RoutedExperts,
        Self::SharedExperts,
        Self::LatentProjections,
        Self::Router,
        Self::KdaAttention,
        Self::MlaAttention,
        Self::DenseMlp,
        Self::Residual,
        Self::Norms,
        Self::Embedding,
        Self::Head,
        Self::Vision,
        Self::Unknown,
    ];

    /// Name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RoutedExperts => "routed experts",
            Self::SharedExperts => "shared experts",
            Self::LatentProjections => "latent projections",
            Self::Router => "router",
            Self::KdaAttention => "attention, KDA",
            Self::MlaAttention => "attention, MLA",
            Self::DenseMlp => "dense MLP",
            Self::Residual => "residual mixes",
            Self::Norms => "norms",
            Self::Embedding => "embedding",
            Self::Head => "head",
            Self::Vision => "vision (unused)",
            Self::Unknown => "unknown",
        }
    }

    /// The class of a role in a layer of some attention kind.
    #[must_use]
    pub fn of(role: Role, kind: Option<LayerKind>) -> Self {
        use Role as R;
        match role {
            R::EmbedTokens => Self::Embedding,
            R::LmHead => Self::Head,
            R::FinalNorm | R::InputNorm | R::PostAttentionNorm => Self::Norms,
            R::OutputResNorm
            | R::OutputResProj
            | R::AttentionResNorm
            | R::AttentionResProj
            | R::MlpResNorm
            | R::MlpResProj => Self::Residual,
            R::DenseGateProj | R::DenseUpProj | R::DenseDownProj => Self::DenseMlp,
            R::RouterWeight | R::RouterBias => Self::Router,
            R::LatentDownProj | R::LatentUpProj | R::LatentNorm => Self::LatentProjections,
            R::SharedGateProj | R::SharedUpProj | R::SharedDownProj => Self::SharedExperts,
            _ if !role.expert_suffix().is_empty() => Self::RoutedExperts,
            _ => match kind {
                Some(LayerKind::Mla) => Self::MlaAttention,
                _ => Self::KdaAttention,
            },
        }
    }
}

/// One class.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ClassRow {
    /// Name.
    pub class: &'static str,
    /// Tensors there are.
    pub tensors: u64,
    /// Tensors the config implies; as many as there are for what it does not speak of.
    pub expected: u64,
    /// Bytes there are.
    pub bytes: u64,
    /// Weights there are (scale bytes are none).
    pub parameters: u64,
    /// Bytes by dtype.
    pub bytes_by_dtype: BTreeMap<&'static str, u64>,
}

/// One layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerRow {
    /// Zero-based.
    pub layer: usize,
    /// `KDA` or `MLA`, by the config.
    pub attention: &'static str,
    /// The same by the tensors present; none if neither mark is found.
    pub attention_by_tensors: Option<&'static str>,
    /// `dense` or `MoE`.
    pub mlp: &'static str,
    /// Whether the layer banks the running sum.
    pub banks: bool,
    /// Tensors there are.
    pub tensors: u64,
    /// Tensors the config implies.
    pub expected: u64,
    /// Bytes there are.
    pub bytes: u64,
}

/// The whole count.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Census {
    /// By class; classes with nothing in them are left out.
    pub classes: Vec<ClassRow>,
    /// By layer.
    pub layers: Vec<LayerRow>,
    /// Tensors in all.
    pub tensors: u64,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Weights in all, the vision tower included.
    pub parameters: u64,
    /// Tensors the config implies and the checkpoint lacks.
    pub absent: u64,
    /// Of these, tensors outside the layers, by name.
    pub absent_outside_layers: Vec<String>,
    /// Another dtype, shape or attention than the config implies; unknown names.
    pub problems: Findings,
}

/// Counts everything.
#[must_use]
pub fn census(checkpoint: &Checkpoint, shape: &ModelShape) -> Census {
    let mut count = Count::new(checkpoint);
    for (index, layer) in shape.layers.iter().enumerate() {
        let mut row = LayerRow {
            layer: index,
            attention: kind_name(layer.kind),
            attention_by_tensors: None,
            mlp: match layer.mlp {
                MlpKind::Dense => "dense",
                MlpKind::Moe => "MoE",
            },
            banks: layer.pushes_bank,
            tensors: 0,
            expected: 0,
            bytes: 0,
        };
        visit_layer(shape, index, |tensor| {
            row.expected += 1;
            if let Some(bytes) = count.expect(&tensor, Some(layer.kind)) {
                row.tensors += 1;
                row.bytes += bytes;
            }
        });
        row.attention_by_tensors = kind_by_tensors(checkpoint, index);
        if let Some(by_tensors) = row.attention_by_tensors.filter(|kind| *kind != row.attention) {
            count.problems.push(Finding {
                file: "config.json".to_owned(),
                tensor: None,
                what: format!(
                    "layer {index}: the lists say {}, the tensors say {by_tensors}",
                    row.attention
                ),
            });
        }
        count.layers.push(row);
    }
    visit_model(shape, |tensor| {
        if count.expect(&tensor, None).is_none() {
            count.absent_outside_layers.push(tensor.name.to_owned());
        }
    });
    count.finish()
}

/// `KDA` or `MLA`.
#[must_use]
pub fn kind_name(kind: LayerKind) -> &'static str {
    match kind {
        LayerKind::Kda => "KDA",
        LayerKind::Mla => "MLA",
    }
}

fn kind_by_tensors(checkpoint: &Checkpoint, layer: usize) -> Option<&'static str> {
    let has = |role: Role| checkpoint.find(&role.name(layer, 0)).is_some();
    match (has(Role::KdaALog), has(Role::MlaKvAProj)) {
        (true, false) => Some("KDA"),
        (false, true) => Some("MLA"),
        (true, true) => Some("both"),
        (false, false) => None,
    }
}

struct Count<'a> {
    checkpoint: &'a Checkpoint,
    seen: Vec<bool>,
    classes: BTreeMap<Class, ClassRow>,
    layers: Vec<LayerRow>,
    absent: u64,
    absent_outside_layers: Vec<String>,
    problems: Findings,
}

impl<'a> Count<'a> {
    fn new(checkpoint: &'a Checkpoint) -> Self {
        Self {
            checkpoint,
            seen: vec![false; checkpoint.len()],
            classes: BTreeMap::new(),
            layers: Vec::new(),
            absent: 0,
            absent_outside_layers: Vec::new(),
            problems: Findings::default(),
        }
    }

    fn row(&mut self, class: Class) -> &mut ClassRow {
        self.classes
            .entry(class)
            .or_insert_with(|| ClassRow { class: class.name(), ..ClassRow::default() })
    }

    /// Looks an implied tensor up; its bytes if it is there.
    fn expect(&mut self, tensor: &ExpectedTensor<'_>, kind: Option<LayerKind>) -> Option<u64> {
        let class = Class::of(tensor.role, kind);
        self.row(class).expected += 1;
        let Some(info) = self.checkpoint.tensor(tensor.name) else {
            self.absent += 1;
            return None;
        };
        self.seen[info.id.index()] = true;
        if (info.dtype, info.shape) != (tensor.dtype, tensor.shape) {
            self.problems.push(Finding {
                file: file_name(self.checkpoint, info.shard),
                tensor: Some(tensor.name.to_owned()),
                what: format!(
                    "expected {} {:?} by the config, got {} {:?}",
                    tensor.dtype, tensor.shape, info.dtype, info.shape
                ),
            });
        }
        self.add(class, info.dtype, info.byte_len, weights(tensor.role, info.shape));
        Some(info.byte_len)
    }

    fn add(&mut self, class: Class, dtype: Dtype, bytes: u64, parameters: u64) {
        let row = self.row(class);
        row.tensors += 1;
        row.bytes += bytes;
        row.parameters += parameters;
        *row.bytes_by_dtype.entry(dtype.name()).or_default() += bytes;
    }

    /// Adds what the config does not imply.
    fn finish(mut self) -> Census {
        for info in self.checkpoint.tensors() {
            if self.seen[info.id.index()] {
                continue;
            }
            let is_vision = [VISION_PREFIX, PROJECTOR_PREFIX]
                .iter()
                .any(|prefix| info.name.starts_with(prefix));
            let class = if is_vision {
                Class::Vision
            } else {
                self.problems.push(Finding {
                    file: file_name(self.checkpoint, info.shard),
                    tensor: Some(info.name.to_owned()),
                    what: "no tensor of the model by that name".to_owned(),
                });
                Class::Unknown
            };
            let parameters = info.shape.iter().map(|&size| size as u64).product();
            self.add(class, info.dtype, info.byte_len, parameters);
            self.row(class).expected += 1;
        }
        let classes: Vec<ClassRow> = self.classes.into_values().collect();
        Census {
            tensors: self.checkpoint.len() as u64,
            bytes: self.checkpoint.tensor_bytes(),
            parameters: classes.iter().map(|row| row.parameters).sum(),
            classes,
            layers: self.layers,
            absent: self.absent,
            absent_outside_layers: self.absent_outside_layers,
            problems: self.problems,
        }
    }
}

/// Weights a tensor holds: two to a byte of MXFP4 codes, none in its scales.
fn weights(role: Role, shape: &[usize]) -> u64 {
    let elements: u64 = shape.iter().map(|&size| size as u64).product();
    match role {
        Role::RoutedW1Packed | Role::RoutedW2Packed | Role::RoutedW3Packed => 2 * elements,
        Role::RoutedW1Scale | Role::RoutedW2Scale | Role::RoutedW3Scale => 0,
        _ => elements,
    }
}

/// File name of a shard.
#[must_use]
pub fn file_name(checkpoint: &Checkpoint, shard: usize) -> String {
    let name = checkpoint.shard_path(shard).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
