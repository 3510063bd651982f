//! `generate`: text or ids in, text or ids out, within a memory limit, from the shards or a packed
//! trunk.

mod arguments;
mod planning;
mod text;
mod watch;

use k3_core::choice::Choice as _;
use k3_engine::kernels::table::Kernels;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::output::{self, CommandError, Format, usage};
use super::pending_file::PendingFile;
use arguments::enough_to_check;
pub use arguments::{GenerateArgs, ModelArgs};
use k3_checkpoint::identity::Identity;
use k3_core::exit::Exit;
use k3_core::host::interrupt::Interrupt;
use k3_core::host::memory;
use k3_core::host::provenance::Provenance;
use k3_engine::generate::report::{Peak, RunReport, SCHEMA, Settings, Totals, join};
use k3_engine::generate::run;
use k3_engine::generate::run::{Generated, Request, TeacherForcing};
use k3_engine::generate::state_file::{Header, SavedState, save};
use k3_engine::kernels::path::KernelPath;
use k3_engine::memory::MemoryPlan;
use k3_engine::model::{EngineError, EngineOptions, EngineSequence};
use k3_engine::stream::{ModelError, ModelFiles, StreamOptions, StreamedEngine};
use k3_gates::audit::end_ids::{EndId, end_ids};
pub use planning::plan;
use planning::streams_vocabulary;
use text::{RunText, TextOutput};
use watch::{Outputs, RunWatch};

/// What is known before memory is allocated.
struct Prepared {
    start: Instant,
    folder: PathBuf,
    kernels: Kernels,
    files: ModelFiles,
    identity: Option<Identity>,
    saved: Option<SavedState>,
    text: Option<RunText>,
    request: Request,
    ends: Vec<EndId>,
    outputs: Outputs,
    interrupt: Interrupt,
}

/// Runs the command.
pub fn run(args: &GenerateArgs) -> Result<Exit, CommandError> {
    let start = Instant::now();
    args.check()?;
    let folder = args.checkpoint.folder()?;
    args.claim(&folder)?;
    let interrupt = Interrupt::listen();
    let outputs = Outputs::create(args)?;
    let kernels = Kernels::fastest();
    let layers = args.model.layers.map(|layers| layers as usize);
    let trunk = args.model.trunk.as_deref();
    let mut files = ModelFiles::open(&folder, layers, trunk)?;
    files.shape.mla_norm_eps = args.mla_norm_eps;
    say_layers(&files);
    let text = RunText::open(args, &folder, files.config.vocab_size)?;
    let identity = identity(args, &files)?;
    let saved = open_state(args, &files, identity)?;
    let mut request = request(args, &files, text.as_ref(), saved.as_ref())?;
    let ends = ends(args, &folder, &files, text.as_ref())?;
    request.stop_ids = ends.iter().flat_map(|end| end.ids.clone()).collect();
    let of_state = files.demand(request.positions(), 1);
    let of_state = of_state.state_bytes();
    let of_logits = 4 * request.count as u64 * files.config.vocab_size as u64;
    for (path, bytes) in [(&args.save_state, of_state), (&args.dump_logits, of_logits)] {
        path.as_deref().map_or(Ok(()), |path| output::check_space(path, bytes))?;
    }
    let prepared = Prepared {
        start,
        folder,
        kernels,
        files,
        identity,
        saved,
        text,
        request,
        ends,
        outputs,
        interrupt,
    };
    execute(args, prepared)
}

