//! Why a trace was refused: a variant only where the exit code or the hint differs.

use thiserror::Error;

/// Why a trace was refused.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("cannot read the trace: {0}")]
    Io(#[from] std::io::Error),
    /// No request in it.
    #[error("the trace is empty: it holds no request")]
    Empty,
    /// Headerless: layer and expert fit the model only in the other byte order.
    #[error("{0}")]
    ByteSwapped(String),
    /// A layer or an expert that the model does not have.
    #[error("{0}")]
    OutOfRange(String),
    /// The file ends inside a record or without an end record.
    #[error("{0}")]
    Cut(String),
    /// Anything else: the record or header field, and what is wrong with it.
    #[error("{0}")]
    Malformed(String),
}

impl TraceError {
    /// Something wrong with the whole file.
    pub(super) fn whole(what: impl Into<String>) -> Self {
        Self::Malformed(what.into())
    }

    /// Something wrong with one record.
    pub(super) fn in_record(record: usize, what: impl std::fmt::Display) -> Self {
        Self::Malformed(format!("record {record}: {what}"))
    }

    pub(super) fn layer_out_of_range(record: usize, layer: u32, first: u32, last: u32) -> Self {
        Self::OutOfRange(format!(
            "record {record}: layer {layer} is not one of the model's MoE layers {first}..{last}"
        ))
    }

    pub(super) fn expert_out_of_range(record: usize, expert: u32, count: u32) -> Self {
        Self::OutOfRange(format!(
            "record {record}: expert {expert} is out of range, layers have {count} experts"
        ))
    }
}
