//! Evidence sets: a checkpoint with the answers that a right implementation gives.
//!
//! A set is a folder with `model/`, `expected.json` and `expected.safetensors`. Reading it checks
//! that it is whole and consistent with itself, before any engine is judged: a set whose own argmax
//! disagrees with its own logits proves nothing, and a damaged one accuses an innocent engine.
//! Unknown JSON keys are ignored and listed.

mod answer_reader;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use safetensors::Dtype;
use serde::Deserialize;
use thiserror::Error;

use crate::audit::digests::{self, DigestError, Entry};
use crate::subject::{Opening, argmax};
use crate::tensor_file::{TensorValues, read_file};
use answer_reader::AnswerReader;
use k3_checkpoint::config::ConfigError;
use k3_checkpoint::{BindError, Binding, Checkpoint, CheckpointError, Malformed, Problem};
use k3_core::config::RawConfig;
use k3_core::stages::{Stage, StageKey, StageTensor, StageValues};

/// How far an f32 evaluation may be from the logits at most (a set may ask for less), and relative
/// to a tensor's largest value from its stages: an outer limit. What rounding to f32 leaves is a
/// tenth of it and less; a misplaced ε in one norm is seen by the local bounds, not by this.
pub const DEFAULT_F32_TOLERANCE: f64 = 2e-3;
/// How far an f64 evaluation may be from `logits.f64` at most; a set may ask for less.
pub const DEFAULT_F64_TOLERANCE: f64 = 1e-9;
/// Bytes of `expected.json` at most; one of 65536 ids and as many positions has 1 MB.
const MAX_JSON_BYTES: u64 = 64 << 20;

