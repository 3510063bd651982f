//! The files of a checkpoint as files: what they are, whether they are whole, and whether each has
//! the size that was published.
//!
//! Every shard is opened by itself, so that one damaged file does not hide the next.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use super::{Finding, Findings};
use k3_checkpoint::Malformed;
use k3_checkpoint::foreign::{Foreign, SNIFF_BYTES};
use k3_checkpoint::index::INDEX_FILE;
use k3_checkpoint::name_table::NameTable;
use k3_checkpoint::shard::Shard;
use k3_core::config::RawConfig;
use k3_synth::{Layout, Overrides, Preset, SynthError, SynthModel};

/// The files of the folder.
#[derive(Debug, Clone, Default)]
pub struct Files {
    /// Bytes of each shard that is there, by file name.
    pub shards: BTreeMap<String, u64>,
    /// Files that are not what their name says, cut short, or damaged in the header.
    pub findings: Findings,
    /// Files that cannot be read, and why: nothing is known of them.
    pub unreadable: BTreeMap<String, String>,
}

/// Looks at every file of the folder.
///
/// # Errors
/// The folder cannot be listed.
pub fn look(folder: &Path) -> io::Result<Files> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    let mut files = Files::default();
    for name in names {
        let path = folder.join(&name);
        let is_shard = name.ends_with(".safetensors") && !name.starts_with('.');
        let what = if let Some(foreign) = Foreign::of_name(&path) {
            Some(foreign.to_string())
        } else if let Some(why) = unreadable(&path, is_shard || name == INDEX_FILE) {
            files.unreadable.insert(name, why);
            continue;
        } else if is_shard {
            match Shard::open(&path, &mut NameTable::new()) {
                Ok((shard, _)) => {
                    files.shards.insert(name.clone(), shard.file_bytes());
                    None
                }
                Err(error) => Some(error.problem.to_string()),
            }
        } else {
            sniff(&path).map(|foreign| foreign.to_string())
        };
        if let Some(what) = what {
            files.findings.push(Finding { file: name, tensor: None, what });
        }
    }
    Ok(files)
}

/// Why a file cannot be read. What is no regular file is none of the checkpoint's, unless it has
/// such a file's name (`is_needed`).
fn unreadable(path: &Path, is_needed: bool) -> Option<String> {
    let reason = k3_core::host::files::open(path).err()?;
    let is_other = fs::metadata(path).is_ok_and(|found| !found.is_file());
    let why = || Malformed::unreadable(path, &reason).problem.to_string();
    (is_needed || !is_other).then(why)
}

/// What another file turns out to be; folders are not looked into.
fn sniff(path: &Path) -> Option<Foreign> {
    let mut first_bytes = Vec::new();
    let file = k3_core::host::files::open(path).ok()?;
    file.take(SNIFF_BYTES as u64).read_to_end(&mut first_bytes).ok()?;
    Foreign::of_content(&first_bytes)
}

/// Whether the config is the release's, so that the published sizes apply.
#[must_use]
pub fn is_released(config: &RawConfig) -> bool {
    released().is_ok_and(|model| {
        let mut released = model.config;
        // Control ids change no size.
        released.token_ids.clone_from(&config.token_ids);
        let sizes = |c: &RawConfig| {
            (
                [c.hidden_size, c.vocab_size, c.num_hidden_layers, c.num_experts],
                [c.routed_expert_hidden_size, c.moe_intermediate_size, c.intermediate_size],
                (c.kda_layers.clone(), c.full_attn_layers.clone()),
            )
        };
        sizes(&released) == sizes(config)
    })
}

fn released() -> Result<SynthModel, SynthError> {
    SynthModel::new(Preset::K3, Overrides::default(), 0)
}

/// The 96 published shards: file name and bytes. Worked out from names, dtypes, shapes and the
/// order in which the release stores them.
///
/// # Errors
/// None for the released model.
pub fn published() -> Result<Vec<(String, u64)>, SynthError> {
    let model = released()?;
    let layout = Layout { model: &model, vision: true };
    let size = |index| {
        let plan = layout.shard(index)?;
        Ok((plan.file, plan.layout.file_bytes))
    };
    (0..layout.shard_count()).map(size).collect()
}

/// Compares the shards present with the published sizes; returns the absent ones too.
#[must_use]
pub fn compare_sizes(files: &Files, published: &[(String, u64)]) -> (Findings, Vec<String>) {
    let (mut findings, mut absent) = (Findings::default(), Vec::new());
    for (name, expected) in published {
        match files.shards.get(name) {
            Some(got) if got != expected => findings.push(Finding {
                file: name.clone(),
                tensor: None,
                what: format!("expected {expected} bytes as published, got {got}"),
            }),
            Some(_) => {}
            None if files.unreadable.contains_key(name) => {
                absent.push(format!("{name} (cannot be read)"));
            }
            None => absent.push(name.clone()),
        }
    }
    (findings, absent)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Root may read everything, so what is refused here is a folder and a link to nothing.
    #[test]
    fn what_cannot_be_read_is_not_called_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("a.safetensors")).unwrap();
        fs::create_dir(at("onnx")).unwrap();
        std::os::unix::fs::symlink("nowhere", at("b.safetensors")).unwrap();
        std::os::unix::fs::symlink("nowhere", at("tokenizer.json")).unwrap();
        fs::write(at("c.safetensors"), b"short").unwrap();
        let files = look(folder.path()).unwrap();
        let unreadable: Vec<_> = files.unreadable.into_iter().collect();
        let names: Vec<_> = unreadable.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a.safetensors", "b.safetensors", "tokenizer.json"]);
        assert!(unreadable[0].1.contains("not a regular file"), "{unreadable:?}");
        assert!(unreadable[1].1.contains("dangling link"), "{unreadable:?}");
        assert_eq!(files.findings.lines().len(), 1);
    }
}
