//! The f64 reference: slow, plain, and written to be read next to MODEL.md section 2.
//!
//! What is here: readers of its own for the config ([`config`]) and the weights ([`reader`]), the
//! equations one by one ([`released`]), and the steps in their order ([`kda`], [`mla`], [`moe`],
//! [`residual`], [`layer`], [`model`]). Why: the engine is judged by it, stage by stage, so it must
//! owe the engine nothing. It shares with it the record of config fields, the stage names, and no
//! arithmetic. All of it is f64.
//!
//! Deliberately not here: speed beyond what a tiny model needs, `ndarray::dot`, handling of NaN
//! and infinity (they flow through to the logits; a NaN router score is never preferred over a
//! number, and is chosen only where it comes first or nothing else is left).
//!
//! Wrong variants of it, the mutants, are tables of formulas ([`formulas`], [`mutants`]) with one
//! entry replaced; nothing here switches on them.

pub mod arithmetic;
pub mod config;
pub mod error;
mod exits;
pub mod formulas;
pub mod kda;
pub mod layer;
pub mod local;
pub mod mla;
pub mod model;
pub mod moe;
pub mod mutants;
pub mod reader;
pub mod released;
pub mod residual;
pub mod rounding;
pub mod rows;
pub mod stage_hook;

pub use config::read_config;
pub use error::ReferenceError;
pub use formulas::{Formulas, RELEASED};
pub use layer::{LayerState, LayerWeights, Pass};
pub use model::{ClosingWeights, Logits, Model, Sequence};
pub use reader::Reader;
pub use residual::Residual;
pub use rows::Rows;
pub use stage_hook::{AsComputed, StageHook};
