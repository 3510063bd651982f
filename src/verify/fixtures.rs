//! The fixtures embedded in the binary, or read from a folder.
//!
//! All files are listed with size and sha256 in one manifest, which is checked in both cases. The
//! embedded files are unpacked to a temporary folder and opened by the ordinary readers, so that
//! tests use the ordinary code paths. A twin is stored as the tensors in which it differs from the
//! tiny oracle; its checkpoint is composed in the temporary folder.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use k3_checkpoint::{Malformed, Problem};
use k3_core::host::files;
use safetensors::SafeTensors;
use serde::Deserialize;
use sha2::{Digest, Sha256};

macro_rules! embedded {
    ($($path:literal),+ $(,)?) => {
        &[$(($path, include_bytes!(concat!("../../fixtures/", $path)))),+]
    };
}

/// The list of all other files, and the file with its own hash.
const MANIFEST: &str = "manifest.json";
const WITNESS: &str = "manifest.sha256";

/// Every file of `fixtures/`, the manifest first.
const EMBEDDED: &[(&str, &[u8])] = embedded![
    "manifest.json",
    "manifest.sha256",
    "tiny/expected.json",
    "tiny/expected.safetensors",
    "tiny/model/config.json",
    "tiny/model/model-00001-of-000003.safetensors",
    "tiny/model/model-00002-of-000003.safetensors",
    "tiny/model/model-00003-of-000003.safetensors",
    "tiny/model/model.safetensors.index.json",
    "mild/config.json",
    "mild/delta.safetensors",
    "mild/expected.json",
    "mild/expected.safetensors",
    "faint/config.json",
    "faint/delta.safetensors",
    "faint/expected.json",
    "faint/expected.safetensors",
    "kernels/bf16-widen.safetensors",
    "kernels/convolution.safetensors",
    "kernels/elementary.safetensors",
    "kernels/gated-norm.safetensors",
    "kernels/kda-decay.safetensors",
    "kernels/kda-steps.safetensors",
    "kernels/l2-norm.safetensors",
    "kernels/mla-attention.safetensors",
    "kernels/moe-sum.safetensors",
    "kernels/mxfp4-decode.safetensors",
    "kernels/residual-mix.safetensors",
    "kernels/rms-norm.safetensors",
    "kernels/router.safetensors",
    "kernels/row-product.safetensors",
    "kernels/situ.safetensors",
    "kernels/softmax-sum.safetensors",
    "kernels/weighted-sum.safetensors",
];

/// The twins of the tiny oracle: one that BF16 rounding hardly moves, and the same with MLA's low
/// ranks and KDA's queries and keys so small that their epsilons show in BF16 too.
pub const TWINS: [&str; 2] = ["mild", "faint"];

/// The config.json of every set that ships.
pub fn embedded_configs() -> impl Iterator<Item = &'static [u8]> {
    let configs = EMBEDDED.iter().filter(|(path, _)| path.ends_with("/config.json"));
    configs.map(|(_, bytes)| *bytes)
}

#[derive(Debug, Deserialize)]
struct Manifest {
    files: Vec<ManifestEntry>,
}

#[derive(Debug, Deserialize)]
struct ManifestEntry {
    path: String,
    bytes: u64,
    sha256: String,
}

/// What is wrong with one fixture file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileProblem {
    /// Listed in the manifest, not in the folder.
    Missing,
    /// Present, with another size or hash than the manifest says.
    Damaged(String),
    /// In the folder, not listed in the manifest.
    Unlisted,
}

/// A fixture file that is not as the manifest says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Path below the fixture folder, with `/`.
    pub path: String,
    /// What is wrong with it.
    pub problem: FileProblem,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.problem {
            FileProblem::Missing => write!(f, "{}: missing, the manifest lists it", self.path),
            FileProblem::Damaged(how) => write!(f, "{}: damaged: {how}", self.path),
            FileProblem::Unlisted => write!(f, "{}: not listed in the manifest", self.path),
        }
    }
}

