//! Shared by all crates: the stage names, the comparison record, precisions, the numbered clauses,
//! the raw configuration, exit codes, random numbers, and facts about the host.
//!
//! Nothing here computes the model or reads a checkpoint.

pub mod choice;
pub mod clauses;
pub mod compare;
pub mod config;
pub mod content;
pub mod exit;
mod hex;
pub mod host;
pub mod listing;
pub mod npy;
mod precision;
pub mod random;
pub mod seal;
pub mod stages;

pub use hex::hex;
pub use precision::Precision;
