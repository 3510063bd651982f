//! The ladder as `cargo test` lines: one test per gate, set and subject, by the same runner as the
//! command. With `K3_EXTERNAL` set, evidence made by others is climbed too; without it that is one
//! ignored line.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use k3_gates::Ladder;
use k3_gates::outcome::Verdict;
use libtest_mimic::{Arguments, Trial};

fn main() -> std::process::ExitCode {
    let arguments = Arguments::from_args();
    let mut rows = Ladder::shipped().threads(2).run().gates;
    let external = std::env::var_os("K3_EXTERNAL").map(PathBuf::from);
    if let Some(folder) = &external {
        let ladder = Ladder::of_evidence(&[folder.join("tiny-k3-a")]);
        rows.extend(ladder.expect("K3_EXTERNAL holds tiny-k3-a").threads(2).run().gates);
    }
    let outside = Trial::test("tiny-k3-a", || Err("K3_EXTERNAL is not set".into()))
        .with_ignored_flag(true)
        .with_kind("needs K3_EXTERNAL, which is not set");
    let trials = rows.into_iter().map(|row| {
        let name = format!("{}@{}", row.id, row.subject);
        Trial::test(name, move || match row.outcome.verdict {
            Verdict::Pass | Verdict::NotApplicable => Ok(()),
            other => Err(format!("{}: {}", other.word(), row.outcome.summary).into()),
        })
    });
    let trials = trials.chain(external.is_none().then_some(outside));
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
