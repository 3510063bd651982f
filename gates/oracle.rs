//! The ladder as `cargo test` lines: one test per gate, set and subject, by the same runner as the
//! command. With `K3_EXTERNAL` set, evidence made by others is climbed too; without it those lines
//! say NOT RUN.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use k3_gates::Ladder;
use k3_gates::outcome::Verdict;
use libtest_mimic::{Arguments, Trial};

fn main() -> std::process::ExitCode {
    let arguments = Arguments::from_args();
    let mut rows = Ladder::shipped().threads(2).run().gates;
    match std::env::var_os("K3_EXTERNAL").map(PathBuf::from) {
        Some(folder) => {
            let ladder = Ladder::of_evidence(&[folder.join("tiny-k3-a")]);
            rows.extend(ladder.expect("K3_EXTERNAL holds tiny-k3-a").threads(2).run().gates);
        }
        None => eprintln!("NOT RUN: tiny-k3-a (K3_EXTERNAL is not set)"),
    }
    let trials = rows.into_iter().map(|row| {
        let name = format!("{}@{}", row.id, row.subject);
        Trial::test(name, move || match row.outcome.verdict {
            Verdict::Pass | Verdict::NotApplicable => Ok(()),
            other => Err(format!("{}: {}", other.word(), row.outcome.summary).into()),
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
