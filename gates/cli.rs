//! The command line from outside: exit codes, one-line errors, pipes, files written whole.

use std::path::{Path, PathBuf};

use super::support::{
    Ran, arg, binary, copy_folder, expect, expect_of, fixture, names_in, read_and_close, read_json,
    scratch, tiny,
};

#[test]
fn the_shipped_ladder_is_green() {
    let report = expect(&["gates"], 0).stdout;
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
        &["gates", "--mutant", "k3-*", "--only", "bind"],
        &["gates", "--family", "a", "--only", "bind"],
        &["gates", "--list", "--only", "no-such-gate"],
        &["gates", "--list", "--fixtures", "/no/such/folder"],
        &["logits", "a", "b", "--model", "m", "--budget", "1"],
        &["plan", "0..1", "--expert-slots", "4"],
        &["plan", "0..1", "--ring", "2"],
        &["plan", "0..1", "--prefill-chunk", "32"],
        &["plan", "0..1", "--positions", "4096"],
        &["plan", "0..1", "--base-url", "http://h"],
        &["plan", "0..1", "--scheduler", "slurm"],
        &["plan", "0..1", "--emit", "urls", "--tokens", "10"],
        &["plan", "m", "--tokens", "10"],
        &["plan", "m", "--base-url", "http://h"],
        &["plan", "m", "--scheduler", "slurm"],
        &["plan", "m", "--parts", "1"],
        &["plan", "m", "--policy", "lru"],
        &["gates", "--list", "--threads", "2"],
        &["gates", "--evidence", "e", "--fixtures", "f"],
        &["simcache", "t", "--tolerance", "2"],
        &["dump", "m", "o", "--ids", "1", "--no-noise-floor"],
        &["generate", "--model", "m", "--ids", "1,2", "--tf-check", "--tokenizer", "t"],
        &["generate", "--model", "m", "--ids", "1,2", "--tf-check", "--gen", "3"],
        &["no-such-command"],
        &[],
    ] {
        expect(arguments, 2);
    }
}

#[test]
fn a_long_error_is_one_line_of_at_most_400_characters() {
    let path = format!("/no/such\u{1b}[31m\n{}", "x/".repeat(2000));
    let error = expect(&["gates", "--evidence", &path], 3).stderr;
    let lines: Vec<_> = error.lines().collect();
    assert!(lines.len() <= 2 && lines[0].starts_with("error: /no/such\\u{1b}[31m\\n"), "{error}");
    assert!(lines.iter().all(|line| line.chars().count() <= 400), "{error}");
}

#[test]
fn a_pattern_that_selects_nothing_is_incomplete() {
    expect(&["gates", "--mutants", "--mutant", "no-such-*"], 4);
    let output = expect(&["gates", "--only", "no-such-gate"], 4);
    assert!(output.stdout.contains("VERDICT: "));
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
        assert!(output.stdout.contains(row), "{pattern}");
        assert!(!output.stdout.contains("tiny/greedy"), "{pattern}");
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
        assert!(output.stderr.contains("/no/such/folder"));
    }
}

#[test]
fn an_overridden_epsilon_fails_and_is_said() {
    let wrong = ["gates", "--mla-norm-eps", "1e-5", "--only", "tiny/*forcing"];
    let report = expect(&wrong, 1).stdout;
    assert!(report.contains("OVERRIDDEN"), "{report}");
    assert!(report.contains("DOES NOT CONFORM"), "{report}");
}

#[test]
fn json_is_json_and_carries_schema_and_exit_code() {
    let report = expect(&["gates", "--only", "tiny/bind", "--format", "json"], 0).json();
    assert_eq!(report["schema"], "k3-verify/gates/1");
    assert_eq!(report["exit_code"], 0);
    assert_eq!(report["gates"][0]["verdict"], "PASS");
    assert!(report["provenance"]["seconds"].is_number());
}

#[test]
fn out_holds_the_report_whole() {
    let (_folder, out) = scratch("a/b");
    let stdout = expect(&["gates", "--only", "tiny/bind", "--out", arg(&out)], 0).stdout;
    assert_eq!(std::fs::read_to_string(out.join("report.txt")).unwrap(), stdout);
    assert_eq!(read_json(&out.join("report.json"))["verdict"], "CONFORMS");
    let whole = ["report.html", "report.json", "report.txt"];
    assert_eq!(names_in(&out), whole, "nothing temporary is left");
}

