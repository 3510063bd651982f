//! Every way a trace can be wrong: one variant each, one hostile test each (`gates/simcache.rs`).

use thiserror::Error;

/// Why a trace was refused.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("cannot read the trace: {0}")]
    Io(#[from] std::io::Error),
    /// Larger than is read whole.
    #[error("the trace has {bytes} bytes, more than the limit of {limit}")]
    TooLarge {
        /// Size of the file.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// No request in it.
    #[error("the trace is empty: it holds no request")]
    Empty,
    /// Headerless: the length is no multiple of 8.
    #[error(
        "half a record at the end: {bytes} bytes are no multiple of 8 (a pair of int32: layer, \
         expert)"
    )]
    HalfRecord {
        /// Size of the file.
        bytes: usize,
    },
    /// Headerless: layer and expert fit the model only in the other byte order.
    #[error(
        "record {record}: byte-swapped: layer {layer} is layer {swapped} in the other byte order \
         (little-endian int32 expected)"
    )]
    ByteSwapped {
        /// Zero-based record.
        record: usize,
        /// The value as read.
        layer: i32,
        /// The value in the other order.
        swapped: i32,
    },
    /// Headerless: a negative layer.
    #[error("record {record}: layer {layer} is negative")]
    NegativeLayer {
        /// Zero-based record.
        record: usize,
        /// The value.
        layer: i32,
    },
    /// Headerless: a negative expert.
    #[error("record {record}: expert {expert} is negative")]
    NegativeExpert {
        /// Zero-based record.
        record: usize,
        /// The value.
        expert: i32,
    },
    /// A layer the model does not have, or one without routed experts.
    #[error("record {record}: layer {layer} is not one of the model's MoE layers {first}..{last}")]
    LayerOutOfRange {
        /// Zero-based record.
        record: usize,
        /// The value.
        layer: u32,
        /// First layer allowed.
        first: u32,
        /// Last layer allowed.
        last: u32,
    },
    /// An expert the model does not have.
    #[error("record {record}: expert {expert} is out of range, layers have {count} experts")]
    ExpertOutOfRange {
        /// Zero-based record.
        record: usize,
        /// The value.
        expert: u32,
        /// Experts per layer.
        count: u32,
    },
    /// The magic went through a text-mode copy.
    #[error("the magic of a k3-verify trace is damaged: line ends were converted on the way")]
    MagicMangled,
    /// A version this program does not know.
    #[error("trace version {version} is not known (this program reads version {known})")]
    UnsupportedVersion {
        /// Version in the file.
        version: u32,
        /// Version that is read.
        known: u32,
    },
    /// The file ends inside the header.
    #[error("the header is cut: {bytes} bytes, {expected} expected")]
    HeaderCut {
        /// Size of the file.
        bytes: usize,
        /// Size of the header.
        expected: usize,
    },
    /// A header field out of bounds.
    #[error("header field {field} is {value}, allowed is {allowed}")]
    HeaderField {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        allowed: &'static str,
    },
    /// The header names a policy in bytes that are no short ASCII name.
    #[error("header field policy is no ASCII name padded with zeros")]
    HeaderPolicy,
    /// The file ends inside a record.
    #[error("record {record} is cut: it needs {needed} bytes, {left} are left")]
    CutRecord {
        /// Zero-based record.
        record: usize,
        /// Bytes of the record.
        needed: usize,
        /// Bytes left in the file.
        left: usize,
    },
    /// The file ends without an end record.
    #[error("the trace is cut after {record} records: the end record is missing")]
    NoEndRecord {
        /// Records read.
        record: usize,
    },
    /// Bytes after the end record.
    #[error("{bytes} bytes follow the end record")]
    BytesAfterEnd {
        /// How many.
        bytes: usize,
    },
    /// A record kind that does not exist.
    #[error("record {record}: kind {kind} does not exist")]
    UnknownRecord {
        /// Zero-based record.
        record: usize,
        /// The kind.
        kind: u32,
    },
    /// A record with the wrong number of words.
    #[error("record {record} ({kind}): {words} words, expected {expected}")]
    RecordLength {
        /// Zero-based record.
        record: usize,
        /// Name of the kind.
        kind: &'static str,
        /// Words in the file.
        words: u32,
        /// What is expected.
        expected: &'static str,
    },
    /// A phase that does not exist.
    #[error("record {record}: phase {phase} does not exist")]
    UnknownPhase {
        /// Zero-based record.
        record: usize,
        /// The value.
        phase: u32,
    },
    /// Positions of a step or chunk are none, too many, or outside what contains them.
    #[error("record {record}: positions {first}+{count} lie outside {outer}")]
    PositionsOutside {
        /// Zero-based record.
        record: usize,
        /// First position.
        first: u32,
        /// Number of positions.
        count: u32,
        /// What they should lie in.
        outer: &'static str,
    },
    /// A chunk before any step, or a demand or prefetch before any chunk.
    #[error("record {record}: a {kind} before any {outer}")]
    OutsideOf {
        /// Zero-based record.
        record: usize,
        /// What was found.
        kind: &'static str,
        /// What should have come first.
        outer: &'static str,
    },
    /// The same expert twice in one demand.
    #[error("record {record}: expert {expert} of layer {layer} twice in one demand")]
    ExpertTwice {
        /// Zero-based record.
        record: usize,
        /// The layer.
        layer: u32,
        /// The expert.
        expert: u32,
    },
    /// An outcome that does not exist, or a victim where there is none.
    #[error("record {record}: outcome {outcome} does not exist or its victim is wrong")]
    UnknownOutcome {
        /// Zero-based record.
        record: usize,
        /// The value.
        outcome: u32,
    },
    /// Decisions that are not the requests (or the chunk's distinct experts), one for one.
    #[error("decision {decision} is about another expert than the request it belongs to")]
    DecisionNotRequested {
        /// Zero-based decision.
        decision: usize,
    },
    /// The end record counts something else than the file holds.
    #[error("the end record counts {counted} {what}, the file holds {found}")]
    EndCounts {
        /// What is counted.
        what: &'static str,
        /// Count in the end record.
        counted: u64,
        /// Count in the file.
        found: u64,
    },
    /// The checksum does not fit.
    #[error("the checksum does not fit: the trace was changed after it was written")]
    Checksum,
    /// Traces that are to be studied together come from different models.
    #[error("the traces have different {what}: they come from different models")]
    DifferentModels {
        /// What differs.
        what: &'static str,
    },
}
