//! `layers`: engine (or a foreign dump) against the f64 reference, layer by layer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;

use super::choice::choice;
use super::model_args::{
    model_and_last, model_dir, open_partial, parse_epsilon, parse_range, read_config,
};
use super::output::{self, CommandError, Format, OutputArgs, bad_input, usage};
use super::threads::ThreadsArgs;
use k3_checkpoint::{Checkpoint, ModelShape};
use k3_core::Precision;
use k3_core::config::{MLA_NORM_EPS, RawConfig};
use k3_core::exit::Exit;
use k3_core::host::claims::Output;
use k3_core::host::interrupt::Interrupt;
use k3_core::host::provenance::Provenance;
use k3_core::seal::seal;
use k3_engine::kernels::path::KernelPath;
use k3_engine::kernels::table::Kernels;
use k3_engine::model::{EngineOptions, Shape};
use k3_gates::audit::cross_read::differing_fields;
use k3_gates::fixtures::hex_sha256;
use k3_gates::glob::Glob;
use k3_gates::layers::journal;
use k3_gates::layers::journal::{Header, Journal};
use k3_gates::layers::judge::Judge;
use k3_gates::layers::merge::places;
use k3_gates::layers::range::LayerRange;
use k3_gates::layers::ratchet::Recorded;
use k3_gates::layers::run::{Chain, Input, Run, RunError, Step, Subject, steps};
use k3_gates::layers::sources::sources;
use k3_gates::layers::subject::{DumpSubject, EngineSubject};
use k3_gates::report::layers::{
    LayerRow, LayersProvenance, LayersReport, Part, Question, SCHEMA, row_name,
};
use k3_reference::Reader;
use k3_reference::local::Arithmetic;
use k3_render::Document;

/// Compare the engine (or a foreign dump) with the f64 reference, layer by layer, on a whole or
/// partial checkpoint.
///
/// RANGE is 0..92 (BOTH ends included: all 93 layers), 7, 0,3,91..92, or all; a reversed range, a
/// repeated layer or a layer the model does not have exits with 2. `all` judges the embedding (of
/// chained input) and the closing stages too. Each layer is fed a prefill and then single tokens on
/// the carried state. The verdict is local: each stage is recomputed in f64 from the subject's own
/// inputs to it. The report also shows the chained comparison from the layer's input. Ctrl-C stops
/// after the current layer, writes a valid partial report and exits with 4.
#[derive(Debug, Args)]
pub struct LayersArgs {
    /// The checkpoint, whole or in part, unless --model or K3_MODEL names it, then the layers, both
    /// ends included
    #[arg(value_name = "[MODEL] RANGE", num_args = 1..=2, required = true)]
    places: Vec<PathBuf>,
    /// The checkpoint
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// What the layers are fed: synthetic (drawn from --seed), chain (real activations, from
    /// --ids), or a dump of stages in safetensors
    #[arg(long, value_name = "synthetic|chain|FILE", default_value = "synthetic")]
    input: String,
    /// Ids that chained input starts from
    #[arg(long, value_name = "1,2,3", value_delimiter = ',', allow_hyphen_values = true)]
    ids: Vec<u32>,
    /// Seed of synthetic input [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Tokens in the prefill of synthetic input [default: 8]; other input is prefilled with all but
    /// --singles
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    prefill: Option<u16>,
    /// Single tokens after the prefill
    #[arg(long, value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u16).range(0..=256))]
    singles: u16,
    /// Judge this dump of another engine instead of our engine
    #[arg(long, value_name = "FILE")]
    engine_dump: Option<PathBuf>,
    /// Activation precision of the engine that produced the dump [default: the narrowest dtype in
    /// the dump]
    #[arg(long, value_name = "P", value_parser = choice::<Precision>(), requires = "engine_dump")]
    precision: Option<Precision>,
    /// Checkpoint folder that the reference reads instead
    #[arg(long, value_name = "DIR")]
    reference_model: Option<PathBuf>,
    /// Only the stages whose names match, such as kda.*
    #[arg(long, value_name = "GLOB")]
    stages: Option<String>,
    /// Run only part i of N of the range; `merge` joins the reports
    #[arg(long, value_name = "i/N")]
    part: Option<Part>,
    /// Resume the run journalled in --out
    #[arg(long, requires = "out")]
    resume: bool,
    /// Epsilon of the two low-rank norms in MLA, on both sides
    #[arg(long, value_name = "X", default_value_t = MLA_NORM_EPS, value_parser = parse_epsilon)]
    mla_norm_eps: f64,
    #[command(flatten)]
    threads: ThreadsArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the command.
pub fn run(args: &LayersArgs) -> Result<Exit, CommandError> {
    let plan = Plan::check(args)?;
    let pool = output::pool(plan.threads)?;
    pool.install(|| execute(args, plan))
}

/// The arguments, checked against the model.
struct Plan {
    start: Instant,
    threads: usize,
    folder: PathBuf,
    config: RawConfig,
    /// The config as the reference reads it.
    reference_config: RawConfig,
    shape: ModelShape,
    checkpoint: Arc<Checkpoint>,
    range: LayerRange,
    /// Of the whole run.
    layers: Vec<usize>,
    /// Of this part.
    selected: Vec<usize>,
    whole_model: bool,
    calls: Vec<usize>,
    dump: Option<DumpSubject>,
    dump_digest: Option<String>,
}

/// Tokens of the prefill of synthetic input.
const PREFILL: u16 = 8;

/// Seed of synthetic input.
const SEED: u64 = 1;

impl LayersArgs {
    fn seed(&self) -> u64 {
        self.seed.unwrap_or(SEED)
    }

