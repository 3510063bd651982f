//! `dump MODEL --ids … OUT`: the stage tensors of one pass, as safetensors with the ids inside.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::model_args::{Ids, check_ids, model_and_out, parse_epsilon, parse_ids, read_config};
use super::output::{self, CommandError, OutputArgs, bad_input, usage};
use super::threads::ThreadsArgs;
use k3_checkpoint::Checkpoint;
use k3_core::Precision;
use k3_core::config::{MLA_NORM_EPS, RawConfig, epsilon_line};
use k3_core::exit::Exit;
use k3_core::host::claims::Output;
use k3_core::host::provenance::Provenance;
use k3_core::stages::{Stage, StageDump, StageKey, StageSink, StageValues};
use k3_engine::kernels::table::Kernels;
use k3_engine::model::{Engine, EngineOptions, EngineSequence, Shape};
use k3_gates::glob::Glob;
use k3_gates::noise_floor::NoiseFloor;
use k3_gates::tensor_file::encode_stages;
use k3_reference as reference;
use k3_render::{Document, Table};

/// Arguments of `dump`.
#[derive(Debug, Args)]
pub struct DumpArgs {
    /// The checkpoint, unless --model or K3_MODEL names it, then the file to write
    #[arg(value_name = "[MODEL] OUT", num_args = 1..=2, required = true)]
    paths: Vec<PathBuf>,
    /// The checkpoint
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Token ids, separated by commas
    #[arg(long, value_name = "IDS", value_parser = parse_ids, required = true)]
    ids: Ids,
    /// Who computes: the engine (F32 tensors) or the f64 reference (F64 tensors)
    #[arg(long, value_enum, default_value_t = By::Engine)]
    by: By,
    /// Only the stages whose names match; * and ? are wildcards
    #[arg(long, value_name = "GLOB")]
    stages: Option<String>,
    /// Omit the f32, f16 and bf16 noise floors that the reference writes into the header
    #[arg(long)]
    no_noise_floor: bool,
    /// Epsilon of the two low-rank norms in MLA
    #[arg(long, value_name = "X", default_value_t = MLA_NORM_EPS, value_parser = parse_epsilon)]
    mla_norm_eps: f64,
    #[command(flatten)]
    threads: ThreadsArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Who computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// The engine.
    Engine,
    /// The f64 reference.
    Reference,
}

/// The report.
#[derive(Debug, Serialize)]
struct DumpReport {
    schema: &'static str,
    by: By,
    ids: Vec<u32>,
    mla_norm_eps: f64,
    stages: Option<String>,
    tensors: usize,
    bytes: usize,
    /// Largest |h| of the running sum after each layer.
    max_abs_h: BTreeMap<usize, f64>,
    provenance: Provenance,
}

/// Records the stages that match a pattern, and the size of the running sum after every layer.
struct Selected {
    pattern: Option<Glob>,
    dump: StageDump,
    largest: BTreeMap<usize, f64>,
}

impl Selected {
    fn keeps(&self, key: StageKey) -> bool {
        let fits = |glob: &Glob| glob.matches(&key.to_string());
        self.pattern.as_ref().is_none_or(fits)
    }
}

impl StageSink for Selected {
    fn wants(&self, key: StageKey) -> bool {
        key.stage == Stage::Out || self.keeps(key)
    }

    fn put(&mut self, key: StageKey, shape: &[usize], values: &[f64]) {
        if let (Some(layer), Stage::Out) = (key.layer, key.stage) {
            let largest = self.largest.entry(layer).or_insert(0.0);
            // `max` would drop a NaN, which must show.
            for value in values {
                if value.is_nan() || value.abs() > *largest {
                    *largest = value.abs();
                }
            }
        }
        if self.keeps(key) {
            self.dump.put(key, shape, values);
        }
    }

    fn put_ids(&mut self, key: StageKey, shape: &[usize], ids: &[i32]) {
        if self.keeps(key) {
            self.dump.put_ids(key, shape, ids);
        }
    }
}

