//! Inputs and outputs of a kernel case by name, shared by both adapters.

use crate::kernels::{Tensors, real};
use crate::subject::Outputs;

/// Inputs of a case, read by name; an absent one is empty.
pub struct Inputs<'a> {
    /// The tensors.
    pub tensors: &'a Tensors,
}

impl Inputs<'_> {
    /// Whether the case has such an input.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The values as f64.
    pub fn values(&self, name: &str) -> Vec<f64> {
        self.tensors.get(name).map(real).unwrap_or_default()
    }

    /// The values as f32, which is what the file holds.
    pub fn f32(&self, name: &str) -> Vec<f32> {
        self.values(name).iter().map(|value| *value as f32).collect()
    }

    /// The only value.
    pub fn number(&self, name: &str) -> f64 {
        self.values(name).first().copied().unwrap_or(f64::NAN)
    }

    /// The values as bytes.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        self.values(name).iter().map(|value| *value as u8).collect()
    }

    /// The shape; an absent input has none.
    pub fn shape(&self, name: &str) -> Vec<usize> {
        self.tensors.get(name).map(|tensor| tensor.shape.clone()).unwrap_or_default()
    }
}

/// Outputs from pairs.
pub fn named<const N: usize>(outputs: [(&str, Vec<f64>); N]) -> Outputs {
    outputs.into_iter().map(|(name, values)| (name.to_owned(), values)).collect()
}
