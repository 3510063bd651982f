//! `gates`: runs the ladder on the shipped sets or on other evidence, or runs the kill matrix.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::choice::choice;
use super::model_args::parse_epsilon;
use super::output::{self, CommandError, OutputArgs, bad_input};
use super::threads::ThreadsArgs;
use k3_core::Precision;
use k3_core::clauses;
use k3_core::config::MLA_NORM_EPS;
use k3_core::exit::Exit;
use k3_core::host::claims::Output;
use k3_gates::Ladder;
use k3_gates::engine_command::{EngineCommand, Template};
use k3_gates::evidence::EvidenceSet;
use k3_gates::fixtures::Fixtures;
use k3_gates::glob::Glob;
use k3_gates::kernels::KernelFixtures;
use k3_gates::kill_matrix;
use k3_gates::kill_matrix::Mutant;
use k3_gates::layers;
use k3_gates::mutants::perturbed;
use k3_gates::ratchet::Ratchet;
use k3_gates::registry::{Gate, LADDER};
use k3_gates::report::gates::GateReport;
use k3_gates::report::least_error::LeastErrorReport;
use k3_gates::report::mutants::{self as mutants_report, MutantReport};
use k3_gates::runner;
use k3_gates::runner::SetState;
use k3_gates::subjects;
use k3_render::{Document, json};

/// Arguments of `gates`.
#[derive(Debug, Args)]
pub struct GatesArgs {
    /// Run the ladder on this evidence set instead of the shipped ones (repeatable)
    #[arg(long, value_name = "DIR")]
    evidence: Vec<PathBuf>,
    /// Read the fixtures and the tiny oracle from this folder instead of the binary
    #[arg(long, value_name = "DIR", conflicts_with = "evidence")]
    fixtures: Option<PathBuf>,
    /// Run only the gates that match: SET/GATE, GATE, or either with @SUBJECT; * and ? are
    /// wildcards
    #[arg(long, value_name = "GLOB")]
    only: Option<String>,
    /// Skip nothing (takes minutes): `invariance` over every combination of its factors, every gate
    /// on the twins too; with --mutants, every cell of the matrix
    #[arg(long, conflicts_with = "list")]
    exhaustive: bool,
    /// List the gates without running them
    #[arg(long, conflicts_with_all = ["evidence", "fixtures", "only", "mla_norm_eps", "given"])]
    list: bool,
    /// Run the kill matrix: every mutant against every gate
    #[arg(long, conflicts_with_all = ["evidence", "only", "list"])]
    mutants: bool,
    /// Family of mutants (repeatable): a, mistakes in the f64 reference; b, the same
    /// rounded to f32 and judged at the engine's tolerances; c, mistakes in the engine's arithmetic
    /// and state
    #[arg(long, value_name = "LETTER", default_values = ["a", "b", "c"],
        value_parser = ["a", "b", "c"], requires = "mutants",
        conflicts_with_all = ["only", "list"])]
    family: Vec<String>,
    /// Run only the mutants whose id matches; * and ? are wildcards
    #[arg(long, value_name = "GLOB", requires = "mutants", conflicts_with_all = ["only", "list"])]
    mutant: Option<String>,
    /// Write the ratios of this run as a new ratchet file instead of judging by the committed one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["evidence", "only", "list", "mutants",
        "engine_cmd", "precision", "mla_norm_eps"])]
    write_ratchet: Option<PathBuf>,
    /// Find, for each site, the smallest error that each gate still catches
    #[arg(long, conflicts_with_all = ["evidence", "only", "list", "mutants", "engine_cmd",
        "precision", "mla_norm_eps", "exhaustive", "write_ratchet"])]
    least_error: bool,
    /// Epsilon of the two low-rank norms in MLA, on the subject's side
    #[arg(long, value_name = "X", default_value_t = MLA_NORM_EPS, value_parser = parse_epsilon)]
    mla_norm_eps: f64,
    #[command(flatten)]
    threads: ThreadsArgs,
    /// Judge this executable instead of the engine; `--help` describes the protocol
    #[arg(long, value_name = "CMD {model} {ids} {gen} {logits}", long_help = ENGINE_CMD_HELP,
        conflicts_with_all = ["mutants", "list"])]
    engine_cmd: Option<String>,
    /// Time limit for one launch of the executable
    #[arg(long, value_name = "SECONDS", default_value_t = 600, requires = "engine_cmd",
        value_parser = clap::value_parser!(u32).range(1..))]
    engine_timeout: u32,
    /// Activation precision of the judged engine: tolerances are 8 times its measured noise floor
    #[arg(long, value_name = "P", value_parser = choice::<Precision>(),
        conflicts_with_all = ["mutants", "list"])]
    precision: Option<Precision>,
    #[command(flatten)]
    output: OutputArgs,
}

