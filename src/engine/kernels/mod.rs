//! The kernels: the arithmetic contract and the loops that obey it.
//!
//! [`contract`] states the arithmetic once, in prose, and points to the scalar definition of each
//! rule; one file per kernel holds that definition. Faster paths (`simd`) owe the same bits; the
//! table of functions that the model calls is [`table::Kernels`].
//! Nothing here knows about layers, checkpoints or names, and nothing decides how often it runs.

pub mod bf16;
pub mod contract;
pub mod convolution;
pub mod functions;
pub mod kda;
pub mod matrix;
pub mod mla;
pub mod mxfp4;
pub mod norm;
pub mod path;
pub mod products;
pub mod residual;
pub mod router;
pub mod rows;
pub mod simd;
pub mod situ;
pub mod softmax;
pub mod sums;
pub mod table;
pub mod threads;
