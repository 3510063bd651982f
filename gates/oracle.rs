//! The ladder as `cargo test` lines: one test per gate, set and subject, by the same runner as the
//! command. With `K3_EXTERNAL` set, evidence made by others is climbed too; without it those lines
//! say NOT RUN.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;

use k3_core::config::MLA_NORM_EPS;
use k3_gates::evidence::EvidenceSet;
use k3_gates::fixtures::Fixtures;
use k3_gates::kernels::KernelFixtures;
use k3_gates::outcome::Verdict;
use k3_gates::runner;
use k3_gates::runner::{Plan, SetState};
use k3_gates::subjects;
use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> std::process::ExitCode {
    let arguments = Arguments::from_args();
    let fixtures = Fixtures::embedded().expect("the embedded fixtures unpack");
    let mut sets = runner::shipped_sets(&fixtures);
    let mut trials = vec![Trial::test("shipped/fixtures", {
        let outcome = runner::judge_fixtures(&fixtures);
        move || passed(outcome.verdict, &outcome.summary)
    })];
    match std::env::var_os("K3_EXTERNAL").map(PathBuf::from) {
        Some(folder) => {
            let set = EvidenceSet::open("tiny-k3-a", &folder.join("tiny-k3-a"))
                .expect("K3_EXTERNAL holds tiny-k3-a");
            sets.push(SetState::Ready(Box::new(set)));
        }
        None => eprintln!("NOT RUN: tiny-k3-a (K3_EXTERNAL is not set)"),
    }
    let kernels = runner::shipped_kernels(&fixtures);
    trials.extend(ladder(&kernels, sets));
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Runs the whole ladder once, then hands each row to a test line of its own.
fn ladder(kernels: &Result<KernelFixtures, String>, sets: Vec<SetState>) -> Vec<Trial> {
    let subjects = subjects::shipped();
    let rows = Arc::new(runner::run(&Plan {
        kernels: Some(kernels),
        sets: &sets,
        subjects: &subjects,
        only: None,
        mla_norm_eps: MLA_NORM_EPS,
        precision: None,
        threads: 2,
        exhaustive: false,
    }));
    (0..rows.len())
        .map(|index| {
            let rows = Arc::clone(&rows);
            let name = format!("{}@{}", rows[index].id(), rows[index].subject);
            Trial::test(name, move || {
                let outcome = &rows[index].outcome;
                match outcome.verdict {
                    Verdict::NotApplicable => Ok(()),
                    verdict => passed(verdict, &outcome.summary),
                }
            })
        })
        .collect()
}

fn passed(verdict: Verdict, summary: &str) -> Result<(), Failed> {
    match verdict {
        Verdict::Pass => Ok(()),
        other => Err(format!("{}: {summary}", other.word()).into()),
    }
}
