//! Comparing numbers: one record for every comparison the tool makes.

mod record;

pub use record::{Budget, Comparison, Extreme, NonFinite, compare};
