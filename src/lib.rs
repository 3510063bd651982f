//! `k3-verify`: a verification-first harness for Kimi K3.
//!
//! Three independent computations of one model (a Python oracle, an f64 reference, the engine)
//! and a ladder of gates that can fail. The map of the source and the numbered invariants are in
//! `src/README.md`; what the model computes is named by the clauses in [`clauses`].

pub mod audit;
pub mod checkpoint;
pub mod clauses;
pub mod cli;
pub mod compare;
pub mod config;
pub mod exit;
pub mod gates;
pub mod generate;
pub mod host;
pub mod kernels;
pub mod layers;
pub mod memory;
pub mod model;
pub mod reference;
pub mod report;
pub mod scale_out;
pub mod simcache;
pub mod stages;
pub mod stream;
pub mod synth;
pub mod tensor_file;
pub mod text;
