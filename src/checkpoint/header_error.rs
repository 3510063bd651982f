//! The ways a safetensors header can be wrong, each with its place.

use thiserror::Error;

use super::dtype::Dtype;
use super::foreign::Foreign;
use super::header::{LENGTH_BYTES, MAX_HEADER_BYTES, MAX_NAME_BYTES, MAX_RANK};
use super::json::{FoundByte, JsonError, Kind};
use super::name_table::MAX_ARENA_BYTES;

/// One way a header can be wrong.
#[derive(Debug, Error)]
pub enum HeaderError {
    /// Something else under the file's name.
    #[error("this is {0}")]
    Foreign(Foreign),
    /// No room for a length.
    #[error("file of {file_bytes} bytes is too short for a header length of {LENGTH_BYTES} bytes")]
    FileTooShort {
        /// Size of the file.
        file_bytes: u64,
    },
    /// A length of zero.
    #[error("header length is 0, expected at least the two bytes of an empty object")]
    ZeroLength,
    /// A length that makes sense only the wrong way round.
    #[error("header length {header_bytes} is written big-endian, expected little-endian")]
    BigEndianLength {
        /// The length, read the wrong way round.
        header_bytes: u64,
    },
    /// The header would not fit the file.
    #[error("header length {header_bytes} reaches past the end, the file has {file_bytes} bytes")]
    LengthPastEnd {
        /// The length read.
        header_bytes: u64,
        /// Size of the file.
        file_bytes: u64,
    },
    /// Above [`MAX_HEADER_BYTES`].
    #[error("header length {header_bytes} is above the limit of {MAX_HEADER_BYTES} bytes")]
    LengthAboveLimit {
        /// The length read.
        header_bytes: u64,
    },
    /// The header does not start with `{` (white space and byte order marks included).
    #[error("header starts with {found}, expected '{{'")]
    NotAnObject {
        /// Its first byte.
        found: FoundByte,
    },
    /// Something but spaces behind the header's object.
    #[error("header has {found} at byte {at_byte}, behind its object (only spaces may follow)")]
    BadPadding {
        /// Where, from the start of the header.
        at_byte: u64,
        /// What.
        found: FoundByte,
    },
    /// Broken JSON.
    #[error("header is not valid JSON: {0}")]
    Json(JsonError),
    /// Two entries of one name, escapes resolved; `__metadata__` counts.
    #[error("duplicate tensor name {tensor:?} in the header")]
    DuplicateName {
        /// The name.
        tensor: String,
    },
    /// A key twice in an entry or in the metadata.
    #[error("{tensor:?}: duplicate key {field:?}")]
    DuplicateField {
        /// The entry.
        tensor: String,
        /// The key.
        field: String,
    },
    /// A key no entry has.
    #[error("tensor {tensor:?}: unknown key {field:?}, expected dtype, shape, data_offsets")]
    UnknownField {
        /// The entry.
        tensor: String,
        /// The key.
        field: String,
    },
    /// An entry without one of its three keys.
    #[error("tensor {tensor:?}: {field} is missing")]
    MissingField {
        /// The entry.
        tensor: String,
        /// The key.
        field: &'static str,
    },
    /// Another kind of value than the key wants.
    #[error("tensor {tensor:?}: {field} is {got}, expected {expected}")]
    WrongType {
        /// The entry.
        tensor: String,
        /// The key.
        field: &'static str,
        /// What it wants.
        expected: &'static str,
        /// What stands there.
        got: Kind,
    },
    /// A number that is negative, has a fraction or an exponent, or does not fit 64 bits.
    #[error("tensor {tensor:?}: {field} holds {got}, expected an integer from 0 to 2^64-1")]
    BadInteger {
        /// The entry.
        tensor: String,
        /// The key.
        field: &'static str,
        /// The literal.
        got: String,
    },
    /// Not two offsets.
    #[error("tensor {tensor:?}: data_offsets has {got} numbers, expected 2")]
    OffsetCount {
        /// The entry.
        tensor: String,
        /// How many there are (3 stands for more).
        got: usize,
    },
    /// A name above [`MAX_NAME_BYTES`].
    #[error("name or key longer than {MAX_NAME_BYTES} bytes at byte {at_byte} of the header")]
    NameTooLong {
        /// Where it starts.
        at_byte: u64,
    },
    /// A dtype the format does not have.
    #[error("tensor {tensor:?}: unknown dtype {got:?}")]
    UnknownDtype {
        /// The entry.
        tensor: String,
        /// The name given.
        got: String,
    },
    /// More than [`MAX_RANK`] dimensions.
    #[error("tensor {tensor:?}: shape has more than {MAX_RANK} dimensions")]
    RankTooHigh {
        /// The entry.
        tensor: String,
    },
    /// Dimensions whose product, or its bytes, does not fit 64 bits.
    #[error("tensor {tensor:?}: shape {shape:?} of {dtype} overflows 64 bits")]
    ShapeOverflow {
        /// The entry.
        tensor: String,
        /// Its shape.
        shape: Vec<u64>,
        /// Its element type.
        dtype: Dtype,
    },
    /// Sub-byte elements that do not fill whole bytes.
    #[error("tensor {tensor:?}: shape {shape:?} of {dtype} does not fill whole bytes")]
    PartByte {
        /// The entry.
        tensor: String,
        /// Its shape.
        shape: Vec<u64>,
        /// Its element type.
        dtype: Dtype,
    },
    /// The end before the start.
    #[error("tensor {tensor:?}: data_offsets end {end} lies before start {start}")]
    OffsetsReversed {
        /// The entry.
        tensor: String,
        /// First offset.
        start: u64,
        /// Second offset.
        end: u64,
    },
    /// Shape and byte range disagree.
    #[error(
        "tensor {tensor:?}: shape {shape:?} of {dtype} has {expected} bytes, \
         its data_offsets give {got}"
    )]
    ByteLength {
        /// The entry.
        tensor: String,
        /// Its shape.
        shape: Vec<u64>,
        /// Its element type.
        dtype: Dtype,
        /// Bytes by shape.
        expected: u64,
        /// Bytes by offsets.
        got: u64,
    },
    /// The file ends before its tensors do.
    #[error(
        "truncated: tensor {tensor:?} ends at data byte {end}, the file has {data_bytes}; \
         {} bytes are missing", end - data_bytes
    )]
    Truncated {
        /// The tensor that ends last.
        tensor: String,
        /// Where it ends, from the start of the data.
        end: u64,
        /// Data bytes there are.
        data_bytes: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors {first:?} and {second:?} overlap at data byte {at}")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The other.
        second: String,
        /// Where the second starts, from the start of the data.
        at: u64,
    },
    /// Bytes before or between tensors that belong to none.
    #[error("hole of {hole_bytes} bytes before tensor {tensor:?} at data byte {at}")]
    Hole {
        /// The tensor behind the hole.
        tensor: String,
        /// Where it starts, from the start of the data.
        at: u64,
        /// Size of the hole.
        hole_bytes: u64,
    },
    /// Bytes behind the last tensor.
    #[error("{spare_bytes} spare bytes behind the last tensor, which ends at data byte {end}")]
    TrailingBytes {
        /// Where the last tensor ends.
        end: u64,
        /// Bytes behind it.
        spare_bytes: u64,
    },
    /// More names than the table of names holds.
    #[error("more than {MAX_ARENA_BYTES} bytes of tensor names")]
    TooManyNames,
}

impl From<JsonError> for HeaderError {
    fn from(error: JsonError) -> Self {
        match error {
            JsonError::StringTooLong { at_byte, .. } => Self::NameTooLong { at_byte },
            other => Self::Json(other),
        }
    }
}
