//! Hostile inputs: every way a config, a header, an index, a folder or a binding can be wrong,
//! one test per kind of damage. A test asserts the error's variant and that its one line names
//! what it must. Tests that start with a letter and a number follow trials of that name.

#![allow(clippy::print_stdout, reason = "a test that did not run says so")]

#[path = "hostile/bind.rs"]
mod bind;
#[path = "hostile/config.rs"]
mod config;
#[path = "hostile/config_layers.rs"]
mod config_layers;
#[path = "hostile/folder.rs"]
mod folder;
#[path = "hostile/header.rs"]
mod header;
#[path = "hostile/header_damage.rs"]
mod header_damage;
#[path = "hostile/index.rs"]
mod index;
#[path = "hostile/json.rs"]
mod json;
#[path = "hostile/make.rs"]
mod make;
#[path = "hostile/release.rs"]
mod release;
