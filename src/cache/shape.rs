//! The model parameters that a trace needs: layers, experts, top-k, bytes of one expert.
//!
//! An expert is named by layer and number ([`ExpertKey`]); inside the laboratory it is an index
//! into a dense table ([`ModelShape::index`]), so that no result can depend on the order of a
//! hash map. Nothing here reads a config: the engine fills the shape from its own.

use serde::Serialize;

/// Most layers a shape may claim; real stacks have about a hundred.
pub const MAX_LAYERS: u32 = 4096;
/// Most experts per layer; an expert number has to fit 16 bits.
pub const MAX_EXPERTS_PER_LAYER: u32 = 65_535;
/// Most experts in all: the dense tables take a few words for each.
pub const MAX_EXPERTS: u32 = 1 << 24;

/// One routed expert: zero-based layer and zero-based number in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ExpertKey {
    /// Zero-based decoder layer.
    pub layer: u16,
    /// Zero-based expert of that layer.
    pub expert: u16,
}

/// The sizes that the cache study depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ModelShape {
    /// Decoder layers, dense ones included.
    pub layer_count: u32,
    /// Layers with a smaller index have no routed experts.
    pub first_moe_layer: u32,
    /// Routed experts per MoE layer.
    pub experts_per_layer: u32,
    /// Experts a token asks for in one layer.
    pub top_k: u32,
    /// Bytes of one expert on disk.
    pub expert_bytes: u64,
}

impl ModelShape {
    /// Kimi K3 as released.
    pub const K3: ModelShape = ModelShape {
        layer_count: 93,
        first_moe_layer: 1,
        experts_per_layer: 896,
        top_k: 16,
        expert_bytes: 17_547_264,
    };

    /// Dense index of an expert; `key` must be inside the shape.
    pub fn index(&self, key: ExpertKey) -> u32 {
        debug_assert!(u32::from(key.layer) < self.layer_count);
        debug_assert!(u32::from(key.expert) < self.experts_per_layer);
        u32::from(key.layer) * self.experts_per_layer + u32::from(key.expert)
    }

    /// The expert of a dense index.
    pub fn key(&self, index: u32) -> ExpertKey {
        ExpertKey {
            layer: (index / self.experts_per_layer) as u16,
            expert: (index % self.experts_per_layer) as u16,
        }
    }

    /// Length of a dense table.
    pub fn expert_count(&self) -> usize {
        (self.layer_count * self.experts_per_layer) as usize
    }

    /// The first field that is out of bounds: name, value and what is allowed.
    pub fn first_bad_field(&self) -> Option<(&'static str, u64, &'static str)> {
        let experts = u64::from(self.layer_count) * u64::from(self.experts_per_layer);
        if self.layer_count == 0 || self.layer_count > MAX_LAYERS {
            return Some(("layer_count", u64::from(self.layer_count), "1 to 4096"));
        }
        if self.first_moe_layer >= self.layer_count {
            let value = u64::from(self.first_moe_layer);
            return Some(("first_moe_layer", value, "below layer_count"));
        }
        if self.experts_per_layer == 0 || self.experts_per_layer > MAX_EXPERTS_PER_LAYER {
            let value = u64::from(self.experts_per_layer);
            return Some(("experts_per_layer", value, "1 to 65535"));
        }
        if experts > u64::from(MAX_EXPERTS) {
            return Some(("experts_per_layer", experts, "at most 16777216 experts in all layers"));
        }
        if self.top_k == 0 || self.top_k > self.experts_per_layer {
            return Some(("top_k", u64::from(self.top_k), "1 to experts_per_layer"));
        }
        if self.expert_bytes == 0 || self.expert_bytes > 1 << 40 {
            return Some(("expert_bytes", self.expert_bytes, "1 to 2^40"));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_and_key_are_inverse_at_the_corners() {
        for key in [
            ExpertKey { layer: 0, expert: 0 },
            ExpertKey { layer: 0, expert: 895 },
            ExpertKey { layer: 92, expert: 895 },
        ] {
            assert_eq!(ModelShape::K3.key(ModelShape::K3.index(key)), key);
        }
        assert_eq!(ModelShape::K3.expert_count(), 83_328);
    }

    #[test]
    fn every_bad_field_is_named() {
        let k3 = ModelShape::K3;
        let cases = [
            (ModelShape { layer_count: 0, ..k3 }, "layer_count"),
            (ModelShape { first_moe_layer: 93, ..k3 }, "first_moe_layer"),
            (ModelShape { experts_per_layer: 0, ..k3 }, "experts_per_layer"),
            (
                ModelShape { layer_count: 4096, experts_per_layer: 60_000, ..k3 },
                "experts_per_layer",
            ),
            (ModelShape { top_k: 897, ..k3 }, "top_k"),
            (ModelShape { expert_bytes: 0, ..k3 }, "expert_bytes"),
        ];
        for (shape, field) in cases {
            assert_eq!(shape.first_bad_field().map(|bad| bad.0), Some(field));
        }
        assert_eq!(k3.first_bad_field(), None);
    }
}
