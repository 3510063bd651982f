//! `gates`: climb the ladder on the shipped sets or on other evidence, or run the kill matrix.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;

use super::choice::choice;
use super::model_args::parse_epsilon;
use super::output::{self, CommandError, OutputArgs};
use k3_core::Precision;
use k3_core::clauses;
use k3_core::config::MLA_NORM_EPS;
use k3_core::exit::Exit;
use k3_core::host::provenance::{Provenance, default_threads};
use k3_engine::model::mutants::perturbed;
use k3_gates::answers;
use k3_gates::engine_command::{EngineCommand, Template, TemplateError};
use k3_gates::evidence::EvidenceSet;
use k3_gates::glob::Glob;
use k3_gates::kernels::{KERNEL_GATES, KernelFixtures};
use k3_gates::kill_matrix;
use k3_gates::kill_matrix::{KillMatrix, Mutant};
use k3_gates::layers;
use k3_gates::least_error::LeastErrors;
use k3_gates::outcome::Verdict;
use k3_gates::ratchet::Ratchet;
use k3_gates::registry::ORACLE_GATES;
use k3_gates::report::gates::{Counts, GateReport, GateRow, Parameters, SCHEMA, SetSummary};
use k3_gates::report::least_error::LeastErrorReport;
use k3_gates::report::mutants::MutantReport;
use k3_gates::report::{gates_page, mutants_page};
use k3_gates::runner;
use k3_gates::runner::{Plan, Row, SetState};
use k3_gates::subject::SubjectSource;
use k3_gates::subjects;
use k3_render::json;

/// What was typed.
#[derive(Debug, Args)]
pub struct GatesArgs {
    /// Climb on this evidence set instead of the shipped ones (repeatable)
    #[arg(long, value_name = "DIR")]
    evidence: Vec<PathBuf>,
    /// Take fixtures and tiny oracle from this folder instead of the binary
    #[arg(long, value_name = "DIR")]
    fixtures: Option<PathBuf>,
    /// Run only the gates that fit: SET/GATE, GATE, or either with @SUBJECT; * and ? are wild
    #[arg(long, value_name = "GLOB")]
    only: Option<String>,
    /// Leave nothing out (minutes): `invariance` over every combination of its factors, every gate
    /// on the mild twin too; with --mutants every cell of the matrix
    #[arg(long, conflicts_with = "list")]
    exhaustive: bool,
    /// List the gates and run none
    #[arg(long)]
    list: bool,
    /// Run the kill matrix: every mutant against every gate
    #[arg(long, conflicts_with_all = ["evidence", "only", "list"])]
    mutants: bool,
    /// Family of mutants (repeatable, all without it): a of the reference, b of the engine's
    /// composition, c of its arithmetic and state
    #[arg(long, value_name = "LETTER", default_values = ["a", "b", "c"],
        value_parser = ["a", "b", "c"], requires = "mutants")]
    family: Vec<String>,
    /// Only the mutants of the matrix whose name fits; * and ? are wild
    #[arg(long, value_name = "GLOB", requires = "mutants")]
    mutant: Option<String>,
    /// Write the ratios of this run, to be committed as the ratchet, instead of judging by it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["evidence", "only", "list", "mutants",
        "engine_cmd", "precision", "mla_norm_eps"])]
    write_ratchet: Option<PathBuf>,
    /// Find the smallest error of each clause's value that each gate still sees
    #[arg(long, conflicts_with_all = ["evidence", "only", "list", "mutants", "engine_cmd",
        "precision", "mla_norm_eps", "exhaustive", "write_ratchet"])]
    least_error: bool,
    /// Epsilon of the two low-rank norms in MLA, on the subject's side
    #[arg(long, value_name = "X", default_value_t = MLA_NORM_EPS, value_parser = parse_epsilon)]
    mla_norm_eps: f64,
    /// Worker threads (at most 1024)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Put this executable in the engine's place; `--help` tells the protocol
    #[arg(long, value_name = "CMD {model} {ids} {gen} {logits}", long_help = ENGINE_CMD_HELP,
        conflicts_with_all = ["mutants", "list"])]
    engine_cmd: Option<String>,
    /// Seconds that one launch of the executable may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600, requires = "engine_cmd",
        value_parser = clap::value_parser!(u32).range(1..))]
    engine_timeout: u32,
    /// Precision of the judged activations: budgets are 8 times its measured noise floor
    #[arg(long, value_name = "P", value_parser = choice::<Precision>(),
        conflicts_with_all = ["mutants", "list"])]
    precision: Option<Precision>,
    #[command(flatten)]
    output: OutputArgs,
}