/// Prepares the run: its memory plan, printed before anything is allocated, and its options.
fn choose(
    args: &GenerateArgs,
    prepared: &Prepared,
) -> Result<(MemoryPlan, EngineOptions, StreamOptions), CommandError> {
    let positions = prepared.request.positions();
    let rows = if args.tf_check { args.model.prefill_chunk as usize } else { 1 };
    let tokenizer = prepared.text.as_ref().map(|text| text.held_bytes);
    let threads = args.threads.count();
    let plan = plan(&args.model, &prepared.files, (positions, rows), tokenizer, threads)?;
    eprint_text(&format!("memory plan\n{}", plan.table().text()));
    let options = EngineOptions {
        threads,
        chunk_tokens: (args.model.prefill_chunk as usize).min(positions.max(1)),
    };
    let mut stream = StreamOptions::of_plan(&plan, args.policy, streams_vocabulary(&args.model));
    if args.save_state.is_none() {
        // A state is consistent only between forward passes: with --save-state the current one
        // completes.
        stream.stop = prepared.interrupt.clone();
    }
    Ok((plan, options, stream))
}

/// Plans, allocates, computes, reports.
fn execute(args: &GenerateArgs, prepared: Prepared) -> Result<Exit, CommandError> {
    let (plan, options, stream) = choose(args, &prepared)?;
    let Prepared { kernels, files, identity, saved, text, request, ends, interrupt, .. } = prepared;
    let streamed = match files.engine(kernels, &stream, options) {
        Err(ModelError::Engine(EngineError::Interrupted)) => {
            let error = anyhow::anyhow!("interrupted before the first step: no id was chosen");
            return Err(CommandError::new(error, Exit::Incomplete));
        }
        streamed => streamed?,
    };
    let said = say_direct(&streamed);
    let mut sequence = EngineSequence::new(Arc::clone(&streamed.engine));
    let positions = request.positions();
    sequence.state.reserve(&files.shape, positions);
    if let Some(saved) = &saved {
        let loaded = saved.load_into(&mut sequence.state);
        loaded?;
    }
    let header = trace_header(&files, &stream, identity);
    let shown = (TextOutput::new(args, text.as_ref()), args.only_stdout());
    let mut watch = RunWatch::new(&streamed, prepared.outputs, header, interrupt, shown)?;
    let computed = compute(args, &mut sequence, &request, &mut watch)?;
    if watch.reader_left() {
        return Ok(Exit::Conforms);
    }
    let (steps, pending) =
        if computed.complete { watch.finish()? } else { (watch.give_up()?, Pending::new()) };
    if !said {
        // Some file systems refuse direct reads at the first read, not at open.
        say_direct(&streamed);
    }
    let state = (&sequence, &request, &computed);
    let saved = save_state(args, &files, identity, state)?;
    for file in pending {
        file.finish()?;
    }
    let generated = text.as_ref().filter(|_| !args.tf_check);
    let generated = generated.map(|text| text.decode(&computed.generated.ids));
    let mut inputs = vec![prepared.folder.display().to_string()];
    let vocabulary = text.as_ref().and_then(|text| text.folder.as_ref());
    inputs.extend(vocabulary.map(|folder| folder.display().to_string()));
    let report = RunReport {
        schema: SCHEMA,
        complete: computed.complete,
        checkpoint_identity: identity.map(|identity| identity.to_string()),
        prompt_ids: request.ids.clone(),
        ids_asked: request.count,
        generated_ids: computed.generated.ids,
        generated_text: generated.transpose()?,
        stopped_by: computed.generated.stopped_by,
        stopped_by_source: computed.generated.stopped_by.map(|id| sources(&ends, id)),
        vocab_size: files.config.vocab_size,
        logits_file: args.dump_logits.as_ref().filter(|_| computed.complete).map(|path| {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            path.display().to_string()
        }),
        teacher_forcing: computed.forced,
        settings: settings(args, &files, &streamed, text.as_ref(), kernels.path, options),
        totals: totals(&streamed, &steps, computed.seconds),
        steps,
        peak: peak(&plan),
        plan,
        provenance: Provenance::since(prepared.start, options.threads, inputs),
    };
    eprint_text(&report.summary().text());
    deliver(args, &report, saved)
}