    /// Declares what is read and written.
    fn claim(&self, model: &Path, is_file: bool) -> Result<(), CommandError> {
        let input = is_file.then(|| Path::new(&self.input));
        let others = [self.engine_dump.as_deref(), self.reference_model.as_deref(), input];
        let read: Vec<&Path> = others.into_iter().flatten().chain([model]).collect();
        let out = self.output.out.iter();
        let files: Vec<PathBuf> =
            out.flat_map(|out| [journal::JOURNAL, journal::CHAIN].map(|n| out.join(n))).collect();
        let written: Vec<Output<'_>> = files.iter().map(|path| Output::File(path)).collect();
        output::claim(&self.output, &read, &written)
    }

    /// Options of drawn input are refused for given input.
    fn check_drawn(&self, is_given: bool) -> Result<(), CommandError> {
        let drawn = [("--seed", self.seed.is_some()), ("--prefill", self.prefill.is_some())];
        match drawn.into_iter().find(|(_, is_said)| is_given && *is_said) {
            Some((option, _)) => Err(usage(format!("{option} belongs to --input synthetic"))),
            None => Ok(()),
        }
    }
}

impl Plan {
    fn check(args: &LayersArgs) -> Result<Self, CommandError> {
        let start = Instant::now();
        let threads = args.threads.count();
        let is_chain = args.input == "chain";
        if is_chain == args.ids.is_empty() {
            let text = if is_chain {
                "--input chain needs --ids"
            } else {
                "--ids belongs to --input chain"
            };
            return Err(usage(text));
        }
        let is_file = !is_chain && args.input != "synthetic";
        if args.engine_dump.is_some() && (is_file || is_chain) {
            let text = "--engine-dump excludes --input: a judged dump is its own input";
            return Err(usage(text));
        }
        args.check_drawn(is_chain || is_file || args.engine_dump.is_some())?;
        let (model, range) = model_and_last(&args.places, args.model.as_deref(), "RANGE")?;
        let range = parse_range(&range)?;
        let folder = model_dir(model.as_deref())?;
        args.claim(&folder, is_file)?;
        let config = read_config(&folder)?;
        let layers = range.resolve(config.num_hidden_layers);
        let layers = layers?;
        let vocabulary = config.vocab_size;
        if let Some(id) = args.ids.iter().find(|id| **id as usize >= vocabulary) {
            return Err(usage(format!("--ids: {id} is not below the vocabulary of {vocabulary}")));
        }
        let shape = ModelShape::derive(&config)?;
        let reference_config =
            k3_reference::read_config(args.reference_model.as_deref().unwrap_or(&folder))?;
        if let Some(field) = differing_fields(&config, &reference_config).into_iter().next() {
            return Err(bad_input(anyhow::anyhow!("config.json: {field}")));
        }
        let selected = match args.part {
            None => layers.clone(),
            Some(part) => layers[places(layers.len(), part)].to_vec(),
        };
        let path = match (&args.engine_dump, is_file) {
            (Some(path), _) => Some(path.clone()),
            (None, true) => Some(PathBuf::from(&args.input)),
            (None, false) => None,
        };
        let dump = path.as_deref().map(DumpSubject::read).transpose()?;
        let dump_digest = path.as_deref().map(digest).transpose()?;
        let calls = calls(args, dump.as_ref(), is_chain)?;
        Ok(Self {
            start,
            threads,
            checkpoint: Arc::new(open_partial(&folder)?),
            whole_model: layers.len() == config.num_hidden_layers,
            folder,
            config,
            reference_config,
            shape,
            range,
            layers,
            selected,
            calls,
            dump,
            dump_digest,
        })
    }

