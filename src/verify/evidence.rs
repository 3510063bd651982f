//! Evidence sets: a checkpoint with the answers that a right implementation gives.
//!
//! A set is a folder with `model/`, `expected.json` and `expected.safetensors`. Reading it checks
//! that it is consistent with itself, since a set whose own argmax disagrees with its own logits
//! proves nothing. Unknown JSON keys are ignored and listed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

use crate::subject::{Opening, argmax};
use crate::tensor_file::{TensorValues, read_tensors};
use k3_checkpoint::config::ConfigError;
use k3_checkpoint::{Malformed, Problem};
use k3_core::config::RawConfig;
use k3_core::stages::{StageKey, StageTensor, StageValues};

/// How far an f32 evaluation may be from the logits when a set does not say, and relative to a
/// tensor's largest value from its stages: an outer limit. What rounding to f32 leaves is a tenth
/// of it and less; a misplaced ε in one norm is seen by the local bounds, not by this.
pub const DEFAULT_F32_TOLERANCE: f64 = 2e-3;
/// How far an f64 evaluation may be from `logits.f64` when a set does not say.
pub const DEFAULT_F64_TOLERANCE: f64 = 1e-9;

/// Why a set cannot be used.
#[derive(Debug, Error)]
pub enum EvidenceError {
    /// A file that is missing, damaged, or contradicts the set's own facts.
    #[error(transparent)]
    File(#[from] Malformed),
    /// The checkpoint's config is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
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
    #[serde(flatten)]
    unknown: BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct SuggestedTolerance {
    float32_engine_max_abs_vs_f64: Option<f64>,
    float64_engine_max_abs_vs_f64: Option<f64>,
}

/// Keys of `expected.json` that are read by people, not by gates.
const KEYS_FOR_READERS: [&str; 9] = [
    "set",
    "seed",
    "margins",
    "noise",
    "sha256",
    "tensors",
    "wrong_epsilon_effect",
    "wrong_mla_epsilon_effect",
    "note",
];

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
        let tensor_path = answers_dir.join("expected.safetensors");
        let mut reader = AnswerReader {
            tensors: read_tensors(&tensor_path).map_err(|error| error.0)?,
            json_path,
            tensor_path,
            vocabulary: config.vocab_size,
        };
        reader.check_ids(&json)?;
        let full =
            reader.teacher_forced("logits.f64", &json.full_ids, &json.argmax_per_position)?;
        let long = match (&json.long_ids, &json.long_argmax_per_position) {
            (Some(ids), Some(argmax)) => {
                Some(reader.teacher_forced("long.logits.f64", ids, argmax)?)
            }
            _ => None,
        };
        let router = reader.router(&json, &config)?;
        let long_rows = long.as_ref().map_or(0, |long| long.ids.len());
        let long_router_ids = reader.long_router_ids(&json, &config, long_rows)?;
        let layer_outputs = reader.layer_outputs(full.ids.len(), &config)?;
        let (stages, stage_rows) = reader.stages(json.stage_rows, full.ids.len())?;
        let other_logits = reader.other_logits(full.ids.len());
        let mut ignored: Vec<String> = json
            .unknown
            .keys()
            .filter(|key| !KEYS_FOR_READERS.contains(&key.as_str()))
            .map(|key| format!("expected.json: {key}"))
            .collect();
        ignored.extend(reader.tensors.keys().map(|key| format!("expected.safetensors: {key}")));
        let tolerance = json.suggested_tolerance.as_ref();
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
            f32_tolerance: tolerance
                .and_then(|t| t.float32_engine_max_abs_vs_f64)
                .unwrap_or(DEFAULT_F32_TOLERANCE),
            f64_tolerance: tolerance
                .and_then(|t| t.float64_engine_max_abs_vs_f64)
                .unwrap_or(DEFAULT_F64_TOLERANCE),
            ignored,
        })
    }
}

fn read_json(path: &Path) -> Result<ExpectedJson, Malformed> {
    let text = k3_core::host::files::read_to_string(path)
        .map_err(|error| Problem::whole(error).in_file(path))?;
    serde_json::from_str(&text).map_err(|error| Problem::whole(error).in_file(path))
}

