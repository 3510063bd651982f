//! What the command refuses and how, leaving no files; the report.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use rustix::fs::{FlockOperation, flock};

use super::expect;
use crate::support::{expect_of, files_in, scratch};

/// Bad arguments end before any work: the folder is not even made.
#[test]
fn unknown_shapes_and_absurd_sizes_exit_2() {
    let (_folder, out) = scratch("out");
    for arguments in [
        "--shape huge",
        "--shape",
        "--layers 0",
        "--layers 4097",
        "--layers -1",
        "--layers 99999999999999999999",
        "--experts 2",
        "--experts 16385",
        "--layers 4096 --experts 16384",
        "--shape k3 --experts 15",
        "--vocab 3",
        "--vocab 18446744073709551615",
        "--seed -1",
        "--threads 0",
        "--sparse --seed 3",
        "--sparse --probe 3",
        "--index",
        "--format yaml",
    ] {
        expect(&out, arguments, 2);
        assert!(!out.exists(), "{arguments}");
    }
}

/// A model larger than any disk is refused before a byte is written.
#[test]
fn a_disk_that_is_too_small_exits_5() {
    let (_folder, out) = scratch("out");
    // 6 TB in headers that are quickly made.
    let error = expect(&out, "--shape k3 --layers 4096 --experts 16", 5).stderr;
    assert!(error.contains("bytes are to be written"), "{error}");
    assert!(error.contains("hint: nothing was written"), "{error}");
    assert!(!out.exists());
}

/// The system's refusal in the middle: one line, no part left, no config that says complete.
#[test]
fn a_write_that_fails_leaves_nothing_half_written() {
    let (_folder, out) = scratch("out");
    // Files above 1000 blocks of 512 bytes are refused to this shell and what it starts.
    let script = "trap '' XFSZ; ulimit -f 1000; exec \"$0\" synth \"$1\" --layers 2 --probe 0";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_k3-verify")]).arg(&out);
    let error = expect_of(&mut shell, 3).stderr;
    assert!(error.contains("of-000003.safetensors: cannot be written"), "{error}");
    assert!(
        !files_in(&out).keys().any(|name| name.starts_with(".writing") || name == "config.json")
    );
    expect(&out, "--layers 2 --probe 0", 0);
}

/// No existing file is overwritten, whatever made it.
#[test]
fn existing_files_are_refused_and_left_alone() {
    let (folder, file) = scratch("file");
    std::fs::write(&file, "mine").unwrap();
    expect(&file, "", 2);
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    let error = expect(folder.path(), "", 2).stderr;
    assert!(error.contains("holds \"file\""), "{error}");
    let out = folder.path().join("out");
    expect(&out, "--layers 2 --probe 0", 0);
    let before = files_in(&out);
    for other in ["--seed 2", "--experts 10", "--vocab 320", "--sparse --shape tiny"] {
        let error = expect(&out, &format!("--layers 2 {other}"), 2).stderr;
        assert!(error.contains("belongs to another checkpoint"), "{error}");
    }
    expect(&out, "--layers 3", 2);
    std::fs::remove_file(out.join("config.json")).unwrap();
    let error = expect(&out, "--layers 2 --seed 2", 2).stderr;
    assert!(error.contains("other bytes in language_model"), "{error}");
    std::fs::write(out.join("config.json"), &before["config.json"]).unwrap();
    assert!(files_in(&out) == before);
}

/// Two runs at once would write the same parts.
#[test]
fn a_second_run_in_the_same_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let held = std::fs::File::open(folder.path()).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let error = expect(folder.path(), "--layers 1 --probe 0", 2).stderr;
    assert!(error.contains("another process"), "{error}");
    flock(&held, FlockOperation::Unlock).unwrap();
    expect(folder.path(), "--layers 1 --probe 0", 0);
}

/// A folder that cannot be made is the system's refusal.
#[test]
fn a_folder_that_cannot_be_made_exits_3() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let error = expect(&folder.path().join("file/out"), "", 3).stderr;
    assert!(error.contains("file/out: cannot be made"), "{error}");
}

/// JSON for programs, with what the engine measured: finite and not degenerate, in every layer of
/// every shape that is small enough.
#[test]
fn the_report_holds_what_the_engine_measured() {
    let folder = tempfile::tempdir().unwrap();
    for (shape, layers) in [("tiny", 13), ("kernel", 5)] {
        let out = folder.path().join(shape);
        let report = expect(&out, &format!("--shape {shape} --format json"), 0).json();
        assert_eq!(report["schema"], "k3-verify/synth/1");
        assert_eq!(report["shape"], shape);
        assert_eq!(report["probe"]["tokens"], 32);
        let measured = report["probe"]["layers"].as_array().unwrap();
        assert_eq!(measured.len(), layers);
        for (index, layer) in measured.iter().enumerate() {
            let number = |value: &serde_json::Value| value.as_f64().unwrap();
            let rms = number(&layer["rms"]);
            assert!((0.1..100.0).contains(&rms), "{shape} {index}: {rms}");
            assert_eq!(layer["router"].is_null(), index == 0);
            if index > 0 {
                let router = &layer["router"];
                let share = number(&router["entropy_bits"]) / number(&router["most_bits"]);
                assert!(share > 0.75, "{shape} {index}: {share}");
            }
        }
        // As other new files: readable by others where the mask allows.
        let mode = |name: &str| out.join(name).metadata().unwrap().permissions().mode();
        assert_eq!(mode("config.json"), mode("model.safetensors.index.json"));
        let text = expect(&out, &format!("--shape {shape} --probe 0"), 0).stdout;
        assert!(text.contains("not measured (--probe 0)"), "{text}");
    }
}