/// Runs the command.
pub fn run(args: &DumpArgs) -> Result<Exit, CommandError> {
    let start = Instant::now();
    let (model, out) = model_and_out(&args.paths, args.model.as_deref())?;
    if args.by == By::Engine && args.no_noise_floor {
        let error = usage("--no-noise-floor does not apply to --by engine");
        return Err(error.hint("only the reference writes noise floors"));
    }
    output::claim(&args.output, &[&model], &[Output::File(&out)])?;
    let config = read_config(&model)?;
    check_ids(&args.ids.0, &config)?;
    let mut sink = Selected {
        pattern: args.stages.as_deref().map(Glob::new),
        dump: StageDump::default(),
        largest: BTreeMap::new(),
    };
    let mut header = header(args);
    match args.by {
        By::Engine => by_engine(args, &model, &config, &mut sink)?,
        By::Reference => {
            let pool = output::pool(args.threads.count())?;
            header.extend(pool.install(|| by_reference(args, &model, &mut sink))?);
        }
    }
    if sink.dump.tensors.is_empty() {
        let pattern = args.stages.as_deref().unwrap_or("*");
        let error = anyhow::anyhow!("--stages {pattern}: no stage of this model matches");
        let hint = "stages are named like layers.3.kda.q, layers.3.out, logits";
        return Err(CommandError::new(error, Exit::Incomplete).hint(hint));
    }
    let bytes = encode_stages(&sink.dump, &args.ids.0, args.by == By::Engine, &header)
        .map_err(bad_input)?;
    output::write_whole(&out, &bytes)?;
    let report = DumpReport {
        schema: "k3-verify/dump/1",
        by: args.by,
        ids: args.ids.0.clone(),
        mla_norm_eps: args.mla_norm_eps,
        stages: args.stages.clone(),
        tensors: sink.dump.tensors.len(),
        bytes: bytes.len(),
        max_abs_h: sink.largest,
        provenance: Provenance::since(
            start,
            args.threads.count(),
            vec![model.display().to_string()],
        ),
    };
    output::deliver(&args.output, &report, &document(&report, &out))?;
    Ok(Exit::Conforms)
}

fn header(args: &DumpArgs) -> BTreeMap<String, String> {
    let ids: Vec<String> = args.ids.0.iter().map(u32::to_string).collect();
    let by = match args.by {
        By::Engine => "k3-verify engine, f32",
        By::Reference => "k3-verify reference, f64",
    };
    BTreeMap::from([
        ("schema".to_owned(), "k3-verify/stages/1".to_owned()),
        ("by".to_owned(), by.to_owned()),
        ("ids".to_owned(), ids.join(",")),
        ("mla_norm_eps".to_owned(), format!("{:e}", args.mla_norm_eps)),
    ])
}

fn by_engine(
    args: &DumpArgs,
    model: &Path,
    config: &RawConfig,
    sink: &mut Selected,
) -> Result<(), CommandError> {
    let checkpoint = Checkpoint::open(model)?;
    let options = EngineOptions { threads: args.threads.count(), ..EngineOptions::default() };
    let mut shape = Shape::derive(config)?;
    shape.mla_norm_eps = args.mla_norm_eps;
    let engine = Engine::resident(Kernels::fastest(), shape, &checkpoint, options)?;
    EngineSequence::new(Arc::new(engine)).feed_with(&args.ids.0, sink)?;
    Ok(())
}

/// The plain pass, then one per precision for the noise floors that the header carries.
fn by_reference(
    args: &DumpArgs,
    model: &Path,
    sink: &mut Selected,
) -> Result<BTreeMap<String, String>, CommandError> {
    let (ids, eps) = (&args.ids.0, args.mla_norm_eps);
    let opened = reference::Model::open(model, eps)?;
    let mut plain = StageDump::default();
    opened.sequence().feed(ids, &mut plain)?;
    drop(opened);
    let mut floors = BTreeMap::new();
    if !args.no_noise_floor {
        for precision in [Precision::F32, Precision::F16, Precision::Bf16] {
            let mut floor = NoiseFloor::measure_from(&plain, model, eps, ids, precision)?;
            floor.stages.retain(|key, _| sink.keeps(*key));
            floors.extend(floor.header_entry());
        }
    }
    for (key, tensor) in &plain.tensors {
        match &tensor.values {
            StageValues::Real(values) => sink.put(*key, &tensor.shape, values),
            StageValues::Ids(ids) => sink.put_ids(*key, &tensor.shape, ids),
        }
    }
    Ok(floors)
}

fn document(report: &DumpReport, out: &Path) -> Document {
    let by = match report.by {
        By::Engine => "the engine, F32",
        By::Reference => "the f64 reference, F64",
    };
    let mut document = Document::new(format!("k3-verify dump: {} ids, by {by}", report.ids.len()));
    document.line(epsilon_line(report.mla_norm_eps));
    let mut table = Table::new(["layer", "max |h|"]);
    for (layer, largest) in &report.max_abs_h {
        table.row([layer.to_string(), format!("{largest:.6e}")]);
    }
    document.table(table);
    document.gap();
    let (tensors, bytes) = (report.tensors, report.bytes);
    document.line(format!("{tensors} tensors, {bytes} bytes: {}", out.display()));
    document
}
