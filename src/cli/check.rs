//! `check`: whether a checkpoint is whole and undamaged.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;

use super::model_args::{CheckpointArgs, read_config};
use super::output::{self, CommandError, OutputArgs, bad_input, usage};
use super::threads::ThreadsArgs;
use k3_checkpoint::store::Note;
use k3_checkpoint::{Checkpoint, ModelShape, config};
use k3_core::config::RawConfig;
use k3_core::exit::Exit;
use k3_core::host::interrupt::Interrupt;
use k3_core::host::provenance::Provenance;
use k3_engine::stream::pack::{MANIFEST, Pack};
use k3_gates::audit::digests;
use k3_gates::audit::folder;
use k3_gates::audit::folder::Files;
use k3_gates::audit::{Finding, Findings, census, cross_read, end_ids, values};
use k3_gates::outcome::Verdict;
use k3_gates::report::check::{CheckReport, CheckRow, SCHEMA};
use k3_reference::Reader;

/// Whether a checkpoint is whole and undamaged.
///
/// Checks every file by itself (Git LFS pointers, web pages, unfinished downloads, files cut
/// short), at shard sizes against the 96 published ones, at the index against the headers, at every
/// tensor the config implies, at every stored value (scale byte 255, weights that are not finite,
/// tensors of zeros and holes of 4 KiB of them, padding of A_log), and at the SHA-256 that a
/// Hugging Face cache names its files by. Exits 1 if anything is damaged, 4 if files are merely
/// missing, 3 if the folder, the config or a shard cannot be read.
#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// The engine's reader and the reference's must agree on every field of the config, and on
    /// dtype, shape, shard, offset, length and the first and last bits of every tensor
    #[arg(long)]
    cross_read: bool,
    /// Compare whole files with a list in the format of sha256sum
    #[arg(long, value_name = "FILE")]
    sha256: Option<PathBuf>,
    /// Do not read the values, only files, headers and index
    #[arg(long)]
    headers_only: bool,
    #[command(flatten)]
    threads: ThreadsArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the command.
///
/// # Errors
///
/// No folder (2); an unreadable folder, config or list of digests (3).
pub fn run(args: &CheckArgs) -> Result<Exit, CommandError> {
    let start = Instant::now();
    let folder = args.checkpoint.folder()?;
    let read: Vec<_> = args.sha256.as_deref().into_iter().chain([&*folder]).collect();
    output::claim(&args.output, &read, &[])?;
    if folder.join(MANIFEST).exists() {
        return packed(args, &folder, start);
    }
    let digests = args.sha256.as_deref().map(digests::read_list).transpose();
    let digests = digests?;
    let config = read_config(&folder)?;
    let pool = output::pool(args.threads.count())?;
    let mut checks =
        Checks { args, folder: &folder, config: &config, rows: Vec::new(), notes: Vec::new() };
    pool.install(|| checks.run(digests.as_deref()))?;
    let Checks { rows, notes, .. } = checks;
    deliver(args, &folder, start, rows, notes)
}

fn deliver(
    args: &CheckArgs,
    folder: &Path,
    start: Instant,
    checks: Vec<CheckRow>,
    notes: Vec<String>,
) -> Result<Exit, CommandError> {
    let exit = checks.iter().fold(Exit::Conforms, |exit, row| {
        let exit = if row.unreadable.is_empty() { exit } else { exit.and(Exit::BadInput) };
        exit.and(match row.verdict {
            Verdict::Fail => Exit::Disagrees,
            Verdict::NotRun => Exit::Incomplete,
            _ => Exit::Conforms,
        })
    });
    let report = CheckReport {
        schema: SCHEMA,
        exit_code: exit.code(),
        checks,
        notes,
        provenance: Provenance::since(
            start,
            args.threads.count(),
            vec![folder.display().to_string()],
        ),
    };
    output::deliver(&args.output, &report, &report.document())?;
    match report.checks.iter().find_map(|row| row.unreadable.first()) {
        Some(first) => Err(bad_input(anyhow::anyhow!("{}/{first}", folder.display()))),
        None => Ok(exit),
    }
}

