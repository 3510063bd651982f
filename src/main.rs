//! The binary: parse, dispatch, exit code. Everything else is in the libraries.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main().into()
}
