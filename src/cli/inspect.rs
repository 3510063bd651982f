//! `inspect`: what a checkpoint holds, whole or in part.

use std::time::Instant;

use anyhow::Context as _;
use clap::Args;

use super::model_args::{CheckpointArgs, open_partial, read_config};
use super::output::{self, CommandError, OutputArgs, bad_input};
use k3_checkpoint::{ModelShape, config as config_file};
use k3_core::exit::Exit;
use k3_core::host::provenance::{Provenance, default_threads};
use k3_gates::audit::statistics::statistics;
use k3_gates::audit::{census, end_ids};
use k3_gates::glob::Glob;
use k3_gates::report::inspect::{InspectReport, SCHEMA, Sizes};

/// What a checkpoint holds: census by class and dtype, layer map, counts, end ids.
///
/// A checkpoint with missing shards is inspected as far as possible; the report lists what is
/// absent and the exit code stays 0. Exits 1 if a tensor has another dtype, shape or name than the
/// config implies, 4 if a --tensor pattern matches nothing.
#[derive(Debug, Args)]
pub struct InspectArgs {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// Read the tensors that match and print min, max, mean, rms, NaN count, share of zeros,
    /// distinct scale bytes (repeatable); * and ? are wildcards
    #[arg(long, value_name = "GLOB")]
    tensor: Vec<String>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the command.
///
/// # Errors
///
/// No folder (2), no readable config or checkpoint, an end id that is none of its ids (3).
pub fn run(args: &InspectArgs) -> Result<Exit, CommandError> {
    let start = Instant::now();
    let folder = args.checkpoint.folder()?;
    output::claim(&args.output, &[&folder], &[])?;
    let config = read_config(&folder)?;
    let shape = ModelShape::derive(&config)?;
    let checkpoint = open_partial(&folder)?;
    let mut notes: Vec<String> = checkpoint.notes().iter().map(ToString::to_string).collect();
    let unread = config_file::unread(&folder.join("config.json"))?;
    notes.extend(unread.iter().map(|field| format!("config.json: {field}")));
    let census = census::census(&checkpoint, &shape);
    let end_ids = end_ids::end_ids(&folder, &config, &folder, None)?;

    let globs: Vec<Glob> = args.tensor.iter().map(|glob| Glob::new(glob)).collect();
    let mut tensors = Vec::new();
    for info in checkpoint.tensors() {
        if globs.iter().any(|glob| glob.matches(info.name)) {
            let read = statistics(&checkpoint, &info).with_context(|| info.name.to_owned());
            tensors.push(read.map_err(bad_input)?);
        }
    }
    let nothing_selected = !args.tensor.is_empty() && tensors.is_empty();
    let mut exit = Exit::Conforms;
    if !census.problems.is_empty() {
        exit = exit.and(Exit::Disagrees);
    }
    if nothing_selected {
        exit = exit.and(Exit::Incomplete);
    }
    let report = InspectReport {
        schema: SCHEMA,
        exit_code: exit.code(),
        sizes: Sizes::of(&config, &shape),
        shards: checkpoint.shards().len(),
        missing_shards: checkpoint.missing_shards().to_vec(),
        has_index: checkpoint.has_index(),
        notes,
        index_held_bytes: checkpoint.held_bytes(),
        census,
        end_ids,
        tensor_globs: args.tensor.clone(),
        statistics: tensors,
        provenance: Provenance::since(start, default_threads(), vec![folder.display().to_string()]),
    };
    output::deliver(&args.output, &report, &report.document())?;
    Ok(exit)
}
