//! Facts about this machine, for provenance and for plans.

pub mod claims;
pub mod files;
pub mod interrupt;
pub mod memory;
pub mod provenance;
