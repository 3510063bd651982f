//! The command from outside: exit codes, one-line errors, files written whole.

use std::path::Path;
use std::process::{Command, Output};

use k3_cache::policy::PolicyName;
use k3_cache::slot_table::{Requests, Reserve};

use crate::make::{external, pairs, small_zipf};
use crate::trace_v1::recorded;

fn simcache(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_k3-verify"));
    command.arg("simcache").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs and checks the exit code; errors are one line.
fn expect(arguments: &[&str], code: i32) -> Output {
    let output = simcache(arguments);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    if [3, 4].contains(&code) && !stderr.is_empty() {
        assert!(stderr.starts_with("error: "), "{stderr}");
        assert!(stderr.lines().count() <= 2, "{stderr}");
    }
    output
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_string()
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_string()
    }
}

#[test]
fn a_one_request_trace_ends_with_a_sensible_report() {
    let folder = Folder::new();
    let one = folder.file("one.bin", &pairs(&[(1, 5)]));
    let hits = folder.file("hits.bin", &pairs(&[(1, 5); 40]));
    for (trace, rate) in [(&one, "0.00"), (&hits, "97.50")] {
        let out = folder.path("out");
        let output = expect(&[trace, "--slots", "1", "--requests", "single", "--out", &out], 0);
        let report = text(&output.stdout);
        assert!(report.contains("1 distinct experts"), "{report}");
        assert!(report.contains(rate), "{report}");
        for file in ["report.json", "report.txt", "report.html", "hit-rate-recorded.svg"] {
            assert!(Path::new(&out).join(file).exists(), "{file}");
        }
        // Without any options, too.
        expect(&[trace], 0);
    }
}

#[test]
fn json_is_the_report_and_the_folder_holds_the_same() {
    let folder = Folder::new();
    let bytes =
        recorded(&small_zipf(6), 9, PolicyName::LayerCycle, Requests::Batch, Reserve::Late, 0);
    let trace = folder.file("trace.k3t", &bytes);
    let out = folder.path("deep/er/out");
    let output = expect(&[&trace, "--format", "json", "--out", &out], 0);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["schema"], "k3-verify.simcache");
    assert_eq!(json["schema_version"], 1);
    assert_eq!(json["recorded_runs"][0]["difference"], serde_json::Value::Null);
    assert_eq!(json["provenance"]["inputs"][0], trace);
    let file = std::fs::read(Path::new(&out).join("report.json")).unwrap();
    assert_eq!(file, output.stdout);
    let page = std::fs::read_to_string(Path::new(&out).join("report.html")).unwrap();
    assert!(
        page.contains("<svg")
            && !page.contains("<script")
            && !page.contains("http://www.w3.org/1999")
    );
    // Nothing temporary is left behind.
    let names: Vec<String> = std::fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(names.iter().all(|name| !name.starts_with('.')), "{names:?}");
}

#[test]
fn usage_errors_are_2() {
    let folder = Folder::new();
    let trace = folder.file("trace.bin", &pairs(&[(1, 5)]));
    for arguments in [
        vec![],
        vec![trace.as_str(), "--slots", "0"],
        vec![&trace, "--slots", "-4"],
        vec![&trace, "--slots", "three"],
        vec![&trace, "--policy", "mru"],
        vec![&trace, "--memory", "8"],
        vec![&trace, "--disk-gbs", "NaN"],
        vec![&trace, "--disk-gbs", "0"],
        vec![&trace, "--order", "sideways"],
        vec![&trace, "--layers", "5..93"],
        vec![&trace, "--layers", "9..2"],
        vec![&trace, "--top-k", "0"],
        vec![&trace, "--top-k", "897"],
        vec![&trace, "--cache-gb", "0.001"],
    ] {
        expect(&arguments, 2);
    }
    let bytes = recorded(&small_zipf(6), 9, PolicyName::Lru, Requests::Batch, Reserve::Late, 0);
    let stated = folder.file("trace.k3t", &bytes);
    let output = expect(&[&stated, "--top-k", "4"], 2);
    assert!(text(&output.stderr).contains("states 3"));
    expect(&[&stated, "--top-k", "3"], 0);
}

