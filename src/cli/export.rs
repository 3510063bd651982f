//! `export DIR`: the shipped fixtures and evidence sets, written to disk.
//!
//! `DIR` then serves `gates --fixtures DIR`, and `DIR/tiny` is an evidence set for `gates
//! --evidence`. The twins ship as differences from the tiny oracle; `--sets` writes all as complete
//! evidence sets instead.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use super::model_args::usage;
use super::output::{self, CommandError, OutputArgs, bad_input};
use k3_core::exit::Exit;
use k3_core::host::claims::Output;
use k3_core::host::files::{self, Scratch, folder_of, scratch_folder};
use k3_gates::fixtures::{Fixtures, TWINS, hex_sha256};
use k3_render::Document;

/// Arguments of `export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Folder to create; it must not exist yet, or be empty
    dir: PathBuf,
    /// Write only the evidence sets tiny, mild and faint, each with its checkpoint
    #[arg(long)]
    sets: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the command.
pub fn run(args: &ExportArgs) -> Result<Exit, CommandError> {
    output::claim(&args.output, &[], &[Output::Folder(&args.dir)])?;
    let fixtures = Fixtures::embedded()?;
    let made = NewFolder::beside(&args.dir)?;
    if args.sets {
        copy_below(&fixtures.root.join("tiny"), &made.path().join("tiny"))?;
        for twin in TWINS {
            let set = made.path().join(twin);
            copy_below(&fixtures.compose_twin(twin)?, &set.join("model"))?;
            for name in ["expected.json", "expected.safetensors"] {
                copy_file(&fixtures.root.join(twin).join(name), &set.join(name))?;
            }
        }
        for set in ["tiny"].iter().chain(&TWINS) {
            state_digest(&made.path().join(set))?;
        }
    } else {
        copy_below(&fixtures.root, made.path())?;
    }
    let files = files_below(made.path());
    made.keep(&args.dir)?;
    let mut document = Document::new(format!("{} files: {}", files.len(), args.dir.display()));
    for file in &files {
        document.line(file.as_str());
    }
    let json = serde_json::json!({"schema": "k3-verify/export/1", "files": files});
    output::deliver(&args.output, &json, &document)?;
    Ok(Exit::Conforms)
}

/// Adds the digest of the answers to those of the checkpoint. Fixtures have it in their manifest.
fn state_digest(set: &Path) -> Result<(), CommandError> {
    let path = set.join("expected.json");
    let hash = || -> std::io::Result<()> {
        let digest = hex_sha256(&files::read(&set.join("expected.safetensors"))?);
        let key = "\"sha256\": {";
        let with = format!("{key}\n  \"expected.safetensors\": \"{digest}\",");
        let text = files::read_to_string(&path)?.replacen(key, &with, 1);
        files::replace_file(&path, text.as_bytes())
    };
    hash().map_err(|error| cannot_write(&path, &error))
}

/// A folder under a temporary name, renamed when it is complete.
pub struct NewFolder(Scratch);

impl NewFolder {
    /// Creates it next to `target`, whose name it will get.
    pub fn beside(target: &Path) -> Result<Self, CommandError> {
        let in_use = match fs::read_dir(target) {
            Ok(mut entries) => entries.next().is_some(),
            Err(_) => target.symlink_metadata().is_ok(),
        };
        if in_use {
            let message = format!("{}: expected a new or empty folder", target.display());
            return Err(usage(message, "existing files are never overwritten"));
        }
        scratch_folder(".k3-verify-", Some(folder_of(target)))
            .map(Self)
            .map_err(|error| cannot_write(target, &error))
    }

    /// Where to write.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Renames it to `target`.
    pub fn keep(self, target: &Path) -> Result<(), CommandError> {
        use std::os::unix::fs::PermissionsExt as _;
        // With the permissions of an ordinary folder; an empty `target` is replaced.
        let ordinary = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.path(), ordinary)
            .and_then(|()| fs::rename(self.path(), target))
            .map_err(|error| cannot_write(target, &error))?;
        // The temporary name is gone, so dropping must not try to remove it.
        self.0.keep();
        Ok(())
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> CommandError {
    let error = anyhow::anyhow!("{}: cannot write: {error}", path.display());
    bad_input(error)
}

/// Copies every file below a folder.
pub fn copy_below(from: &Path, to: &Path) -> Result<(), CommandError> {
    for file in files_below(from) {
        copy_file(&from.join(&file), &to.join(&file))?;
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> Result<(), CommandError> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(|error| cannot_write(folder, &error))?;
    }
    fs::copy(from, to).map_err(|error| cannot_write(to, &error))?;
    Ok(())
}

/// Paths of all files below `root`, relative to it, sorted; links to files count as files.
pub fn files_below(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder)).into_iter().flatten().flatten() {
            let name = format!("{folder}{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                folders.push(name + "/");
            } else {
                found.push(name);
            }
        }
    }
    found.sort();
    found
}