/// The result of a run.
struct Computed {
    generated: Generated,
    forced: Option<TeacherForcing>,
    /// Whether it ran to completion.
    complete: bool,
    /// Seconds from the first pass to the last.
    seconds: f64,
}

/// Generates, or checks by teacher forcing.
fn compute(
    args: &GenerateArgs,
    sequence: &mut EngineSequence,
    request: &Request,
    watch: &mut RunWatch<'_>,
) -> Result<Computed, CommandError> {
    let chose = |ids| Generated { ids, stopped_by: None };
    let start = Instant::now();
    let computed = if args.tf_check {
        let forced = run::teacher_forcing(sequence, &request.ids, watch);
        forced.map(|forced| (chose(Vec::new()), Some(forced)))
    } else {
        let generated = run::generate(sequence, request, watch);
        generated.map(|generated| (generated, None))
    };
    let seconds = start.elapsed().as_secs_f64();
    match computed {
        Ok((generated, forced)) => Ok(Computed { generated, forced, complete: true, seconds }),
        Err(EngineError::Interrupted) => Ok(Computed {
            generated: chose(watch.chosen()),
            forced: None,
            complete: false,
            seconds,
        }),
        Err(error) => Err(error.into()),
    }
}

/// The error of an interrupted run: how far it got, and how to resume.
fn interrupted(args: &GenerateArgs, report: &RunReport, saved: bool) -> CommandError {
    let error = CommandError::new(anyhow::anyhow!(report.progress()), Exit::Incomplete);
    match &args.save_state {
        Some(path) if saved => {
            let path = path.display();
            error.hint(format!("--load-state {path} continues from there"))
        }
        Some(_) => error.hint("no forward pass completed, so no state was written"),
        None if args.tf_check || args.full_recompute => {
            error.hint("logits and traces are written by whole runs only")
        }
        None => error.hint(
            "logits and traces are written by whole runs only; with --save-state FILE an \
             interrupted run can be continued",
        ),
    }
}

/// Writes the report to stdout and `--out`.
fn deliver(args: &GenerateArgs, report: &RunReport, saved: bool) -> Result<Exit, CommandError> {
    let line = match &report.teacher_forcing {
        Some(forced) => format!("{} of {}\n", forced.tf_matches, forced.tf_positions),
        None => format!("{}\n", join(&report.generated_ids)),
    };
    let document = report.document();
    let [json, _] = output::write_report(&args.output, report, &document)?;
    if args.output.format == Format::Json {
        output::print(&json)?;
    }
    output::write_page(&args.output, &document)?;
    if !report.complete {
        // An incomplete list of ids is not a result: it appears in the error line and the report
        // only.
        return Err(interrupted(args, report, saved));
    }
    if args.output.format == Format::Json || report.generated_text.is_some() {
        // Text was already streamed.
        return Ok(Exit::Conforms);
    }
    output::print(&line)?;
    Ok(Exit::Conforms)
}