/// The answers while they are being taken apart; what is left over at the end was not known.
struct AnswerReader {
    tensors: BTreeMap<String, TensorValues>,
    json_path: PathBuf,
    tensor_path: PathBuf,
    vocabulary: usize,
}

impl AnswerReader {
    fn inconsistent(&self, name: &str, expected: String, got: String) -> EvidenceError {
        let in_json = !name.contains('.');
        let path = if in_json { &self.json_path } else { &self.tensor_path };
        let what = format!("expected {expected}, got {got}");
        Problem::new(name, what).in_file(path).into()
    }

    fn check_ids(&self, json: &ExpectedJson) -> Result<(), EvidenceError> {
        let joined = [json.prompt_ids.as_slice(), &json.greedy_ids].concat();
        if json.prompt_ids.is_empty() || joined != json.full_ids {
            let got = format!("{} ids", json.full_ids.len());
            let expected = format!("prompt_ids + greedy_ids, {} ids", joined.len());
            return Err(self.inconsistent("full_ids", expected, got));
        }
        for ids in [Some(&json.full_ids), json.long_ids.as_ref()].into_iter().flatten() {
            if let Some(id) = ids.iter().find(|id| **id as usize >= self.vocabulary) {
                let expected = format!("ids below {}", self.vocabulary);
                return Err(self.inconsistent("full_ids", expected, id.to_string()));
            }
        }
        Ok(())
    }

    fn take(&mut self, name: &str) -> Result<TensorValues, EvidenceError> {
        let missing = || Problem::whole(format!("tensor {name} is missing"));
        Ok(self.tensors.remove(name).ok_or_else(|| missing().in_file(&self.tensor_path))?)
    }

