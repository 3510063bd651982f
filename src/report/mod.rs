//! Reports: JSON with a schema version is the truth, text is a pure function of it.

pub mod gates;
pub mod mutants;
