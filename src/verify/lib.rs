//! The ladder: gates as data records, the subjects they judge, the sets they judge them on.
//!
//! A gate is written once and serves the command, `cargo test`, the reports and the kill matrix.
//! Nothing here computes the model; subjects do.

pub mod answers;
pub mod audit;
pub mod blind;
pub mod checks;
pub mod compare;
pub mod context;
pub mod diagnosis;
pub mod engine_command;
pub mod evidence;
mod exits;
pub mod fixtures;
pub mod glob;
pub mod kernel_bounds;
pub mod kernels;
pub mod kill_matrix;
pub mod ladder;
pub mod layers;
pub mod least_error;
pub mod mutants;
pub mod noise_floor;
pub mod outcome;
pub mod ratchet;
pub mod registry;
pub mod report;
pub mod runner;
pub mod scale_out;
pub mod subject;
pub mod subjects;
pub mod tensor_file;

pub use k3_core::Precision;
pub use ladder::Ladder;
pub use subject::{Opening, Recomputed, Sequence, Subject, SubjectError, SubjectSource};
