//! `logits A B`: compares two logit files of any engine.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use super::output::{self, CommandError, OutputArgs, bad_input};
use super::tolerance::ToleranceArgs;
use k3_core::Precision;
use k3_core::compare::ratio_text;
use k3_core::exit::Exit;
use k3_core::host::provenance::{Provenance, default_threads};
use k3_gates::compare::{LogitComparison, LogitFile, compare_logits, id_list, unmasked};
use k3_render::{Document, Table, left};

/// Arguments of `logits`.
#[derive(Debug, Args)]
pub struct LogitsArgs {
    /// The subject: raw f32, JSON with `logits_bits`, safetensors, NumPy (.npy, .npz), run JSON
    a: PathBuf,
    /// The expected logits, in any of the same formats
    b: PathBuf,
    /// Logits per row, if neither file says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    vocabulary: Option<u32>,
    /// Ids to leave out, such as padding or suppressed ids: `163590..163839,5`, both ends included
    #[arg(long, value_name = "IDS", value_parser = parse_mask, default_value = "",
        hide_default_value = true)]
    mask_ids: IdMask,
    #[command(flatten)]
    tolerance: ToleranceArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Masked ids.
type IdMask = std::collections::BTreeSet<usize>;

/// Ids and ranges of ids, separated by commas.
fn parse_mask(text: &str) -> Result<IdMask, String> {
    let mut mask = IdMask::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once("..").unwrap_or((part, part));
        let id = |text: &str| {
            let id = text.trim().parse::<u32>().ok().map(|id| id as usize);
            id.ok_or_else(|| format!("expected ids or ranges FIRST..LAST, got {part:?}"))
        };
        let (first, last) = (id(first)?, id(last)?);
        if first > last || last > LARGEST_ID {
            return Err(format!("expected FIRST up to LAST, at most {LARGEST_ID}, got {part:?}"));
        }
        mask.extend(first..=last);
    }
    Ok(mask)
}

/// No vocabulary is larger.
const LARGEST_ID: usize = 1 << 24;

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
    masked_ids: usize,
    rows_not_compared: usize,
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
    let model = args.tolerance.model.as_deref();
    let read: Vec<_> = [&*args.a, &*args.b].into_iter().chain(model).collect();
    output::claim(&args.output, &read, &[])?;
    let (a, b) = (LogitFile::read(&args.a)?, LogitFile::read(&args.b)?);
    let vocabulary = vocabulary(args, &a, &b)?;
    if let Some(difference) = a.differs_in_ids(&b, vocabulary) {
        let error = anyhow::anyhow!("made from different ids: {difference}");
        let hint = "logits computed from different ids cannot be compared";
        return Err(CommandError::new(error, Exit::Disagrees).hint(hint));
    }
    let exact = b.stored == Precision::F64;
    let ids = a.prompt_ids.as_deref().or(b.prompt_ids.as_deref());
    let basis = args.tolerance.decide(exact, &b.header, a.stored, ids)?;
    let common = a.values.len().min(b.values.len());
    let rows_not_compared = (a.values.len().max(b.values.len()) - common) / vocabulary;
    let (got, kept) = unmasked(&a.values[..common], vocabulary, &args.mask_ids);
    let (expected, _) = unmasked(&b.values[..common], vocabulary, &args.mask_ids);
    let tolerance = basis.tolerance("logits", &expected, kept.len());
    let comparison = compare_logits(&got, &expected, &kept, &tolerance);
    let exit = match comparison.passed {
        false => Exit::Disagrees,
        true if rows_not_compared > 0 => Exit::Incomplete,
        true => Exit::Conforms,
    };
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
        masked_ids: vocabulary - kept.len(),
        rows_not_compared,
        comparison,
        provenance: Provenance::since(start, default_threads(), inputs.to_vec()),
    };
    output::deliver(&args.output, &report, &document(&report, args))?;
    Ok(exit)
}

/// Vocabularies of K3 and of the shipped sets.
const KNOWN_VOCABULARIES: [usize; 2] = [163_840, 256];

/// The size of a row: as a file or --vocabulary says. Else a file of one known vocabulary's length
/// is a row, and so is one that no known vocabulary divides.
fn vocabulary(args: &LogitsArgs, a: &LogitFile, b: &LogitFile) -> Result<usize, CommandError> {
    let typed = args.vocabulary.map(|size| size as usize);
    let stated = [typed, b.vocabulary, a.vocabulary];
    let count = b.values.len();
    let size = match stated.into_iter().flatten().next() {
        Some(size) => size,
        None if a.values.len() != count => {
            let got = a.values.len();
            return Err(CommandError::new(
                anyhow::anyhow!("lengths differ: got {got}, expected {count}"),
                Exit::Disagrees,
            )
            .hint(
                "--vocabulary N says how many logits a row has; rows that both have are compared",
            ));
        }
        None if KNOWN_VOCABULARIES.contains(&count) => count,
        None => match KNOWN_VOCABULARIES.iter().find(|&&known| count.is_multiple_of(known)) {
            Some(known) => {
                let error = anyhow::anyhow!(
                    "{}: {count} logits are {} rows of {known}, or one row: no file says",
                    b.path.display(),
                    count / known
                );
                let hint = "--vocabulary N says how many logits a row has";
                return Err(CommandError::new(error, Exit::Usage).hint(hint));
            }
            None => count,
        },
    };
    for other in stated.into_iter().flatten() {
        if other != size {
            let error = anyhow::anyhow!("vocabulary: expected {size}, got {other}");
            return Err(CommandError::new(error, Exit::Disagrees)
                .hint("the two files, or --vocabulary, name different sizes of a row"));
        }
    }
    for file in [a, b] {
        let count = file.values.len();
        if size == 0 || !count.is_multiple_of(size) {
            let path = file.path.display();
            let error =
                anyhow::anyhow!("{path}: expected whole rows of {size} logits, got {count} logits");
            return Err(bad_input(error).hint("--vocabulary says how many logits a row has"));
        }
    }
    match args.mask_ids.last() {
        Some(&id) if id >= size => {
            let error = anyhow::anyhow!("--mask-ids: expected ids below {size}, got {id}");
            Err(CommandError::new(error, Exit::Usage))
        }
        _ if args.mask_ids.len() == size => {
            Err(CommandError::new(anyhow::anyhow!("--mask-ids leaves no id"), Exit::Usage))
        }
        _ => Ok(size),
    }
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
    if report.masked_ids > 0 {
        document.line(format!("masked: {} ids", report.masked_ids));
    }
    if report.rows_not_compared > 0 {
        let rows = comparison.rows.len();
        let others = report.rows_not_compared;
        document.line(format!("compared: the {rows} rows that both have; {others} NOT COMPARED"));
    }
    if let Some(problem) = &record.problem {
        document.gap();
        document.line(format!("not comparable: {problem}"));
    } else {
        document.table(numbers(comparison, report.vocabulary));
    }
    if let Some(row) = comparison.first_absurd() {
        document.gap();
        document.line(format!(
            "row {} says something else: argmax {} against {}, top-{} overlap {}, KL divergence \
             {:.3e} nats; no tolerance excuses that",
            row.row,
            row.argmax_got,
            row.argmax_expected,
            row.overlap_of,
            row.overlap,
            row.kl_divergence
        ));
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
    let ratio =
        record.ratio.map_or(String::new(), |ratio| format!(", ratio {}", ratio_text(ratio)));
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
