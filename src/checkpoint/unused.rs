//! Tensors without a place in the computation: why, told from the name alone.

use std::collections::BTreeMap;
use std::fmt;

use super::names::{LAYER_PREFIX, PROJECTOR_PREFIX, Role, TEXT_PREFIX, VISION_PREFIX};
use super::shape::ModelShape;
use super::store::TensorId;

/// Why a tensor has no place in the computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnusedClass {
    /// The vision tower.
    VisionTower,
    /// The projector behind the vision tower.
    MmProjector,
    /// Residual weights of a layer that has no bank to mix: `self_attention_res_*` of layer 0.
    ResidualBeforeFirstBank,
    /// A layer index that the config does not have.
    LayerPastEnd,
    /// A name under a layer of the model that is none of its tensors.
    UnknownInLayer,
    /// Any other name.
    Unknown,
}

impl UnusedClass {
    /// Whether the release has such tensors; the others deserve a look.
    #[must_use]
    pub fn is_released(self) -> bool {
        matches!(self, Self::VisionTower | Self::MmProjector | Self::ResidualBeforeFirstBank)
    }
}

impl fmt::Display for UnusedClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::VisionTower => "vision tower",
            Self::MmProjector => "vision projector",
            Self::ResidualBeforeFirstBank => "residual weights of layer 0, which has no bank yet",
            Self::LayerPastEnd => "layer past the end of the config",
            Self::UnknownInLayer => "unknown name in a layer",
            Self::Unknown => "unknown name",
        })
    }
}

/// A tensor without a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unused {
    /// Which tensor.
    pub id: TensorId,
    /// Why.
    pub class: UnusedClass,
}

/// Names of residual weights that no mix ever reads.
pub(super) fn zero_residuals(shape: &ModelShape) -> Vec<String> {
    let layers = shape.layers.iter().enumerate();
    let without = layers.filter(|(_, layer)| layer.attention_banks == 0).map(|(index, _)| index);
    let roles = [Role::AttentionResNorm, Role::AttentionResProj];
    without.flat_map(|layer| roles.map(|role| role.name(layer, 0))).collect()
}

pub(super) fn classify(name: &str, shape: &ModelShape, zero_residuals: &[String]) -> UnusedClass {
    if name.starts_with(VISION_PREFIX) {
        return UnusedClass::VisionTower;
    }
    if name.starts_with(PROJECTOR_PREFIX) {
        return UnusedClass::MmProjector;
    }
    if zero_residuals.iter().any(|known| known == name) {
        return UnusedClass::ResidualBeforeFirstBank;
    }
    match layer_of(name) {
        Some(layer) if layer >= shape.layers.len() => UnusedClass::LayerPastEnd,
        Some(_) => UnusedClass::UnknownInLayer,
        None => UnusedClass::Unknown,
    }
}

/// The layer that a name belongs to by its prefix.
pub(super) fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix(LAYER_PREFIX)?.split_once('.')?.0.parse().ok()
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ResidualPart {
    Norm,
    Proj,
}

/// The released names that another spelling of a residual tensor could stand for.
pub(super) fn released_residuals(part: ResidualPart, layer: Option<usize>) -> &'static [Role] {
    match (part, layer) {
        (ResidualPart::Norm, None) => &[Role::OutputResNorm],
        (ResidualPart::Proj, None) => &[Role::OutputResProj],
        (ResidualPart::Norm, Some(_)) => &[Role::AttentionResNorm, Role::MlpResNorm],
        (ResidualPart::Proj, Some(_)) => &[Role::AttentionResProj, Role::MlpResProj],
    }
}

/// Whether a name of the text model looks like a residual norm or projection.
pub(super) fn residual_spelling(name: &str) -> Option<ResidualPart> {
    let words: Vec<_> = name.strip_prefix(TEXT_PREFIX)?.split(['.', '_']).collect();
    if !words.iter().any(|word| matches!(*word, "res" | "residual" | "residuals")) {
        return None;
    }
    let last = words.iter().rev().find(|word| **word != "weight")?;
    match *last {
        "norm" | "layernorm" => Some(ResidualPart::Norm),
        "proj" | "projection" | "query" => Some(ResidualPart::Proj),
        _ => None,
    }
}

pub(super) fn count_classes(
    classes: impl Iterator<Item = UnusedClass>,
) -> BTreeMap<UnusedClass, usize> {
    let mut counts = BTreeMap::new();
    for class in classes {
        *counts.entry(class).or_insert(0) += 1;
    }
    counts
}
