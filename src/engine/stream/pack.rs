//! The packed trunk: every layer's tensors but the experts as one run in one file.
//!
//! A run is copied unchanged from its shard and padded to 4096 bytes, so that each layer is read
//! with one aligned request after another. Next to the data is a manifest (`trunk.json`): the
//! checkpoint it was made from, and per layer offset, length, tensors and digest; it is sealed with
//! one of its own. A layer's digest is checked when the layer is first read. The data's name
//! carries the checkpoint's identity: a pack that is being replaced and its successor never share a
//! file, and the manifest, renamed last, always matches the data it names.
//!
//! An unfinished pack is `NAME.part` with a manifest of the layers that are done; packing resumes
//! there. At the end everything is read again and compared with the hashes.
//!
//! Layers whose tensors are scattered are refused: the release has none, and a reader that
//! collects pieces would be another program.

mod error;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

pub use error::PackError;

use super::blocks::{BLOCK_BYTES, whole_blocks};
use super::model::trunk_run;
use super::runs::{Placed, Run, Stretch};
use crate::kernels::threads::Threads;
use k3_checkpoint::identity::{Identity, identity};
use k3_checkpoint::{Binding, Checkpoint, Dtype, Problem};
use k3_core::hex;
use k3_core::host::files::replace_file_by;
use k3_core::seal::{seal, unseal};

/// Name of the manifest.
pub const MANIFEST: &str = "trunk.json";
/// The manifest of a pack in the making.
const PART_MANIFEST: &str = "trunk.json.part";
/// What the manifest says it is.
const SCHEMA: &str = "k3-verify/trunk/2";
/// Largest manifest read: the release's has a megabyte.
const MAX_MANIFEST_BYTES: u64 = 256 << 20;
/// Bytes copied and hashed at a time.
const PIECE_BYTES: usize = 16 << 20;

/// A tensor in the manifest; offsets count from the start of its layer's run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PackedTensor {
    dtype: String,
    shape: Vec<usize>,
    offset: u64,
    length: u64,
}

/// A layer in the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PackedLayer {
    layer: usize,
    offset: u64,
    length: u64,
    /// Of its bytes, padding included, as [`digest`] makes it.
    sha256: String,
    tensors: BTreeMap<String, PackedTensor>,
}

/// The manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    schema: String,
    identity: String,
    align: u64,
    data: String,
    layers: Vec<PackedLayer>,
}

/// How far a pack is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub stage: Stage,
    /// Bytes done.
    pub done_bytes: u64,
    /// Bytes to do.
    pub total_bytes: u64,
}

/// The two passes of a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Copying.
    Copy,
    /// Reading again.
    Verify,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed {
    /// Layers.
    pub layers: usize,
    /// Of them, those that an earlier, interrupted pack had left.
    pub resumed_layers: usize,
    /// Bytes of the data file.
    pub bytes: u64,
    /// Bytes of the largest run: the slot of a ring that holds any layer.
    pub largest_run_bytes: u64,
}

fn io_error(path: &Path, reason: io::Error) -> PackError {
    Problem::whole(reason).in_file(path).into()
}

/// Receives the progress of a pack, and returns whether to continue.
pub type Told<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

/// Packs the trunk of a complete checkpoint into `folder`.
///
/// # Errors
/// Every variant of [`PackError`].
pub fn pack(
    checkpoint: &Checkpoint,
    binding: &Binding,
    folder: &Path,
    progress: Told<'_>,
) -> Result<Packed, PackError> {
    let runs = contiguous_runs(checkpoint, binding)?;
    let identity = identity(checkpoint)?;
    fs::create_dir_all(folder).map_err(|reason| io_error(folder, reason))?;
    let mut manifest = plan(&runs, identity);
    let resumed = resume(folder, &mut manifest)?;
    let part = folder.join(format!("{}.part", manifest.data));
    let total: u64 = manifest.layers.iter().map(|layer| layer.length).sum();
    let mut done = manifest.layers[..resumed].iter().map(|layer| layer.length).sum();
    let file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&part)
        .map_err(|reason| io_error(&part, reason))?;
    for (layer, run) in runs.iter().enumerate().skip(resumed) {
        let mut report = |bytes: u64| {
            done += bytes;
            progress(Progress { stage: Stage::Copy, done_bytes: done, total_bytes: total })
        };
        let offset = manifest.layers[layer].offset;
        let copied = copy(checkpoint, run, (&file, &part), offset, &mut report)?;
        let ControlFlow::Continue(hash) = copied else {
            let what = format!("{layer} of {} layers are packed", runs.len());
            return Err(PackError::Interrupted(what));
        };
        manifest.layers[layer].sha256 = hash;
        file.sync_data().map_err(|reason| io_error(&part, reason))?;
        let so_far = Manifest { layers: manifest.layers[..=layer].to_vec(), ..manifest.clone() };
        write_manifest(&folder.join(PART_MANIFEST), &so_far)?;
    }
    if let Some(problem) = damage(&manifest, (&file, &part), progress)?.into_iter().next() {
        // The manifest of the part vouches for something that is not there.
        let _ = fs::remove_file(folder.join(PART_MANIFEST));
        return Err(problem.in_file(&part).into());
    }
    file.sync_all().map_err(|reason| io_error(&part, reason))?;
    publish(folder, &manifest, &part)?;
    Ok(Packed {
        layers: runs.len(),
        resumed_layers: resumed,
        bytes: total,
        largest_run_bytes: manifest.layers.iter().map(|l| l.length).max().unwrap_or(0),
    })
}

