//! The memory plan: every byte a run will hold, by component, before any of it is allocated.
//!
//! [`plan`] adds up and chooses the split between trunk and experts, [`k3_cache::presets`] names
//! splits. The plan counts resident bytes of the process: weights are read past or through the page
//! cache, never mapped, so the cache is not part of it.

pub mod plan;
pub mod trunk;

pub use plan::{Component, Demand, MemoryPlan, Refusal, Wishes};
