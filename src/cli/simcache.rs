//! `simcache TRACE`: arguments, a checked plan, the study, the report.

mod arguments;

use std::path::Path;
use std::time::Instant;

pub use arguments::SimcacheArgs;

use super::output::{self, CommandError, bad_input};
use k3_cache::trace;
use k3_cache::trace::Trace;
use k3_core::exit::Exit;
use k3_core::host::claims::Output;
use k3_core::host::provenance::Provenance;
use k3_simcache::measured;
use k3_simcache::measured::MeasuredLimit;
use k3_simcache::report::Report;
use k3_simcache::study;
use k3_simcache::study::StudyPlan;

/// Runs the command.
pub fn run(args: &SimcacheArgs) -> Result<Exit, CommandError> {
    let begin = Instant::now();
    let shape = args.shape()?;
    let read: Vec<&Path> = args.traces.iter().chain(&args.measured).map(|path| &**path).collect();
    let written: Vec<_> = args.csv.iter().map(|path| Output::File(path)).collect();
    output::claim(&args.output, &read, &written)?;
    let mut traces = Vec::new();
    for path in &args.traces {
        let trace = trace::read(path, &shape, &args.stated())
            .map_err(|error| CommandError::from(error).at(path))?;
        args.check_against(&trace, path)?;
        traces.push(trace);
    }
    let measured = args.measured.as_deref().map(read_measured).transpose()?;
    let plan = args.plan(&traces[0], measured)?;
    let pool = output::pool(args.threads.count())?;
    let mut report = pool.install(|| study_and_export(traces, &plan, args))?;
    report.provenance = provenance(args, begin);
    output::deliver(&args.output, &report, &report.document())?;
    Ok(verdict(&report))
}

fn read_measured(path: &Path) -> Result<Vec<MeasuredLimit>, CommandError> {
    measured::read(path).map_err(|error| CommandError::from(error).at(path))
}

fn study_and_export(
    traces: Vec<Trace>,
    plan: &StudyPlan,
    args: &SimcacheArgs,
) -> Result<Report, CommandError> {
    if let Some(path) = &args.csv {
        let main = study::main_order(traces.clone(), plan)?;
        let mut csv = Vec::new();
        let written = trace::csv::write(&main, &mut csv);
        written.map_err(bad_input)?;
        output::write_whole(path, &csv)?;
    }
    Ok(study::run(traces, plan)?)
}

/// A comparison that disagrees decides first, then work that could not be done.
fn verdict(report: &Report) -> Exit {
    let runs = &report.recorded_runs;
    let forecast_differs = report
        .measured
        .as_ref()
        .is_some_and(|measured| measured.largest_error_points > measured.tolerance_points);
    let run_differs = runs.iter().any(|run| run.replayed.is_some() && run.difference.is_some());
    if forecast_differs || run_differs {
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
    Provenance::since(begin, args.threads.count(), inputs)
}
