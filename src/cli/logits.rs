//! `logits A B`: compares two logit files of any engine.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use super::output::{self, CommandError, OutputArgs, bad_input};
use super::tolerance::ToleranceArgs;
use k3_core::Precision;
use k3_core::exit::Exit;
use k3_core::host::provenance::{Provenance, default_threads};
use k3_gates::compare::{LogitComparison, LogitFile, compare_logits, id_list};
use k3_render::{Document, Table, left};

/// Arguments of `logits`.
#[derive(Debug, Args)]
pub struct LogitsArgs {
    /// The subject: raw f32, JSON with `logits_bits`, safetensors, run JSON
    a: PathBuf,
    /// The expected logits, in any of the same formats
    b: PathBuf,
    /// Logits per row, if neither file says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    vocabulary: Option<u32>,
    #[command(flatten)]
    tolerance: ToleranceArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// The report.
#[derive(Debug, Serialize)]
struct LogitReport {
    schema: &'static str,
    verdict: &'static str,
    exit_code: u8,
    basis: String,
    basis_assumed: bool,
    a: Side,
    b: Side,
    vocabulary: usize,
    comparison: LogitComparison,
    provenance: Provenance,
}

#[derive(Debug, Serialize)]
struct Side {
    form: &'static str,
    stored: Precision,
    logits: usize,
    prompt_ids: Option<Vec<u32>>,
}

impl Side {
    fn of(file: &LogitFile) -> Self {
        Self {
            form: file.form,
            stored: file.stored,
            logits: file.values.len(),
            prompt_ids: file.prompt_ids.clone(),
        }
    }

