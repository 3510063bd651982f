//! The command line from outside: exit codes, one-line errors, pipes, files written whole.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn k3_verify(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_k3-verify"))
        .args(arguments)
        .env_remove("K3_MODEL")
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn exit(output: &Output) -> i32 {
    output.status.code().expect("an exit code, not a signal")
}

/// Runs and checks the code, and that an error is an error line and no panic.
fn expect(arguments: &[&str], code: i32) -> Output {
    let output = k3_verify(arguments);
    let stderr = text(&output.stderr);
    assert_eq!(exit(&output), code, "{arguments:?}\n{}\n{stderr}", text(&output.stdout));
    assert!(!stderr.contains("panicked"), "{stderr}");
    if code == 3 {
        assert!(stderr.starts_with("error: "), "{stderr}");
        assert_eq!(stderr.lines().filter(|line| line.starts_with("error: ")).count(), 1);
    }
    output
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn the_shipped_ladder_is_green() {
    let output = expect(&["gates"], 0);
    let report = text(&output.stdout);
    assert!(report.contains("CONFORMS") && report.contains("tiny/greedy"), "{report}");
    assert!(!report.contains("FAIL") && !report.contains("NOT RUN"), "{report}");
}

#[test]
fn usage_errors_exit_2_before_any_work() {
    for arguments in [
        &["gates", "--mla-norm-eps", "nan"][..],
        &["gates", "--mla-norm-eps", "-1e-6"],
        &["gates", "--mla-norm-eps", "0"],
        &["gates", "--threads", "0"],
        &["gates", "--threads", "99999999999999999999"],
        &["gates", "--threads", "-1"],
        &["gates", "--format", "yaml"],
        &["gates", "--no-such-flag"],
        &["gates", "--mutants", "--list"],
        &["gates", "--mutant", "k3-*"],
        &["no-such-command"],
        &[],
    ] {
        expect(arguments, 2);
    }
}

#[test]
fn a_pattern_that_selects_nothing_is_incomplete() {
    expect(&["gates", "--mutants", "--mutant", "no-such-*"], 4);
    let output = expect(&["gates", "--only", "no-such-gate"], 4);
    assert!(text(&output.stdout).contains("VERDICT: "));
}

#[test]
fn only_selects_by_set_by_gate_and_by_subject() {
    for (pattern, row) in [
        ("tiny/bind", "tiny/bind"),
        ("bind", "mild/bind"),
        ("mild/b?nd", "mild/bind"),
        ("bind@reference", "tiny/bind"),
        ("fixtures", "shipped/fixtures"),
    ] {
        let output = expect(&["gates", "--only", pattern], 0);
        assert!(text(&output.stdout).contains(row), "{pattern}");
        assert!(!text(&output.stdout).contains("tiny/greedy"), "{pattern}");
    }
}

#[test]
fn missing_inputs_exit_3_and_are_named() {
    for arguments in [
        &["gates", "--evidence", "/no/such/folder"][..],
        &["gates", "--fixtures", "/no/such/folder"],
        &["gates", "--mutants", "--fixtures", "/no/such/folder"],
    ] {
        let output = expect(arguments, 3);
        assert!(text(&output.stderr).contains("/no/such/folder"));
    }
}

#[test]
fn an_overridden_epsilon_fails_and_is_said() {
    let output = expect(&["gates", "--mla-norm-eps", "1e-5", "--only", "tiny/*forcing"], 1);
    let report = text(&output.stdout);
    assert!(report.contains("OVERRIDDEN"), "{report}");
    assert!(report.contains("DOES NOT CONFORM"), "{report}");
}

#[test]
fn json_is_json_and_carries_schema_and_exit_code() {
    let output = expect(&["gates", "--only", "tiny/bind", "--format", "json"], 0);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["schema"], "k3-verify/gates/1");
    assert_eq!(report["exit_code"], 0);
    assert_eq!(report["gates"][0]["verdict"], "PASS");
    assert!(report["provenance"]["seconds"].is_number());
}

#[test]
fn out_holds_the_report_whole() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("a/b");
    let path = out.to_str().unwrap();
    let output = expect(&["gates", "--only", "tiny/bind", "--out", path], 0);
    assert_eq!(std::fs::read(out.join("report.txt")).unwrap(), output.stdout);
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(out.join("report.json")).unwrap()).unwrap();
    assert_eq!(report["verdict"], "CONFORMS");
    let names = std::fs::read_dir(&out).unwrap();
    let mut names: Vec<_> = names.map(|file| file.unwrap().file_name()).collect();
    names.sort();
    let whole = ["report.html", "report.json", "report.txt"];
    assert_eq!(names, whole, "nothing temporary is left");
}

