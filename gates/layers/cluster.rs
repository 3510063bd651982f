//! The HyperQueue driver really runs four parts on this machine and joins them; the Slurm script
//! is run where `sbatch` is there. Both say NOT RUN otherwise.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use k3_gates::report::layers::{LayersProvenance, LayersReport};

use super::{Tiny, report, text};

fn driver() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/cluster/hyperqueue_layers.py")
}

/// The driver on the tiny model; `None` where Python has no `hyperqueue`.
fn run(model: &Path, out: &Path, options: &[&str]) -> Option<Output> {
    let has = Command::new("python3").args(["-c", "import hyperqueue"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        println!("HyperQueue: NOT RUN, pip install -r tools/cluster/requirements.txt");
        return None;
    }
    let output = Command::new("python3")
        .arg(driver())
        .args(["all", "--model", text(model), "--parts", "4", "--out", text(out)])
        .args(["--program", env!("CARGO_BIN_EXE_k3-verify")])
        .arg("--")
        .args(options)
        .output();
    Some(output.unwrap())
}

fn read(folder: &Path) -> LayersReport {
    let bytes = std::fs::read(folder.join("report.json")).unwrap();
    let mut report: LayersReport = serde_json::from_slice(&bytes).unwrap();
    report.provenance = LayersProvenance::default();
    report
}

/// Parts that got lost on the way, or a driver that calls a failed part done.
#[test]
fn hyperqueue_runs_four_parts_and_joins_them() {
    let tiny = Tiny::open();
    let (model, folder) = (tiny.model(), tempfile::tempdir().unwrap());
    let out = folder.path().join("out");
    let Some(output) = run(&model, &out, &["--seed", "3"]) else {
        return;
    };
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{stdout}{:?}", output.stderr);
    assert!(stdout.contains("{\"parts\": [0, 0, 0, 0]}"), "{stdout}");
    let mut whole = report(&["layers", "all", "--model", text(&model), "--seed", "3"], 0);
    whole.provenance = LayersProvenance::default();
    assert_eq!(read(&out.join("merged")), whole);
    // A part that refuses its arguments is an error of the whole, named by its number.
    let output = run(&model, &folder.path().join("bad"), &["--prefill", "0"]).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("error: part 1 ended with 2"));
}

/// The script that `plan` emits, as a plain script of each part: without a scheduler it runs one
/// part, with files that are there it downloads nothing.
#[test]
fn the_job_script_runs_a_part_on_files_that_are_there() {
    let tiny = Tiny::open();
    let (model, folder) = (tiny.model(), tempfile::tempdir().unwrap());
    let plan = ["plan", "all", "--parts", "4", "--emit", "script", "--model", text(&model)];
    let (script, _) = super::expect(&plan, 0);
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
    let names: Vec<&str> = parts.iter().map(|part| text(part)).collect();
    let merged = report(&[&["merge"][..], &names].concat(), 0);
    assert_eq!(merged.rows.len(), 15);
    if Command::new("sbatch").arg("--version").output().is_err() {
        println!("sbatch: NOT RUN, there is no Slurm here");
    }
}
