//! Layers in parts on schedulers: the HyperQueue driver runs four parts on this machine and joins
//! them, Slurm runs the script that `plan` emits.

use std::path::Path;
use std::process::{Command, Output};

use crate::support::proof::{read_report, report};
use crate::support::{arg, expect, scratch, tiny};

/// Whether Python has `hyperqueue`: pip install -r tools/cluster/requirements.txt.
pub fn has_hyperqueue() -> bool {
    let has = Command::new("python3").args(["-c", "import hyperqueue"]).output();
    has.is_ok_and(|output| output.status.success())
}

/// Whether Slurm takes jobs here.
pub fn has_slurm() -> bool {
    Command::new("sbatch").arg("--version").output().is_ok()
}

/// The driver on the tiny model.
fn run(out: &Path, options: &[&str]) -> Output {
    let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/cluster/hyperqueue_layers.py");
    let output = Command::new("python3")
        .arg(driver)
        .args(["all", "--model", arg(&tiny()), "--parts", "4", "--out", arg(out)])
        .args(["--program", env!("CARGO_BIN_EXE_k3-verify")])
        .arg("--")
        .args(options)
        .output();
    output.unwrap()
}

/// Parts that got lost on the way, or a driver that calls a failed part done.
pub fn hyperqueue_runs_four_parts_and_joins_them() {
    let (folder, out) = scratch("out");
    let output = run(&out, &["--seed", "3"]);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{stdout}{:?}", output.stderr);
    assert!(stdout.contains("{\"parts\": [0, 0, 0, 0]}"), "{stdout}");
    let mut whole = report(&["layers", "all", "--model", arg(&tiny()), "--seed", "3"], 0);
    let merged = read_report(&out.join("merged"));
    whole.provenance = merged.provenance.clone();
    assert_eq!(merged, whole);
    // A part that refuses its arguments is an error of the whole, named by its number.
    let output = run(&folder.path().join("bad"), &["--prefill", "0"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("error: part 1 ended with 2"));
}

/// The array of the script's head is the parts, each finds its number, and they join.
pub fn slurm_runs_the_array_of_parts() {
    let (model, folder) = (tiny(), tempfile::tempdir().unwrap());
    let plan = ["plan", "all", "--parts", "4", "--emit", "script", "--model", arg(&model)];
    let script = folder.path().join("job.sh");
    std::fs::write(&script, expect(&plan, 0).stdout).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_k3-verify")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let output = Command::new("sbatch")
        .args(["--wait", "--export=ALL"])
        .arg(&script)
        .envs([("MODEL", arg(&model)), ("PATH", &path)])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let parts = ["1", "2", "3", "4"].map(|part| folder.path().join("parts").join(part));
    let names: Vec<&str> = parts.iter().map(|part| arg(part)).collect();
    assert_eq!(report(&[&["merge"][..], &names].concat(), 0).rows.len(), 15);
}
