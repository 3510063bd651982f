//! The script that `plan` emits for a cluster.

use std::path::Path;
use std::process::Command;

use crate::support::proof::report;
use crate::support::{arg, expect, tiny};

/// The script that `plan` emits, as a plain script of each part: without a scheduler it runs one
/// part, with files that are there it downloads nothing.
#[test]
fn the_job_script_runs_a_part_on_files_that_are_there() {
    let (model, folder) = (tiny(), tempfile::tempdir().unwrap());
    let plan = ["plan", "all", "--parts", "4", "--emit", "script", "--model", arg(&model)];
    let script = expect(&plan, 0).stdout;
    let path = folder.path().join("job.sh");
    std::fs::write(&path, script).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_k3-verify"));
    let search = std::env::join_paths(
        [program.parent().unwrap().to_owned()]
            .into_iter()
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let search = search.unwrap();
    for part in 1..=4 {
        let output = Command::new("bash")
            .arg(&path)
            .env("PART", part.to_string())
            .env("MODEL", &model)
            .env("PATH", &search)
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{:?}", output.stderr);
    }
    let parts = ["1", "2", "3", "4"].map(|part| folder.path().join("parts").join(part));
    let names: Vec<&str> = parts.iter().map(|part| arg(part)).collect();
    let merged = report(&[&["merge"][..], &names].concat(), 0);
    assert_eq!(merged.rows.len(), 15);
}
