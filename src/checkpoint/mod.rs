//! The engine's checkpoint reader: strict headers, an index over all shards, binding by name.

pub mod binding;
pub mod dtype;
pub mod foreign;
pub mod header;
pub mod index;
pub mod json;
pub mod name_table;
pub mod names;
pub mod plan;
pub mod shape;
pub mod shard;
pub mod store;

pub use binding::{BindError, Binding, ExpertTensors, Unused, UnusedClass};
pub use dtype::Dtype;
pub use names::Role;
pub use shape::{LayerKind, LayerShape, MlpKind, ModelShape};
pub use shard::ReadError;
pub use store::{Checkpoint, CheckpointError, TensorId, TensorInfo};
