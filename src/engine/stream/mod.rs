//! Weights that do not fit: layers through a ring, experts through a cache, all read in blocks.
//!
//! The engine asks a `LayerSource` and an `ExpertSource`; here are those that read at run time.
//! What is read, in which order and into how much memory is decided before the run
//! (`crate::memory`) and by the laboratory's code (`k3_simcache`); threads only fetch.

pub mod blocks;
mod error;
pub mod experts;
pub mod fault_hooks;
pub mod layers;
pub mod model;
pub mod pack;
pub mod read;
pub mod recorder;
pub mod runs;
pub mod vocabulary;

use error::NOT_IN_RUN;
pub use error::StreamError;
pub use experts::{ExpertCache, ExpertStore};
pub use layers::{StreamedLayers, Trunk};
pub use model::{ModelError, ModelFiles, StreamOptions, StreamedEngine};
