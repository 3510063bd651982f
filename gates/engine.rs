//! The engine (cargo test): against outside answers, and of its invariances.
//!
//! Outside data is reached through `K3_EXTERNAL`; where it is unset the test says NOT RUN. Most
//! tests read with the `safetensors` crate, so that they can damage tensors in memory; one goes
//! through the strict reader.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "engine/checkpoint.rs"]
mod checkpoint;
#[path = "engine/clauses.rs"]
mod clauses;
#[path = "engine/invariance.rs"]
mod invariance;
#[path = "engine/numbers.rs"]
mod numbers;
#[path = "engine/operations.rs"]
mod operations;
#[path = "engine/tiny.rs"]
mod tiny;

use std::path::PathBuf;

/// The folder of outside evidence; says NOT RUN when there is none.
fn external(folder: &str) -> Option<PathBuf> {
    let Some(root) = std::env::var_os("K3_EXTERNAL") else {
        println!("NOT RUN: K3_EXTERNAL is unset");
        return None;
    };
    let path = PathBuf::from(root).join(folder);
    assert!(path.is_dir(), "{} is missing", path.display());
    Some(path)
}