/// The protocol in short; `k3_gates::engine_command` documents it in full.
const ENGINE_CMD_HELP: &str = "Judge this executable instead of the engine (teacher forcing, \
greedy, incremental). The text is split into words as a shell does, then {model} becomes a \
checkpoint folder, {ids} ids with commas, {gen} the number of ids to generate greedily (1 or \
more), {logits} a file to write. The command prints the generated ids as its last line, with \
commas, and writes logits as raw little-endian f32 (or safetensors, tensor `logits`): one row of \
the vocabulary per position, or one per generated id. It exits with 0";

/// Most threads that a gate has at a time: a streamed engine computes with up to 8 and reads with
/// four for layers, four for experts, four for the vocabulary, and a reader that goes ahead.
const THREADS_OF_A_GATE: usize = 21;

/// Runs the command.
pub fn run(args: &GatesArgs) -> Result<Exit, CommandError> {
    if args.list {
        return list(args);
    }
    let read: Vec<&Path> = args.evidence.iter().chain(&args.fixtures).map(|p| &**p).collect();
    let written: Vec<_> = args.write_ratchet.iter().map(|path| Output::File(path)).collect();
    output::claim(&args.output, &read, &written)?;
    // Where they cannot be had, no engine is accused.
    drop(output::pool(THREADS_OF_A_GATE * args.threads.count().max(1))?);
    if args.mutants {
        mutants(args)
    } else if args.least_error {
        least_error(args)
    } else {
        climb(args)
    }
}

fn list(args: &GatesArgs) -> Result<Exit, CommandError> {
    let mut document = Document::new("k3-verify gates --list");
    let mut rows = Vec::new();
    for gate in LADDER {
        let Gate { passes, reads, tolerance, catches, .. } = gate;
        let (id, needs) = (gate.full_id("SET"), gate.needs.word());
        document.line(&*id);
        for (what, text) in [
            ("passes when right", passes),
            ("reads", reads),
            ("needs", &needs),
            ("tolerance", tolerance),
            ("catches", catches),
        ] {
            document.line(format!("    {what}: {text}"));
        }
        rows.push(serde_json::json!({"id": id, "what": passes, "inputs": reads, "needs": needs,
            "budget": tolerance, "catches": catches}));
    }
    let json = serde_json::json!({"schema": "k3-verify/gate-list/1", "gates": rows});
    output::deliver(&args.output, &json, &document)?;
    Ok(Exit::Conforms)
}

fn climb(args: &GatesArgs) -> Result<Exit, CommandError> {
    let bar = output::progress(0, "gates");
    let ladder = ladder(args)?.progress({
        let bar = bar.clone();
        move |done, all| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        }
    });
    let mut report = ladder.run();
    bar.finish_and_clear();
    report.provenance.inputs = inputs(args);
    if let Some(file) = &args.write_ratchet {
        write_ratchet(file, &report, ladder.sets(), args.threads.count())?;
    }
    output::deliver(&args.output, &report, &report.document())?;
    Ok(report.exit())
}

/// The ladder as the arguments ask for it.
fn ladder(args: &GatesArgs) -> Result<Ladder, CommandError> {
    let mut ladder = if args.evidence.is_empty() {
        Ladder::of_fixtures(open_fixtures(args)?)
    } else {
        Ladder::of_evidence(&args.evidence)?
    };
    ladder = ladder.mla_norm_eps(args.mla_norm_eps).threads(args.threads.count());
    if let Some(command) = engine_command(args)? {
        ladder = ladder.subject(command);
        // A foreign engine cannot be given another epsilon, so the sets' answers are recomputed by
        // the reference with that epsilon.
        if args.mla_norm_eps != MLA_NORM_EPS {
            ladder = ladder.answered_anew()?;
        }
    }
    if let Some(pattern) = &args.only {
        ladder = ladder.only(pattern);
    }
    if let Some(precision) = args.precision {
        ladder = ladder.precision(precision);
    }
    if args.exhaustive {
        ladder = ladder.exhaustive();
    }
    if args.write_ratchet.is_some() {
        ladder = ladder.without_ratchet();
    }
    Ok(ladder)
}

