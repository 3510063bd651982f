//! Hostile inputs: every way a config, a header, an index, a folder or a binding can be wrong,
//! one test per kind of damage. A test asserts the error's variant and that its one line names
//! what it must. Tests that start with a letter and a number follow trials of that name.

mod bind;
mod config;
mod config_layers;
mod folder;
mod header;
mod header_damage;
mod index;
mod json;
mod make;
mod release;