    /// A tensor of numbers with exactly this shape and with finite values only.
    fn take_real(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f64>, EvidenceError> {
        let tensor = self.take(name)?;
        if tensor.shape != shape {
            let (expected, got) = (format!("shape {shape:?}"), format!("{:?}", tensor.shape));
            return Err(self.inconsistent(name, expected, got));
        }
        match tensor.values {
            StageValues::Real(values) if values.iter().all(|v| v.is_finite()) => Ok(values),
            StageValues::Real(_) => {
                Err(self.inconsistent(name, "finite values".into(), "NaN or inf".into()))
            }
            StageValues::Ids(_) => {
                Err(self.inconsistent(name, "floating-point values".into(), "integers".into()))
            }
        }
    }

    fn teacher_forced(
        &mut self,
        name: &str,
        ids: &[u32],
        expected_argmax: &[u32],
    ) -> Result<TeacherForced, EvidenceError> {
        let logits = self.take_real(name, &[ids.len(), self.vocabulary])?;
        let own: Vec<u32> = logits.chunks(self.vocabulary).filter_map(argmax).collect();
        if own != expected_argmax {
            let expected = format!("the argmax of {name}");
            let got = format!("{} ids that differ from it", expected_argmax.len());
            return Err(self.inconsistent("argmax_per_position", expected, got));
        }
        Ok(TeacherForced { ids: ids.to_vec(), argmax: own, logits })
    }

    /// The first tensor whose name starts with `prefix`, preferring `prefix` + `f64`.
    fn find(&self, prefix: &str) -> Option<String> {
        let exact = format!("{prefix}f64");
        if self.tensors.contains_key(&exact) {
            return Some(exact);
        }
        self.tensors.keys().find(|name| name.starts_with(prefix)).cloned()
    }

    fn router(
        &mut self,
        json: &ExpectedJson,
        config: &RawConfig,
    ) -> Result<Option<RouterAnswers>, EvidenceError> {
        let (Some(ids_name), Some(weights_name), Some(layers)) =
            (self.find("router_ids."), self.find("router_weights."), &json.moe_layers)
        else {
            return Ok(None);
        };
        let top_k = config.num_experts_per_token;
        let shape = [layers.len(), json.full_ids.len(), top_k];
        let is_f32 = self.tensors.get(&weights_name).is_some_and(|tensor| tensor.is_f32);
        let weights = self.take_real(&weights_name, &shape)?;
        let ids = self.take_ids(&ids_name, &shape)?;
        let rows = json.full_ids.len();
        Ok(Some(RouterAnswers { layers: layers.clone(), rows, top_k, ids, weights, is_f32 }))
    }

    fn long_router_ids(
        &mut self,
        json: &ExpectedJson,
        config: &RawConfig,
        rows: usize,
    ) -> Result<Option<Vec<i32>>, EvidenceError> {
        let (Some(name), Some(layers)) = (self.find("long.router_ids."), &json.moe_layers) else {
            return Ok(None);
        };
        let shape = [layers.len(), rows, config.num_experts_per_token];
        self.take_ids(&name, &shape).map(Some)
    }

    /// Expert ids of exactly this shape, ascending in each row.
    fn take_ids(&mut self, name: &str, shape: &[usize; 3]) -> Result<Vec<i32>, EvidenceError> {
        let tensor = self.take(name)?;
        if tensor.shape != shape {
            let (expected, got) = (format!("shape {shape:?}"), format!("{:?}", tensor.shape));
            return Err(self.inconsistent(name, expected, got));
        }
        let StageValues::Ids(ids) = tensor.values else {
            return Err(self.inconsistent(name, "I32".into(), "floats".into()));
        };
        let ascends = |row: &[i32]| row.windows(2).all(|pair| pair[0] < pair[1]);
        if !ids.chunks(shape[2]).all(ascends) {
            let got = "a row that is not".to_owned();
            return Err(self.inconsistent(name, "ids ascending in a row".into(), got));
        }
        Ok(ids)
    }

    fn layer_outputs(
        &mut self,
        rows: usize,
        config: &RawConfig,
    ) -> Result<Option<LayerOutputs>, EvidenceError> {
        let Some(name) = self.find("layer_out.") else {
            return Ok(None);
        };
        let is_f32 = self.tensors.get(&name).is_some_and(|tensor| tensor.is_f32);
        let shape = [config.num_hidden_layers, rows, config.hidden_size];
        let values = self.take_real(&name, &shape)?;
        Ok(Some(LayerOutputs { name, values, is_f32 }))
    }

    fn stages(
        &mut self,
        stage_rows: Option<usize>,
        full_rows: usize,
    ) -> Result<(BTreeMap<StageKey, StageTensor>, usize), EvidenceError> {
        let keys: Vec<(String, StageKey)> = self
            .tensors
            .keys()
            .filter_map(|name| Some((name.clone(), StageKey::parse(name)?)))
            .collect();
        if keys.is_empty() {
            return Ok((BTreeMap::new(), 0));
        }
        let rows = stage_rows.unwrap_or(full_rows);
        let mut stages = BTreeMap::new();
        for (name, key) in keys {
            let tensor = self.take(&name)?;
            let first = tensor.shape.first().copied().unwrap_or(0);
            if rows == 0 || rows > full_rows || (!key.stage.is_state() && first != rows) {
                let expected = format!("{rows} rows, at most {full_rows}");
                return Err(self.inconsistent(&name, expected, format!("{:?}", tensor.shape)));
            }
            let tensor = StageTensor { shape: tensor.shape, values: tensor.values };
            stages.insert(key, tensor);
        }
        Ok((stages, rows))
    }

    fn other_logits(&mut self, rows: usize) -> BTreeMap<String, Vec<f64>> {
        let shape = [rows, self.vocabulary];
        let fits = |name: &&String, tensor: &TensorValues| {
            name.starts_with("logits.") && tensor.shape == shape
        };
        let names: Vec<String> = self
            .tensors
            .iter()
            .filter(|(name, tensor)| fits(name, tensor))
            .map(|(name, _)| name.clone())
            .collect();
        let mut found = BTreeMap::new();
        for name in names {
            if let Some(TensorValues { values: StageValues::Real(values), .. }) =
                self.tensors.remove(&name)
            {
                found.insert(name, values);
            }
        }
        found
    }
}
