//! Synthetic checkpoints: the released names, dtypes and layout, with weights drawn from a seed.
//!
//! [`preset`] is the shapes and their `config.json`, [`layout`] which tensor is in which shard,
//! [`rules`] how each kind of tensor is drawn, [`values`] the draws, [`quantise`] MXFP4 from real
//! numbers, [`draw`] the bytes of any part of a shard, [`folder`] and [`index`] the writing
//! (parallel, resumable), [`probe`] what the engine measures on the result.
//!
//! A tensor's bytes are a function of the seed, its name and its shape, and of nothing else: each
//! has a stream of its own that can be entered anywhere, so neither the order of writing nor the
//! number of threads nor an interruption shows, and a model of fewer layers is a prefix of a longer
//! one. Deliberately not here: anything that would make the weights mean something. A synthetic
//! model tests binding, arithmetic and widths, never quality.

pub mod draw;
pub mod error;
mod exits;
pub mod folder;
pub mod index;
pub mod layout;
pub mod preset;
pub mod probe;
pub mod quantise;
pub mod report;
pub mod rules;
pub mod values;

pub use error::SynthError;
pub use layout::{Layout, ShardPlan};
pub use preset::{Overrides, Preset, SynthModel};