/// Text for people watching; a closed stderr is not an error.
pub fn eprint_text(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

fn say_layers(files: &ModelFiles) {
    let (run, all) = (files.shape.layers.len(), files.config.num_hidden_layers);
    if run < all {
        eprint_text(&format!(
            "NOTE: only the first {run} of {all} layers run: the ids are not the model's\n"
        ));
    }
}

/// Prints one note if files are read through the page cache; returns whether it did.
fn say_direct(streamed: &StreamedEngine) -> bool {
    let files = streamed.layers.files().iter().chain(streamed.experts.files());
    let cached = files.into_iter().find(|file| !file.is_direct());
    if let Some(file) = cached {
        let path = file.path().display();
        eprint_text(&format!(
            "note: {path} does not support direct reads and is read through the page cache\n"
        ));
    }
    cached.is_some()
}

/// The checkpoint identity, if an output of this run is bound to it. A partial checkpoint has none.
fn identity(args: &GenerateArgs, files: &ModelFiles) -> Result<Option<Identity>, CommandError> {
    let bound = args.save_state.is_some() || args.load_state.is_some();
    match files.identity() {
        Ok(identity) => Ok(Some(identity)),
        Err(error) if bound => Err(error.into()),
        Err(_) => Ok(None),
    }
}

fn open_state(
    args: &GenerateArgs,
    files: &ModelFiles,
    identity: Option<Identity>,
) -> Result<Option<SavedState>, CommandError> {
    let (Some(path), Some(identity)) = (&args.load_state, identity) else {
        return Ok(None);
    };
    let saved = SavedState::open(path)?;
    let ours = Header::new(identity, args.mla_norm_eps, &files.shape, 0, Vec::new());
    saved.check(&ours)?;
    Ok(Some(saved))
}

/// The sequence to continue; ids outside the vocabulary are refused before any work.
fn request(
    args: &GenerateArgs,
    files: &ModelFiles,
    text: Option<&RunText>,
    saved: Option<&SavedState>,
) -> Result<Request, CommandError> {
    let vocabulary = files.config.vocab_size;
    let prompt = text.map(|text| text.prompt(args)).transpose()?.flatten();
    let typed = args.ids.as_ref().map(|ids| &ids.0[..]);
    let given = typed.or(prompt.as_deref()).unwrap_or_default();
    if given.is_empty() && saved.is_none() {
        return Err(usage("the prompt is empty"));
    }
    if args.tf_check {
        enough_to_check(given.len())?;
    }
    let outside = |id: &&u32| **id as usize >= vocabulary;
    if let Some(id) = given.iter().chain(&args.stop_id).find(outside) {
        return Err(usage(format!(
            "token id {id}: the vocabulary has {vocabulary} ids, 0 to {}",
            vocabulary - 1
        )));
    }
    let mut ids = saved.map_or(Vec::new(), |saved| saved.header.ids.clone());
    let fed = saved.map_or(0, |saved| saved.header.position);
    ids.extend_from_slice(given);
    if ids.len() == fed {
        return Err(usage(
            "every id of the state has been fed: give --ids or --prompt to continue".to_owned(),
        ));
    }
    Ok(Request {
        ids,
        count: if args.tf_check { 0 } else { args.r#gen as usize },
        stop_ids: Vec::new(),
        full_recompute: args.full_recompute,
    })
}

/// The ids that end the run: those that were typed, and those of the checkpoint's files.
fn ends(
    args: &GenerateArgs,
    folder: &Path,
    files: &ModelFiles,
    text: Option<&RunText>,
) -> Result<Vec<EndId>, CommandError> {
    let mut ends = Vec::new();
    if !args.stop_id.is_empty() {
        let (file, field) = (String::new(), "--stop-id".to_owned());
        ends.push(EndId { file, field, ids: args.stop_id.clone(), token: None });
    }
    if !args.ignore_eos && !args.tf_check {
        let texts = args.tokenizer.as_deref().unwrap_or(folder);
        let named = end_ids(folder, &files.config, texts, text.map(|text| &text.tokenizer));
        let hint = "--ignore-eos goes on without the end ids of the checkpoint";
        ends.extend(named.map_err(|error| CommandError::from(error).hint(hint))?);
    }
    Ok(ends)
}

/// What names an id as an end.
fn sources(ends: &[EndId], id: u32) -> String {
    let naming = ends.iter().filter(|end| end.ids.contains(&id));
    let places = naming.map(|end| format!("{} {}", end.file, end.field).trim_start().to_owned());
    places.collect::<Vec<_>>().join(", ")
}

fn trace_header(
    files: &ModelFiles,
    stream: &StreamOptions,
    identity: Option<Identity>,
) -> k3_cache::trace::v1::Header {
    use k3_cache::slot_table::{Requests, Reserve};
    let mut header =
        k3_cache::trace::v1::Header::of_shape(k3_engine::stream::experts::sizes(&files.shape));
    header.trunk_bytes = files.trunk_bytes();
    header.head_bytes = 2 * (files.shape.vocab * files.shape.hidden) as u64;
    header.checkpoint_identity = identity.map_or([0; 32], |identity| identity.0);
    header.slot_count = stream.expert_slots as u32;
    header.requests = Some(Requests::Union);
    header.reserve = Some(Reserve::Late);
    header.policy = stream.policy.name().to_owned();
    header
}

/// Writes the state if asked to. An abandoned pass leaves no consistent state. Returns whether it
/// was written.
fn save_state(
    args: &GenerateArgs,
    files: &ModelFiles,
    identity: Option<Identity>,
    (sequence, request, computed): (&EngineSequence, &Request, &Computed),
) -> Result<bool, CommandError> {
    let position = sequence.state.position;
    let (Some(path), Some(identity)) = (&args.save_state, identity) else {
        return Ok(false);
    };
    if !computed.complete && position == 0 {
        return Ok(false);
    }
    let ids = [&request.ids[..], &computed.generated.ids].concat();
    let header = Header::new(identity, args.mla_norm_eps, &files.shape, position, ids);
    save(path, &header, &sequence.state)?;
    Ok(true)
}

fn settings(
    args: &GenerateArgs,
    files: &ModelFiles,
    streamed: &StreamedEngine,
    text: Option<&RunText>,
    path: KernelPath,
    options: EngineOptions,
) -> Settings {
    let mut read = streamed.layers.files().iter().chain(streamed.experts.files());
    Settings {
        layers: files.shape.layers.len(),
        layers_of_model: files.config.num_hidden_layers,
        mla_norm_eps: args.mla_norm_eps,
        policy: args.policy.name(),
        prefill_chunk: options.chunk_tokens,
        full_recompute: args.full_recompute,
        packed_trunk: args.model.trunk.is_some(),
        streamed_vocabulary: streams_vocabulary(&args.model),
        vocabulary_of_text: text.map(|text| text.source),
        kernel_path: path.name(),
        direct_reads: read.all(|file| file.is_direct()),
    }
}

/// `computed_seconds` is the time of a run without steps (teacher forcing).
fn totals(
    streamed: &StreamedEngine,
    steps: &[k3_engine::generate::report::StepRow],
    computed_seconds: f64,
) -> Totals {
    let (trunk, experts) = (streamed.layers.counters(), streamed.experts.counters());
    let (seconds, waited) = if steps.is_empty() {
        let waited = trunk.wait_nanoseconds + experts.wait_nanoseconds;
        (computed_seconds, waited as f64 / 1e9)
    } else {
        let seconds = steps.iter().map(|row| row.step.seconds).sum();
        (seconds, steps.iter().map(|row| row.wait_seconds).sum())
    };
    let requests = experts.table.hits + experts.table.misses;
    let percent = |part: f64, whole: f64| {
        if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
    };
    Totals {
        experts: experts.table,
        expert_bytes: experts.read_bytes,
        trunk_bytes: trunk.used_bytes,
        trunk_read_bytes: trunk.read_bytes,
        pinned_bytes: trunk.pinned_bytes,
        layer_uses: trunk.uses,
        layer_pinned_uses: trunk.pinned_uses,
        layer_ready_uses: trunk.ready_uses,
        seconds,
        io_share_percent: percent(waited, seconds),
        hit_percent: percent(experts.table.hits as f64, requests as f64),
    }
}

fn peak(plan: &MemoryPlan) -> Option<Peak> {
    let peak = memory::peak_resident_bytes()?;
    let tolerated = plan.tolerated_bytes();
    Some(Peak {
        planned_bytes: plan.total_bytes,
        peak_resident_bytes: peak,
        tolerated_bytes: tolerated,
        within: peak.abs_diff(plan.total_bytes) <= tolerated,
    })
}

/// Output files of a run that are still under temporary names.
type Pending = Vec<PendingFile>;
