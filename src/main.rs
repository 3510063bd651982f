//! The binary: parse, dispatch, exit code. Everything else is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    k3_verify::cli::main().into()
}