#[test]
fn an_unwritable_out_is_found_before_the_work() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().join("below-a-file");
    let output = expect(&["gates", "--out", arg(&path)], 3);
    assert!(output.stdout.is_empty());
}

/// H05: a reader that stops reading is not an error.
#[test]
fn h05_a_closed_pipe_is_quiet() {
    let output = read_and_close(binary().args(["gates", "--list"]), 0);
    assert_eq!(Ran::of(&output, 0).stderr, "");
}

/// Every fixture file, removed, cut and with one bit flipped: never green, and named.
#[test]
fn i07_a_damaged_fixture_is_never_green() {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture(""), folder.path());
    let root = arg(folder.path());
    expect(&["gates", "--fixtures", root, "--only", "fixtures"], 0);
    let mut files = Vec::new();
    collect(folder.path(), &mut files);
    assert!(files.len() > 10);
    for path in files {
        let name = arg(path.strip_prefix(folder.path()).unwrap());
        let whole = std::fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 1;
        let cut = whole[..whole.len() - 1].to_vec();
        for damaged in [None, Some(cut), Some(flipped)] {
            match &damaged {
                None => std::fs::remove_file(&path).unwrap(),
                Some(bytes) => std::fs::write(&path, bytes).unwrap(),
            }
            never_green(root, name);
        }
        std::fs::write(&path, &whole).unwrap();
    }
    expect(&["gates", "--fixtures", root, "--only", "fixtures"], 0);
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { collect(&path, files) } else { files.push(path) }
    }
    files.sort();
}

fn never_green(root: &str, name: &str) {
    let said = |pattern: &str| {
        let arguments = ["gates", "--fixtures", root, "--only", pattern];
        let output = binary().args(arguments).output().unwrap();
        let code = output.status.code().expect("an exit code, not a signal");
        assert!([1, 3, 4].contains(&code), "{name}: {code}");
        let ran = Ran::of(&output, code);
        ran.stdout + &ran.stderr
    };
    let fixtures = said("fixtures");
    assert!(fixtures.contains(name) || fixtures.contains("manifest"), "{name}\n{fixtures}");
    let set = name.split('/').next().unwrap();
    if set != name {
        let gate = if set == "kernels" { "router" } else { "bind" };
        let said = said(&format!("{set}/{gate}"));
        assert!(said.contains(name), "{name}\n{said}");
    }
}

/// One mutant by its name: the matrix has its row and those of the controls, and no clause is
/// missed for the mutants left out.
#[test]
fn one_mutant_is_tried_by_name() {
    let text = expect(&["gates", "--mutants", "--mutant", "loader-shape-*"], 0).stdout;
    assert!(text.contains("1 mutants, 0 survivors"), "{text}");
    assert!(text.contains("first to catch loader-shape-by-count"), "{text}");
    assert!(!text.contains("clauses of the model"), "{text}");
}

/// Every command on a checkpoint takes it as its first argument and as --model, and no command
/// takes two.
#[test]
fn the_checkpoint_is_the_first_argument_or_model() {
    let folder = tempfile::tempdir().unwrap();
    let (shipped, pack) = (tiny(), folder.path().join("pack"));
    let (model, pack) = (arg(&shipped), arg(&pack));
    let dump = folder.path().join("dump.safetensors");
    let cases: [(&str, &[&str]); 8] = [
        ("inspect", &[]),
        ("check", &["--headers-only"]),
        ("plan", &[]),
        ("plan", &["0..1"]),
        ("layers", &["0", "--prefill", "1"]),
        ("generate", &["--ids", "1", "--gen", "1"]),
        ("pack", &[pack]),
        ("dump", &[arg(&dump), "--ids", "1"]),
    ];
    for (command, rest) in cases {
        let first = [&[command, model], rest].concat();
        let named = [&[command], rest, &["--model", model]].concat();
        let twice = [&[command, model], rest, &["--model", model]].concat();
        for arguments in [&first, &named] {
            expect(arguments, 0);
            std::fs::remove_dir_all(pack).ok();
        }
        expect(&twice, 2);
        expect_of(binary().arg(command).args(rest).env("K3_MODEL", model), 0);
        std::fs::remove_dir_all(pack).ok();
    }
}
