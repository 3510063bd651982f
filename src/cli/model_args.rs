//! Arguments shared by commands on a checkpoint: folder, ids, epsilon. `K3_MODEL`, the only
//! environment variable, names an input and is read only here.

use std::path::{Path, PathBuf};

use clap::Args;

use super::output::{self, CommandError, bad_input};
use k3_checkpoint::Checkpoint;
use k3_core::config::RawConfig;
use k3_gates::layers::range::LayerRange;

/// Token ids as typed: decimal numbers separated by commas and nothing else, so that no typo
/// becomes another id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ids(pub Vec<u32>);

/// Reads `1,2,3`.
pub fn parse_ids(text: &str) -> Result<Ids, String> {
    super::sizes::parse_ids(text).map(Ids)
}

/// A positive, finite number.
pub fn parse_epsilon(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("expected a positive, finite number".to_owned()),
    }
}

/// A usage error in one line with a hint.
pub fn usage(message: impl std::fmt::Display, hint: &str) -> CommandError {
    output::usage(message).hint(hint)
}

/// The folder that `K3_MODEL` names; an empty value names none.
fn named_by_environment() -> Option<PathBuf> {
    let value = std::env::var_os("K3_MODEL").filter(|value| !value.is_empty());
    value.map(PathBuf::from)
}

/// The checkpoint: the first positional argument, `--model`, or `K3_MODEL`.
#[derive(Debug, Clone, Args)]
pub struct CheckpointArgs {
    /// Checkpoint folder [default: K3_MODEL]
    #[arg(value_name = "MODEL")]
    argument: Option<PathBuf>,
    /// Checkpoint folder, given by name
    #[arg(long = "model", value_name = "DIR", conflicts_with = "argument")]
    flag: Option<PathBuf>,
}

impl CheckpointArgs {
    /// The folder.
    ///
    /// # Errors
    /// No folder given (2); none there (3).
    pub fn folder(&self) -> Result<PathBuf, CommandError> {
        model_dir(self.argument.as_deref().or(self.flag.as_deref()))
    }
}

/// The folder given, or the one that `K3_MODEL` names.
pub fn named_model(given: Option<&Path>) -> Option<PathBuf> {
    given.map(Path::to_path_buf).or_else(named_by_environment)
}

/// The error for two checkpoints where one is expected.
pub fn given_twice() -> CommandError {
    usage("a checkpoint is given twice, as MODEL and with --model", "give it once")
}

/// Layers as typed.
///
/// # Errors
///
/// What is not of the form `0..92`, `7`, `0,3,91..92` or `all` (2).
pub fn parse_range(text: &Path) -> Result<LayerRange, CommandError> {
    Ok(text.to_string_lossy().parse::<LayerRange>()?)
}

/// The checkpoint, if one is named, and the argument after it, from `[MODEL] LAST`, `--model` and
/// `K3_MODEL`; `last` names the other argument in messages.
pub fn model_and_last(
    places: &[PathBuf],
    flag: Option<&Path>,
    last: &str,
) -> Result<(Option<PathBuf>, PathBuf), CommandError> {
    match (places, flag) {
        ([model, out], None) => Ok((Some(model.clone()), out.clone())),
        ([_, _], Some(_)) => Err(given_twice()),
        ([out], flag) => Ok((named_model(flag), out.clone())),
        _ => Err(usage(format!("expected [MODEL] {last}"), "see --help")),
    }
}

/// The same for commands that need a checkpoint and an output.
pub fn model_and_out(
    places: &[PathBuf],
    flag: Option<&Path>,
) -> Result<(PathBuf, PathBuf), CommandError> {
    match model_and_last(places, flag, "OUT")? {
        (Some(model), out) => Ok((model, out)),
        (None, _) => Err(usage(
            "no checkpoint: expected MODEL before OUT, --model DIR or K3_MODEL",
            "a checkpoint is a folder with config.json, shards and their index",
        )),
    }
}

/// The config of a folder.
///
/// # Errors
/// It cannot be read, or is refused (3).
pub fn read_config(folder: &Path) -> Result<RawConfig, CommandError> {
    Ok(k3_checkpoint::config::read(&folder.join("config.json"))?)
}

/// Checks that the folder is one.
///
/// # Errors
/// No folder given (2); none there (3).
pub fn model_dir(given: Option<&Path>) -> Result<PathBuf, CommandError> {
    let Some(folder) = named_model(given) else {
        let hint = "name the folder that holds config.json, or set K3_MODEL";
        return Err(usage("no checkpoint folder was given", hint));
    };
    if folder.is_dir() {
        return Ok(folder);
    }
    let what = if folder.exists() { "not a folder" } else { "no such folder" };
    let error = anyhow::anyhow!("{}: {what}", folder.display());
    Err(bad_input(error).hint("a checkpoint is a folder with config.json and *.safetensors"))
}

/// Opens a checkpoint, whole or partial.
///
/// # Errors
/// It cannot be opened (3).
pub fn open_partial(folder: &Path) -> Result<Checkpoint, CommandError> {
    Ok(Checkpoint::open_partial(folder)?)
}

/// Refuses ids outside the vocabulary.
pub fn check_ids(ids: &[u32], config: &RawConfig) -> Result<(), CommandError> {
    match ids.iter().find(|id| **id as usize >= config.vocab_size) {
        None => Ok(()),
        Some(id) => Err(usage(
            format!("--ids: expected ids below {}, got {id}", config.vocab_size),
            "the vocabulary's size is vocab_size in config.json",
        )),
    }
}