/// The runs of all layers, each in one stretch.
fn contiguous_runs(checkpoint: &Checkpoint, binding: &Binding) -> Result<Vec<Run>, PackError> {
    let layers = 0..binding.shape().layers.len();
    layers
        .map(|layer| {
            let run = trunk_run(checkpoint, binding, layer);
            if run.stretches.len() == 1 {
                return Ok(run);
            }
            let what = format!(
                "its {} tensors ({} bytes) lie in {} pieces, expected 1",
                run.tensors.len(),
                run.tensor_bytes(),
                run.stretches.len()
            );
            Err(Problem::new(format!("layer {layer}"), what).in_file(checkpoint.folder()).into())
        })
        .collect()
}

/// The manifest but for its hashes.
fn plan(runs: &[Run], identity: Identity) -> Manifest {
    let mut offset = 0;
    let mut layers = Vec::with_capacity(runs.len());
    for (layer, run) in runs.iter().enumerate() {
        let start = run.stretches[0].lead();
        let length = run.stretches[0].length as u64;
        let tensor = |placed: &Placed| {
            let packed = PackedTensor {
                dtype: placed.dtype.name().to_owned(),
                shape: placed.shape.clone(),
                offset: (placed.range.start - start) as u64,
                length: placed.range.len() as u64,
            };
            (placed.name.clone(), packed)
        };
        let length = length.next_multiple_of(BLOCK_BYTES as u64);
        layers.push(PackedLayer {
            layer,
            offset,
            length,
            sha256: String::new(),
            tensors: run.tensors.iter().map(tensor).collect(),
        });
        offset += length;
    }
    let identity = identity.to_string();
    Manifest {
        schema: SCHEMA.to_owned(),
        data: format!("trunk-{}.bin", &identity[..16]),
        identity,
        align: BLOCK_BYTES as u64,
        layers,
    }
}

/// How many layers an interrupted pack of the same checkpoint has left; their hashes are taken
/// over, and compared with the file at the end.
fn resume(folder: &Path, manifest: &mut Manifest) -> Result<usize, PackError> {
    let path = folder.join(PART_MANIFEST);
    let part = folder.join(format!("{}.part", manifest.data));
    let bytes = fs::metadata(&part).map_or(0, |metadata| metadata.len());
    let Ok(text) = k3_core::host::files::read(&path) else {
        return Ok(0);
    };
    // One that cannot be read, or of another checkpoint, cannot be resumed.
    let Ok(left) = unseal::<Manifest>(&text) else {
        return Ok(0);
    };
    let same = left.identity == manifest.identity && left.layers.len() <= manifest.layers.len();
    let mut count = 0;
    for (ours, theirs) in manifest.layers.iter_mut().zip(&left.layers) {
        let as_planned = PackedLayer { sha256: theirs.sha256.clone(), ..ours.clone() };
        if !same || as_planned != *theirs || ours.offset + ours.length > bytes {
            break;
        }
        *ours = as_planned;
        count += 1;
    }
    Ok(count)
}