/// Why a set cannot be used.
#[derive(Debug, Error)]
pub enum EvidenceError {
    /// A file that is missing, damaged, or contradicts the set's own facts.
    #[error(transparent)]
    File(#[from] Malformed),
    /// The checkpoint's config is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The checkpoint is not whole.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The checkpoint's tensors are not those that its config implies.
    #[error(transparent)]
    Binding(#[from] BindError),
    /// A file of the checkpoint cannot be hashed.
    #[error(transparent)]
    Digest(#[from] DigestError),
}

#[derive(Debug, Deserialize)]
struct ExpectedJson {
    prompt_ids: Vec<u32>,
    greedy_ids: Vec<u32>,
    full_ids: Vec<u32>,
    argmax_per_position: Vec<u32>,
    suggested_tolerance: Option<SuggestedTolerance>,
    moe_layers: Option<Vec<usize>>,
    long_ids: Option<Vec<u32>>,
    long_argmax_per_position: Option<Vec<u32>>,
    stage_rows: Option<usize>,
    #[serde(default)]
    sha256: BTreeMap<String, String>,
    #[serde(default)]
    tensors: BTreeMap<String, serde_json::Value>,
    #[serde(flatten)]
    unknown: BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, Default, Deserialize)]
struct SuggestedTolerance {
    float32_engine_max_abs_vs_f64: Option<f64>,
    float64_engine_max_abs_vs_f64: Option<f64>,
}

/// Keys of `expected.json` that are read by people, not by gates.
const KEYS_FOR_READERS: [&str; 7] =
    ["set", "seed", "margins", "noise", "wrong_epsilon_effect", "wrong_mla_epsilon_effect", "note"];

/// A teacher-forced sequence with its answers.
#[derive(Debug, Clone)]
pub struct TeacherForced {
    /// T ids.
    pub ids: Vec<u32>,
    /// The id of the largest logit at each of the T positions.
    pub argmax: Vec<u32>,
    /// `[T, vocabulary]`, row-major.
    pub logits: Vec<f64>,
}

/// Router answers of a whole sequence: `[MoE layers, T, k]`, ids ascending in a row.
#[derive(Debug, Clone)]
pub struct RouterAnswers {
    /// The MoE layers, zero-based, in the order of the first dimension.
    pub layers: Vec<usize>,
    /// T.
    pub rows: usize,
    /// Top-k.
    pub top_k: usize,
    /// Expert ids.
    pub ids: Vec<i32>,
    /// Routing weights in the order of the ids.
    pub weights: Vec<f64>,
    /// Whether the weights were made in f32.
    pub is_f32: bool,
}

/// Layer outputs of a whole sequence: `[layers, T, E]`.
#[derive(Debug, Clone)]
pub struct LayerOutputs {
    /// Name of the tensor.
    pub name: String,
    /// Row-major values.
    pub values: Vec<f64>,
    /// Whether the file holds f32 (made by an f32 implementation) rather than f64.
    pub is_f32: bool,
}

/// A set, read and found consistent.
#[derive(Debug)]
pub struct EvidenceSet {
    /// Short name: `tiny`, or the folder's name.
    pub name: String,
    /// The checkpoint.
    pub model_dir: PathBuf,
    /// Its config.
    pub config: RawConfig,
    /// Ids given.
    pub prompt_ids: Vec<u32>,
    /// Ids that greedy decoding appends.
    pub greedy_ids: Vec<u32>,
    /// Prompt and greedy ids, teacher-forced.
    pub full: TeacherForced,
    /// A second, longer sequence, where the set has one.
    pub long: Option<TeacherForced>,
    /// Router answers for the full ids, where the set has them.
    pub router: Option<RouterAnswers>,
    /// Router ids for the long sequence, `[MoE layers, long T, k]`, where the set has them.
    pub long_router_ids: Option<Vec<i32>>,
    /// Whether it is another set's twin: same shapes and files, other numbers. What does not depend
    /// on numbers (refusals, how a run is cut) is judged on the other set.
    pub twin: bool,
    /// Layer outputs for the full ids, where the set has them.
    pub layer_outputs: Option<LayerOutputs>,
    /// Stage tensors for the first [`Self::stage_rows`] of the full ids.
    pub stages: BTreeMap<StageKey, StageTensor>,
    /// Rows of the stage tensors; 0 without stages.
    pub stage_rows: usize,
    /// Further `logits.*` of shape `[T, V]`, for the report.
    pub other_logits: BTreeMap<String, Vec<f64>>,
    /// Tolerance for an f32 subject against `logits.f64`.
    pub f32_tolerance: f64,
    /// Tolerance for an f64 subject against `logits.f64`.
    pub f64_tolerance: f64,
    /// Keys and tensors that are not known and were ignored.
    pub ignored: Vec<String>,
    /// Whether the answers were held to a digest that the set states.
    pub states_digest: bool,
}

impl EvidenceSet {
    /// Its checkpoint, for a subject with this ε.
    #[must_use]
    pub fn opening(&self, mla_norm_eps: f64) -> Opening<'_> {
        Opening { dir: &self.model_dir, config: &self.config, mla_norm_eps }
    }

    /// Reads the set in `dir`.
    ///
    /// # Errors
    ///
    /// [`EvidenceError`] for a missing, damaged or self-contradictory file.
    pub fn open(name: &str, dir: &Path) -> Result<Self, EvidenceError> {
        Self::open_parts(name, &dir.join("model"), dir)
    }

    /// Reads a set with its checkpoint in `model_dir` and its answers in `answers_dir`.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn open_parts(
        name: &str,
        model_dir: &Path,
        answers_dir: &Path,
    ) -> Result<Self, EvidenceError> {
        let json_path = answers_dir.join("expected.json");
        let json = read_json(&json_path)?;
        let config = k3_checkpoint::config::read(&model_dir.join("config.json"))?;
        Binding::bind(&Checkpoint::open(model_dir)?, &config)?;
        let tensor_path = answers_dir.join("expected.safetensors");
        let file = read_file(&tensor_path).map_err(|error| error.0)?;
        // Once the files are known to be as long as their headers say.
        check_digests(&json.sha256, model_dir, answers_dir)?;
        let mut reader = AnswerReader {
            names: file.tensors.keys().chain(file.left.keys()).cloned().collect(),
            tensors: file.tensors,
            json_path,
            tensor_path,
            vocabulary: config.vocab_size,
        };
        reader.check_ids(&json)?;
        reader.check_names(&json)?;
        let full =
            reader.teacher_forced("logits.f64", &json.full_ids, &json.argmax_per_position)?;
        let long = reader.long(&json)?;
        reader.check_greedy(&json, &full)?;
        let router = reader.router(&json, &config)?;
        let long_rows = long.as_ref().map_or(0, |long| long.ids.len());
        let long_router_ids = reader.long_router_ids(&json, &config, long_rows)?;
        let layer_outputs = reader.layer_outputs(full.ids.len(), &config)?;
        let (stages, stage_rows) = reader.stages(json.stage_rows, full.ids.len(), &config)?;
        let other_logits = reader.other_logits(full.ids.len());
        let mut ignored: Vec<String> = json
            .unknown
            .keys()
            .filter(|key| !KEYS_FOR_READERS.contains(&key.as_str()))
            .map(|key| format!("expected.json: {key}"))
            .collect();
        let left = reader.tensors.keys().chain(file.left.keys());
        ignored.extend(left.map(|key| format!("expected.safetensors: {key}")));
        let tolerance = json.suggested_tolerance.unwrap_or_default();
        let f32_tolerance = reader.tolerance(
            "suggested_tolerance: float32_engine_max_abs_vs_f64",
            tolerance.float32_engine_max_abs_vs_f64,
            DEFAULT_F32_TOLERANCE,
        )?;
        let f64_tolerance = reader.tolerance(
            "suggested_tolerance: float64_engine_max_abs_vs_f64",
            tolerance.float64_engine_max_abs_vs_f64,
            DEFAULT_F64_TOLERANCE,
        )?;
        Ok(Self {
            name: name.to_owned(),
            model_dir: model_dir.to_owned(),
            config,
            prompt_ids: json.prompt_ids,
            greedy_ids: json.greedy_ids,
            full,
            long,
            router,
            long_router_ids,
            twin: false,
            layer_outputs,
            stages,
            stage_rows,
            other_logits,
            f32_tolerance,
            f64_tolerance,
            ignored,
            states_digest: json.sha256.contains_key("expected.safetensors"),
        })
    }
}