    /// The arithmetic of the subject.
    fn arithmetic(&self, args: &LayersArgs) -> Arithmetic {
        match (&self.dump, args.engine_dump.is_some()) {
            (Some(dump), true) => Arithmetic::of(args.precision.unwrap_or(dump.precision)),
            _ => Arithmetic::F64Sums,
        }
    }

    fn question(&self, args: &LayersArgs) -> Question {
        let is_foreign = args.engine_dump.is_some();
        let arithmetic = self.arithmetic(args);
        Question {
            program: env!("CARGO_PKG_VERSION").to_owned(),
            range: self.range.to_string(),
            layers: self.layers.clone(),
            model_layers: self.shape.layers.len(),
            whole_model: self.whole_model,
            input: match (&self.dump, args.ids.is_empty()) {
                (Some(_), _) => "dump",
                (None, false) => "chain",
                (None, true) => "synthetic",
            }
            .to_owned(),
            seed: (self.dump.is_none() && args.ids.is_empty()).then_some(args.seed()),
            ids: args.ids.clone(),
            dump: self.dump_digest.clone(),
            calls: self.calls.clone(),
            mla_norm_eps: args.mla_norm_eps,
            subject: if is_foreign { "engine dump" } else { "engine" }.to_owned(),
            arithmetic: match arithmetic {
                Arithmetic::F64Sums => "f32 with sums in f64",
                Arithmetic::F32Sums => "f32",
                Arithmetic::F64 => "f64",
                Arithmetic::Bf16 => "bf16",
                Arithmetic::F16 => "f16",
            }
            .to_owned(),
            stages: args.stages.clone(),
            reference_copy: args.reference_model.is_some(),
            ratchet: None,
        }
    }
}

fn digest(path: &Path) -> Result<String, CommandError> {
    let bytes = k3_core::host::files::read(path)
        .map_err(|error| bad_input(anyhow::anyhow!("{}: {error}", path.display())))?;
    Ok(hex_sha256(&bytes))
}

/// Tokens of each call.
fn calls(
    args: &LayersArgs,
    dump: Option<&DumpSubject>,
    is_chain: bool,
) -> Result<Vec<usize>, CommandError> {
    let singles = usize::from(args.singles);
    let rows = match (dump, is_chain) {
        (Some(dump), _) => dump.rows,
        (None, true) => args.ids.len(),
        (None, false) => usize::from(args.prefill.unwrap_or(PREFILL)) + singles,
    };
    if rows == 0 {
        let error = anyhow::anyhow!("the dump holds no token");
        return Err(bad_input(error));
    }
    let prefill = rows.saturating_sub(singles).max(1);
    let mut calls = vec![prefill];
    calls.extend(std::iter::repeat_n(1, rows - prefill));
    Ok(calls)
}

fn execute(args: &LayersArgs, mut plan: Plan) -> Result<Exit, CommandError> {
    let mut question = plan.question(args);
    let with_model = plan.whole_model;
    let own = sources(&plan.checkpoint, &plan.shape, &plan.selected, with_model);
    let own = own?;
    let other = match &args.reference_model {
        None => None,
        Some(folder) => {
            let copy = open_partial(&model_dir(Some(folder))?)?;
            let other = sources(&copy, &plan.shape, &plan.selected, with_model);
            Some(other?)
        }
    };
    let recorded =
        Recorded::of(&question, &own).map_err(|error| bad_input(anyhow::anyhow!(error)))?;
    question.ratchet = recorded.as_ref().map(|recorded| recorded.name.clone());
    let header = Header { question, sources: own, reference_sources: other, part: args.part };
    let (mut journal, done) = open_journal(args, &header)?;
    let mut report = empty_report(&plan, &header, done.len());
    let arithmetic = plan.arithmetic(args);
    let dump = plan.dump.take();
    let mut run = prepare(args, &plan, (dump, arithmetic))?;
    resume_chain(args, &mut run.input)?;
    let interrupt = Interrupt::listen();
    let mut live = Live::new(args.output.format);
    report.kernels = run.kernels();
    run.again().clone_into(&mut report.provenance.again);
    live.print(&format!("{}\n{}\n", report.head().text(), LayersReport::table().head()))?;
    let parts = [plan.whole_model, plan.dump_digest.is_none()];
    let all = steps(&plan.selected, plan.shape.layers.len(), parts);
    let mut failure = None;
    for step in all {
        let name = step.name();
        if let Some(entry) = done.iter().find(|entry| row_name(&entry.row) == name) {
            live.row(&entry.row)?;
            report.provenance.row_seconds.insert(name, entry.seconds);
            report.rows.push(entry.row.clone());
            continue;
        }
        if failure.is_some() || interrupt.is_set() {
            report.outstanding.push(name);
            continue;
        }
        let start = Instant::now();
        interrupt.begin(&match step {
            Step::Layer(layer) => format!("layer {layer}"),
            _ => name.clone(),
        });
        match run.step(step) {
            Ok(mut row) => {
                if let Some(recorded) = &recorded {
                    recorded.judge(&mut row);
                }
                let seconds = start.elapsed().as_secs_f64();
                live.row(&row)?;
                record(args, &mut journal, &run.input, (&row, seconds), step)?;
                report.provenance.row_seconds.insert(name, seconds);
                report.rows.push(row);
            }
            Err(error) => {
                failure = Some(error);
                report.outstanding.push(name);
            }
        }
    }
    report.conclude();
    report.provenance.run.seconds = plan.start.elapsed().as_secs_f64();
    finish(args, &report, &mut live, failure)
}

/// The report before its first row.
fn empty_report(plan: &Plan, header: &Header, resumed_rows: usize) -> LayersReport {
    LayersReport {
        schema: SCHEMA.to_owned(),
        exit_code: 0,
        question: header.question.clone(),
        sources: header.sources.clone(),
        reference_sources: header.reference_sources.clone(),
        part: header.part,
        selected: plan.selected.clone(),
        kernels: None,
        rows: Vec::new(),
        outstanding: Vec::new(),
        worst: None,
        first_divergence: None,
        provenance: LayersProvenance {
            run: Provenance::since(
                plan.start,
                plan.threads,
                vec![plan.folder.display().to_string()],
            ),
            kernel_path: KernelPath::detect().name().to_owned(),
            resumed_rows,
            ..LayersProvenance::default()
        },
    }
}

fn prepare<'p>(
    args: &LayersArgs,
    plan: &'p Plan,
    (dump, arithmetic): (Option<DumpSubject>, Arithmetic),
) -> Result<Run<'p>, CommandError> {
    let reference = args.reference_model.as_deref().unwrap_or(&plan.folder);
    let reader = Arc::new(Reader::open(reference)?);
    let rows = plan.calls.iter().sum();
    let (subject, input) = match (dump, args.engine_dump.is_some()) {
        (Some(dump), true) => {
            let seed = args.seed();
            let subject = Subject::Dump(Box::new(dump));
            (subject, Input::Synthetic { seed, rows })
        }
        (dump, _) => {
            let options = EngineOptions {
                threads: plan.threads,
                chunk_tokens: plan.calls.iter().copied().max().unwrap_or(1),
            };
            let checkpoint = Arc::clone(&plan.checkpoint);
            let mut shape = Shape::derive(&plan.config)?;
            shape.mla_norm_eps = args.mla_norm_eps;
            let engine = EngineSubject::new(Kernels::fastest(), shape, checkpoint, options)?;
            let engine = Subject::Engine(Box::new(engine));
            let input = match (dump, args.ids.is_empty()) {
                (Some(dump), _) => Input::Dump(dump),
                (None, false) => Input::Chain { ids: args.ids.clone(), chain: Chain::default() },
                (None, true) => Input::Synthetic { seed: args.seed(), rows },
            };
            (engine, input)
        }
    };
    Ok(Run {
        judge: Judge {
            config: &plan.reference_config,
            mla_norm_eps: args.mla_norm_eps,
            arithmetic,
            stages: args.stages.as_deref().map(Glob::new),
        },
        shape: &plan.shape,
        checkpoint: Arc::clone(&plan.checkpoint),
        reader,
        subject,
        input,
        calls: plan.calls.clone(),
    })
}

