//! `k3-verify simcache TRACE`: what was typed, a checked plan, the study, the report.

mod arguments;

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;

pub use arguments::SimcacheArgs;
use arguments::{Format, Usage};

use crate::report::json;
use crate::simcache::measured::{self, LadderError};
use crate::simcache::page::page;
use crate::simcache::plots::{Plot, plots};
use crate::simcache::report::{Provenance, Report};
use crate::simcache::study::{self, StudyError, StudyPlan};
use crate::simcache::text::text;
use crate::simcache::trace::{self, Trace, TraceError};

/// How the command ends; the numbers are the program's exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimcacheExit {
    /// 0: studied; where something was compared, it agrees.
    Conforms = 0,
    /// 1: a measured ladder or a recorded run disagrees.
    Disagrees = 1,
    /// 2: a bad argument.
    Usage = 2,
    /// 3: a file is missing, unreadable, corrupt or cannot be written.
    BadInput = 3,
    /// 4: nothing to study, or something asked for could not be done with this trace.
    Incomplete = 4,
}

/// Runs the command; errors become one line and a hint on `err`.
///
/// # Errors
///
/// Only when `err` itself cannot be written.
pub fn run(
    args: &SimcacheArgs,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> anyhow::Result<SimcacheExit> {
    let error = match try_run(args, out) {
        Ok(exit) => return Ok(exit),
        Err(error) => error,
    };
    writeln!(err, "error: {error:#}")?;
    let (exit, hint) = judge(&error);
    if let Some(hint) = hint {
        writeln!(err, "hint: {hint}")?;
    }
    Ok(exit)
}

/// Exit code and hint of an error.
fn judge(error: &anyhow::Error) -> (SimcacheExit, Option<&'static str>) {
    if error.downcast_ref::<Usage>().is_some() {
        return (SimcacheExit::Usage, None);
    }
    let study = error.downcast_ref::<StudyError>();
    let trace = error.downcast_ref::<TraceError>();
    if matches!(trace, Some(TraceError::Empty)) || matches!(study, Some(StudyError::Empty)) {
        return (
            SimcacheExit::Incomplete,
            Some("a trace of at least one request is needed"),
        );
    }
    let hint = match trace {
        Some(TraceError::ByteSwapped { .. }) => Some("write the pairs in little-endian order"),
        Some(TraceError::LayerOutOfRange { .. } | TraceError::ExpertOutOfRange { .. }) => {
            Some("a trace of another model needs --model-layers, --experts and --top-k")
        }
        Some(TraceError::NoEndRecord { .. } | TraceError::CutRecord { .. }) => {
            Some("the run that wrote it did not finish, or the copy is incomplete")
        }
        _ => None,
    };
    match study {
        Some(StudyError::NoDecodeOrder(_)) => (
            SimcacheExit::Incomplete,
            Some("--order recorded replays the trace as it is"),
        ),
        Some(StudyError::NothingToMeasure | StudyError::NoPositions(_)) => {
            (SimcacheExit::Incomplete, None)
        }
        _ => (SimcacheExit::BadInput, hint),
    }
}

fn try_run(args: &SimcacheArgs, out: &mut dyn Write) -> anyhow::Result<SimcacheExit> {
    let begin = Instant::now();
    let shape = args.shape()?;
    let mut traces = Vec::new();
    for path in &args.traces {
        let trace = trace::read(path, &shape).with_context(|| path.display().to_string())?;
        args.check_against(&trace, path)?;
        traces.push(trace);
    }
    let ladder = match &args.measured {
        Some(path) => Some(read_ladder(path)?),
        None => None,
    };
    let plan = args.plan(&traces[0], ladder)?;
    if let Some(folder) = &args.out {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.threads.map_or(0, usize::from));
    let mut report = pool
        .build()?
        .install(|| study_and_export(traces, &plan, args))?;
    report.provenance = provenance(args, begin);
    deliver(args, &report, out)?;
    Ok(verdict(&report))
}

fn study_and_export(
    traces: Vec<Trace>,
    plan: &StudyPlan,
    args: &SimcacheArgs,
) -> anyhow::Result<Report> {
    if let Some(path) = &args.csv {
        let main = study::main_order(traces.clone(), plan)?;
        let mut csv = Vec::new();
        trace::csv::write(&main, &mut csv)?;
        write_whole(path, &csv)?;
    }
    Ok(study::run(traces, plan)?)
}

fn read_ladder(path: &Path) -> anyhow::Result<Vec<measured::Rung>> {
    let ladder: Result<_, LadderError> = measured::read(path);
    ladder.with_context(|| path.display().to_string())
}

/// What was compared decides; then what could not be done.
fn verdict(report: &Report) -> SimcacheExit {
    let runs = &report.recorded_runs;
    let ladder_differs = report
        .measured
        .as_ref()
        .is_some_and(|measured| measured.largest_error_points > measured.tolerance_points);
    if ladder_differs
        || runs
            .iter()
            .any(|run| run.replayed.is_some() && run.difference.is_some())
    {
        return SimcacheExit::Disagrees;
    }
    let main = report.views.first();
    let refused = main.is_some_and(|view| view.rows.iter().all(|row| row.refused.is_some()));
    if refused || runs.iter().any(|run| run.replayed.is_none()) {
        return SimcacheExit::Incomplete;
    }
    SimcacheExit::Conforms
}

fn provenance(args: &SimcacheArgs, begin: Instant) -> Provenance {
    let name = |path: &std::path::PathBuf| path.display().to_string();
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    Provenance {
        traces: args.traces.iter().map(name).collect(),
        measured: args.measured.as_ref().map(name),
        program: format!("k3-verify {}", env!("CARGO_PKG_VERSION")),
        unix_time: since_1970.map_or(0, |time| time.as_secs()),
        host: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        elapsed_seconds: (begin.elapsed().as_secs_f64() * 1e3).round() / 1e3,
    }
}

/// Prints the report and writes the folder. A plot that cannot be drawn is an error after the
/// numbers are out.
fn deliver(args: &SimcacheArgs, report: &Report, out: &mut dyn Write) -> anyhow::Result<()> {
    let words = text(report);
    let encoded = json::to_text(report)?;
    let shown = if args.format == Format::Json {
        &encoded
    } else {
        &words
    };
    quiet_pipe(out.write_all(shown.as_bytes()).and_then(|()| out.flush()))?;
    let Some(folder) = &args.out else {
        return Ok(());
    };
    write_whole(&folder.join("report.json"), encoded.as_bytes())?;
    write_whole(&folder.join("report.txt"), words.as_bytes())?;
    let drawn: Vec<Plot> = plots(report)?;
    for (name, svg) in &drawn {
        write_whole(&folder.join(format!("{name}.svg")), svg.as_bytes())?;
    }
    write_whole(&folder.join("report.html"), page(report, &drawn).as_bytes())
}

/// A reader that closed the pipe has seen enough.
fn quiet_pipe(result: io::Result<()>) -> anyhow::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("stdout"),
    }
}

/// Writes under a temporary name in the same folder, then renames.
fn write_whole(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let write = || -> io::Result<()> {
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let mut file = builder.tempfile_in(folder.unwrap_or(Path::new(".")))?;
        file.write_all(bytes)?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    write().with_context(|| format!("{}: cannot write", path.display()))
}
