//! The engine: Kimi K3 in f32 with f64 sums, resident or streamed.
//!
//! `kernels` is the arithmetic contract in code, `model` the forward pass, `stream` reads what
//! does not fit in memory, `memory` plans, `generate` is the decoding loop with its saved states.

mod exits;
pub mod generate;
pub mod kernels;
pub mod memory;
pub mod model;
pub mod stream;
