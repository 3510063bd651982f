//! The expert cache: residency, eviction, and traces of requests.
//!
//! The engine and the cache laboratory share this crate, so that a forecast and a run make the same
//! decisions. It reads no weights and no clock.

mod exits;
pub mod policy;
pub mod presets;
pub mod shape;
pub mod slot_table;
pub mod trace;
