//! Which checkpoint folder a command works on: the argument, or `K3_MODEL`. The variable names an
//! input and is read here alone.

use std::path::{Path, PathBuf};

use super::output::CommandError;
use crate::checkpoint::Checkpoint;
use crate::config::RawConfig;
use crate::exit::Exit;

/// The folder, which has to be one.
///
/// # Errors
/// No folder given (2); none there (3).
pub fn model_dir(given: Option<&Path>) -> Result<PathBuf, CommandError> {
    let from_environment = || std::env::var_os("K3_MODEL").map(PathBuf::from);
    let Some(folder) = given.map(Path::to_path_buf).or_else(from_environment) else {
        let error = anyhow::anyhow!("no checkpoint folder was given");
        return Err(CommandError::new(error, Exit::Usage)
            .hint("name the folder that holds config.json, or set K3_MODEL"));
    };
    if folder.is_dir() {
        return Ok(folder);
    }
    let what = if folder.exists() {
        "not a folder"
    } else {
        "no such folder"
    };
    let error = anyhow::anyhow!("{}: {what}", folder.display());
    Err(CommandError::new(error, Exit::BadInput)
        .hint("a checkpoint is a folder with config.json and *.safetensors"))
}

/// The config of a folder.
///
/// # Errors
/// It cannot be read, or is refused (3).
pub fn read_config(folder: &Path) -> Result<RawConfig, CommandError> {
    RawConfig::read(&folder.join("config.json")).map_err(|error| {
        CommandError::new(error, Exit::BadInput)
            .hint("the config of another model, or of a copy without its config, is not guessed at")
    })
}

/// What there is of a checkpoint.
///
/// # Errors
/// It cannot be opened (3).
pub fn open_partial(folder: &Path) -> Result<Checkpoint, CommandError> {
    Checkpoint::open_partial(folder).map_err(|error| {
        CommandError::new(error, Exit::BadInput)
            .hint("k3-verify check looks at every file by itself")
    })
}