fn open_journal(
    args: &LayersArgs,
    header: &Header,
) -> Result<(Option<Journal>, Vec<journal::Entry>), CommandError> {
    let Some(folder) = &args.output.out else {
        return Ok((None, Vec::new()));
    };
    if args.resume && folder.join(journal::JOURNAL).exists() {
        let (journal, done) = Journal::resume(folder, header)?;
        return Ok((Some(journal), done));
    }
    let journal = Journal::begin(folder, header)?;
    Ok((Some(journal), Vec::new()))
}

/// Resumes the chain where the journalled run stopped.
fn resume_chain(args: &LayersArgs, input: &mut Input) -> Result<(), CommandError> {
    if let (Input::Chain { chain, .. }, Some(folder), true) = (input, &args.output.out, args.resume)
    {
        let found = journal::read_chain(folder)?;
        *chain = found.unwrap_or_default();
    }
    Ok(())
}

/// Writes the chain before the row, so that every journalled row has its chain.
fn record(
    args: &LayersArgs,
    journal: &mut Option<Journal>,
    input: &Input,
    (row, seconds): (&LayerRow, f64),
    step: Step,
) -> Result<(), CommandError> {
    let (Some(journal), Some(folder)) = (journal, &args.output.out) else {
        return Ok(());
    };
    if let (Input::Chain { chain, .. }, Step::Layer(_)) = (input, step) {
        journal::write_chain(folder, chain)?;
    }
    Ok(journal.add(row, seconds)?)
}