fn read_json(path: &Path) -> Result<ExpectedJson, Malformed> {
    let bytes = k3_core::host::files::read_at_most(path, MAX_JSON_BYTES)
        .map_err(|error| Malformed::unreadable(path, &error))?;
    serde_json::from_slice(&bytes).map_err(|error| Problem::whole(error).in_file(path))
}

/// Holds the files to the hashes that the set names: `model/…` and `expected.safetensors`.
fn check_digests(
    digests: &BTreeMap<String, String>,
    model_dir: &Path,
    answers_dir: &Path,
) -> Result<(), EvidenceError> {
    for (name, digest) in digests {
        let (folder, file) = match name.strip_prefix("model/") {
            Some(file) => (model_dir, file),
            None => (answers_dir, name.as_str()),
        };
        // Never a path out of the folder.
        if !Path::new(file).components().all(|part| matches!(part, Component::Normal(_))) {
            let what = format!("sha256: expected model/FILE or a file of the set, got {name:?}");
            return Err(Problem::whole(what).in_file(&answers_dir.join("expected.json")).into());
        }
        let entry = Entry { digest: digest.to_ascii_lowercase(), file: file.to_owned() };
        let (findings, absent) = digests::compare(folder, &[entry], &|_| ())?;
        let what = match (findings.listed.first(), absent.first()) {
            (Some(finding), _) => {
                format!("does not have the sha256 that expected.json states: {}", finding.what)
            }
            (None, Some(_)) => "no such file".to_owned(),
            (None, None) => continue,
        };
        return Err(Problem::whole(what).in_file(&folder.join(file)).into());
    }
    Ok(())
}
