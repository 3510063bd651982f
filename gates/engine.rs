//! The engine: clauses by hand, invariances, NaN and damage. Most tests read with the `safetensors`
//! crate, so that they can damage tensors in memory; one goes through the strict reader.

mod clauses;
mod invariance;
mod numbers;
mod oracle;
