//! Text: trials D, vectors made by others, `tokenize`, and text in and out of `generate`.
//!
//! The rules are tried on both encoders: the crate over the ranks it carries, and our own merge
//! over a table of the same ranks. Outside vectors are reached through `K3_EXTERNAL`.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "text/command.rs"]
mod command;
#[path = "text/generate.rs"]
mod generate;
#[path = "text/make.rs"]
mod make;
#[path = "text/published.rs"]
mod published;
#[path = "text/rules.rs"]
mod rules;
#[path = "text/streaming.rs"]
mod streaming;
#[path = "support/mod.rs"]
mod support;
#[path = "text/tables.rs"]
mod tables;
#[path = "support/widen.rs"]
mod widen;
