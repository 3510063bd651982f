//! The process among others: signals, limits, files that are none, outputs that cannot be written.
//! Most of it is asked of every command.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::support::{arg, copy_folder, expect, files_in, fixture, names_in, read_and_close, tiny};

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

/// Inputs of all commands, and a place for what they leave.
struct Bench {
    folder: tempfile::TempDir,
}

/// A command with its arguments; `OUT` stands for a path that is new.
type Line = Vec<String>;

impl Bench {
    fn new() -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap() };
        fs::set_permissions(bench.folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        copy_folder(&tiny(), &bench.at("model"));
        fs::write(bench.at("text"), "text").unwrap();
        let (model, dump, trace) = (bench.at("model"), bench.at("dump"), bench.at("trace"));
        let (model, part) = (arg(&model), bench.at("part"));
        expect(&["dump", model, arg(&dump), "--ids", "1"], 0);
        expect(&["layers", "0", "--model", model, "--part", "1/1", "--out", arg(&part)], 0);
        let run = ["generate", "--model", model, "--ids", "1,2", "--gen", "3", "--dump-trace"];
        expect(&[&run[..], &[arg(&trace)]].concat(), 0);
        bench
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Every command; `--out` where it has one.
    fn lines(&self) -> Vec<Line> {
        let set = fixture("tiny/expected.safetensors");
        [
            "gates --only tiny/bind --out OUT",
            "gates --mutants --mutant loader-shape-* --out OUT",
            "simcache TRACE --csv OUT",
            "simcache TRACE --out OUT",
            "synth OUT --layers 2",
            "logits SET SET --vocabulary 256 --out OUT",
            "compare DUMP DUMP --out OUT",
            "dump MODEL OUT --ids 1",
            "dump MODEL OUT --ids 1 --by reference",
            "evidence MODEL OUT --ids 1 --gen 1",
            "export OUT",
            "export OUT --sets",
            "generate MODEL --ids 1,2 --gen 3 --out OUT",
            "generate MODEL --ids 1,2 --gen 3 --dump-logits OUT",
            "generate MODEL --ids 1,2 --gen 3 --dump-trace OUT",
            "generate MODEL --ids 1,2 --gen 3 --save-state OUT",
            "bench MODEL --ladder 64MB --repeats 1 --gen 1 --ids 1 --out OUT",
            "pack MODEL OUT",
            "inspect MODEL --out OUT",
            "check MODEL --out OUT",
            "layers MODEL 0 --out OUT",
            "merge PART --out OUT",
            "plan MODEL --out OUT",
            "plan MODEL 0..1 --out OUT",
            "tokenize TEXT",
            "completions bash",
        ]
        .map(|line| {
            let word = |word: &str| match word {
                "SET" => arg(&set).to_owned(),
                "MODEL" | "TRACE" | "DUMP" | "PART" | "TEXT" => {
                    arg(&self.at(&word.to_lowercase())).to_owned()
                }
                word => word.to_owned(),
            };
            line.split(' ').map(word).collect()
        })
        .into()
    }

    /// Checks every command: `ask` gets it with OUT in a folder of its own, and the folder that is
    /// to be empty of what is temporary after it.
    fn each(&self, ask: impl Fn(&Line, &mut Command) -> Option<Output>, codes: &[i32]) -> Vec<i32> {
        let mut got = Vec::new();
        for line in self.lines() {
            let place = tempfile::tempdir_in(self.folder.path()).unwrap();
            let scratch = place.path().join("scratch");
            fs::create_dir(&scratch).unwrap();
            for folder in [place.path(), &scratch] {
                fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
            }
            let out = place.path().join("out");
            let typed = line.iter().map(|word| word.replace("OUT", arg(&out)));
            let mut command = program();
            command.args(typed).env("TMPDIR", &scratch).env_remove("K3_MODEL");
            let Some(output) = ask(&line, &mut command) else { continue };
            let said = String::from_utf8_lossy(&output.stderr);
            let code = output.status.code();
            assert!(code.is_some_and(|code| codes.contains(&code)), "{line:?}: {code:?} {said}");
            let errors = said.lines().filter(|line| line.starts_with("error: ")).count();
            assert_eq!(errors, usize::from(code != Some(0)), "{line:?}: {said}");
            assert!(!said.contains("panicked"), "{line:?}: {said}");
            assert_eq!(temporary(place.path()), Vec::<PathBuf>::new(), "{line:?}");
            got.extend(code);
        }
        got
    }
}

/// What is temporary in a folder or below it.
fn temporary(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if [".writing", ".k3-verify", "k3-verify"].iter().any(|start| name.starts_with(start)) {
            found.push(path);
        } else if path.is_dir() {
            found.extend(temporary(&path));
        }
    }
    found
}