/// Fixtures on disk, verified against their manifest.
#[derive(Debug)]
pub struct Fixtures {
    /// Where they are.
    pub root: PathBuf,
    /// Files checked.
    pub checked: usize,
    /// Files that are not as listed; sets that need one of them are not run.
    pub findings: Vec<Finding>,
    /// Holds unpacked and composed files for as long as they are in use.
    scratch: files::Scratch,
}

impl Fixtures {
    /// Unpacks what ships in the binary and verifies it.
    ///
    /// # Errors
    ///
    /// [`Malformed`] when the temporary folder cannot be written.
    pub fn embedded() -> Result<Self, Malformed> {
        let scratch = scratch_folder()?;
        let root = scratch.path().join("fixtures");
        for (path, bytes) in EMBEDDED {
            write_file(&root.join(path), bytes)?;
        }
        Self::verify(root, scratch)
    }

    /// Takes the fixtures from a folder.
    ///
    /// # Errors
    ///
    /// [`Malformed`] when there is no readable manifest.
    pub fn from_folder(root: &Path) -> Result<Self, Malformed> {
        Self::verify(root.to_owned(), scratch_folder()?)
    }

    fn verify(root: PathBuf, scratch: files::Scratch) -> Result<Self, Malformed> {
        let path = root.join(MANIFEST);
        let text = files::read_to_string(&path).map_err(io_error(&path))?;
        let manifest: Manifest =
            serde_json::from_str(&text).map_err(|error| Problem::whole(error).in_file(&path))?;
        let own_files = [MANIFEST, WITNESS];
        let listed: BTreeSet<&str> = manifest.files.iter().map(|e| e.path.as_str()).collect();
        let mut needed = EMBEDDED.iter().map(|(path, _)| *path);
        if let Some(absent) = needed.find(|p| !own_files.contains(p) && !listed.contains(p)) {
            let what = format!("expected an entry for {absent}, got none");
            return Err(Problem::new("files", what).in_file(&path));
        }
        let mut findings: Vec<Finding> = check_witness(&root, &text).into_iter().collect();
        findings.extend(manifest.files.iter().filter_map(|entry| entry.check(&root)));
        for present in files_below(&root)? {
            if !own_files.contains(&present.as_str()) && !listed.contains(present.as_str()) {
                findings.push(Finding { path: present, problem: FileProblem::Unlisted });
            }
        }
        Ok(Self { root, checked: manifest.files.len() + own_files.len(), findings, scratch })
    }

    /// Whether they are those of the binary.
    #[must_use]
    pub fn is_embedded(&self) -> bool {
        self.root.starts_with(self.scratch.path())
    }

    /// The first missing or damaged file below `folder`.
    #[must_use]
    pub fn problem_below(&self, folder: &str) -> Option<&Finding> {
        self.findings.iter().find(|finding| {
            finding.problem != FileProblem::Unlisted && finding.path.starts_with(folder)
        })
    }

    /// Composes a twin's checkpoint and returns its folder: the tiny oracle's shards and index,
    /// with the tensors of the twin's `delta.safetensors` put in their places.
    ///
    /// # Errors
    ///
    /// [`Malformed`] when a tensor of the delta has no equal-sized place.
    pub fn compose_twin(&self, twin: &str) -> Result<PathBuf, Malformed> {
        let folder = self.scratch.path().join(format!("{twin}-model"));
        let delta_path = self.root.join(twin).join("delta.safetensors");
        let delta_bytes = files::read(&delta_path).map_err(io_error(&delta_path))?;
        let delta = SafeTensors::deserialize(&delta_bytes)
            .map_err(|error| Problem::whole(error).in_file(&delta_path))?;
        let mut open: BTreeSet<&str> = delta.names().into_iter().collect();
        let model = self.root.join("tiny/model");
        for name in files_below(&model)? {
            let source = model.join(&name);
            let mut bytes = files::read(&source).map_err(io_error(&source))?;
            if name.ends_with(".safetensors") {
                overwrite(&source, &mut bytes, &delta, &mut open)?;
            }
            write_file(&folder.join(&name), &bytes)?;
        }
        if let Some(left) = open.first() {
            let problem = Problem::new(format!("tensor {left}"), "no shard of tiny/model holds it");
            return Err(problem.in_file(&delta_path));
        }
        let config = self.root.join(twin).join("config.json");
        let bytes = files::read(&config).map_err(io_error(&config))?;
        write_file(&folder.join("config.json"), &bytes)?;
        Ok(folder)
    }
}

