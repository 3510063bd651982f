//! `compare A B [--f64 C]`: two dumps of named tensors from any engine, in execution order.

use k3_core::choice::Choice as _;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use super::output::{self, CommandError, OutputArgs, bad_input};
use super::tolerance::{ToleranceArgs, ToleranceChoice};
use k3_core::Precision;
use k3_core::compare::ratio_text;
use k3_core::exit::Exit;
use k3_core::host::provenance::{Provenance, default_threads};
use k3_core::listing::listed;
use k3_gates::compare::{DumpComparison, TensorComparison, compare_dumps, id_list, ids_of};
use k3_gates::glob::Glob;
use k3_gates::tensor_file::{IDS, TensorFile, read_file};
use k3_render::Document;

/// Arguments of `compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// The subject's dump (safetensors)
    a: PathBuf,
    /// The dump it is compared with
    b: PathBuf,
    /// An exact (F64) dump: A and B are both judged against it; A against B is shown for
    /// information
    #[arg(long, value_name = "C")]
    f64: Option<PathBuf>,
    /// Only the tensors whose names match; * and ? are wildcards
    #[arg(long, value_name = "GLOB")]
    stages: Option<String>,
    #[command(flatten)]
    tolerance: ToleranceArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// The report.
#[derive(Debug, Serialize)]
struct CompareReport {
    schema: &'static str,
    verdict: &'static str,
    exit_code: u8,
    stages: Option<String>,
    ids: Option<Vec<u32>>,
    pairs: Vec<Pair>,
    provenance: Provenance,
}

/// One dump compared with another.
#[derive(Debug, Serialize)]
struct Pair {
    /// `A against B`.
    name: &'static str,
    /// Whether it counts towards the verdict or is for information only.
    decides: bool,
    basis: String,
    basis_assumed: bool,
    first_divergence: Option<String>,
    #[serde(flatten)]
    comparison: DumpComparison,
}

/// Runs the command.
pub fn run(args: &CompareArgs) -> Result<Exit, CommandError> {
    let start = Instant::now();
    let others = [args.f64.as_deref(), args.tolerance.model.as_deref()];
    let read: Vec<_> =
        [&*args.a, &*args.b].into_iter().chain(others.into_iter().flatten()).collect();
    output::claim(&args.output, &read, &[])?;
    let (a, b) = (read_file(&args.a)?, read_file(&args.b)?);
    let exact = args.f64.as_deref().map(read_file).transpose()?;
    let mut named = vec![(&args.a, &a), (&args.b, &b)];
    named.extend(args.f64.as_ref().zip(exact.as_ref()));
    if let (Some(path), Some(exact)) = (&args.f64, &exact)
        && stored(exact) != Precision::F64
    {
        let got = stored(exact).name();
        let error = anyhow::anyhow!("{}: --f64: expected F64 tensors, got {got}", path.display());
        let hint = "`dump --by reference` writes an exact dump";
        return Err(bad_input(error).hint(hint));
    }
    let ids = same_ids(&named)?;
    let pairs = match &exact {
        None => vec![pair(args, "A against B", true, (&a, &b), ids.as_deref())?],
        Some(c) => vec![
            pair(args, "A against C", true, (&a, c), ids.as_deref())?,
            pair(args, "B against C", true, (&b, c), ids.as_deref())?,
            pair(args, "A against B", false, (&a, &b), ids.as_deref())?,
        ],
    };
    let exit = exit_of(&pairs);
    let inputs = named.iter().map(|(path, _)| path.display().to_string());
    let report = CompareReport {
        schema: "k3-verify/compare/1",
        verdict: exit.verdict(),
        exit_code: exit.code(),
        stages: args.stages.clone(),
        ids,
        pairs,
        provenance: Provenance::since(start, default_threads(), inputs.collect()),
    };
    output::deliver(&args.output, &report, &document(&report, &named))?;
    Ok(exit)
}

/// The ids, which must be the same in all files that name them.
fn same_ids(files: &[(&PathBuf, &TensorFile)]) -> Result<Option<Vec<u32>>, CommandError> {
    let mut known: Option<(&PathBuf, Vec<u32>)> = None;
    for (path, file) in files {
        let Some(ids) = ids_of(file) else { continue };
        match &known {
            None => known = Some((path, ids)),
            Some((first, right)) if *right != ids => {
                let error = anyhow::anyhow!(
                    "made from different ids: {} in {}, {} in {}",
                    id_list(right),
                    first.display(),
                    id_list(&ids),
                    path.display()
                );
                let hint = "stages computed from different ids cannot be compared";
                return Err(CommandError::new(error, Exit::Disagrees).hint(hint));
            }
            Some(_) => {}
        }
    }
    Ok(known.map(|(_, ids)| ids))
}

/// The narrowest precision of the real tensors of a dump.
fn stored(file: &TensorFile) -> Precision {
    let stored = file.tensors.values().filter_map(|tensor| tensor.stored);
    stored.min().unwrap_or(Precision::F64)
}