    fn line(&self, letter: char, path: &std::path::Path) -> String {
        let ids = self.prompt_ids.as_deref();
        let ids = ids.map_or("ids unknown".to_owned(), |ids| format!("ids {}", id_list(ids)));
        format!("{letter}: {}: {}, {} logits, {ids}", path.display(), self.form, self.logits)
    }
}

/// Runs the command.
pub fn run(args: &LogitsArgs) -> Result<Exit, CommandError> {
    let start = Instant::now();
    output::check_writable(&args.output)?;
    let (a, b) = (LogitFile::read(&args.a)?, LogitFile::read(&args.b)?);
    let vocabulary = vocabulary(args, &a, &b)?;
    let rows = b.values.len() / vocabulary;
    if let Some(difference) = a.differs_in_ids(&b, rows) {
        let error = anyhow::anyhow!("made from different ids: {difference}");
        let hint = "logits computed from different ids cannot be compared";
        return Err(CommandError::new(error, Exit::Disagrees).hint(hint));
    }
    let exact = b.stored == Precision::F64;
    let ids = a.prompt_ids.as_deref().or(b.prompt_ids.as_deref());
    let basis = args.tolerance.decide(exact, &b.header, a.stored, ids)?;
    let tolerance = basis.tolerance("logits", &b.values);
    let comparison = compare_logits(&a.values, &b.values, vocabulary, &tolerance);
    let exit = if comparison.passed { Exit::Conforms } else { Exit::Disagrees };
    let inputs = [&args.a, &args.b].map(|path| path.display().to_string());
    let report = LogitReport {
        schema: "k3-verify/logits/1",
        verdict: exit.verdict(),
        exit_code: exit.code(),
        basis: basis.describe(),
        basis_assumed: basis.assumed(),
        a: Side::of(&a),
        b: Side::of(&b),
        vocabulary,
        comparison,
        provenance: Provenance::since(start, default_threads(), inputs.to_vec()),
    };
    output::deliver(&args.output, &report, &document(&report, args))?;
    Ok(exit)
}

/// The size of a row: as a file or --vocabulary says, else the whole file is one row.
fn vocabulary(args: &LogitsArgs, a: &LogitFile, b: &LogitFile) -> Result<usize, CommandError> {
    let typed = args.vocabulary.map(|size| size as usize);
    let stated = [typed, b.vocabulary, a.vocabulary];
    let size = stated.into_iter().flatten().next().unwrap_or(b.values.len());
    for other in stated.into_iter().flatten() {
        if other != size {
            let error = anyhow::anyhow!("vocabulary: expected {size}, got {other}");
            return Err(CommandError::new(error, Exit::Disagrees)
                .hint("the two files, or --vocabulary, name different sizes of a row"));
        }
    }
    if size == 0 || !b.values.len().is_multiple_of(size) {
        let count = b.values.len();
        let error = anyhow::anyhow!(
            "{}: expected whole rows of {size} logits, got {count} logits",
            b.path.display()
        );
        return Err(bad_input(error).hint("--vocabulary says how many logits a row has"));
    }
    Ok(size)
}

/// Six digits and an exponent of two, as other tools print it: `7.867813e-06`.
fn scientific(value: f64) -> String {
    let plain = format!("{value:.6e}");
    match plain.split_once('e') {
        Some((digits, exponent)) => match exponent.strip_prefix('-') {
            Some(size) => format!("{digits}e-{size:0>2}"),
            None => format!("{digits}e+{exponent:0>2}"),
        },
        None => plain,
    }
}

fn document(report: &LogitReport, args: &LogitsArgs) -> Document {
    let comparison = &report.comparison;
    let record = &comparison.record;
    let mut document = Document::new("k3-verify logits: A against B");
    document.line(report.a.line('A', &args.a));
    document.line(report.b.line('B', &args.b));
    document.line(format!("basis: {}", report.basis));
    if let Some(problem) = &record.problem {
        document.gap();
        document.line(format!("not comparable: {problem}"));
    } else {
        document.table(numbers(comparison, report.vocabulary));
    }
    document.gap();
    document.line(format!("VERDICT: {}", report.verdict));
    document
}

/// The results, one number per row.
fn numbers(comparison: &LogitComparison, vocabulary: usize) -> Table {
    let record = &comparison.record;
    let mut table = Table::new([left("", 0), left("", 0)]);
    agreement(&mut table, comparison, vocabulary);
    let mut row = |what: &str, value: String| table.row([what, &value]);
    if let Some(worst) = &record.max_abs {
        let difference = scientific(worst.difference);
        let (at, id) = (worst.index[0], worst.index[1]);
        let values = format!("({} against {})", worst.got, worst.expected);
        row("max diff", format!("{difference} at row {at}, id {id} {values}"));
    }
    row("relative to max|ref|", scientific(comparison.relative_to_largest));
    row("mean diff", scientific(record.mean_abs));
    row("p50, p99.9 diff", format!("{:.3e}, {:.3e}", record.p50_abs, record.p99_9_abs));
    if let Some(worst) = &record.max_rel {
        row("max relative diff", format!("{:.3e} at {:?}", worst.difference, worst.index));
    }
    row("max ULP (f32)", record.max_ulp_f32.to_string());
    if let Some(cosine) = record.cosine {
        row("cosine", format!("{cosine:.12}"));
    }
    let ratio = record.ratio.map_or(String::new(), |ratio| format!(", ratio {ratio:.3e}"));
    let beyond = format!("{} of {} beyond", record.mismatches, record.count);
    let allowed =
        format!("{}, required {:.3e}{ratio}, {beyond}", record.tolerance, record.required);
    row("tolerance", allowed);
    table
}

/// How far the rows agree on the highest logits.
fn agreement(table: &mut Table, comparison: &LogitComparison, vocabulary: usize) {
    let rows = &comparison.rows;
    match rows.as_slice() {
        [row] if row.argmax_got == row.argmax_expected => {
            let (id, got, expected) = (row.argmax_got, row.top_got, row.top_expected);
            table.row(["argmax", &format!("{id} both ({got:.6} / {expected:.6})")]);
        }
        _ => {
            let same = comparison.same_argmax();
            table.row(["argmax", &format!("{same} of {} rows", rows.len())]);
            for row in rows.iter().filter(|row| row.argmax_got != row.argmax_expected) {
                let what = format!(
                    "row {}: {} against {}, {:.3e} lower: {}",
                    row.row,
                    row.argmax_got,
                    row.argmax_expected,
                    row.gap,
                    if row.near_tie { "a near tie" } else { "NOT a near tie" }
                );
                table.row(["", &what]);
            }
        }
    }
    let least = |value: fn(&k3_gates::compare::RowAgreement) -> f64| {
        rows.iter().map(value).fold(f64::INFINITY, f64::min)
    };
    let of = rows.first().map_or(0, |row| row.overlap_of);
    let overlap = rows.iter().map(|row| row.overlap).min().unwrap_or(0);
    let which = if rows.len() > 1 { ", least of all rows" } else { "" };
    let correlation = format!("{:.12}{which}", least(|row| row.correlation));
    let of_ranks = format!("{:.9}{which}", least(|row| row.rank_correlation));
    table.row([format!("top-{of} overlap"), format!("{overlap}/{of}{which}")]);
    table.row(["rank correlation", &of_ranks]);
    table.row(["correlation", &correlation]);
    let most = rows.iter().map(|row| row.kl_divergence).fold(0.0, f64::max);
    let which = if rows.len() > 1 { ", largest of all rows" } else { "" };
    let divergence = format!("{most:.3e} nats over {vocabulary} ids{which}");
    table.row(["KL divergence", &divergence]);
}
