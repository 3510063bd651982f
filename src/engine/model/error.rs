//! What can go wrong in the engine, one variant per way.

use crate::kernels::matrix::MatrixError;
use crate::kernels::threads::ThreadsError;

/// An error of the engine. Layers and positions are zero-based.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The configuration contradicts itself.
    #[error("config field {field}: {problem}")]
    Config {
        /// The field in `text_config`.
        field: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// A tensor that has not the size its shape needs.
    #[error("tensor {name}: {source}")]
    Matrix {
        /// The tensor's full name.
        name: String,
        /// The sizes.
        source: MatrixError,
    },
    /// A tensor of another length than the configuration implies.
    #[error("tensor {name}: expected {expected} elements, got {got}")]
    Length {
        /// The tensor's full name.
        name: String,
        /// Elements the configuration implies.
        expected: usize,
        /// Elements found.
        got: usize,
    },
    /// K8: the padded tail of `A_log` holds something.
    #[error("tensor {name}: element {index} of the padding is {value}, expected 0")]
    ALogTail {
        /// The tensor's full name.
        name: String,
        /// Index of the element.
        index: usize,
        /// Its value.
        value: f32,
    },
    /// Q4: a NaN scale byte means a damaged file.
    #[error(
        "layer {layer} expert {expert} {matrix}: scale byte 255 (NaN) in row {row}, group {group}"
    )]
    NanScale {
        /// Layer.
        layer: usize,
        /// Expert.
        expert: usize,
        /// `w1`, `w2` or `w3`.
        matrix: &'static str,
        /// Row of the matrix.
        row: usize,
        /// Group of 32 columns.
        group: usize,
    },
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
    /// Wraps an error of a tensor or expert source.
    pub fn source(what: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Source { what: what.to_owned(), source: source.into() }
    }
}
