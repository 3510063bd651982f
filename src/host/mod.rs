//! Facts about this machine, for provenance and for plans.

pub mod interrupt;
pub mod provenance;
