//! The engine: Kimi K3 in f32 with f64 sums, as plain structs and one forward pass.
//!
//! `shape` derives kinds and widths from the configuration, `weights` binds a checkpoint, `state`
//! is what a sequence carries, `forward` runs the layers; `decoder`, `residual`, `kda`, `mla`,
//! `moe` and `dense` are MODEL.md section 2 in code. What they are composed of is the trait
//! [`Operations`], whose defaults are the kernels of the arithmetic contract; the production
//! engine is `Engine<Contract>`. The f64 reference is not here and shares nothing with this.

mod bench;
mod checkpoint_source;
mod compositions;
mod decoder;
mod dense;
mod error;
mod forward;
mod kda;
mod mla;
mod moe;
pub mod mutants;
mod on_demand;
mod operations;
mod residual;
mod shape;
mod stage_output;
mod state;
mod weights;
mod workspace;

pub use bench::{Bench, Residual};
pub use error::EngineError;
pub use forward::{Engine, EngineOptions, EngineSequence, LogitRows};
pub use mla::HeadAttention;
pub use moe::{Expert, ExpertSource, ResidentExperts};
pub use on_demand::OnDemand;
pub use operations::{Contract, NormSite, Operations, Projection};
pub use shape::{AttentionKind, LayerShape, Shape};
pub use state::{KdaState, LatentCache, State};
pub use weights::{
    AttentionWeights, DenseWeights, KdaWeights, LayerSource, LayerWeights, MlaWeights, MlpWeights,
    MoeWeights, ResidentLayers, ResidentVocabulary, TensorSpec, VocabularySource, WeightSource,
    Weights,
};
pub use workspace::Workspace;