#[test]
fn unreadable_or_corrupt_input_is_3_and_names_the_file() {
    let folder = Folder::new();
    let missing = folder.path("missing.bin");
    assert!(text(&expect(&[&missing], 3).stderr).contains("missing.bin"));
    let half = folder.file("half.bin", &[0; 12]);
    assert!(text(&expect(&[&half], 3).stderr).contains("half.bin: half a record"));
    let good = folder.file("good.bin", &pairs(&[(1, 5)]));
    let measured = folder.file("ladder.tsv", b"cache_slots\n1\n");
    assert!(text(&expect(&[&good, "--measured", &measured], 3).stderr).contains("ladder.tsv"));
    let not_a_folder = folder.path("good.bin/out");
    expect(&[&good, "--out", &not_a_folder], 3);
    // Another model's trace is refused until its sizes are given.
    let other = folder.file("other.bin", &pairs(&[(100, 900)]));
    assert!(text(&expect(&[&other], 3).stderr).contains("hint: a trace of another model"));
    expect(&[&other, "--model-layers", "128", "--experts", "1024", "--top-k", "8"], 0);
}

#[test]
fn nothing_to_study_is_4() {
    let folder = Folder::new();
    let empty = folder.file("empty.bin", &[]);
    let output = expect(&[&empty], 4);
    assert!(text(&output.stderr).contains("the trace is empty"));
    let good = folder.file("good.bin", &pairs(&[(1, 5), (3, 5), (2, 5)]));
    expect(&[&good, "--layers", "50..60"], 4);
    expect(&[&good, "--order", "decode"], 4);
    let measured = folder.file("ladder.tsv", b"cache_slots\texpert_hit_true\n1\t0\n");
    expect(&[&good, "--measured", &measured], 4);
    // Every capacity below top-k is refused: nothing was replayed.
    let batch: Vec<(i32, i32)> = (0..32).map(|expert| (1, expert)).collect();
    let batch = folder.file("batch.bin", &pairs(&batch));
    let output = expect(&[&batch, "--requests", "batch", "--slots", "15"], 4);
    assert!(text(&output.stdout).contains("15 slots are too few: 16 experts are used together"));
    expect(&[&batch, "--requests", "batch", "--slots", "15,16"], 0);
}

#[test]
fn disagreement_is_1() {
    let folder = Folder::new();
    let trace = small_zipf(6);
    let mut bytes = recorded(&trace, 9, PolicyName::Lru, Requests::Batch, Reserve::Late, 0);
    // The header states other slots than the cache had; the checksum is made to fit.
    bytes[88..92].copy_from_slice(&10_u32.to_le_bytes());
    let end = bytes.len() - 56;
    let digest = <sha2::Sha256 as sha2::Digest>::digest(&bytes[..end]);
    bytes[end + 24..].copy_from_slice(&digest);
    let wrong = folder.file("wrong.k3t", &bytes);
    let output = expect(&[&wrong], 1);
    assert!(text(&output.stdout).contains("DIFFERS: decision"));
    let good = recorded(&trace, 9, PolicyName::Lru, Requests::Batch, Reserve::Late, 0);
    let good = folder.file("good.k3t", &good);
    let measured = folder.file("ladder.tsv", b"cache_slots\texpert_hit_true\n9\t99.0\n");
    expect(&[&good, "--measured", &measured], 1);
    expect(&[&good, "--measured", &measured, "--tolerance", "100"], 0);
}

#[test]
fn a_closed_pipe_is_quiet() {
    use std::process::Stdio;
    let folder = Folder::new();
    let trace = folder.file("trace.bin", &pairs(&[(1, 5); 64]));
    let mut child = Command::new(env!("CARGO_BIN_EXE_k3-verify"))
        .args(["simcache", &trace, "--format", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stderr), "");
    assert!(output.status.code().is_some(), "ended by a signal");
}

#[test]
fn csv_holds_the_order_that_is_studied() {
    let folder = Folder::new();
    let bytes = recorded(&small_zipf(6), 9, PolicyName::Lru, Requests::Batch, Reserve::Late, 0);
    let trace = folder.file("trace.k3t", &bytes);
    let csv = folder.path("trace.csv");
    expect(&[&trace, "--csv", &csv, "--layers", "2..3"], 0);
    let written = std::fs::read_to_string(csv).unwrap();
    assert_eq!(written.lines().count(), 1 + 2 * 16 * 3);
}

#[test]
fn the_published_trace_takes_less_than_half_a_second() {
    let Some(trace) = external("kimi-k3-routing/expert_trace.bin") else {
        return;
    };
    let Some(measured) = external("kimi-k3-routing/measured-ladder.tsv") else {
        return;
    };
    let (trace, measured) = (trace.to_str().unwrap(), measured.to_str().unwrap());
    let output = expect(&[trace, "--measured", measured, "--format", "json"], 0);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["measured"]["exact"], true);
    // Other work on the machine may slow one run; a generous bound still catches a quadratic pass.
    let seconds = json["provenance"]["seconds"].as_f64().unwrap();
    println!("{seconds} s");
    assert!(seconds < 5.0, "{seconds} s");
}
