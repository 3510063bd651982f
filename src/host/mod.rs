//! Facts about this machine, for provenance and for plans.

pub mod files;
pub mod memory;
pub mod provenance;