/// Whether the hash file next to the manifest matches it.
fn check_witness(root: &Path, manifest: &str) -> Option<Finding> {
    let expected = format!("{}  {MANIFEST}\n", hex_sha256(manifest.as_bytes()));
    let problem = match files::read(&root.join(WITNESS)) {
        Ok(line) if line == expected.as_bytes() => return None,
        Ok(_) => FileProblem::Damaged(format!("it is not the hash of {MANIFEST}")),
        Err(_) => FileProblem::Missing,
    };
    let path = WITNESS.to_owned();
    Some(Finding { path, problem })
}

impl ManifestEntry {
    fn check(&self, root: &Path) -> Option<Finding> {
        let finding = |problem| Some(Finding { path: self.path.clone(), problem });
        let Ok(bytes) = files::read(&root.join(&self.path)) else {
            return finding(FileProblem::Missing);
        };
        if bytes.len() as u64 != self.bytes {
            let how = format!("expected {} bytes, got {}", self.bytes, bytes.len());
            return finding(FileProblem::Damaged(how));
        }
        let hash = hex_sha256(&bytes);
        if hash != self.sha256 {
            let how = format!("expected sha256 {}, got {hash}", self.sha256);
            return finding(FileProblem::Damaged(how));
        }
        None
    }
}

/// Puts the delta's tensors that this shard holds in their places and strikes them off `open`.
fn overwrite(
    path: &Path,
    shard: &mut [u8],
    delta: &SafeTensors<'_>,
    open: &mut BTreeSet<&str>,
) -> Result<(), Malformed> {
    let (header_bytes, metadata) =
        SafeTensors::read_metadata(shard).map_err(|error| Problem::whole(error).in_file(path))?;
    for (name, view) in delta.iter() {
        let Some(info) = metadata.info(name) else {
            continue;
        };
        if info.dtype != view.dtype() || info.shape != view.shape() {
            let what = format!(
                "expected {:?} {:?}, got {:?} {:?} in the delta",
                info.dtype,
                info.shape,
                view.dtype(),
                view.shape()
            );
            return Err(Problem::new(format!("tensor {name}"), what).in_file(path));
        }
        let start = 8 + header_bytes + info.data_offsets.0;
        shard[start..start + view.data().len()].copy_from_slice(view.data());
        open.remove(name);
    }
    Ok(())
}

/// Lower-case hexadecimal sha256.
#[must_use]
pub fn hex_sha256(bytes: &[u8]) -> String {
    k3_core::hex(Sha256::digest(bytes))
}

fn io_error(path: &Path) -> impl FnOnce(std::io::Error) -> Malformed {
    move |error| Problem::whole(error).in_file(path)
}

fn scratch_folder() -> Result<files::Scratch, Malformed> {
    files::scratch_folder("k3-verify-", None).map_err(io_error(&std::env::temp_dir()))
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Malformed> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(io_error(parent))?;
    }
    let mut file = fs::File::create(path).map_err(io_error(path))?;
    file.write_all(bytes).map_err(io_error(path))
}

/// Paths of all files below `root`, relative to it, sorted.
fn files_below(root: &Path) -> Result<Vec<String>, Malformed> {
    let mut found = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        let path = root.join(&folder);
        for entry in fs::read_dir(&path).map_err(io_error(&path))? {
            let entry = entry.map_err(io_error(&path))?;
            let name = format!("{folder}{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                folders.push(name + "/");
            } else {
                found.push(name);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that is committed and not embedded would be checked from a folder only.
    #[test]
    fn every_file_of_the_folder_is_embedded() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
        let on_disk = files_below(&folder).unwrap();
        let mut embedded: Vec<_> = EMBEDDED.iter().map(|(path, _)| (*path).to_owned()).collect();
        embedded.sort();
        assert_eq!(embedded, on_disk);
    }

    /// The published sha256 of the three letters "abc".
    #[test]
    fn sha256_has_its_published_value() {
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex_sha256(b"abc"), expected);
    }
}