/// Prints rows during the run.
struct Live {
    is_text: bool,
}

impl Live {
    fn new(format: Format) -> Self {
        let is_text = format == Format::Text;
        Self { is_text }
    }

    fn print(&mut self, text: &str) -> Result<(), CommandError> {
        if !self.is_text {
            return Ok(());
        }
        output::print(text)
    }

    fn row(&mut self, row: &LayerRow) -> Result<(), CommandError> {
        self.print(&LayersReport::table().lines_of(&LayersReport::row(row)))
    }
}

fn finish(
    args: &LayersArgs,
    report: &LayersReport,
    live: &mut Live,
    failure: Option<RunError>,
) -> Result<Exit, CommandError> {
    live.print(&format!("\n{}", report.tail().text()))?;
    deliver(&args.output, report, live.is_text)?;
    match failure {
        None => Ok(report.exit()),
        Some(error) => Err(error.into()),
    }
}

/// Writes report, plot and page, and prints the rest of the text.
pub(super) fn deliver(
    args: &OutputArgs,
    report: &LayersReport,
    is_printed: bool,
) -> Result<(), CommandError> {
    // A part is read again by `merge`, which has to see that nobody changed it.
    if report.part.is_some() {
        deliver_as(args, &seal(report).map_err(bad_input)?, &report.document(), is_printed)
    } else {
        deliver_as(args, report, &report.document(), is_printed)
    }
}

fn deliver_as(
    args: &OutputArgs,
    json: &impl serde::Serialize,
    document: &Document,
    is_printed: bool,
) -> Result<(), CommandError> {
    if !is_printed {
        return output::deliver(args, json, document);
    }
    output::write_report(args, json, document)?;
    output::write_page(args, document)
}
