//! `plan`: the memory of a run by component, before it is allocated; with RANGE, a `layers` run.

use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, Args};

use super::generate::{self, ModelArgs};
use super::model_args::{given_twice, model_and_last, model_dir, parse_range, usage};
use super::output::{self, CommandError, OutputArgs};
use super::plan_layers::{self, Emit, PlanLayersArgs};
use k3_core::exit::Exit;
use k3_core::host::memory;
use k3_core::host::provenance::default_threads;
use k3_engine::memory::plan::in_units;
use k3_engine::stream::ModelFiles;
use k3_gates::layers::range::LayerRange;
use k3_render::Document;
use k3_text::K3_VOCABULARY;

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The checkpoint, unless --model or K3_MODEL names it: the memory of `generate` on it is
    /// planned. With a RANGE (both ends included, 0..92 is all 93 layers) a `layers` run is: config
    /// and index are enough for that, and without a checkpoint the release is planned
    #[arg(value_name = "[MODEL] [RANGE]", num_args = 0..=2)]
    places: Vec<PathBuf>,
    /// The checkpoint
    #[arg(long = "model", value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    #[command(flatten)]
    of_layers: PlanLayersArgs,
    #[command(flatten)]
    model: ModelArgs,
    /// Length in positions that the sequence may reach
    #[arg(long, value_name = "N", default_value_t = 4096,
        value_parser = clap::value_parser!(u32).range(1..=1 << 28))]
    positions: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the command.
///
/// # Errors
/// [`CommandError`]: a model that cannot be read (3), a run that would not fit (5).
pub fn run(args: &PlanArgs, typed: &ArgMatches) -> Result<Exit, CommandError> {
    let (model, range) = places(args)?;
    refuse_without_effect(typed, range.is_some(), args.of_layers.emit)?;
    if let Some(range) = range {
        return plan_layers::run(&args.of_layers, &range, model.as_deref(), &args.output);
    }
    let folder = model_dir(model.as_deref())?;
    let layers = args.model.layers.map(|layers| layers as usize);
    let trunk = args.model.trunk.as_deref();
    let read: Vec<_> = trunk.into_iter().chain([&*folder]).collect();
    output::claim(&args.output, &read, &[])?;
    let files = ModelFiles::open(&folder, layers, trunk)?;
    let positions = args.positions as usize;
    // A model with text output needs a tokenizer, which is not open yet.
    let tokenizer = (files.config.vocab_size == K3_VOCABULARY).then_some(0);
    let threads = default_threads();
    let plan = generate::plan(&args.model, &files, (positions, 1), tokenizer, threads)?;
    let available = memory::available();
    let say = |bytes: Option<u64>| bytes.map_or("not known".to_owned(), in_units);
    let mut document = Document::new(format!("memory plan for {positions} positions"));
    document.table(plan.table());
    let limit = |bytes: Option<u64>| bytes.map_or("no limit".to_owned(), in_units);
    document.line(format!(
        "free on this machine {}, in its control group {}, in its address space {}",
        say(available.machine_bytes),
        limit(available.group_bytes),
        limit(available.address_bytes),
    ));
    let json = serde_json::json!({
        "schema": "k3-verify/plan/1",
        "positions": positions,
        "latent_bytes_per_position": files.demand(positions, 1).latent_bytes_per_position(),
        "plan": plan,
        "provenance": {
            "machine_bytes": available.machine_bytes,
            "group_bytes": available.group_bytes,
            "group_limit_bytes": available.group_limit_bytes,
            "address_bytes": available.address_bytes,
        },
    });
    output::deliver(&args.output, &json, &document)?;
    Ok(Exit::Conforms)
}

/// The checkpoint and the range from `[MODEL] [RANGE]`. A single argument is the checkpoint if such
/// a folder exists or it cannot be a range.
fn places(args: &PlanArgs) -> Result<(Option<PathBuf>, Option<LayerRange>), CommandError> {
    let like_a_range = |text: &str| {
        text == "all" || text.chars().all(|c| c.is_ascii_digit() || "., -".contains(c))
    };
    let flag = args.checkpoint.as_deref();
    let (model, range) = match &args.places[..] {
        [] => (flag.map(Path::to_path_buf), None),
        [one] if one.is_dir() || !like_a_range(&one.to_string_lossy()) => match flag {
            Some(_) => return Err(given_twice()),
            None => (Some(one.clone()), None),
        },
        places => {
            let (model, range) = model_and_last(places, flag, "RANGE")?;
            (model, Some(parse_range(&range)?))
        }
    };
    Ok((model, range))
}

/// Refuses options that would change nothing: those of a run without a RANGE, those of a RANGE, and
/// of these those that what is emitted does not show.
fn refuse_without_effect(
    typed: &ArgMatches,
    is_range: bool,
    emit: Emit,
) -> Result<(), CommandError> {
    let of_runs = [
        "trunk",
        "memory",
        "preset",
        "trunk_gb",
        "cache_gb",
        "expert_slots",
        "ring",
        "prefill_chunk",
        "layers",
        "positions",
    ];
    let of_ranges = ["parts", "emit", "scheduler", "tokens", "base_url"];
    let (others, what, hint) = match (is_range, emit) {
        (false, _) => (&of_ranges[..], "without a RANGE of layers", "give a RANGE such as 0..92"),
        (true, _) => (&of_runs[..], "to a RANGE of layers", "leave out RANGE, or the option"),
    };
    let shown: &[&str] = match emit {
        Emit::List => &["scheduler", "base_url"],
        Emit::Urls => &["scheduler", "tokens", "parts"],
        Emit::Script => &[],
    };
    let is_typed = |id: &&&str| typed.value_source(id) == Some(ValueSource::CommandLine);
    let option = |id: &str| format!("--{}", id.replace('_', "-"));
    if let Some(id) = others.iter().find(is_typed) {
        return Err(usage(format!("{} does not apply {what}", option(id)), hint));
    }
    let unseen = shown.iter().find(is_typed).filter(|_| is_range);
    unseen.map_or(Ok(()), |id| {
        let message = format!("{} does not change what this --emit prints", option(id));
        Err(usage(message, "--emit script uses it"))
    })
}
