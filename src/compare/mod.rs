//! Comparing numbers: one record for every comparison the tool makes.

mod dumps;
mod logit_file;
mod logits;
mod precision;
mod record;

pub use dumps::{DumpComparison, TensorComparison, compare_dumps, ids_of};
pub use logit_file::{
    LogitFile, LogitFileError, id_list, looks_like_safetensors, parse_ids, raw_values,
};
pub use logits::{LogitComparison, OVERLAP, RowAgreement, compare_logits};
pub use precision::Precision;
pub use record::{Budget, Comparison, Extreme, NonFinite, compare};
