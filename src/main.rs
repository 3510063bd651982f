//! The binary: parse, dispatch, exit code. Everything else is in the library.

fn main() -> std::process::ExitCode {
    std::process::ExitCode::from(2)
}