/// The protocol in short; `gates::engine_command` has all of it.
const ENGINE_CMD_HELP: &str = "Put this executable in the engine's place (teacher forcing, \
greedy, incremental). The text is split into words as a shell does, then {model} becomes a \
checkpoint folder, {ids} ids with commas, {gen} the number of ids to generate greedily (1 or \
more), {logits} a file to write. The command prints the generated ids as its last line, with \
commas, and writes logits as raw little-endian f32 (or safetensors, tensor `logits`): one row of \
the vocabulary per position, or one per generated id. It exits with 0";

/// Runs the command.
///
/// # Errors
///
/// [`CommandError`] when there can be no verdict: unreadable fixtures, unwritable output.
pub fn run(args: &GatesArgs) -> Result<Exit, CommandError> {
    if args.list {
        return list(args);
    }
    output::check_writable(&args.output)?;
    if args.mutants {
        mutants(args)
    } else if args.least_error {
        least_error(args)
    } else {
        climb(args)
    }
}

fn threads(args: &GatesArgs) -> usize {
    args.threads.map_or_else(default_threads, usize::from)
}

fn list(args: &GatesArgs) -> Result<Exit, CommandError> {
    let kernels = KERNEL_GATES.iter().map(|gate| {
        let inputs = format!("fixtures/kernels/{}.safetensors", gate.kernel);
        let id = format!("{}/{}", runner::KERNELS, gate.kernel);
        (id, gate.what, inputs, gate.budget, gate.catches)
    });
    let oracle = ORACLE_GATES.iter().map(|gate| {
        let id = format!("SET/{}", gate.id);
        (id, gate.what, gate.inputs.to_owned(), gate.budget, gate.catches)
    });
    let mut text = String::new();
    let mut rows = Vec::new();
    for (id, what, inputs, budget, catches) in kernels.chain(oracle) {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{id}\n    passes when right: {what}\n    reads: {inputs}\n    budget: {budget}\n    \
             catches: {catches}"
        );
        rows.push(serde_json::json!({"id": id, "what": what, "inputs": inputs,
            "budget": budget, "catches": catches}));
    }
    let json = serde_json::json!({"schema": "k3-verify/gate-list/1", "gates": rows});
    output::deliver(&args.output, &json, &text)?;
    Ok(Exit::Conforms)
}

/// The command of --engine-cmd, else the subjects that ship.
fn subjects_of(args: &GatesArgs) -> Result<Vec<Box<dyn SubjectSource>>, CommandError> {
    let command = engine_command(args)?;
    Ok(command.map_or_else(subjects::shipped, |command| vec![command]))
}

fn climb(args: &GatesArgs) -> Result<Exit, CommandError> {
    let start = Instant::now();
    let only = args.only.as_deref().map(Glob::new);
    let mut rows = Vec::new();
    let mut fixtures_in_use = None;
    let mut kernels = None;
    let mut sets = if args.evidence.is_empty() {
        let fixtures = open_fixtures(args)?;
        if runner::selected(only.as_ref(), "shipped", "fixtures", "k3-verify") {
            rows.push(fixtures_row(&runner::judge_fixtures(&fixtures)));
        }
        let sets = runner::shipped_sets(&fixtures);
        kernels = Some(runner::shipped_kernels(&fixtures));
        fixtures_in_use = Some(fixtures);
        sets
    } else {
        open_evidence(args)?
    };
    if args.exhaustive {
        sets.iter_mut().for_each(SetState::ask_everything);
    }
    let subjects = subjects_of(args)?;
    if args.engine_cmd.is_some() && args.mla_norm_eps != MLA_NORM_EPS {
        answer_anew(&mut sets, args.mla_norm_eps)?;
    }
    let plan = Plan {
        kernels: kernels.as_ref(),
        sets: &sets,
        subjects: &subjects,
        only: only.as_ref(),
        mla_norm_eps: args.mla_norm_eps,
        precision: args.precision,
        threads: threads(args),
        exhaustive: args.exhaustive,
    };
    let mut climbed = runner::run(&plan);
    if fixtures_in_use.is_some() {
        ratchet(args, &mut climbed, &plan)?;
    }
    rows.extend(climbed.into_iter().map(GateRow::of));
    let counts = Counts::of(rows.iter().map(|row| &row.outcome.verdict));
    let exit = counts.exit();
    rows.retain(|row| row.outcome.verdict != Verdict::NotSelected);
    let report = GateReport {
        schema: SCHEMA,
        verdict: GateReport::verdict_of(exit),
        exit_code: exit.code(),
        subjects: subjects.iter().map(|s| s.name().to_owned()).collect(),
        parameters: Parameters {
            mla_norm_eps: args.mla_norm_eps,
            released_mla_norm_eps: MLA_NORM_EPS,
            precision: args.precision,
            only: args.only.clone(),
            fixtures: match (&fixtures_in_use, &args.fixtures) {
                (None, _) => "none",
                (Some(_), None) => "embedded",
                (Some(_), Some(_)) => "folder",
            },
        },
        counts,
        sets: sets.iter().map(SetSummary::of).collect(),
        gates: rows,
        provenance: provenance(args, start),
    };
    output::deliver(&args.output, &report, &report.text())?;
    let plots = || gates_page::plots(&report);
    output::deliver_page(&args.output, plots, |plots| gates_page::page(&report, plots))?;
    Ok(exit)
}

