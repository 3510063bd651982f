//! `plan RANGE`: the files, bytes, memory and time of a `layers` run, part by part.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::model_args::{model_dir, named_model, read_config};
use super::output::{self, CommandError, OutputArgs};
use k3_checkpoint::ModelShape;
use k3_core::exit::Exit;
use k3_core::host::provenance::{Provenance, default_threads};
use k3_gates::layers::range::LayerRange;
use k3_gates::scale_out::script;
use k3_gates::scale_out::script::Job;
use k3_gates::scale_out::{Files, PartPlan, plan};
use k3_render::{Document, Row, Table, left, right};

/// What `--emit` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Emit {
    /// Part by part: layers, files, bytes, memory, time
    List,
    /// The URL of every file, one per line
    Urls,
    /// A job script
    Script,
}

/// What runs the script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scheduler {
    /// A Slurm job array
    Slurm,
    /// One command per line, for GNU parallel
    Parallel,
}

/// Options of a plan over layers.
#[derive(Debug, Args)]
pub struct PlanLayersArgs {
    /// Number of machines to split the layers over
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub parts: u16,
    /// What to print
    #[arg(long, value_enum, default_value_t = Emit::List)]
    pub emit: Emit,
    /// What runs the script
    #[arg(long, value_enum, default_value_t = Scheduler::Slurm)]
    pub scheduler: Scheduler,
    /// Tokens fed to each layer
    #[arg(long, value_name = "N", default_value_t = 10,
        value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub tokens: u16,
    /// Base URL of the files
    #[arg(
        long,
        value_name = "URL",
        default_value = "https://huggingface.co/moonshotai/Kimi-K3/resolve/main"
    )]
    pub base_url: String,
}

/// The list as JSON.
#[derive(Debug, Serialize)]
struct Report<'a> {
    schema: &'static str,
    exit_code: u8,
    range: String,
    model_layers: usize,
    tokens: usize,
    parts: &'a [PartPlan],
    provenance: Provenance,
}

/// Weights times tokens that two cores process per second, engine and reference together. Measured
/// on the synthetic model of real width; an estimate for other machines.
const WEIGHT_TOKENS_A_SECOND: f64 = 8e8;

/// Plans a run over layers.
///
/// # Errors
///
/// A range the model does not have (2), a folder that cannot be read (3).
pub fn run(
    args: &PlanLayersArgs,
    range: &LayerRange,
    model: Option<&Path>,
    out: &OutputArgs,
) -> Result<Exit, CommandError> {
    let start = Instant::now();
    let folder = named_model(model).map(|folder| model_dir(Some(&folder))).transpose()?;
    output::claim(out, &folder.as_deref().into_iter().collect::<Vec<_>>(), &[])?;
    let (files, shape) = folder.as_deref().map_or_else(|| Ok(Files::of_release()?), of_folder)?;
    let layers = range.resolve(shape.layers.len());
    let layers = layers.map_err(|error| CommandError::new(error, Exit::Usage))?;
    let count = usize::from(args.parts);
    if count > layers.len() {
        let layers = layers.len();
        let error = anyhow::anyhow!("--parts {count}: more parts than the {layers} layers");
        return Err(CommandError::new(error, Exit::Usage));
    }
    let tokens = usize::from(args.tokens);
    let parts = plan(&files, &shape, &layers, count, tokens);
    let typed = range.to_string();
    let base_url = args.base_url.trim_end_matches('/');
    let job = Job { range: &typed, base_url, tokens, parts: &parts };
    let document = match (args.emit, args.scheduler) {
        (Emit::List, _) => list(&typed, &shape, &parts),
        (Emit::Urls, _) => Document::of_lines(&script::urls(&job).join("\n")),
        (Emit::Script, Scheduler::Slurm) => Document::of_lines(&script::slurm(&job)),
        (Emit::Script, Scheduler::Parallel) => Document::of_lines(&script::parallel(&job)),
    };
    let report = Report {
        schema: "k3-verify/plan-layers/1",
        exit_code: 0,
        range: typed.clone(),
        model_layers: shape.layers.len(),
        tokens,
        parts: &parts,
        provenance: Provenance::since(start, default_threads(), Vec::new()),
    };
    output::deliver(out, &report, &document)?;
    Ok(Exit::Conforms)
}

fn of_folder(folder: &Path) -> Result<(Files, ModelShape), CommandError> {
    let config = read_config(folder)?;
    let shape = ModelShape::derive(&config);
    let shape = shape?;
    let files = Files::of_folder(folder, &shape);
    let files = files?;
    Ok((files, shape))
}

fn list(range: &str, shape: &ModelShape, parts: &[PartPlan]) -> Document {
    let layers: usize = parts.iter().map(|part| part.layers.len()).sum();
    let (all, count) = (shape.layers.len(), parts.len());
    let title = format!("layers {range} (both ends included): {layers} of {all} layers");
    let mut document = Document::new(format!("{title} in {count} parts"));
    let mut table = Table::new([
        right("part", 0),
        left("layers", 0),
        right("files", 0),
        right("bytes", 0),
        right("memory GB", 0),
        right("about s on 2 cores", 0),
    ]);
    for part in parts {
        let ends = match (part.layers.first(), part.layers.last()) {
            (Some(first), Some(last)) if part.layers.len() == last - first + 1 => {
                format!("{first}..{last}")
            }
            _ => part.layers.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        };
        let seconds = part.weight_tokens as f64 / WEIGHT_TOKENS_A_SECOND;
        let cells = vec![
            part.index.to_string(),
            ends,
            part.files.len().to_string(),
            part.bytes.map_or("unknown".to_owned(), |bytes| bytes.to_string()),
            format!("{:.2}", part.memory_bytes as f64 / 1e9),
            format!("{seconds:.0}"),
        ];
        table.push(Row { cells, below: vec![part.files.join(" ")] });
    }
    document.table(table);
    let files: BTreeSet<&String> = parts.iter().flat_map(|part| &part.files).collect();
    document.line(format!("{} different files in all", files.len()));
    document
}
