//! A run of an hour that writes `reports/byte-flips/report.txt` anew, which `cargo test` leaves
//! out: `cargo test --release --test long -- 2000`.

#![allow(clippy::unwrap_used)] // a run that cannot read its input fails

#[allow(dead_code, reason = "its sample is a test of `integration`")]
mod flips;
#[allow(dead_code, reason = "written for all targets; `integration` uses all of it")]
mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(count) = std::env::args().nth(1).and_then(|count| count.parse().ok()) else {
        eprintln!("expected how many flips of each kind");
        return ExitCode::from(2);
    };
    flips::report(count);
    ExitCode::SUCCESS
}