/// The executable of `--engine-cmd` as a subject, found runnable.
fn engine_command(args: &GatesArgs) -> Result<Option<Box<dyn SubjectSource>>, CommandError> {
    let Some(text) = &args.engine_cmd else {
        return Ok(None);
    };
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    let timeout = Duration::from_secs(args.engine_timeout.into());
    let template = Template::parse(text, timeout, &search_path).map_err(|error| {
        let exit = match error {
            TemplateError::NoProgram(_) => Exit::BadInput,
            _ => Exit::Usage,
        };
        CommandError::new(error, exit)
            .hint("for example --engine-cmd 'python3 engine.py {model} {ids} {gen} {logits}'")
    })?;
    let precision = args.precision.unwrap_or(Precision::F32);
    Ok(Some(Box::new(EngineCommand { template, precision })))
}

/// A foreign engine cannot be told another epsilon. To compare it with engines that have one, the
/// sets' answers are made anew by the reference under that epsilon.
fn answer_anew(sets: &mut [SetState], mla_norm_eps: f64) -> Result<(), CommandError> {
    for state in sets {
        if let SetState::Ready(set) = state {
            answers::replace(set, mla_norm_eps)
                .map_err(|error| CommandError::new(error, Exit::BadInput))?;
        }
    }
    Ok(())
}

/// Judges the shipped sets by the committed ratchet, or writes a new one. A foreign engine, another
/// epsilon and another precision have no recorded ratios.
fn ratchet(args: &GatesArgs, climbed: &mut [Row], plan: &Plan<'_>) -> Result<(), CommandError> {
    let ours = args.engine_cmd.is_none() && args.precision.is_none();
    if let Some(file) = &args.write_ratchet {
        let mut observed = Ratchet::observed(climbed);
        let of_layers = layers::ratchet::observe(plan.sets, plan.threads);
        observed.extend(
            of_layers.map_err(|error| CommandError::new(anyhow::anyhow!(error), Exit::BadInput))?,
        );
        let json =
            json::to_text(&observed).map_err(|error| CommandError::new(error, Exit::BadInput))?;
        output::write_whole(file, json.as_bytes())?;
    } else if ours && args.mla_norm_eps == MLA_NORM_EPS {
        Ratchet::shipped().judge(climbed, plan.subjects);
    }
    Ok(())
}

fn provenance(args: &GatesArgs, start: Instant) -> Provenance {
    let inputs = args.evidence.iter().chain(&args.fixtures);
    let inputs = inputs.map(|path| path.display().to_string());
    let inputs = inputs.chain(args.engine_cmd.clone()).collect();
    Provenance::since(start, threads(args), inputs)
}

fn open_fixtures(args: &GatesArgs) -> Result<k3_gates::fixtures::Fixtures, CommandError> {
    runner::open_fixtures(args.fixtures.as_ref())
        .map_err(|error| CommandError::new(error, Exit::BadInput))
}

/// Reads the sets given with `--evidence`; one that cannot be read ends the command.
fn open_evidence(args: &GatesArgs) -> Result<Vec<SetState>, CommandError> {
    let mut sets: Vec<SetState> = Vec::new();
    for folder in &args.evidence {
        let base = folder
            .canonicalize()
            .ok()
            .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
            .unwrap_or_else(|| folder.display().to_string());
        let taken = sets.iter().filter(|set| set.name().starts_with(&base)).count();
        let name = if taken == 0 { base } else { format!("{base}-{}", taken + 1) };
        let set = EvidenceSet::open(&name, folder).map_err(|error| {
            CommandError::new(error, Exit::BadInput).hint(
                "an evidence set is a folder with model/, expected.json and expected.safetensors",
            )
        })?;
        sets.push(SetState::Ready(Box::new(set)));
    }
    Ok(sets)
}

