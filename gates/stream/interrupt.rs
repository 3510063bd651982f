//! Ctrl-C and SIGTERM, really sent: one line that says how far it came, exit code 4, nothing
//! half-written, and outputs that a later run can resume from.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::make::generate;
use crate::support::{
    Ran, binary, command_on, expect_of, names_in, read_json, scratch, tiny, typed,
};
use k3_engine::stream::pack::{MANIFEST, Pack};

/// Ids asked for where the run is not to come to its end by itself.
const MANY: &str = "200000";

fn send(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Starts `command`, sends `signal` once `lines` lines of stderr begin with `sign`, and waits.
fn interrupted(command: &mut Command, (sign, lines): (&str, usize), signal: Signal) -> Ran {
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let (mut said, mut seen) = (String::new(), 0);
    while seen < lines {
        let start = said.len();
        let read = stderr.read_line(&mut said).unwrap();
        assert!(read > 0, "it ended by itself: {said}");
        seen += usize::from(said[start..].trim_start().starts_with(sign));
    }
    send(&child, signal);
    stderr.read_to_string(&mut said).unwrap();
    let mut output = child.wait_with_output().unwrap();
    output.stderr = said.into_bytes();
    Ran::of(&output, 4)
}

#[track_caller]
fn error_line(ran: &Ran) -> &str {
    ran.stderr.lines().find_map(|line| line.strip_prefix("error: ")).expect("an error line")
}

/// The ids that the line lists are those that a run that is left alone chooses first; logits and
/// trace are not there, and no temporary file is.
#[test]
fn an_interrupted_generate_says_how_far_it_came() {
    for signal in [Signal::INT, Signal::TERM] {
        let folder = tempfile::tempdir().unwrap();
        let report = tempfile::tempdir().unwrap();
        let mut command = generate(&["--gen", MANY]);
        command.arg("--dump-logits").arg(folder.path().join("logits"));
        command.arg("--dump-trace").arg(folder.path().join("trace"));
        command.arg("--out").arg(report.path());
        // The head of the table and its first three lines.
        let output = interrupted(&mut command, ("2 ", 1), signal);
        let line = error_line(&output);
        assert!(output.stdout.is_empty(), "half a result was printed");
        let (count, chosen) = line.split_once(" ids were chosen: ").unwrap();
        let chosen: Vec<&str> = chosen.split(',').collect();
        assert_eq!(count, format!("interrupted: {} of {MANY}", chosen.len()));
        assert!(chosen.len() >= 3, "{line}");
        let mut whole = generate(&["--gen", &chosen.len().to_string()]);
        let whole = expect_of(&mut whole, 0);
        assert_eq!(whole.stdout.trim_end(), chosen.join(","));
        assert_eq!(names_in(folder.path()), Vec::<String>::new());
        let said = fs::read_to_string(report.path().join("report.txt")).unwrap();
        assert!(said.starts_with("INCOMPLETE: interrupted: "), "{said}");
        let json = read_json(&report.path().join("report.json"));
        assert_eq!(json["complete"], false);
        assert_eq!(json["ids_asked"].to_string(), MANY);
    }
}

/// With a state to be saved the current pass is completed, and the state continues with the ids of
/// a run that was never stopped.
#[test]
fn an_interrupted_run_goes_on_from_its_state() {
    let (folder, state) = scratch("state");
    let mut command = generate(&["--gen", MANY]);
    command.arg("--save-state").arg(&state);
    let output = interrupted(&mut command, ("4 ", 1), Signal::INT);
    let line = error_line(&output);
    let chosen = line.split_once(" ids were chosen: ").unwrap().1;
    assert!(output.stderr.contains("--load-state"));
    assert_eq!(names_in(folder.path()), ["state"]);
    let mut more = command_on("generate", &tiny());
    more.args(["--gen", "5", "--load-state"]).arg(&state);
    let more = expect_of(&mut more, 0).stdout;
    let count = chosen.split(',').count() + 5;
    let whole = expect_of(generate(&["--gen", &count.to_string()]), 0);
    assert_eq!(whole.stdout, format!("{chosen},{more}"));
}

/// An interrupted pack is not a pack, and the same command resumes it.
#[test]
fn an_interrupted_pack_is_gone_on_from() {
    let folder = tempfile::tempdir().unwrap();
    // Every layer is synced to the disk: with this many the signal arrives during one.
    let model = folder.path().join("model");
    let mut synth = binary();
    synth.arg("synth").arg(&model);
    expect_of(synth.args(["--shape", "tiny", "--layers", "20"]), 0);
    let mut met = 0;
    for signal in [Signal::INT, Signal::TERM] {
        let out = folder.path().join(format!("{signal:?}"));
        let mut command = binary();
        command.arg("pack").arg(&model).arg(&out);
        let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = piped.spawn().unwrap();
        while !out.join("trunk.json.part").exists() && !out.join(MANIFEST).exists() {
            std::thread::sleep(Duration::from_micros(100));
        }
        send(&child, signal);
        let output = child.wait_with_output().unwrap();
        if output.status.code() == Some(4) {
            met += 1;
            let ran = Ran::of(&output, 4);
            let line = error_line(&ran);
            assert!(line.starts_with("interrupted: "), "{line}");
            assert!(line.contains(" of 20 layers are packed"), "{line}");
            assert!(Pack::open(&out).is_err(), "half a pack is none");
        }
        let mut again = binary();
        let again = expect_of(again.arg("pack").arg(&model).arg(&out), 0);
        if output.status.code() == Some(4) {
            assert!(again.stderr.contains("by an interrupted run"));
        }
        Pack::open(&out).unwrap();
        assert_eq!(names_in(&out).len(), 2, "{:?}", names_in(&out));
    }
    assert!(met > 0, "no signal met a pack at work");
}

/// A bench passes the signal on to the current run and writes no table.
#[test]
fn an_interrupted_ladder_leaves_no_table() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = command_on("bench", &tiny());
    command.args(["--ladder", "64MB", "--repeats", "500", "--gen", "20", "--ids", "1,2,3"]);
    command.arg("--out").arg(folder.path());
    let output = interrupted(&mut command, ("run 2 of 500", 1), Signal::TERM);
    let line = error_line(&output);
    assert!(line.starts_with("interrupted after "), "{line}");
    assert!(line.contains(" of 500 runs, no table was written"), "{line}");
    assert!(output.stdout.is_empty());
    assert_eq!(names_in(folder.path()), ["ladder.trace"], "the first run's, whole");
}

/// The first signal waits for the current pass, since a state is to be saved; the second does not.
#[test]
fn a_second_signal_ends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    // A pass of seconds, under way once the head of its table is there.
    let ids: Vec<u32> = (0..3000).map(|index| index * 37 % 256).collect();
    let mut command = command_on("generate", &tiny());
    command.args(["--gen", "1", "--ids", &typed(&ids)]);
    command.arg("--save-state").arg(folder.path().join("state"));
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("tok/s") {
        line.clear();
        assert!(stderr.read_line(&mut line).unwrap() > 0);
    }
    send(&child, Signal::INT);
    std::thread::sleep(Duration::from_millis(200));
    assert!(child.try_wait().unwrap().is_none(), "it did not wait");
    send(&child, Signal::TERM);
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(4));
    assert!(!rest.contains("interrupted"), "{rest}");
    assert!(!folder.path().join("state").exists());
}