/// The executable of `--engine-cmd` as a subject, after checking that it can be run.
fn engine_command(args: &GatesArgs) -> Result<Option<EngineCommand>, CommandError> {
    let Some(text) = &args.engine_cmd else {
        return Ok(None);
    };
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    let timeout = Duration::from_secs(args.engine_timeout.into());
    let template = Template::parse(text, timeout, &search_path)?;
    let precision = args.precision.unwrap_or(Precision::F32);
    Ok(Some(EngineCommand { template, precision }))
}

/// Writes the ratios of this run and of the layers of its sets as a ratchet file.
fn write_ratchet(
    file: &Path,
    report: &GateReport,
    sets: &[SetState],
    threads: usize,
) -> Result<(), CommandError> {
    let mut observed = Ratchet::observed(&report.gates);
    let of_layers = layers::ratchet::observe(sets, threads);
    observed.extend(of_layers.map_err(|error| bad_input(anyhow::anyhow!(error)))?);
    output::write_whole(file, json::to_text(&observed).map_err(bad_input)?.as_bytes())
}

/// The inputs, as typed.
fn inputs(args: &GatesArgs) -> Vec<String> {
    let paths = args.evidence.iter().chain(&args.fixtures);
    paths.map(|path| path.display().to_string()).chain(args.engine_cmd.clone()).collect()
}

fn open_fixtures(args: &GatesArgs) -> Result<Fixtures, CommandError> {
    let folder = args.fixtures.as_deref();
    Ok(folder.map_or_else(Fixtures::embedded, Fixtures::from_folder)?)
}

/// What mutants and perturbations run on: the kernel fixtures and the first shipped set.
fn shipped_evidence(
    fixtures: &Fixtures,
) -> Result<(KernelFixtures, Box<EvidenceSet>), CommandError> {
    runner::shipped_evidence(fixtures).map_err(|reason| bad_input(anyhow::anyhow!(reason)))
}

fn least_error(args: &GatesArgs) -> Result<Exit, CommandError> {
    let fixtures = open_fixtures(args)?;
    let (kernels, tiny) = shipped_evidence(&fixtures)?;
    let sites = perturbed::sites();
    let bar = output::progress(sites.len() as u64, "sites");
    let tick = || bar.inc(1);
    let mut report = LeastErrorReport::run(&kernels, &tiny, &sites, args.threads.count(), &tick);
    bar.finish_and_clear();
    report.provenance.inputs = inputs(args);
    output::deliver(&args.output, &report, &report.document())?;
    Ok(report.exit())
}

/// The mutants selected by --family and --mutant.
fn wanted_mutants(args: &GatesArgs) -> Result<Vec<Mutant>, CommandError> {
    let name = args.mutant.as_deref().map(Glob::new);
    let mut mutants = subjects::mutants();
    mutants.retain(|mutant| {
        let mut families = args.family.iter();
        families.any(|family| family.starts_with(mutant.family))
            && name.as_ref().is_none_or(|glob| glob.matches(&mutant.id))
    });
    if mutants.is_empty() {
        let error = anyhow::anyhow!("--mutant: no mutant of these families matches");
        return Err(CommandError::new(error, Exit::Incomplete)
            .hint("reports/kill-matrix/report.txt lists the ids"));
    }
    Ok(mutants)
}

fn mutants(args: &GatesArgs) -> Result<Exit, CommandError> {
    let mutants = wanted_mutants(args)?;
    let fixtures = open_fixtures(args)?;
    let (kernels, tiny) = shipped_evidence(&fixtures)?;
    // A selection of mutants by name covers no table of clauses.
    let asked = |letter: &str| args.mutant.is_none() && args.family.iter().any(|f| f == letter);
    let covered: [(&str, mutants_report::ClauseTable); 3] = [
        ("a", ("the model", &clauses::MODEL, &['a'])),
        ("b", ("the model at the engine's tolerances", &clauses::MODEL, &['b'])),
        ("c", ("the arithmetic", &clauses::ARITHMETIC, &['c'])),
    ];
    let tables = covered.into_iter().filter(|(letter, _)| asked(letter));
    let tables: Vec<mutants_report::ClauseTable> = tables.map(|(_, table)| table).collect();
    let options = kill_matrix::Options {
        mla_norm_eps: args.mla_norm_eps,
        threads: args.threads.count(),
        every_cell: args.exhaustive,
    };
    let bar = output::progress((subjects::controls().len() + mutants.len()) as u64, "mutants");
    let on = (&kernels, &*tiny);
    let mut report = MutantReport::run(on, &mutants, options, &tables, &|| bar.inc(1));
    bar.finish_and_clear();
    report.provenance.inputs = inputs(args);
    output::deliver(&args.output, &report, &report.document())?;
    Ok(report.exit())
}
