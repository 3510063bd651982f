//! Text: trials D, `tokenize`, and text in and out of `generate`.
//!
//! The rules are tried on both encoders: the crate over the ranks it carries, and our own merge
//! over a table of the same ranks.

mod command;
mod end_ids;
mod generate;
mod rules;
mod streaming;
mod tables;
