//! `gates`: climb the ladder on the shipped sets or on other evidence, or run the kill matrix.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;

use super::output::{self, CommandError, OutputArgs};
use crate::clauses;
use crate::config::MLA_NORM_EPS;
use crate::exit::Exit;
use crate::gates::evidence::EvidenceSet;
use crate::gates::glob::Glob;
use crate::gates::kernels::KERNEL_GATES;
use crate::gates::kill_matrix::KillMatrix;
use crate::gates::outcome::Verdict;
use crate::gates::registry::ORACLE_GATES;
use crate::gates::runner::{self, Plan, SetState};
use crate::gates::subject::SubjectSource;
use crate::gates::subjects;
use crate::host::provenance::{Provenance, default_threads};
use crate::report::gates::{Counts, GateReport, GateRow, Parameters, SCHEMA, SetSummary};
use crate::report::mutants::MutantReport;

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
    /// Run `invariance` over every combination of its factors (minutes)
    #[arg(long, conflicts_with_all = ["list", "mutants"])]
    exhaustive: bool,
    /// List the gates and run none
    #[arg(long)]
    list: bool,
    /// Run the kill matrix: every mutant against every gate
    #[arg(long, conflicts_with_all = ["evidence", "only", "list"])]
    mutants: bool,
    /// Family of mutants (repeatable): a of the reference, b of the engine's composition, c of its
    /// arithmetic and state
    #[arg(long, value_name = "LETTER", default_value = "a", value_parser = ["a", "b", "c"],
        requires = "mutants")]
    family: Vec<String>,
    /// Epsilon of the two low-rank norms in MLA, on the subject's side
    #[arg(long, value_name = "X", default_value_t = MLA_NORM_EPS, value_parser = parse_epsilon)]
    mla_norm_eps: f64,
    /// Worker threads (at most 1024)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    #[command(flatten)]
    output: OutputArgs,
}

/// A positive, finite number.
fn parse_epsilon(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("expected a positive, finite number".to_owned()),
    }
}

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
        (
            id,
            gate.what,
            gate.inputs.to_owned(),
            gate.budget,
            gate.catches,
        )
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

fn climb(args: &GatesArgs) -> Result<Exit, CommandError> {
    let start = Instant::now();
    let only = args.only.as_deref().map(Glob::new);
    let mut rows = Vec::new();
    let mut fixtures_in_use = None;
    let mut kernels = None;
    let sets = if args.evidence.is_empty() {
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
    let subjects: Vec<Box<dyn SubjectSource>> = subjects::shipped();
    let plan = Plan {
        kernels: kernels.as_ref(),
        sets: &sets,
        subjects: &subjects,
        only: only.as_ref(),
        mla_norm_eps: args.mla_norm_eps,
        threads: threads(args),
        exhaustive: args.exhaustive,
    };
    rows.extend(runner::run(&plan).into_iter().map(GateRow::of));
    let counts = Counts::of(rows.iter().map(|row| &row.outcome.verdict));
    let exit = counts.exit();
    rows.retain(|row| row.outcome.verdict != Verdict::NotSelected);
    let report = GateReport {
        schema: SCHEMA,
        verdict: GateReport::verdict_of(exit),
        exit_code: exit.code(),
        subjects: subjects
            .iter()
            .map(|subject| subject.name().to_owned())
            .collect(),
        parameters: Parameters {
            mla_norm_eps: args.mla_norm_eps,
            released_mla_norm_eps: MLA_NORM_EPS,
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
    Ok(exit)
}

fn provenance(args: &GatesArgs, start: Instant) -> Provenance {
    let inputs = args.evidence.iter().chain(&args.fixtures);
    let inputs = inputs.map(|path| path.display().to_string()).collect();
    Provenance::since(start, threads(args), inputs)
}

fn open_fixtures(args: &GatesArgs) -> Result<crate::gates::fixtures::Fixtures, CommandError> {
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
        let taken = sets
            .iter()
            .filter(|set| set.name().starts_with(&base))
            .count();
        let name = if taken == 0 {
            base
        } else {
            format!("{base}-{}", taken + 1)
        };
        let set = EvidenceSet::open(&name, folder).map_err(|error| {
            CommandError::new(error, Exit::BadInput).hint(
                "an evidence set is a folder with model/, expected.json and expected.safetensors",
            )
        })?;
        sets.push(SetState::Ready(Box::new(set)));
    }
    Ok(sets)
}

fn fixtures_row(outcome: &crate::gates::outcome::Outcome) -> GateRow {
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

fn mutants(args: &GatesArgs) -> Result<Exit, CommandError> {
    let start = Instant::now();
    let fixtures = open_fixtures(args)?;
    let sets = runner::shipped_sets(&fixtures);
    let tiny = match sets.into_iter().next() {
        Some(SetState::Ready(tiny)) => tiny,
        Some(SetState::NotRun { name, reason }) => {
            let error = anyhow::anyhow!("set {name}: {reason}");
            return Err(CommandError::new(error, Exit::BadInput));
        }
        None => {
            return Err(CommandError::new(
                anyhow::anyhow!("no set ships"),
                Exit::Incomplete,
            ));
        }
    };
    let kernels = runner::shipped_kernels(&fixtures)
        .map_err(|reason| CommandError::new(anyhow::anyhow!(reason), Exit::BadInput))?;
    let controls = subjects::controls();
    let control_matrix =
        KillMatrix::run(&kernels, &tiny, &controls, args.mla_norm_eps, threads(args));
    let mut mutants = subjects::mutants();
    mutants.retain(|mutant| {
        args.family
            .iter()
            .any(|family| family.starts_with(mutant.family))
    });
    let matrix = KillMatrix::run(&kernels, &tiny, &mutants, args.mla_norm_eps, threads(args));
    let mut tables: Vec<(&str, &'static [clauses::Clause])> = vec![("the model", &clauses::MODEL)];
    if args.family.iter().any(|family| family == "c") {
        tables.push(("the arithmetic", &clauses::ARITHMETIC));
    }
    let provenance = provenance(args, start);
    let report = MutantReport::new(&tiny.name, &control_matrix, &matrix, &tables, provenance);
    output::deliver(&args.output, &report, &report.text())?;
    Ok(report.exit())
}