fn fixtures_row(outcome: &k3_gates::outcome::Outcome) -> GateRow {
    GateRow {
        id: "shipped/fixtures".to_owned(),
        set: "shipped".to_owned(),
        gate: "fixtures".to_owned(),
        subject: "k3-verify".to_owned(),
        what: "every fixture file has the size and hash of the manifest".to_owned(),
        basis: "exact".to_owned(),
        outcome: outcome.clone(),
    }
}

/// The kernel fixtures and the first set that ships: on what mutants and perturbations run.
fn shipped_evidence(
    fixtures: &k3_gates::fixtures::Fixtures,
) -> Result<(KernelFixtures, Box<EvidenceSet>), CommandError> {
    let sets = runner::shipped_sets(fixtures);
    let tiny = match sets.into_iter().next() {
        Some(SetState::Ready(tiny)) => tiny,
        Some(SetState::NotRun { name, reason }) => {
            let error = anyhow::anyhow!("set {name}: {reason}");
            return Err(CommandError::new(error, Exit::BadInput));
        }
        None => {
            return Err(CommandError::new(anyhow::anyhow!("no set ships"), Exit::Incomplete));
        }
    };
    let kernels = runner::shipped_kernels(fixtures)
        .map_err(|reason| CommandError::new(anyhow::anyhow!(reason), Exit::BadInput))?;
    Ok((kernels, tiny))
}

fn least_error(args: &GatesArgs) -> Result<Exit, CommandError> {
    let start = Instant::now();
    let fixtures = open_fixtures(args)?;
    let (kernels, tiny) = shipped_evidence(&fixtures)?;
    let sites = perturbed::sites();
    let bar = output::progress(sites.len() as u64, "sites");
    let table = LeastErrors::run(&kernels, &tiny, &sites, threads(args), &|| bar.inc(1));
    bar.finish_and_clear();
    let report = LeastErrorReport::new(&tiny.name, &table, provenance(args, start));
    output::deliver(&args.output, &report, &report.text())?;
    Ok(report.exit())
}

/// The mutants of the families and the name asked for.
fn wanted_mutants(args: &GatesArgs) -> Result<Vec<Mutant>, CommandError> {
    let name = args.mutant.as_deref().map(Glob::new);
    let mut mutants = subjects::mutants();
    mutants.retain(|mutant| {
        let mut families = args.family.iter();
        families.any(|family| family.starts_with(mutant.family))
            && name.as_ref().is_none_or(|glob| glob.matches(&mutant.id))
    });
    if mutants.is_empty() {
        let error = anyhow::anyhow!("--mutant: no mutant of these families fits");
        return Err(CommandError::new(error, Exit::Incomplete)
            .hint("reports/kill-matrix/report.txt has the names"));
    }
    Ok(mutants)
}

fn mutants(args: &GatesArgs) -> Result<Exit, CommandError> {
    let start = Instant::now();
    let mutants = wanted_mutants(args)?;
    let fixtures = open_fixtures(args)?;
    let (kernels, tiny) = shipped_evidence(&fixtures)?;
    let controls = subjects::controls();
    let bar = output::progress((controls.len() + mutants.len()) as u64, "mutants");
    let run = |subjects: &[Mutant]| {
        let options = kill_matrix::Options {
            mla_norm_eps: args.mla_norm_eps,
            threads: threads(args),
            every_cell: args.exhaustive,
        };
        KillMatrix::run(&kernels, &tiny, subjects, options, &|| bar.inc(1))
    };
    let (control_matrix, matrix) = (run(&controls), run(&mutants));
    bar.finish_and_clear();
    // A few mutants cover no table of clauses.
    let mut tables: Vec<(&str, &'static [clauses::Clause])> = Vec::new();
    if args.mutant.is_none() {
        tables.push(("the model", &clauses::MODEL));
    }
    if args.mutant.is_none() && args.family.iter().any(|family| family == "c") {
        tables.push(("the arithmetic", &clauses::ARITHMETIC));
    }
    let provenance = provenance(args, start);
    let report = MutantReport::new(&tiny.name, &control_matrix, &matrix, &tables, provenance);
    output::deliver(&args.output, &report, &report.text())?;
    let plots = || mutants_page::plots(&report);
    output::deliver_page(&args.output, plots, |plots| mutants_page::page(&report, plots))?;
    Ok(report.exit())
}
