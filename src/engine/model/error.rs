//! What can go wrong in the engine: a variant where a caller acts differently.

use crate::kernels::threads::ThreadsError;
use k3_checkpoint::Problem;

/// An error of the engine. Layers and positions are zero-based.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A config field or a tensor that is not what the computation needs: where and what.
    #[error("{0}")]
    Malformed(Problem),
    /// The source of tensors or experts failed.
    #[error("{what}: {source}")]
    Source {
        /// What was asked for.
        what: String,
        /// Why it was not given.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// M8: a latent cache that does not hold one row for each position.
    #[error(
        "layer {layer}: the latent cache holds {got} values after position {position}, expected \
         {expected}"
    )]
    LatentCache {
        /// Layer.
        layer: usize,
        /// The last position fed.
        position: usize,
        /// Values that one row per position has.
        expected: usize,
        /// Values held.
        got: usize,
    },
    /// A token id outside the vocabulary.
    #[error("token id {id} at position {position}: the vocabulary has {vocabulary} ids")]
    TokenId {
        /// The id.
        id: u32,
        /// Its position in the sequence.
        position: usize,
        /// Vocabulary size.
        vocabulary: usize,
    },
    /// A router score that is NaN: there is no right choice of experts.
    #[error("layer {layer}, position {position}: the router score of expert {expert} is NaN")]
    RouterNan {
        /// Layer.
        layer: usize,
        /// Position in the sequence.
        position: usize,
        /// The first expert concerned.
        expert: usize,
    },
    /// Logits that are NaN or infinite; never turned into a token.
    #[error("position {position}: {count} of {vocabulary} logits are not finite")]
    NonFiniteLogits {
        /// The first position concerned.
        position: usize,
        /// How many of its logits.
        count: usize,
        /// Vocabulary size.
        vocabulary: usize,
    },
    /// A state made for another shape.
    #[error("the state does not belong to this model: {0}")]
    ForeignState(String),
    /// An earlier call failed half-way; the state holds some layers' updates and not others'.
    #[error("the state was left by a failed call at position {position} and cannot be continued")]
    InterruptedState {
        /// Positions that were complete.
        position: usize,
    },
    /// Somebody asked to stop. From a layer: the state holds some layers' updates and not others';
    /// from a watch before a pass: the state is whole.
    #[error("interrupted")]
    Interrupted,
    /// No threads.
    #[error(transparent)]
    Threads(#[from] ThreadsError),
}

impl EngineError {
    /// Something wrong at a place.
    pub(crate) fn at(at: String, what: impl ToString) -> Self {
        Self::Malformed(Problem::new(at, what.to_string()))
    }

    /// Wraps an error of a tensor or expert source.
    pub fn source(what: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Source { what: what.to_owned(), source: source.into() }
    }
}
