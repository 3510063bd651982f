//! Logit files and dumps of any engine, compared.

mod dumps;
mod logit_file;
mod logits;
mod npz;

pub use dumps::{DumpComparison, TensorComparison, compare_dumps, ids_of};
pub use logit_file::{LogitFile, LogitFileError, id_list, parse_ids, raw_values};
pub use logits::{LogitComparison, OVERLAP, RowAgreement, compare_logits, unmasked};