/// A packed trunk: its manifest, and every layer against its digest.
fn packed(args: &CheckArgs, folder: &Path, start: Instant) -> Result<Exit, CommandError> {
    if args.cross_read || args.headers_only || args.sha256.is_some() {
        let what = "a packed trunk is checked against the digests in it: not with --cross-read, \
                    --headers-only or --sha256";
        return Err(usage(anyhow::anyhow!("{}: {what}", folder.display())));
    }
    let interrupt = Interrupt::listen();
    let pack = Pack::open(folder)?;
    let bar = output::progress(pack.data_bytes(), "bytes read");
    let damaged = pack.damage(&mut |progress| {
        bar.set_position(progress.done_bytes);
        if interrupt.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    let data = pack.data_path();
    let file = data.file_name().unwrap_or_default().to_string_lossy();
    let mut findings = Findings::default();
    for problem in damaged? {
        let (file, what) = (file.to_string(), problem.to_string());
        findings.push(Finding { file, tensor: None, what });
    }
    let detail = format!("{} layers, {} bytes read", pack.layers(), pack.data_bytes());
    let row = judged(PACK, detail, findings, Vec::new());
    deliver(args, folder, start, vec![row], Vec::new())
}

struct Checks<'a> {
    args: &'a CheckArgs,
    folder: &'a Path,
    config: &'a RawConfig,
    rows: Vec<CheckRow>,
    notes: Vec<String>,
}

const PACK: [&str; 2] = ["pack", "every layer has the digest that the manifest states"];
const FILES: [&str; 2] = ["files", "every file is what its name says, and whole"];
const SIZES: [&str; 2] = ["sizes", "every shard has its published size"];
const INDEX: [&str; 2] = ["index", "index and headers agree"];
const BIND: [&str; 2] = ["bind", "every tensor the config implies is there, as implied"];
const CROSS_READ: [&str; 2] = ["cross-read", "two readers agree on the config and every tensor"];
const VALUES: [&str; 2] =
    ["values", "no NaN scale, no weight that is not finite, no hole of zeros"];
const BLOBS: [&str; 2] = ["blobs", "every file of a Hugging Face cache has the digest in its name"];
const SHA256: [&str; 2] = ["sha256", "every listed file has its digest"];

/// FAIL with findings, NOT RUN where something is absent, PASS otherwise.
fn judged(
    [id, what]: [&'static str; 2],
    detail: String,
    findings: Findings,
    absent: Vec<String>,
) -> CheckRow {
    let verdict = match (findings.is_empty(), absent.is_empty()) {
        (false, _) => Verdict::Fail,
        (true, false) => Verdict::NotRun,
        (true, true) => Verdict::Pass,
    };
    let detail = match (findings.count, absent.len()) {
        (0, 0) => detail,
        (wrong, 0) => format!("{detail}, {wrong} wrong"),
        (0, gone) => format!("{detail}, {gone} absent"),
        (wrong, gone) => format!("{detail}, {wrong} wrong, {gone} absent"),
    };
    let unreadable = Vec::new();
    CheckRow { id, what, verdict, detail, findings, absent, unreadable }
}

impl Checks<'_> {
    fn run(&mut self, digests: Option<&[digests::Entry]>) -> Result<(), CommandError> {
        let mut files = folder::look(self.folder).map_err(|error| {
            let error = anyhow::anyhow!("{}: cannot be listed: {error}", self.folder.display());
            bad_input(error)
        })?;
        if let Err(error) = end_ids::end_ids(self.folder, self.config, self.folder, None)
            && files.findings.is_empty()
        {
            let what = error.to_string();
            files.findings.push(Finding { file: ".".to_owned(), tensor: None, what });
        }
        let detail = format!("{} shards opened", files.shards.len());
        self.judged(FILES, detail, files.findings.clone(), Vec::new());
        self.unreadable(&files);
        self.unread_fields()?;
        self.sizes(&files);
        match Checkpoint::open_partial(self.folder) {
            Ok(checkpoint) => self.opened(&checkpoint)?,
            Err(error) => self.not_opened(&files, &error.to_string()),
        }
        let blobs = digests::blobs(self.folder).map_err(bad_input)?;
        match blobs.as_slice() {
            _ if self.args.headers_only => self.row(BLOBS, Verdict::NotSelected, "--headers-only"),
            [] => self.row(BLOBS, Verdict::NotApplicable, "no file is a link to a named blob"),
            entries => self.hash(BLOBS, entries)?,
        }
        match digests {
            None => self.row(SHA256, Verdict::NotSelected, "no --sha256 FILE"),
            Some(entries) => self.hash(SHA256, entries)?,
        }
        Ok(())
    }

    fn hash(
        &mut self,
        check: [&'static str; 2],
        entries: &[digests::Entry],
    ) -> Result<(), CommandError> {
        let bar = output::progress(0, "bytes hashed");
        let compared = digests::compare(self.folder, entries, &|bytes| bar.inc(bytes));
        bar.finish_and_clear();
        let (findings, absent) = compared?;
        let hashed = entries.len() - absent.len();
        self.judged(check, format!("{hashed} files hashed"), findings, absent);
        Ok(())
    }

    /// What cannot be read was not checked, and is not damage either.
    fn unreadable(&mut self, files: &Files) {
        let Some(row) = self.rows.last_mut().filter(|_| !files.unreadable.is_empty()) else {
            return;
        };
        row.unreadable =
            files.unreadable.iter().map(|(file, why)| format!("{file}: {why}")).collect();
        row.detail += &format!(", {} not read", row.unreadable.len());
        if row.verdict == Verdict::Pass {
            row.verdict = Verdict::NotRun;
        }
    }

    fn unread_fields(&mut self) -> Result<(), CommandError> {
        let unread = config::unread(&self.folder.join("config.json"))?;
        self.notes.extend(unread.iter().map(|field| format!("config.json: {field}")));
        Ok(())
    }

    fn row(&mut self, [id, what]: [&'static str; 2], verdict: Verdict, detail: &str) {
        self.rows.push(CheckRow {
            id,
            what,
            verdict,
            detail: detail.to_owned(),
            findings: Findings::default(),
            absent: Vec::new(),
            unreadable: Vec::new(),
        });
    }

    fn judged(
        &mut self,
        of: [&'static str; 2],
        detail: String,
        wrong: Findings,
        gone: Vec<String>,
    ) {
        self.rows.push(judged(of, detail, wrong, gone));
    }

    fn sizes(&mut self, files: &Files) {
        if !folder::is_released(self.config) {
            let detail = "the config is not the release's, whose 96 sizes are published";
            return self.row(SIZES, Verdict::NotApplicable, detail);
        }
        match folder::published() {
            Ok(published) => {
                let (findings, absent) = folder::compare_sizes(files, &published);
                let detail = format!("{} published sizes", published.len());
                self.judged(SIZES, detail, findings, absent);
            }
            Err(error) => self.row(SIZES, Verdict::NotRun, &error.to_string()),
        }
    }

    /// What is wrong with a shard is told in the first row; otherwise the index is damaged.
    fn not_opened(&mut self, files: &Files, error: &str) {
        if files.findings.is_empty() && files.unreadable.is_empty() {
            let mut findings = Findings::default();
            findings.push(Finding { file: ".".to_owned(), tensor: None, what: error.to_owned() });
            self.judged(INDEX, "not opened".to_owned(), findings, Vec::new());
        } else {
            self.row(INDEX, Verdict::NotRun, error);
        }
        for check in [BIND, CROSS_READ, VALUES] {
            let selected = match check[0] {
                "cross-read" => self.args.cross_read,
                "values" => !self.args.headers_only,
                _ => true,
            };
            let verdict = if selected { Verdict::NotRun } else { Verdict::NotSelected };
            self.row(check, verdict, "the checkpoint cannot be opened");
        }
    }

    fn opened(&mut self, checkpoint: &Checkpoint) -> Result<(), CommandError> {
        let mut findings = Findings::default();
        for note in checkpoint.notes() {
            match note {
                Note::TotalSizeDiffers { .. } => findings.push(Finding {
                    file: "model.safetensors.index.json".to_owned(),
                    tensor: None,
                    what: note.to_string(),
                }),
                _ => self.notes.push(note.to_string()),
            }
        }
        let detail = match checkpoint.has_index() {
            true => format!("{} tensors", checkpoint.len()),
            false => format!("no index file; {} tensors by the headers", checkpoint.len()),
        };
        let missing = checkpoint.missing_shards().to_vec();
        self.judged(INDEX, detail, findings, missing);
        self.bind(checkpoint)?;
        if self.args.cross_read {
            self.cross_read(checkpoint);
        } else {
            self.row(CROSS_READ, Verdict::NotSelected, "no --cross-read");
        }
        if self.args.headers_only {
            self.row(VALUES, Verdict::NotSelected, "--headers-only");
            return Ok(());
        }
        let bar = output::progress(checkpoint.tensor_bytes(), "bytes read");
        let found = values::check_values(checkpoint, self.config, &|bytes| bar.inc(bytes));
        bar.finish_and_clear();
        let found = found?;
        if let Some(first) = found.neutral.first() {
            let count = found.neutral.len();
            self.notes.push(format!(
                "{count} tensors that are added, not multiplied by, are all zero: {first} first"
            ));
        }
        let detail = format!("{} bytes read", checkpoint.tensor_bytes());
        self.judged(VALUES, detail, found.findings, Vec::new());
        Ok(())
    }

    fn bind(&mut self, checkpoint: &Checkpoint) -> Result<(), CommandError> {
        let shape = ModelShape::derive(self.config);
        let shape = shape?;
        let census = census::census(checkpoint, &shape);
        let mut absent = Vec::new();
        for row in census.layers.iter().filter(|row| row.tensors < row.expected) {
            let gone = row.expected - row.tensors;
            absent.push(format!("layer {}: {gone} of {} tensors", row.layer, row.expected));
        }
        absent.extend(census.absent_outside_layers.iter().cloned());
        let mut findings = census.problems;
        if checkpoint.missing_shards().is_empty() {
            // No shard is missing that could hold them, so they are lost.
            for what in absent.drain(..) {
                findings.push(Finding {
                    file: ".".to_owned(),
                    tensor: None,
                    what: format!("missing: {what}"),
                });
            }
        }
        let there = census.layers.iter().map(|row| row.tensors).sum::<u64>();
        self.judged(BIND, format!("{there} tensors of layers bound"), findings, absent);
        Ok(())
    }

    fn cross_read(&mut self, checkpoint: &Checkpoint) {
        let mut findings = Findings::default();
        let mut find = |file: &str, what| {
            findings.push(Finding { file: file.to_owned(), tensor: None, what });
        };
        let refused = |error| format!("the reference's reader refuses it: {error}");
        match k3_reference::read_config(self.folder) {
            Ok(theirs) => {
                let differing = cross_read::differing_fields(self.config, &theirs);
                differing.into_iter().for_each(|what| find("config.json", what));
            }
            Err(error) => find("config.json", refused(error)),
        }
        let detail = match Reader::open(self.folder) {
            Ok(reader) => {
                findings.append(cross_read::cross_read(checkpoint, &reader));
                format!("the config and {} tensors compared", checkpoint.len())
            }
            Err(error) => {
                find(".", refused(error));
                "not opened".to_owned()
            }
        };
        self.judged(CROSS_READ, detail, findings, Vec::new());
    }
}
