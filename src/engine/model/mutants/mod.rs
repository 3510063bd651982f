//! Wrong variants of the engine: each is one plausible mistake, and a gate must turn red for it.
//!
//! A mutant overrides one or two methods of [`Operations`] and runs the model's own code through
//! `Engine<dyn Operations>`; the production engine is another instance of the same source and
//! contains none of this. Family (b) is the model's composition (MODEL.md section 2), family (c) is
//! arithmetic and placement (A1…A12, and operands taken from the wrong place).
//!
//! Not every mutant can be seen in logits. Those of lane order, folds and accumulators change
//! nothing but the f64 sum before its rounding; a few need data that the tiny model lacks (a tie,
//! a subnormal weight, a scaling factor that is not 1). Their clause's kernel gate has that data.

use std::sync::Arc;

use super::{Engine, EngineError, EngineOptions, Operations, WeightSource};
use k3_core::config::RawConfig;

/// Which kind of mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Family (b): the composition of the model.
    Composition,
    /// Family (c): arithmetic and placement.
    Arithmetic,
}

impl Family {
    /// The letter in reports.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Self::Composition => 'b',
            Self::Arithmetic => 'c',
        }
    }
}

/// One wrong variant.
#[derive(Debug, Clone, Copy)]
pub struct EngineMutant {
    /// Unique name, clause first: `k3-value-normed`.
    pub id: &'static str,
    /// Clauses it breaks.
    pub clauses: &'static [&'static str],
    /// Kind of mistake.
    pub family: Family,
    /// What is wrong, in a sentence.
    pub what: &'static str,
    make: fn() -> Arc<dyn Operations>,
}

impl EngineMutant {
    /// Its operations, for gates on single kernels. Each call makes a fresh one: some mutants
    /// keep what they should not keep.
    #[must_use]
    pub fn operations(&self) -> Arc<dyn Operations> {
        (self.make)()
    }

    /// The engine with this mistake, all weights in memory.
    ///
    /// # Errors
    /// As for the right engine; for some mutants that is how they show.
    pub fn engine(
        &self,
        raw: &RawConfig,
        source: &dyn WeightSource,
        options: EngineOptions,
    ) -> Result<Arc<Engine<dyn Operations>>, EngineError> {
        Engine::resident(self.operations(), raw, source, options).map(Arc::new)
    }
}

/// A list of mutants without data: id, clauses, sentence, overridden methods.
macro_rules! engine_mutants {
    ($family:ident $($id:literal [$($clause:literal)+] $what:literal { $($methods:tt)* })*) => {
        /// The mutants of this file.
        #[allow(clippy::too_many_lines, reason = "a table")]
        pub(super) fn list() -> Vec<$crate::model::mutants::EngineMutant> {
            vec![$({
                #[derive(Debug)]
                struct Wrong;
                impl $crate::model::Operations for Wrong {
                    fn as_dyn(&self) -> &dyn $crate::model::Operations {
                        self
                    }
                    $($methods)*
                }
                $crate::model::mutants::EngineMutant {
                    id: $id,
                    clauses: &[$($clause),+],
                    family: $crate::model::mutants::Family::$family,
                    what: $what,
                    make: || std::sync::Arc::new(Wrong),
                }
            }),*]
        }
    };
}

mod formats;
mod kda;
mod mla;
mod moe;
mod numbers;
pub mod perturbed;
mod placement;
mod rows;
mod steps;
mod stream;

/// Every wrong variant of the engine, families (b) and (c), in a fixed order.
#[must_use]
pub fn mutants() -> Vec<EngineMutant> {
    [
        stream::list(),
        kda::list(),
        mla::list(),
        moe::list(),
        formats::list(),
        rows::list(),
        numbers::list(),
        steps::list(),
        placement::list(),
        placement::keeping(),
    ]
    .concat()
}
