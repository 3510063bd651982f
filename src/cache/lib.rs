//! The expert cache: which expert is in memory, which one goes, and traces of what was asked for.
//!
//! The engine and the cache laboratory share this crate, so that a forecast and a run decide
//! alike. It reads no weights and no clock.

mod exits;
pub mod policy;
pub mod presets;
pub mod shape;
pub mod slot_table;
pub mod trace;
