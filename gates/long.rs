//! Runs that take an hour and write a report anew, which `cargo test` leaves out:
//! `cargo test --release --test long -- byte-flips 2000`, `… -- right-engines 1000`.

#![allow(clippy::unwrap_used)] // a run that cannot read its input fails

#[allow(dead_code, reason = "its sample is a test of `integration`")]
mod flips;
#[allow(dead_code, reason = "its sample is a test of `integration`")]
mod right_engines;
#[allow(dead_code, reason = "written for all targets; `integration` uses all of it")]
mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    let typed: Vec<String> = std::env::args().skip(1).collect();
    let count = typed.get(1).and_then(|count| count.parse().ok());
    match (typed.first().map(String::as_str), count) {
        (Some("byte-flips"), Some(count)) => flips::report(count),
        (Some("right-engines"), Some(count)) => right_engines::report(count),
        _ => {
            eprintln!("expected byte-flips COUNT or right-engines COUNT");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