/// Copies a run and its padding; gives the digest of both, unless `done` says to stop.
fn copy(
    checkpoint: &Checkpoint,
    run: &Run,
    (file, path): (&File, &Path),
    at: u64,
    done: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<ControlFlow<(), String>, PackError> {
    let stretch = &run.stretches[0];
    let shard = &checkpoint.shards()[stretch.file];
    let padded = whole_blocks(stretch.length);
    let (mut pieces, mut buffer) = (Vec::new(), vec![0; PIECE_BYTES]);
    for start in (0..padded).step_by(PIECE_BYTES) {
        let piece = &mut buffer[..PIECE_BYTES.min(padded - start)];
        let (stored, padding) = piece.split_at_mut(piece.len().min(stretch.length - start));
        shard.read_at(stretch.offset + start as u64, stored)?;
        padding.fill(0);
        pieces.push(digest_of_piece(piece));
        let written = file.write_all_at(piece, at + start as u64);
        written.map_err(|reason| io_error(path, reason))?;
        if done(piece.len() as u64).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(digest_of_pieces(&pieces)))
}

type PieceDigest = [u8; 32];

fn digest_of_piece(piece: &[u8]) -> PieceDigest {
    Sha256::digest(piece).into()
}

fn digest_of_pieces(pieces: &[PieceDigest]) -> String {
    hex(Sha256::digest(pieces.as_flattened()))
}

/// The digest of a packed layer: SHA-256 of the SHA-256s of its pieces, which threads share.
pub(super) fn digest(threads: &Threads, bytes: &[u8]) -> String {
    let mut pieces = vec![PieceDigest::default(); bytes.len().div_ceil(PIECE_BYTES)];
    let jobs = bytes.chunks(PIECE_BYTES).zip(&mut pieces).collect();
    threads.for_each(jobs, &|(bytes, digest)| *digest = digest_of_piece(bytes));
    digest_of_pieces(&pieces)
}

/// Reads everything; gives the layers whose bytes do not have their digest, and what they have.
fn damage(
    manifest: &Manifest,
    (file, path): (&File, &Path),
    progress: Told<'_>,
) -> Result<Vec<Problem>, PackError> {
    let total_bytes = manifest.layers.iter().map(|layer| layer.length).sum();
    let (mut done_bytes, mut damaged) = (0, Vec::new());
    let mut buffer = vec![0; PIECE_BYTES];
    for layer in &manifest.layers {
        let mut pieces = Vec::new();
        for start in (0..layer.length).step_by(PIECE_BYTES) {
            let piece = &mut buffer[..(PIECE_BYTES as u64).min(layer.length - start) as usize];
            let read = file.read_exact_at(piece, layer.offset + start);
            read.map_err(|reason| io_error(path, reason))?;
            pieces.push(digest_of_piece(piece));
            done_bytes += piece.len() as u64;
            let told = progress(Progress { stage: Stage::Verify, done_bytes, total_bytes });
            if told.is_break() {
                let what = format!("layer {} of {}", layer.layer, manifest.layers.len());
                return Err(PackError::Interrupted(format!("verified up to {what}")));
            }
        }
        damaged.extend(altered(layer.layer, &digest_of_pieces(&pieces), &layer.sha256));
    }
    Ok(damaged)
}

/// What is wrong with a layer that has another digest than expected.
pub(super) fn altered(layer: usize, got: &str, expected: &str) -> Option<Problem> {
    let what = || format!("altered since it was packed: digest {got}, expected {expected}");
    (got != expected).then(|| Problem::new(format!("layer {layer}"), what()))
}

/// Gives the data its name, then the manifest; then removes what no manifest names any more.
fn publish(folder: &Path, manifest: &Manifest, part: &Path) -> Result<(), PackError> {
    let data = folder.join(&manifest.data);
    fs::rename(part, &data).map_err(|reason| io_error(&data, reason))?;
    write_manifest(&folder.join(MANIFEST), manifest)?;
    // Left-overs do no harm; a folder that cannot be listed is no reason to fail now.
    let _ = fs::remove_file(folder.join(PART_MANIFEST));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let ours =
            name.starts_with("trunk-") && (name.ends_with(".bin") || name.ends_with(".part"));
        if ours && name != manifest.data {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

fn write_manifest(path: &Path, manifest: &Manifest) -> Result<(), PackError> {
    let written = replace_file_by(path, |file| {
        serde_json::to_writer_pretty(&mut *file, &seal(manifest)?)?;
        file.write_all(b"\n")
    });
    written.map_err(|reason| io_error(path, reason))
}

/// An opened pack.
#[derive(Debug)]
pub struct Pack {
    folder: PathBuf,
    manifest: Manifest,
    data_bytes: u64,
}

impl Pack {
    /// Opens a pack and checks its manifest against its data.
    ///
    /// # Errors
    /// [`PackError::File`].
    pub fn open(folder: &Path) -> Result<Self, PackError> {
        let path = folder.join(MANIFEST);
        let file = k3_core::host::files::open(&path).map_err(|reason| io_error(&path, reason))?;
        let mut text = Vec::new();
        file.take(MAX_MANIFEST_BYTES)
            .read_to_end(&mut text)
            .map_err(|reason| io_error(&path, reason))?;
        let wrong = |reason: String| Problem::whole(reason).in_file(&path);
        let manifest: Manifest = unseal(&text).map_err(wrong)?;
        if manifest.schema != SCHEMA {
            return Err(wrong(format!("schema {:?}, expected {SCHEMA:?}", manifest.schema)).into());
        }
        if Path::new(&manifest.data).file_name() != Some(manifest.data.as_ref()) {
            return Err(wrong(format!("data {:?} is no file name", manifest.data)).into());
        }
        let data = folder.join(&manifest.data);
        let metadata = fs::metadata(&data).map_err(|reason| io_error(&data, reason))?;
        let data_bytes = metadata.len();
        check(&manifest, data_bytes).map_err(wrong)?;
        Ok(Self { folder: folder.to_owned(), manifest, data_bytes })
    }

    /// Where the data is.
    #[must_use]
    pub fn data_path(&self) -> PathBuf {
        self.folder.join(&self.manifest.data)
    }

    /// Bytes of the data file.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Layers in it.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.manifest.layers.len()
    }

    /// Reads everything; gives the layers whose bytes do not have their digest.
    ///
    /// # Errors
    /// [`PackError::File`], [`PackError::Interrupted`].
    pub fn damage(&self, progress: Told<'_>) -> Result<Vec<Problem>, PackError> {
        let path = self.data_path();
        let file = k3_core::host::files::open(&path).map_err(|reason| io_error(&path, reason))?;
        damage(&self.manifest, (&file, &path), progress)
    }

    /// The runs of the first `layers` layers, if this is a pack of that checkpoint.
    ///
    /// # Errors
    /// [`PackError::OtherCheckpoint`], [`PackError::File`].
    pub fn runs_for(&self, checkpoint: &Checkpoint, layers: usize) -> Result<Vec<Run>, PackError> {
        let path = self.folder.join(MANIFEST);
        let expected = identity(checkpoint)?.to_string();
        if expected != self.manifest.identity {
            let found = &self.manifest.identity;
            let what = format!("made from checkpoint {found}, this is {expected}");
            return Err(PackError::OtherCheckpoint(Problem::whole(what).in_file(&path)));
        }
        let packed = self.manifest.layers.len();
        if packed < layers {
            let what = format!("{packed} layers, expected {layers}");
            return Err(Problem::whole(what).in_file(&path).into());
        }
        Ok(self.manifest.layers[..layers].iter().map(run).collect())
    }
}

fn run(layer: &PackedLayer) -> Run {
    let tensor = |(name, tensor): (&String, &PackedTensor)| {
        let start = tensor.offset as usize;
        Some(Placed {
            name: name.clone(),
            dtype: Dtype::parse(&tensor.dtype)?,
            shape: tensor.shape.clone(),
            range: start..start + tensor.length as usize,
        })
    };
    Run {
        stretches: vec![Stretch {
            file: 0,
            offset: layer.offset,
            length: layer.length as usize,
            base: 0,
        }],
        tensors: layer.tensors.iter().filter_map(tensor).collect(),
        digest: Some(layer.sha256.clone()),
    }
}

/// Everything a manifest can get wrong.
fn check(manifest: &Manifest, data_bytes: u64) -> Result<(), String> {
    let align = BLOCK_BYTES as u64;
    if manifest.align != align {
        return Err(format!("align {}, expected {align}", manifest.align));
    }
    if manifest.layers.is_empty() {
        return Err("it has no layers".to_owned());
    }
    for (index, layer) in manifest.layers.iter().enumerate() {
        let (number, offset, length) = (layer.layer, layer.offset, layer.length);
        if number != index {
            return Err(format!("layer {number} in place {index}"));
        }
        if !offset.is_multiple_of(align) || !length.is_multiple_of(align) || length == 0 {
            return Err(format!(
                "layer {index}: offset {offset}, length {length}, expected multiples of {align}"
            ));
        }
        if offset.checked_add(length).is_none_or(|end| end > data_bytes) {
            return Err(format!(
                "layer {index}: bytes {offset} + {length}, the data has {data_bytes}"
            ));
        }
        for (name, tensor) in &layer.tensors {
            let end = tensor.offset.checked_add(tensor.length);
            if end.is_none_or(|end| end > length) {
                return Err(format!("layer {index}: tensor {name:?} leaves its run"));
            }
            let Some(dtype) = Dtype::parse(&tensor.dtype) else {
                return Err(format!("tensor {name:?}: dtype {:?}", tensor.dtype));
            };
            let sizes = tensor.shape.iter().map(|&size| size as u64);
            let bits = sizes.fold(dtype.bits(), u64::saturating_mul);
            if bits / 8 != tensor.length {
                return Err(format!(
                    "tensor {name:?}: {} bytes, its shape needs {}",
                    tensor.length,
                    bits / 8
                ));
            }
        }
    }
    Ok(())
}
