//! The engine: Kimi K3 in f32 with f64 sums, as plain structs and one forward pass.
//!
//! `shape` derives kinds and widths from the configuration, `weights` binds a checkpoint, `state`
//! is what a sequence carries, `forward` runs the layers; `decoder`, `residual`, `kda`, `mla`,
//! `moe` and `dense` are MODEL.md section 2 in code, on the functions of a table of kernels. The
//! f64 reference is not here and shares nothing with this.

mod checkpoint_source;
mod decoder;
mod dense;
mod error;
mod forward;
mod kda;
mod mla;
mod moe;
mod on_demand;
mod residual;
mod rig;
mod shape;
mod stage_output;
mod state;
mod weights;
mod workspace;

pub use checkpoint_source::Recorded;
pub use error::EngineError;
pub use forward::{Engine, EngineOptions, EngineSequence, LogitRows};
pub use moe::{Expert, ExpertSource, ResidentExperts};
pub use on_demand::OnDemand;
pub use rig::{Residual, Rig};
pub use shape::{LayerKind, LayerShape, MlpKind, ModelShape, Shape};
pub use state::{KdaState, LatentCache, State};
pub use weights::{
    AttentionWeights, DenseWeights, KdaWeights, LayerSource, LayerWeights, Mixer, MlaWeights,
    MlpWeights, MoeWeights, Norm, ResidentLayers, ResidentVocabulary, TensorSpec, VocabularySource,
    WeightSource, Weights,
};
pub use workspace::Workspace;
