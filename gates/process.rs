//! The process among others: signals, files that are none, outputs that cannot be written.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::support::{arg, copy_folder, tiny};

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_k3-verify"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

#[test]
fn a_run_without_a_partial_report_ends_on_a_signal_and_leaves_nothing() {
    for signal in ["INT", "TERM"] {
        let scratch = tempfile::tempdir().unwrap();
        let mut command = program();
        let child = command.args(["gates", "--mutants"]).env("TMPDIR", scratch.path());
        let child = child.spawn().unwrap();
        std::thread::sleep(Duration::from_secs(1));
        let pid = child.id().to_string();
        assert!(
            Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap().success()
        );
        let sent = Instant::now();
        let output = child.wait_with_output().unwrap();
        assert!(sent.elapsed() < Duration::from_secs(5));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("interrupted"), "{said}");
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn a_fifo_in_the_place_of_a_file_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    fifo(&pipe);
    let [config, index] = ["config.json", "model.safetensors.index.json"].map(|name| {
        let model = folder.path().join(format!("model-{name}"));
        copy_folder(&tiny(), &model);
        fs::remove_file(model.join(name)).unwrap();
        fifo(&model.join(name));
        model
    });
    for arguments in [
        &["logits", arg(&pipe), arg(&pipe)][..],
        &["compare", arg(&pipe), arg(&pipe), "--precision", "f32"],
        &["simcache", arg(&pipe)],
        &["inspect", arg(&config)],
        &["inspect", arg(&index)],
    ] {
        let mut child = program().args(arguments).spawn().unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while child.try_wait().unwrap().is_none() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = child.kill();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {said}");
        assert!(said.contains("not a regular file"), "{arguments:?}: {said}");
    }
}

#[test]
fn help_that_cannot_be_written_is_an_error() {
    for arguments in [&["--help"][..], &["--version"], &["gates", "--help"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = program().args(arguments).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{arguments:?}");
    }
    assert_eq!(program().arg("--help").status().unwrap().code(), Some(0));
    assert_eq!(program().arg("--helm").status().unwrap().code(), Some(2));
}