#[test]
fn an_unwritable_out_is_found_before_the_work() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().join("below-a-file");
    let output = expect(&["gates", "--out", path.to_str().unwrap()], 3);
    assert!(output.stdout.is_empty());
}

/// H05: a reader that stops reading is not an error.
#[test]
fn h05_a_closed_pipe_is_quiet() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_k3-verify"))
        .args(["gates", "--list"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stderr), "");
    assert_eq!(exit(&output), 0);
}

/// Every fixture file, removed, cut and with one bit flipped: never green, and named.
#[test]
fn i07_a_damaged_fixture_is_never_green() {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixtures(), folder.path());
    let root = folder.path().to_str().unwrap().to_owned();
    expect(&["gates", "--fixtures", &root, "--only", "fixtures"], 0);
    let mut files = Vec::new();
    collect(folder.path(), &mut files);
    assert!(files.len() > 10);
    for path in files {
        let name = path.strip_prefix(folder.path()).unwrap().to_str().unwrap().to_owned();
        let whole = std::fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 1;
        let cut = whole[..whole.len() - 1].to_vec();
        for damaged in [None, Some(cut), Some(flipped)] {
            match &damaged {
                None => std::fs::remove_file(&path).unwrap(),
                Some(bytes) => std::fs::write(&path, bytes).unwrap(),
            }
            never_green(&root, &name);
        }
        std::fs::write(&path, &whole).unwrap();
    }
    expect(&["gates", "--fixtures", &root, "--only", "fixtures"], 0);
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { collect(&path, files) } else { files.push(path) }
    }
    files.sort();
}

fn never_green(root: &str, name: &str) {
    let output = k3_verify(&["gates", "--fixtures", root, "--only", "fixtures"]);
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!([1, 3, 4].contains(&exit(&output)), "{name}: {}\n{said}", exit(&output));
    assert!(said.contains(name) || said.contains("manifest"), "{name}\n{said}");
    let set = name.split('/').next().unwrap();
    if set != name {
        let gate = if set == "kernels" { "router" } else { "bind" };
        let pattern = format!("{set}/{gate}");
        let output = k3_verify(&["gates", "--fixtures", root, "--only", &pattern]);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!([1, 3, 4].contains(&exit(&output)), "{name}\n{said}");
        assert!(said.contains(name), "{name}\n{said}");
    }
}

/// One mutant by its name: the matrix has its row and those of the controls, and no clause is
/// missed for the mutants left out.
#[test]
fn one_mutant_is_tried_by_name() {
    let output = expect(&["gates", "--mutants", "--mutant", "loader-shape-*"], 0);
    let text = text(&output.stdout);
    assert!(text.contains("1 mutants, 0 survivors"), "{text}");
    assert!(text.contains("first to see loader-shape-by-count"), "{text}");
    assert!(!text.contains("clauses of the model"), "{text}");
}

/// Every command on a checkpoint takes it as its first argument and as --model, and no command
/// takes two.
#[test]
fn the_checkpoint_is_the_first_argument_or_model() {
    let folder = tempfile::tempdir().unwrap();
    let shipped = fixtures().join("tiny/model");
    let model = shipped.to_str().unwrap();
    let out = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (pack, dump) = (out("pack"), out("dump.safetensors"));
    let cases: [(&str, &[&str]); 8] = [
        ("inspect", &[]),
        ("check", &["--headers-only"]),
        ("plan", &[]),
        ("plan", &["0..1"]),
        ("layers", &["0", "--prefill", "1"]),
        ("generate", &["--ids", "1", "--gen", "1"]),
        ("pack", &[&pack]),
        ("dump", &[&dump, "--ids", "1", "--no-noise-floor"]),
    ];
    for (command, rest) in cases {
        let first = [&[command, model], rest].concat();
        let named = [&[command], rest, &["--model", model]].concat();
        let twice = [&[command, model], rest, &["--model", model]].concat();
        for arguments in [&first, &named] {
            let output = k3_verify(arguments);
            assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
            std::fs::remove_dir_all(&pack).ok();
        }
        assert_eq!(k3_verify(&twice).status.code(), Some(2), "{twice:?}");
        let mut environment = Command::new(env!("CARGO_BIN_EXE_k3-verify"));
        let environment =
            environment.arg(command).args(rest).env("K3_MODEL", model).output().unwrap();
        assert_eq!(environment.status.code(), Some(0), "{command} with K3_MODEL: {environment:?}");
        std::fs::remove_dir_all(&pack).ok();
    }
}