/// The same command, started by a shell after `before`.
fn after(before: &str, command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{before}; exec \"$@\""), "sh"]);
    shell.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            shell.env(name, value);
        }
    }
    shell.stdin(Stdio::null());
    shell
}

#[test]
fn no_command_hides_a_full_disk_or_minds_a_closed_pipe() {
    let bench = Bench::new();
    let full = |_: &Line, command: &mut Command| {
        let full = File::options().write(true).open("/dev/full").unwrap();
        Some(command.stdout(full).output().unwrap())
    };
    bench.each(full, &[3]);
    bench.each(|_, command| Some(read_and_close(command, 0)), &[0]);
    // No file may grow.
    let writes = |line: &Line, command: &mut Command| {
        line.contains(&"OUT".to_owned()).then(|| after("ulimit -f 0", command).output().unwrap())
    };
    bench.each(writes, &[3]);
}

#[test]
fn no_command_begins_where_it_cannot_write() {
    let bench = Bench::new();
    for line in bench.lines().iter().filter(|line| line.contains(&"OUT".to_owned())) {
        let typed: Vec<&str> =
            line.iter().map(|word| if word == "OUT" { "/proc/nothing/x" } else { word }).collect();
        expect(&typed, 3);
    }
}

#[test]
fn every_command_ends_on_a_signal_and_leaves_nothing() {
    let bench = Bench::new();
    for signal in [Signal::INT, Signal::TERM] {
        let codes = bench.each(
            |_, command| {
                let child = command.spawn().unwrap();
                listens(&child);
                send(&child, signal);
                let sent = Instant::now();
                let output = child.wait_with_output().unwrap();
                assert!(sent.elapsed() < Duration::from_secs(10));
                Some(output)
            },
            // Some have come to their end before.
            &[0, 4],
        );
        assert!(codes.iter().filter(|code| **code == 4).count() > codes.len() / 2, "{codes:?}");
    }
}

/// Waits until SIGTERM is caught.
fn listens(child: &Child) {
    let status = format!("/proc/{}/status", child.id());
    let caught = || {
        let status = fs::read_to_string(&status).unwrap_or_default();
        if status.contains("State:\tZ") {
            return true;
        }
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t"));
        mask.is_none_or(|mask| u64::from_str_radix(mask, 16).unwrap() & (1 << 14) != 0)
    };
    while !caught() {
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id().try_into().unwrap()).unwrap(), signal).unwrap();
}

/// Limits on the address space, from one under which the program just starts: done, or refused.
#[test]
fn no_command_is_aborted_for_want_of_address_space() {
    let bench = Bench::new();
    let under = |kib: usize, command: &Command| {
        after(&format!("ulimit -v {kib}"), command).output().unwrap()
    };
    let starts = |kib: &usize| {
        let mut version = program();
        under(*kib, version.arg("--version")).status.success()
    };
    let least = (16..).map(|step| step * 1024).find(starts).unwrap();
    let mut codes = Vec::new();
    for more in [1, 4, 8, 16, 32, 64] {
        let kib = least + more * 1024;
        codes.extend(bench.each(|_, command| Some(under(kib, command)), &[0, 3, 5]));
    }
    assert!(codes.contains(&0) && codes.contains(&5), "{codes:?}");
}

/// As a user who may have no more processes, or only a few.
#[test]
fn no_command_panics_where_threads_cannot_be_made() {
    let bench = Bench::new();
    let own = bench.at("k3-verify-program");
    fs::copy(env!("CARGO_BIN_EXE_k3-verify"), &own).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    let mut codes = Vec::new();
    for threads in [1, 2, 3, 5] {
        let few = |_: &Line, command: &mut Command| {
            let mut limited = Command::new("prlimit");
            limited.arg(format!("--nproc={threads}"));
            if is_root {
                // No limit holds root.
                limited.args(["setpriv", "--reuid=54321", "--clear-groups"]);
            }
            limited.arg(&own).args(command.get_args()).stdin(Stdio::null());
            limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
            Some(limited.output().unwrap())
        };
        codes.extend(bench.each(few, &[0, 3, 5]));
    }
    assert!(codes.contains(&5), "{codes:?}");
}

