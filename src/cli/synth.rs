//! `synth`: writes a synthetic checkpoint with the released names, dtypes and layout, or a sparse
//! replica.

use k3_core::choice::Choice as _;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::choice::choice;
use super::output::{self, CommandError, OutputArgs};
use super::threads::ThreadsArgs;
use k3_core::exit::Exit;
use k3_core::host::claims::Output;
use k3_core::host::provenance::Provenance;
use k3_synth::draw::Content;
use k3_synth::folder::{Job, Survey};
use k3_synth::probe::{Probe, probe};
use k3_synth::report::{SCHEMA, SynthReport};
use k3_synth::{Layout, Overrides, Preset, SynthError, SynthModel};

/// Default number of tokens fed for the statistics.
const PROBE_TOKENS: usize = 32;
/// Up to this size statistics are measured by default.
const PROBED_BYTES: u64 = 1 << 30;

/// Write a synthetic checkpoint: released names, dtypes and layout, random weights.
///
/// The bytes depend only on shape, sizes and seed. Repeating the command resumes an interrupted
/// run: complete shards are kept if their header and three places of every tensor are right.
/// Nothing is overwritten. Exits 2 for an unknown shape, a size out of range, or an OUT that holds
/// other files; 5, before anything is written, if the disk is too full; 3 if a file cannot be
/// written.
#[derive(Debug, Args)]
pub struct SynthArgs {
    /// Folder to write; created if it does not exist
    #[arg(value_name = "OUT")]
    folder: PathBuf,
    /// Shape of the model [default: tiny, or k3 with --sparse]
    #[arg(long, value_parser = choice::<Preset>(), value_name = "SHAPE")]
    shape: Option<Preset>,
    /// Decoder layers: the first N of the shape
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Routed experts per layer
    #[arg(long, value_name = "N")]
    experts: Option<usize>,
    /// Vocabulary
    #[arg(long, value_name = "N")]
    vocab: Option<usize>,
    /// Seed of the weights
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write only headers, in sparse files of full size that take almost no disk space. With k3
    /// this is a replica of the release, vision tower included, its shard sizes exact to the byte
    #[arg(long, conflicts_with = "seed")]
    sparse: bool,
    /// With --sparse, write the index too (57 MB for all of k3, without holes)
    #[arg(long, requires = "sparse")]
    index: bool,
    /// Tokens to feed to the engine for the statistics; 0 for none [default: 32 up to 1 GiB, else
    /// none]
    #[arg(long, value_name = "N", conflicts_with = "sparse",
        value_parser = clap::value_parser!(u16).range(0..=4096))]
    probe: Option<u16>,
    #[command(flatten)]
    threads: ThreadsArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the command.
pub fn run(args: &SynthArgs) -> Result<Exit, CommandError> {
    let start = Instant::now();
    let threads = args.threads.count();
    let preset = args.shape.unwrap_or(if args.sparse { Preset::K3 } else { Preset::Tiny });
    let overrides = Overrides { layers: args.layers, experts: args.experts, vocab: args.vocab };
    let model = SynthModel::new(preset, overrides, args.seed)?;
    output::claim(&args.output, &[], &[Output::Folder(&args.folder)])?;
    let job = Job {
        layout: Layout { model: &model, vision: args.sparse && preset == Preset::K3 },
        content: if args.sparse {
            Content::Holes
        } else {
            Content::Weights { seed: args.seed, kda_heads: model.shape.kda.heads }
        },
        index: !args.sparse || args.index,
        folder: &args.folder,
    };
    let survey = make(&job, threads)?;
    let (probe, probe_left_out) = measure(args, &job, &survey, threads)?;
    let report = SynthReport {
        schema: SCHEMA,
        exit_code: Exit::Conforms.code(),
        shape: preset.name(),
        layers: model.shape.layers.len(),
        experts: model.shape.moe.experts,
        vocab: model.shape.vocab,
        seed: (!args.sparse).then_some(args.seed),
        sparse: args.sparse,
        index: job.index,
        shards: job.layout.shard_count(),
        shards_kept: survey.kept,
        tensors: survey.tensors,
        tensor_bytes: survey.tensor_bytes,
        shard_bytes: survey.shard_bytes,
        probe,
        probe_left_out,
        provenance: Provenance::since(start, threads, Vec::new()),
    };
    output::deliver(&args.output, &report, &report.document())?;
    Ok(Exit::Conforms)
}

/// Checks what exists, then writes with `threads` threads.
fn make(job: &Job<'_>, threads: usize) -> Result<Survey, SynthError> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    pool.install(|| {
        let survey = job.survey()?;
        // Hidden automatically if stderr is not a terminal.
        let bar = ProgressBar::new(survey.missing_bytes).with_style(
            ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {eta} left")
                .unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        let written = job.write(&survey, &|bytes| bar.inc(bytes));
        bar.finish_and_clear();
        written.map(|()| survey)
    })
}

/// The statistics, or why there are none.
fn measure(
    args: &SynthArgs,
    job: &Job<'_>,
    survey: &Survey,
    threads: usize,
) -> Result<(Option<Probe>, Option<String>), CommandError> {
    if args.sparse {
        return Ok((None, Some("a sparse replica has no weights to run".to_owned())));
    }
    let tokens = match args.probe {
        Some(tokens) => usize::from(tokens),
        None if survey.shard_bytes <= PROBED_BYTES => PROBE_TOKENS,
        None => {
            let bytes = survey.shard_bytes;
            let reason = format!("{bytes} bytes would have to be read; --probe 8 measures");
            return Ok((None, Some(reason)));
        }
    };
    if tokens == 0 {
        return Ok((None, Some("--probe 0".to_owned())));
    }
    let model = job.layout.model;
    let numbers = (model.seed, tokens, threads);
    let probe = probe(job.folder, &model.config, &model.shape, numbers)?;
    Ok((Some(probe), None))
}