fn pair(
    args: &CompareArgs,
    name: &'static str,
    decides: bool,
    (got, expected): (&TensorFile, &TensorFile),
    ids: Option<&[u32]>,
) -> Result<Pair, CommandError> {
    let exact = stored(expected) == Precision::F64;
    let basis = if decides {
        args.tolerance.decide(exact, &expected.metadata, stored(got), ids)?
    } else {
        ToleranceChoice::Bits
    };
    let pattern = args.stages.as_deref().map(Glob::new);
    let wanted = |name: &str| pattern.as_ref().is_none_or(|glob| glob.matches(name));
    let tolerance = |name: &str, values: &[f64]| basis.tolerance(name, values, values.len());
    let comparison = compare_dumps(got, expected, &wanted, &tolerance);
    let first = comparison.first_divergence();
    Ok(Pair {
        name,
        decides,
        basis: if decides {
            basis.describe()
        } else {
            "equal bits, for information; it does not count towards the verdict".to_owned()
        },
        basis_assumed: basis.assumed(),
        first_divergence: first.map(|(_, tensor)| tensor.name.clone()),
        comparison,
    })
}

/// A difference outranks tensors that were not compared; comparing nothing is not a pass.
fn exit_of(pairs: &[Pair]) -> Exit {
    let mut exit = Exit::Conforms;
    for pair in pairs.iter().filter(|pair| pair.decides) {
        let comparison = &pair.comparison;
        if comparison.differing() > 0 {
            exit = exit.and(Exit::Disagrees);
        }
        let absent = comparison.only_expected.len() + comparison.only_got.len();
        if absent > 0 || comparison.tensors.is_empty() {
            exit = exit.and(Exit::Incomplete);
        }
    }
    exit
}

fn document(report: &CompareReport, files: &[(&PathBuf, &TensorFile)]) -> Document {
    let mut document = Document::new("k3-verify compare: named tensors in execution order");
    for (letter, (path, file)) in ['A', 'B', 'C'].iter().zip(files) {
        let ids =
            ids_of(file).map_or("ids unknown".to_owned(), |ids| format!("ids {}", id_list(&ids)));
        let precision = stored(file).name();
        // Stages, as everywhere: the ids are told beside them.
        let count = file.tensors.keys().filter(|name| *name != IDS).count();
        let path = path.display();
        document.line(format!("{letter}: {path}: {count} tensors, {precision}, {ids}"));
    }
    if let Some(stages) = &report.stages {
        document.line(format!("stages: {stages}"));
    }
    for pair in &report.pairs {
        pair_section(&mut document, pair);
    }
    document.gap();
    if let [a, b, _] = report.pairs.as_slice() {
        document.line(format!("three ways: {}", nearer(a, b)));
    }
    document.line(format!("VERDICT: {}", report.verdict));
    document
}

fn pair_section(document: &mut Document, pair: &Pair) {
    let comparison = &pair.comparison;
    let count = comparison.tensors.len();
    document.heading(pair.name);
    document.line(format!("basis: {}", pair.basis));
    match comparison.first_divergence() {
        None if count == 0 => document.line("nothing in common to compare"),
        None => document.line(format!("no divergence in {count} tensors")),
        Some((place, first)) => {
            document.line(format!("first divergence: {}", describe(first)));
            let differing = comparison.differing();
            document
                .line(format!("{place} tensors before it agree; {differing} of {count} differ"));
            if let Some((ratio, tensor)) = comparison.worst_of(place) {
                let name = &tensor.name;
                document.line(format!(
                    "nearest to its tolerance before it: {name} at {}",
                    ratio_text(ratio)
                ));
            }
        }
    }
    if let Some((ratio, tensor)) = comparison.worst_of(count) {
        document.line(format!(
            "worst of all: {} at {} of its tolerance",
            tensor.name,
            ratio_text(ratio)
        ));
    }
    for (side, names) in [
        ("only in the expected dump", &comparison.only_expected),
        ("only in the subject's dump", &comparison.only_got),
    ] {
        if !names.is_empty() {
            let listed = listed(names, names.len());
            document.line(format!("NOT RUN: {} tensors {side}: {listed}", names.len()));
        }
    }
}

fn describe(tensor: &TensorComparison) -> String {
    let record = &tensor.record;
    match (&record.problem, &record.first_mismatch) {
        (Some(problem), _) => format!("{}: {problem}", tensor.name),
        (None, Some(first)) => {
            let worst = record.max_abs.as_ref().map_or_else(String::new, |worst| {
                format!("; worst {:.3e} at {:?}", worst.difference, worst.index)
            });
            format!(
                "{} at {:?}: expected {:e}, got {:e}, difference {:.3e}, tolerance {}{worst}",
                tensor.name,
                first.index,
                first.expected,
                first.got,
                first.difference,
                record.tolerance
            )
        }
        (None, None) => tensor.name.clone(),
    }
}

/// Which of the two leaves the exact dump, and where first.
fn nearer(a: &Pair, b: &Pair) -> String {
    match (&a.first_divergence, &b.first_divergence) {
        (None, None) => "both conform to C".to_owned(),
        (Some(at), None) => format!("A diverges from C, first at {at}"),
        (None, Some(at)) => format!("B diverges from C, first at {at}"),
        (Some(in_a), Some(in_b)) => {
            format!("both diverge from C: A first at {in_a}, B first at {in_b}")
        }
    }
}
