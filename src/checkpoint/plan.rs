//! Every tensor a config implies, with name, dtype and shape, one at a time.
//!
//! The released plan has 497,052 tensors of the text model: they are visited, not collected. The
//! vision tower is not part of it (see [`super::names::VISION`]).

use super::dtype::Dtype;
use super::names::{EXPERT_ROLES, Role, Scope};
use super::shape::{LayerKind, ModelShape};

/// One expected tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpectedTensor<'a> {
    /// What it is.
    pub role: Role,
    /// Zero-based layer; `None` for tensors of the whole model.
    pub layer: Option<usize>,
    /// Routed expert, where it belongs to one.
    pub expert: Option<usize>,
    /// Full name.
    pub name: &'a str,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: &'a [usize],
}

impl ExpectedTensor<'_> {
    /// Its bytes.
    #[must_use]
    pub fn byte_len(&self) -> u64 {
        // The config's limits keep any tensor below 2^63 bytes.
        self.shape.iter().map(|&size| size as u64).product::<u64>() * self.dtype.bits() / 8
    }
}

/// The tensors of the whole model, in the order of the table of names.
pub fn visit_model(model: &ModelShape, mut visit: impl FnMut(ExpectedTensor<'_>)) {
    for &role in Role::ALL.iter().filter(|role| role.scope() == Scope::Model) {
        // No model-level tensor has a dimension that depends on a layer's kind.
        let shape = role.shape(model, LayerKind::Kda);
        visit(ExpectedTensor {
            role,
            layer: None,
            expert: None,
            name: role.template(),
            dtype: role.dtype(),
            shape: &shape,
        });
    }
}

/// The tensors of layer `layer` (zero-based): the trunk, then expert by expert.
pub fn visit_layer(model: &ModelShape, layer: usize, mut visit: impl FnMut(ExpectedTensor<'_>)) {
    let layer_shape = &model.layers[layer];
    let mut name = String::new();
    let trunk = Role::ALL.iter().copied().filter(|role| role.scope() != Scope::Expert);
    for role in trunk.filter(|role| role.scope().covers(layer_shape)) {
        role.write_name(layer, 0, &mut name);
        let shape = role.shape(model, layer_shape.kind);
        visit(ExpectedTensor {
            role,
            layer: Some(layer),
            expert: None,
            name: &name,
            dtype: role.dtype(),
            shape: &shape,
        });
    }
    if !Scope::Expert.covers(layer_shape) {
        return;
    }
    let shapes = EXPERT_ROLES.map(|role| role.shape(model, layer_shape.kind));
    let suffixes = EXPERT_ROLES.map(Role::expert_suffix);
    for expert in 0..model.moe.experts {
        // The six names differ behind the expert's number only; half a million are made.
        EXPERT_ROLES[0].write_name(layer, expert, &mut name);
        let prefix_bytes = name.len() - suffixes[0].len();
        for ((role, shape), suffix) in EXPERT_ROLES.into_iter().zip(&shapes).zip(suffixes) {
            name.truncate(prefix_bytes);
            name.push_str(suffix);
            let dtype = role.dtype();
            let (layer, expert) = (Some(layer), Some(expert));
            visit(ExpectedTensor { role, layer, expert, name: &name, dtype, shape });
        }
    }
}

/// How many tensors the plan has.
#[must_use]
pub fn tensor_count(model: &ModelShape) -> u64 {
    let count = |scope: Scope| Role::ALL.iter().filter(|role| role.scope() == scope).count() as u64;
    let mut total = count(Scope::Model);
    for layer in &model.layers {
        for scope in [Scope::Layer, Scope::Kda, Scope::Mla, Scope::Dense, Scope::Moe] {
            total += if scope.covers(layer) { count(scope) } else { 0 };
        }
        if Scope::Expert.covers(layer) {
            total += count(Scope::Expert) * model.moe.experts as u64;
        }
    }
    total
}
