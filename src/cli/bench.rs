//! `bench --ladder`: the same `generate` under several memory limits, interleaved and repeated.
//!
//! Each run is a process of its own: peak memory is a property of a process, and a run must not
//! find the last one's weights in memory.

use k3_core::choice::Choice as _;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::choice::choice;
use super::generate::eprint_text;
use super::model_args::CheckpointArgs;
use super::output::{self, CommandError, OutputArgs, bad_input, usage};
use super::sizes::parse_size;
use super::threads::ThreadsArgs;
use k3_cache::policy::PolicyName;
use k3_core::exit::Exit;
use k3_core::host::claims::Output as Written;
use k3_core::host::interrupt::{Group, Interrupt};
use k3_engine::generate::limits::{Runs, memory_limits};

/// How often a run is polled.
const LOOK_MILLISECONDS: u64 = 20;

/// A limit as typed, and its bytes.
#[derive(Debug, Clone)]
struct Limit {
    text: String,
    bytes: u64,
}

fn limit(text: &str) -> Result<Limit, String> {
    let bytes = parse_size(text)?;
    let text = text.to_owned();
    Ok(Limit { text, bytes })
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Memory limits to run `generate` under, such as 3GB,5GB,8GB
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = limit, required = true)]
    ladder: Vec<Limit>,
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// Packed trunk, made by `pack`
    #[arg(long, value_name = "DIR")]
    trunk: Option<PathBuf>,
    /// Prompt as token ids
    #[arg(long, value_name = "IDS")]
    ids: String,
    /// Ids to generate
    #[arg(long, value_name = "N", default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    r#gen: u32,
    /// Runs under each limit
    #[arg(long, value_name = "N", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// Policy of the expert cache; `simcache --measured` models lru
    #[arg(long, value_name = "NAME", value_parser = choice::<PolicyName>(), default_value = "lru")]
    policy: PolicyName,
    #[command(flatten)]
    threads: ThreadsArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<Exit, CommandError> {
    super::sizes::parse_ids(&args.ids).map_err(|text| usage(format!("--ids: {text}")))?;
    let model = args.checkpoint.folder()?;
    let read: Vec<&Path> = args.trunk.as_deref().into_iter().chain([&*model]).collect();
    let out = args.output.out.iter();
    let files: Vec<PathBuf> =
        out.flat_map(|out| ["ladder.tsv", "ladder.trace"].map(|name| out.join(name))).collect();
    let written: Vec<_> = files.iter().map(|path| Written::File(path)).collect();
    output::claim(&args.output, &read, &written)?;
    let interrupt = Interrupt::listen();
    let mut runs: Vec<Runs> = args
        .ladder
        .iter()
        .map(|limit| Runs {
            limit: limit.text.clone(),
            limit_bytes: limit.bytes,
            reports: Vec::new(),
        })
        .collect();
    let mut done = 0;
    // Interleaved: a machine that slows down in the course of it slows every limit alike.
    for repeat in 0..args.repeats {
        for limit in &mut runs {
            let run = format!("run {} of {} under {}", repeat + 1, args.repeats, limit.limit);
            interrupt.begin(&run);
            eprint_text(&format!("{run}\n"));
            let traced = repeat == 0 && limit.limit == args.ladder[0].text;
            let report = one(args, &model, (&limit.limit, traced), &interrupt);
            if interrupt.is_set() {
                return Err(interrupted(done, args));
            }
            limit.reports.push(report?);
            done += 1;
        }
    }
    let limits = memory_limits(args.policy.name(), &runs)?;
    if let Some(folder) = &args.output.out {
        output::write_whole(&folder.join("ladder.tsv"), limits.table().as_bytes())?;
    }
    output::deliver(&args.output, &limits, &limits.document())?;
    Ok(Exit::Conforms)
}

/// The error of an interrupted bench.
fn interrupted(done: u32, args: &BenchArgs) -> CommandError {
    let all = args.ladder.len() as u32 * args.repeats;
    let error = anyhow::anyhow!("interrupted after {done} of {all} runs, no table was written");
    CommandError::new(error, Exit::Incomplete)
}

/// Waits for a run, passing an interrupt on to it so that it shuts down cleanly.
fn wait(command: &mut Command, interrupt: &Interrupt) -> io::Result<Output> {
    // Files without a name, which nothing has to empty while the run writes to them.
    let [stdout, stderr] = [tempfile::tempfile()?, tempfile::tempfile()?];
    command.stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
    // Its own process group: Ctrl-C on a terminal then reaches it once, from here, not twice.
    let mut child = command.process_group(0).spawn()?;
    let _group = Group::of(&child);
    let status = match ended(&mut child, interrupt) {
        Ok(status) => status,
        Err(error) => {
            // It is in its own group, so nothing else would end it.
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
    };
    let whole = |mut file: File| {
        let mut bytes = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut bytes)?;
        io::Result::Ok(bytes)
    };
    Ok(Output { status, stdout: whole(stdout)?, stderr: whole(stderr)? })
}

/// Waits, forwarding an interrupt to the run.
fn ended(child: &mut Child, interrupt: &Interrupt) -> io::Result<ExitStatus> {
    let mut told = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if interrupt.is_set() && !told {
            told = true;
            // The process has not been reaped yet, so the pid is still its own.
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            if let Some(pid) = pid {
                kill_process(pid, Signal::TERM)?;
            }
        }
        std::thread::sleep(Duration::from_millis(LOOK_MILLISECONDS));
    }
}

/// One run in a process of its own.
fn one(
    args: &BenchArgs,
    model: &Path,
    (limit, traced): (&str, bool),
    interrupt: &Interrupt,
) -> Result<Value, CommandError> {
    let failed = |error: io::Error| {
        let error = anyhow::anyhow!("cannot run this program again: {error}");
        bad_input(error)
    };
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    command.args(["generate", "--format", "json", "--ignore-eos", "--memory", limit]);
    command.args(["--ids", &args.ids, "--gen", &args.r#gen.to_string()]);
    command.args(["--policy", args.policy.name()]);
    command.arg("--model").arg(model);
    if let Some(trunk) = &args.trunk {
        command.arg("--trunk").arg(trunk);
    }
    if let Some(threads) = args.threads.given {
        command.args(["--threads", &threads.to_string()]);
    }
    if let (true, Some(folder)) = (traced, &args.output.out) {
        command.arg("--dump-trace").arg(folder.join("ladder.trace"));
    }
    let output = wait(command.stdin(Stdio::null()), interrupt).map_err(failed)?;
    if output.status.success() {
        let report = serde_json::from_slice(&output.stdout);
        return report.map_err(bad_input);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let line = stderr.lines().find_map(|line| line.strip_prefix("error: "));
    let code = output.status.code().and_then(|code| u8::try_from(code).ok());
    let exit = code.map_or(Exit::BadInput, Exit::of_code);
    let what = line.unwrap_or("the run ended without an error message");
    Err(CommandError::new(anyhow::anyhow!("under {limit}: {what}"), exit))
}
