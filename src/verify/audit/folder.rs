//! The files of a checkpoint as files: what they are, whether they are whole, and whether each has
//! the size that was published.
//!
//! Every shard is opened by itself, so that one damaged file does not hide the next.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use super::{Finding, Findings};
use k3_checkpoint::foreign::{Foreign, SNIFF_BYTES};
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

/// What another file turns out to be; folders and unreadable ones are not looked into.
fn sniff(path: &Path) -> Option<Foreign> {
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
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
            None => absent.push(name.clone()),
        }
    }
    (findings, absent)
}
