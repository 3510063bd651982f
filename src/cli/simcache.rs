//! `k3-verify simcache TRACE`: what was typed, a checked plan, the study, the report.

mod arguments;

use std::path::Path;
use std::time::Instant;

use anyhow::Context as _;

pub use arguments::SimcacheArgs;
use arguments::Usage;

use super::output::{self, CommandError};
use k3_cache::trace;
use k3_cache::trace::{Trace, TraceError};
use k3_core::exit::Exit;
use k3_core::host::provenance::{Provenance, default_threads};
use k3_simcache::measured;
use k3_simcache::measured::Rung;
use k3_simcache::report::Report;
use k3_simcache::study;
use k3_simcache::study::{StudyError, StudyPlan};

/// Runs the command.
///
/// # Errors
///
/// [`CommandError`] when there is no report: unreadable or unusable traces, bad arguments,
/// unwritable output.
pub fn run(args: &SimcacheArgs) -> Result<Exit, CommandError> {
    let begin = Instant::now();
    let shape = args.shape().map_err(usage)?;
    let mut traces = Vec::new();
    for path in &args.traces {
        let trace = trace::read(path, &shape).map_err(|error| trace_error(path, error))?;
        args.check_against(&trace, path).map_err(usage)?;
        traces.push(trace);
    }
    let ladder = args.measured.as_deref().map(read_ladder).transpose()?;
    let plan = args.plan(&traces[0], ladder).map_err(usage)?;
    output::check_writable(&args.output)?;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(args.threads.map_or(0, usize::from))
        .build()
        .map_err(|error| CommandError::new(error, Exit::BadInput))?;
    let mut report = pool.install(|| study_and_export(traces, &plan, args))?;
    report.provenance = provenance(args, begin);
    output::deliver(&args.output, &report, &report.document())?;
    Ok(verdict(&report))
}

fn usage(error: Usage) -> CommandError {
    CommandError::new(error, Exit::Usage)
}

/// An error that names the file, with its exit code and hint.
fn trace_error(path: &Path, error: TraceError) -> CommandError {
    let (exit, hint) = match &error {
        TraceError::Empty => (Exit::Incomplete, "a trace of at least one request is needed"),
        TraceError::ByteSwapped { .. } => (Exit::BadInput, "write the pairs little-endian"),
        TraceError::LayerOutOfRange { .. } | TraceError::ExpertOutOfRange { .. } => {
            let hint = "a trace of another model needs --model-layers, --experts and --top-k";
            (Exit::BadInput, hint)
        }
        TraceError::NoEndRecord { .. } | TraceError::CutRecord { .. } => {
            (Exit::BadInput, "the run that wrote it did not finish, or the copy is incomplete")
        }
        _ => (Exit::BadInput, ""),
    };
    let error = anyhow::Error::new(error).context(path.display().to_string());
    let error = CommandError::new(error, exit);
    if hint.is_empty() { error } else { error.hint(hint) }
}

fn study_error(error: StudyError) -> CommandError {
    let (exit, hint) = match &error {
        StudyError::Empty => (Exit::Incomplete, "the filters leave nothing"),
        StudyError::NoDecodeOrder(_) => {
            (Exit::Incomplete, "--order recorded replays the trace as it is")
        }
        StudyError::NothingToMeasure | StudyError::NoPositions(_) => (Exit::Incomplete, ""),
        StudyError::Cache(_) => (Exit::Usage, ""),
        StudyError::Trace(_) => (Exit::BadInput, ""),
    };
    let error = CommandError::new(error, exit);
    if hint.is_empty() { error } else { error.hint(hint) }
}

fn read_ladder(path: &Path) -> Result<Vec<Rung>, CommandError> {
    let ladder = measured::read(path).with_context(|| path.display().to_string());
    ladder.map_err(|error| CommandError::new(error, Exit::BadInput))
}

fn study_and_export(
    traces: Vec<Trace>,
    plan: &StudyPlan,
    args: &SimcacheArgs,
) -> Result<Report, CommandError> {
    if let Some(path) = &args.csv {
        let main = study::main_order(traces.clone(), plan).map_err(study_error)?;
        let mut csv = Vec::new();
        let written = trace::csv::write(&main, &mut csv);
        written.map_err(|error| CommandError::new(error, Exit::BadInput))?;
        output::write_whole(path, &csv)?;
    }
    study::run(traces, plan).map_err(study_error)
}

/// What was compared decides; then what could not be done.
fn verdict(report: &Report) -> Exit {
    let runs = &report.recorded_runs;
    let ladder_differs = report
        .measured
        .as_ref()
        .is_some_and(|measured| measured.largest_error_points > measured.tolerance_points);
    let run_differs = runs.iter().any(|run| run.replayed.is_some() && run.difference.is_some());
    if ladder_differs || run_differs {
        return Exit::Disagrees;
    }
    let main = report.views.first();
    let refused = main.is_some_and(|view| view.rows.iter().all(|row| row.refused.is_some()));
    if refused || runs.iter().any(|run| run.replayed.is_none()) {
        return Exit::Incomplete;
    }
    Exit::Conforms
}

fn provenance(args: &SimcacheArgs, begin: Instant) -> Provenance {
    let files = args.traces.iter().chain(&args.measured);
    let inputs = files.map(|path| path.display().to_string()).collect();
    Provenance::since(begin, args.threads.map_or_else(default_threads, usize::from), inputs)
}
