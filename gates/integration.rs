//! The tests that need nothing but what ships, one module per area.

#![allow(clippy::unwrap_used)] // a test that cannot read its input fails
#![allow(clippy::print_stdout, reason = "measured values, shown with --nocapture")]

mod audit;
mod checkpoint;
mod cli;
mod compare;
mod engine;
mod flips;
mod hostile;
mod kernels_contract;
mod layers;
mod least_error;
mod local;
mod logits;
mod process;
mod reference;
mod reports;
mod simcache;
mod stream;
mod support;
mod synth;
mod text;
mod toy_engine;
