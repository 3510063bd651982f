//! Damage: a checkpoint with one planted fault that a subject has to refuse, by name.
//!
//! A subject that computes on regardless turns damage into plausible numbers. Each gate copies the
//! set's checkpoint, plants one fault, and passes when the subject refuses it, at opening or when
//! it meets the damaged tensor, with a message that names what it found.

use std::path::Path;

use crate::context::Context;
use crate::outcome::Outcome;
use crate::subject::{Opening, SubjectError};
use k3_checkpoint::Checkpoint;
use k3_core::stages::NoStages;

/// What is wrong with the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Scale byte 255 (NaN) in every expert of the last MoE layer.
    NanScale,
    /// A nonzero value after the heads of an `A_log`.
    LogDecayTail,
    /// The latent expert norm of a layer is called something else.
    RenamedNorm,
    /// A square-count swap: a projection's dimensions are exchanged.
    TransposedShape,
}

/// The subject refuses scale byte 255.
#[must_use]
pub fn nan_scale(context: &Context<'_>) -> Outcome {
    refuses(context, Fault::NanScale, "255")
}

/// The subject refuses an `A_log` whose padding is not zero.
#[must_use]
pub fn log_decay_tail(context: &Context<'_>) -> Outcome {
    refuses(context, Fault::LogDecayTail, "A_log")
}

/// The subject refuses a checkpoint that lacks a norm.
#[must_use]
pub fn missing_norm(context: &Context<'_>) -> Outcome {
    refuses(context, Fault::RenamedNorm, "routed_expert_norm")
}

/// The subject refuses a tensor of transposed shape.
#[must_use]
pub fn transposed_shape(context: &Context<'_>) -> Outcome {
    refuses(context, Fault::TransposedShape, "b_proj")
}

fn refuses(context: &Context<'_>, fault: Fault, must_name: &str) -> Outcome {
    let copy = match planted(context, fault) {
        Ok(copy) => copy,
        Err(problem) => return Outcome::failed(format!("cannot make the copy: {problem}")),
    };
    match run_on(context, copy.path()) {
        Ok(()) => Outcome::failed("computed without noticing the damage"),
        Err(error) if error.to_string().contains(must_name) => {
            let text = error.to_string();
            let place = copy.path().display().to_string();
            Outcome::judged(true, format!("refused: {}", text.replace(&place, "MODEL")))
        }
        Err(error) => Outcome::failed(format!("refused without naming {must_name}: {error}")),
    }
}

/// Opens the copy and runs the full ids through it.
fn run_on(context: &Context<'_>, model_dir: &Path) -> Result<(), SubjectError> {
    let set = context.set;
    let copy = Opening { dir: model_dir, ..set.opening(context.mla_norm_eps) };
    let subject = context.source.open(copy)?;
    subject.sequence().feed(&set.full.ids, &mut NoStages).map(|_| ())
}

/// Copies the set's checkpoint to a temporary folder and plants the fault.
fn planted(context: &Context<'_>, fault: Fault) -> Result<k3_core::host::files::Scratch, String> {
    let source = &context.set.model_dir;
    let checkpoint = Checkpoint::open(source).map_err(|error| error.to_string())?;
    let folder = k3_core::host::files::scratch_folder("k3-verify-", None)
        .map_err(|error| error.to_string())?;
    let entries = std::fs::read_dir(source).map_err(|error| error.to_string())?;
    for entry in entries {
        let entry = entry.map_err(|error| error.to_string())?;
        // A FIFO would be waited for.
        if !entry.path().is_file() {
            continue;
        }
        let target = folder.path().join(entry.file_name());
        std::fs::copy(entry.path(), target).map_err(|error| error.to_string())?;
    }
    match fault {
        Fault::NanScale => nan_scales(&checkpoint, context, folder.path())?,
        Fault::LogDecayTail => tail_value(&checkpoint, context, folder.path())?,
        Fault::RenamedNorm => {
            let layer = context.set.config.first_k_dense_replace;
            let old = format!("layers.{layer}.block_sparse_moe.routed_expert_norm.weight");
            replace_text(folder.path(), &old, &old.replace("_norm.", "_nork."))?;
        }
        Fault::TransposedShape => {
            let config = &context.set.config;
            let (heads, width) = (config.kda_num_heads, config.hidden_size);
            transpose_b_proj(folder.path(), heads, width)?;
        }
    }
    Ok(folder)
}