/// What a run leaves that is killed outright is removed by the next one that writes there, and what
/// belongs to a living one is not.
#[test]
fn what_a_killed_run_left_is_removed_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let start = |more: &[&str]| {
        let mut command = program();
        command.args(more).env("TMPDIR", scratch.path());
        command.stderr(Stdio::null()).spawn().unwrap()
    };
    let model = tiny();
    let (model, logits) = (arg(&model), folder.path().join("logits"));
    let long = ["generate", "--model", model, "--ids", "1", "--gen", "200000", "--dump-logits"];
    let long = [&long[..], &[arg(&logits)]].concat();
    let unfinished = |place: &Path, count: usize| {
        let end = Instant::now() + Duration::from_secs(20);
        while temporary(place).len() != count {
            assert!(Instant::now() < end, "{:?}", temporary(place));
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let (mut killed, mut alive) = (start(&long), start(&long));
    unfinished(folder.path(), 2);
    let mut gates = start(&["gates", "--mutants"]);
    unfinished(scratch.path(), 1);
    for child in [&mut killed, &mut gates] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!((temporary(folder.path()).len(), temporary(scratch.path()).len()), (2, 1));
    let short = ["--ids", "1", "--gen", "1", "--dump-logits", arg(&logits)];
    assert!(
        start(&[&["generate", "--model", model][..], &short].concat()).wait().unwrap().success()
    );
    assert!(start(&["gates", "--only", "tiny/bind"]).wait().unwrap().success());
    assert_eq!((temporary(folder.path()).len(), temporary(scratch.path()).len()), (1, 0));
    send(&alive, Signal::TERM);
    assert_eq!(alive.wait().unwrap().code(), Some(4));
    assert_eq!(names_in(folder.path()), ["logits"]);
}

#[test]
fn a_signal_is_acknowledged_with_the_step_at_work_and_a_second_one_ends_it() {
    let model = tiny();
    let arguments =
        ["layers", "0..1", "--model", arg(&model), "--prefill", "4096", "--threads", "1"];
    let mut child = program().args(arguments).stdout(Stdio::piped()).spawn().unwrap();
    // The head of the table is out, so the first layer is about to be at work.
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("layer ") {
        line.clear();
        assert!(stdout.read_line(&mut line).unwrap() > 0, "it ended by itself");
    }
    std::thread::sleep(Duration::from_millis(50));
    send(&child, Signal::INT);
    let sent = Instant::now();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    line.clear();
    stderr.read_line(&mut line).unwrap();
    assert_eq!(line, "stopping after layer 0; again to stop now\n");
    assert!(sent.elapsed() < Duration::from_secs(1));
    send(&child, Signal::TERM);
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "error: stopped by a second signal\n");
    assert_eq!(child.wait().unwrap().code(), Some(4));
}

/// Outputs that would replace an input, a part of the model, each other, or what is no file: exit
/// 2, and everything is as it was.
#[test]
fn no_output_replaces_what_the_command_reads() {
    let bench = Bench::new();
    let (model, out) = (bench.at("model"), bench.at("out"));
    fs::create_dir(&out).unwrap();
    let shard = model.join("model-00002-of-000003.safetensors");
    symlink(&model, bench.at("link")).unwrap();
    symlink(&shard, bench.at("soft")).unwrap();
    fs::hard_link(&shard, bench.at("hard")).unwrap();
    let before = files_in(&model);
    let at = |name: &str| arg(&bench.at(name)).to_owned();
    let taken = [
        "model/config.json",
        "model/new",
        "link/config.json",
        "out/../model/new",
        "soft",
        "hard",
        "/dev/null",
        "/dev/full",
        "out",
    ];
    let lines = bench.lines();
    let lines = lines.iter().filter(|line| line.contains(&arg(&model).to_owned()));
    for line in lines.filter(|line| line.contains(&"OUT".to_owned())) {
        let is_folder =
            line[line.len() - 2] == "--out" || line[0] == "evidence" || line[0] == "pack";
        for name in taken.iter().filter(|name| !is_folder || name.starts_with("model/new")) {
            let path = if name.starts_with('/') { (*name).to_owned() } else { at(name) };
            let typed: Vec<_> =
                line.iter().map(|word| if word == "OUT" { &*path } else { &**word }).collect();
            let error = expect(&typed, 2).stderr;
            assert!(error.contains(&path), "{error}");
        }
    }
    let [x, dotted, report, trace] = ["x", "out/../x", "out/report.json", "trace"].map(at);
    let run = ["generate", arg(&model), "--ids", "1", "--gen", "1"];
    for pair in [
        ["--dump-logits", &x, "--save-state", &x],
        ["--dump-logits", &x, "--dump-trace", &dotted],
        ["--dump-logits", &report, "--out", arg(&out)],
        ["--load-state", &trace, "--save-state", &trace],
    ] {
        expect(&[&run[..], &pair].concat(), 2);
    }
    expect(&["simcache", &trace, "--csv", &trace], 2);
    expect(&["merge", &at("part"), "--out", &at("part")], 2);
    expect(&["gates", "--write-ratchet", "/dev/null"], 2);
    assert!(files_in(&model) == before && !bench.at("x").exists());
    assert_eq!(names_in(&out), Vec::<String>::new());
}
