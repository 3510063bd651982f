//! The engine's checkpoint reader: strict headers, an index over all shards, binding by name.
//!
//! [`json`] reads strictly; [`header`], [`index`] and [`shard`] are the parts of a checkpoint on
//! disk, [`store`] the opened whole. [`names`] is the table of the release's names, [`shape`] what
//! the engine derives from a config, [`plan`] the tensors that follow, [`binding`] the match of
//! plan and checkpoint. [`dtype`] and [`mxfp4`] define what stored bits mean, [`identity`] says
//! which checkpoint it was, [`mod@write`] makes files. Policies are stated where they are enforced.
//!
//! The reference shares none of this: it has a reader of its own.

mod bind_error;
pub mod binding;
pub mod config;
pub mod dtype;
mod exits;
pub mod foreign;
pub mod header;
pub mod identity;
pub mod index;
pub mod json;
mod malformed;
pub mod mxfp4;
pub mod name_table;
pub mod names;
pub mod plan;
pub mod shape;
pub mod shard;
pub mod store;
pub mod unused;
pub mod write;

pub use bind_error::BindError;
pub use binding::{Binding, ExpertTensors};
pub use dtype::Dtype;
pub use malformed::{Malformed, Problem};
pub use names::Role;
pub use shape::{LayerKind, LayerShape, MlpKind, ModelShape};
pub use shard::ReadError;
pub use store::{Checkpoint, CheckpointError, TensorId, TensorInfo};
pub use unused::{Unused, UnusedClass};
