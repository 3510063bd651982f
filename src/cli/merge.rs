//! `merge`: joins the reports of the parts of a `layers --part i/N` run.

use std::path::{Path, PathBuf};

use clap::Args;

use super::layers::deliver;
use super::output::{self, CommandError, OutputArgs, bad_input};
use k3_core::exit::Exit;
use k3_core::seal::unseal;
use k3_gates::layers::merge::merge;
use k3_gates::report::layers::{LayersReport, SCHEMA};

/// Join the reports of all parts of a `layers --part i/N` run.
///
/// Refuses missing parts (exit 4), repeated parts, and parts with different inputs, versions or
/// checkpoints (exit 3). Apart from provenance, the joined report and the exit code are those of
/// the undivided run.
#[derive(Debug, Args)]
pub struct MergeArgs {
    /// Folders given to --out, or their report.json
    #[arg(value_name = "PART", required = true)]
    parts: Vec<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the command.
pub fn run(args: &MergeArgs) -> Result<Exit, CommandError> {
    let file = |part: &PathBuf| if part.is_dir() { part.join("report.json") } else { part.clone() };
    let files: Vec<PathBuf> = args.parts.iter().map(file).collect();
    output::claim(&args.output, &files.iter().map(|file| &**file).collect::<Vec<_>>(), &[])?;
    let parts: Result<Vec<_>, _> = files.iter().map(|file| read(file)).collect();
    let report = merge(parts?)?;
    deliver(&args.output, &report, false)?;
    Ok(report.exit())
}

fn read(file: &Path) -> Result<(String, LayersReport), CommandError> {
    let name = file.display().to_string();
    let refused = |what: String| {
        bad_input(anyhow::anyhow!("{name}: {what}"))
            .hint("a part is the report.json that layers --part i/N --out DIR writes")
    };
    let bytes = k3_core::host::files::read(file).map_err(|error| refused(error.to_string()))?;
    let report: LayersReport =
        unseal(&bytes).map_err(|what| refused(format!("not the report of a part: {what}")))?;
    if report.schema != SCHEMA {
        return Err(refused(format!("expected schema {SCHEMA}, got {}", report.schema)));
    }
    Ok((name, report))
}
