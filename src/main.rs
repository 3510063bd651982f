//! The binary: parse, dispatch, exit code. Everything else is in the libraries.

mod cli;

use std::process::ExitCode;

use k3_core::host::memory::Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    cli::main().into()
}