/// Writes 255 over the first scale byte of w1 of every expert of the last layer.
fn nan_scales(checkpoint: &Checkpoint, context: &Context<'_>, folder: &Path) -> Result<(), String> {
    let config = &context.set.config;
    let layer = config.num_hidden_layers - 1;
    for expert in 0..config.num_experts {
        let name = format!(
            "language_model.model.layers.{layer}.block_sparse_moe.experts.{expert}.w1.weight_scale"
        );
        overwrite(checkpoint, folder, &name, 0, &[255])?;
    }
    Ok(())
}

/// Writes 0.5 into the last value of the first KDA layer's `A_log`, which is padding.
fn tail_value(checkpoint: &Checkpoint, context: &Context<'_>, folder: &Path) -> Result<(), String> {
    let config = &context.set.config;
    if config.kda_num_heads >= config.kda_head_dim {
        return Err("A_log has no padding in this model".to_owned());
    }
    let layer = config.kda_layers.iter().min().ok_or("no KDA layer")? - 1;
    let name = format!("language_model.model.layers.{layer}.self_attn.A_log");
    let offset = (config.kda_head_dim - 1) * 4;
    overwrite(checkpoint, folder, &name, offset, &0.5_f32.to_le_bytes())
}

fn overwrite(
    checkpoint: &Checkpoint,
    folder: &Path,
    name: &str,
    offset: usize,
    bytes: &[u8],
) -> Result<(), String> {
    use std::os::unix::fs::FileExt as _;
    let info = checkpoint.tensor(name).ok_or_else(|| format!("no tensor {name}"))?;
    let shard = checkpoint.shard_path(info.shard).file_name().ok_or("a shard without a name")?;
    std::fs::OpenOptions::new()
        .write(true)
        .open(folder.join(shard))
        .and_then(|file| file.write_all_at(bytes, info.offset + offset as u64))
        .map_err(|error| error.to_string())
}

/// Replaces `old` by the equally long `new` in the index and in the header of every shard.
///
/// # Errors
///
/// A file operation that failed, or that `old` occurs nowhere.
pub fn replace_text(folder: &Path, old: &str, new: &str) -> Result<(), String> {
    debug_assert_eq!(old.len(), new.len());
    let mut replaced = 0;
    for entry in std::fs::read_dir(folder).map_err(|error| error.to_string())? {
        let path = entry.map_err(|error| error.to_string())?.path();
        let mut bytes = std::fs::read(&path).map_err(|error| error.to_string())?;
        let places: Vec<usize> = bytes
            .windows(old.len())
            .enumerate()
            .filter(|(_, window)| *window == old.as_bytes())
            .map(|(place, _)| place)
            .collect();
        for place in &places {
            bytes[*place..place + new.len()].copy_from_slice(new.as_bytes());
        }
        if !places.is_empty() {
            replaced += places.len();
            std::fs::write(&path, bytes).map_err(|error| error.to_string())?;
        }
    }
    (replaced > 0).then_some(()).ok_or_else(|| format!("{old} occurs nowhere"))
}

/// Exchanges the two dimensions in the header entries of all `b_proj` tensors.
fn transpose_b_proj(folder: &Path, heads: usize, width: usize) -> Result<(), String> {
    for separator in [",", ", "] {
        let old = format!("[{heads}{separator}{width}]");
        let new = format!("[{width}{separator}{heads}]");
        if replace_text(folder, &old, &new).is_ok() {
            return Ok(());
        }
    }
    Err(format!("no tensor of shape [{heads}, {width}]"))
}
