//! Evidence sets: a checkpoint with the answers that a right implementation gives.
//!
//! A set is a folder with `model/`, `expected.json` and `expected.safetensors`. Reading it checks
//! that it is whole and consistent with itself, before any engine is judged: a set whose own argmax
//! disagrees with its own logits proves nothing, and a damaged one accuses an innocent engine.
//! Unknown JSON keys are ignored and listed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use safetensors::Dtype;
use serde::Deserialize;
use thiserror::Error;

use crate::audit::digests::{self, DigestError, Entry};
use crate::subject::{Opening, argmax};
use crate::tensor_file::{TensorValues, read_file};
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

/// The shape of a stage of `rows` tokens.
fn stage_shape(stage: Stage, rows: usize, config: &RawConfig) -> Vec<usize> {
    let (heads, width) = (config.kda_num_heads, config.kda_head_dim);
    let attention = config.num_attention_heads;
    let query = config.qk_nope_head_dim + config.qk_rope_head_dim;
    let history = config.short_conv_kernel_size - 1;
    match stage {
        Stage::KdaQ | Stage::KdaK | Stage::KdaV | Stage::KdaZ | Stage::KdaG | Stage::KdaO => {
            vec![rows, heads, width]
        }
        Stage::KdaBeta => vec![rows, heads],
        Stage::KdaState => vec![heads, width, width],
        Stage::KdaConv => vec![3, history, heads * width],
        Stage::MlaQ => vec![rows, attention, query],
        Stage::MlaLatent => vec![rows, config.kv_lora_rank],
        Stage::MlaKRope => vec![rows, config.qk_rope_head_dim],
        Stage::MlaO => vec![rows, attention, config.v_head_dim],
        Stage::RouterScores => vec![rows, config.num_experts],
        Stage::RouterIds | Stage::RouterWeights => vec![rows, config.num_experts_per_token],
        Stage::MoeLatent | Stage::MoeSum => vec![rows, config.routed_expert_hidden_size],
        Stage::Logits => vec![rows, config.vocab_size],
        _ => vec![rows, config.hidden_size],
    }
}

/// The answers while they are being taken apart; what is left over at the end was not known.
struct AnswerReader {
    tensors: BTreeMap<String, TensorValues>,
    json_path: PathBuf,
    tensor_path: PathBuf,
    /// The names of all of them.
    names: BTreeSet<String>,
    vocabulary: usize,
}

impl AnswerReader {
    fn inconsistent(&self, name: &str, expected: String, got: String) -> EvidenceError {
        let in_json = !self.names.contains(name);
        let path = if in_json { &self.json_path } else { &self.tensor_path };
        let at = if in_json { name.to_owned() } else { format!("tensor {name:?}") };
        Problem::new(at, format!("expected {expected}, got {got}")).in_file(path).into()
    }

    /// What a set asks for, which never widens the limit.
    fn tolerance(&self, key: &str, asked: Option<f64>, limit: f64) -> Result<f64, EvidenceError> {
        match asked.unwrap_or(limit) {
            asked if asked > 0.0 && asked <= limit => Ok(asked),
            got => {
                let expected = format!("a number above 0 and at most {limit:e}, the outer limit");
                Err(self.inconsistent(key, expected, format!("{got:e}")))
            }
        }
    }

    /// Every tensor that the set says it has, by its full name, is there.
    fn check_names(&self, json: &ExpectedJson) -> Result<(), EvidenceError> {
        let named = json.tensors.keys().flat_map(|names| names.split(", "));
        // `layers.N.*` is held to the config together with the stages.
        let is_name = |name: &&str| {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
            !name.starts_with("layers.N.") && name.bytes().all(is_plain)
        };
        match named.filter(is_name).find(|name| !self.names.contains(*name)) {
            None => Ok(()),
            Some(missing) => Err(self.missing(missing)),
        }
    }

    fn missing(&self, name: &str) -> EvidenceError {
        Problem::whole(format!("tensor {name:?} is missing")).in_file(&self.tensor_path).into()
    }

    /// Greedy decoding takes the argmax: the ids and the logits say the same.
    fn check_greedy(&self, json: &ExpectedJson, full: &TeacherForced) -> Result<(), EvidenceError> {
        let chosen = &full.argmax[json.prompt_ids.len() - 1..];
        let differs = chosen.iter().zip(&json.greedy_ids).position(|(right, id)| right != id);
        differs.map_or(Ok(()), |step| {
            let expected = format!("{} at step {step}, the argmax of logits.f64", chosen[step]);
            Err(self.inconsistent("greedy_ids", expected, json.greedy_ids[step].to_string()))
        })
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

    /// A tensor of exactly this shape.
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<TensorValues, EvidenceError> {
        let tensor = self.tensors.remove(name).ok_or_else(|| self.missing(name))?;
        if tensor.shape != shape {
            let (expected, got) = (format!("shape {shape:?}"), format!("{:?}", tensor.shape));
            return Err(self.inconsistent(name, expected, got));
        }
        Ok(tensor)
    }

    /// Finite numbers of exactly this shape, in F64 where the name or the caller says so; and
    /// whether they are in less.
    fn take_real(
        &mut self,
        name: &str,
        shape: &[usize],
        exact: bool,
    ) -> Result<(Vec<f64>, bool), EvidenceError> {
        let TensorValues { values, dtype, is_f32, .. } = self.take(name, shape)?;
        if (exact || name.ends_with(".f64")) && dtype != Dtype::F64 {
            return Err(self.inconsistent(name, "F64".into(), format!("{dtype:?}")));
        }
        match values {
            StageValues::Real(values) if values.iter().all(|v| v.is_finite()) => {
                Ok((values, is_f32))
            }
            StageValues::Real(_) => {
                Err(self.inconsistent(name, "finite values".into(), "NaN or inf".into()))
            }
            StageValues::Ids(_) => {
                let expected = "floating-point values".into();
                Err(self.inconsistent(name, expected, format!("{dtype:?}")))
            }
        }
    }

    fn teacher_forced(
        &mut self,
        name: &str,
        ids: &[u32],
        expected_argmax: &[u32],
    ) -> Result<TeacherForced, EvidenceError> {
        let (logits, _) = self.take_real(name, &[ids.len(), self.vocabulary], true)?;
        let own: Vec<u32> = logits.chunks(self.vocabulary).filter_map(argmax).collect();
        if own != expected_argmax {
            let expected = format!("the argmax of {name}");
            let got = format!("{} ids that differ from it", expected_argmax.len());
            return Err(self.inconsistent("argmax_per_position", expected, got));
        }
        Ok(TeacherForced { ids: ids.to_vec(), argmax: own, logits })
    }

    fn long(&mut self, json: &ExpectedJson) -> Result<Option<TeacherForced>, EvidenceError> {
        match (&json.long_ids, &json.long_argmax_per_position) {
            (Some(ids), Some(argmax)) => {
                self.teacher_forced("long.logits.f64", ids, argmax).map(Some)
            }
            (None, None) => Ok(None),
            _ => {
                let got = "one of the two".to_owned();
                let expected = "long_ids and long_argmax_per_position, or neither".to_owned();
                Err(self.inconsistent("long_ids", expected, got))
            }
        }
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
        let names = (self.find("router_ids."), self.find("router_weights."), &json.moe_layers);
        let (ids_name, weights_name, layers) = match names {
            (Some(ids), Some(weights), Some(layers)) => (ids, weights, layers),
            // A list of layers alone promises nothing.
            (None, None, _) => return Ok(None),
            (ids, weights, _) => {
                let name = ids.or(weights).unwrap_or_default();
                let expected = "router_ids.*, router_weights.* and moe_layers together".to_owned();
                return Err(self.inconsistent(&name, expected, "not all three".to_owned()));
            }
        };
        let moe = config.first_k_dense_replace..config.num_hidden_layers;
        if !layers.windows(2).all(|pair| pair[0] < pair[1])
            || !layers.iter().all(|layer| moe.contains(layer))
        {
            let expected = format!("ascending layers within {moe:?}");
            return Err(self.inconsistent("moe_layers", expected, format!("{layers:?}")));
        }
        let top_k = config.num_experts_per_token;
        let shape = [layers.len(), json.full_ids.len(), top_k];
        let (weights, is_f32) = self.take_real(&weights_name, &shape, false)?;
        let ids = self.take_ids(&ids_name, &shape, config.num_experts)?;
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
        self.take_ids(&name, &shape, config.num_experts).map(Some)
    }

    /// Expert ids of exactly this shape, ascending in each row.
    fn take_ids(
        &mut self,
        name: &str,
        shape: &[usize],
        experts: usize,
    ) -> Result<Vec<i32>, EvidenceError> {
        let TensorValues { values, dtype, .. } = self.take(name, shape)?;
        let StageValues::Ids(ids) = values else {
            return Err(self.inconsistent(name, "I32".into(), format!("{dtype:?}")));
        };
        let ascends = |row: &[i32]| row.windows(2).all(|pair| pair[0] < pair[1]);
        let top_k = shape.last().copied().unwrap_or(1).max(1);
        if let Some(row) = ids.chunks(top_k).position(|row| !ascends(row)) {
            let got = format!("{:?} in row {row}", &ids[row * top_k..(row + 1) * top_k]);
            return Err(self.inconsistent(name, "ids ascending in a row".into(), got));
        }
        let is_expert = |id: &i32| usize::try_from(*id).is_ok_and(|id| id < experts);
        match ids.iter().find(|id| !is_expert(id)) {
            None => Ok(ids),
            Some(id) => {
                let expected = format!("experts below {experts}");
                Err(self.inconsistent(name, expected, id.to_string()))
            }
        }
    }

    fn layer_outputs(
        &mut self,
        rows: usize,
        config: &RawConfig,
    ) -> Result<Option<LayerOutputs>, EvidenceError> {
        let Some(name) = self.find("layer_out.") else {
            return Ok(None);
        };
        let shape = [config.num_hidden_layers, rows, config.hidden_size];
        let (values, is_f32) = self.take_real(&name, &shape, false)?;
        Ok(Some(LayerOutputs { name, values, is_f32 }))
    }

    fn stages(
        &mut self,
        stage_rows: Option<usize>,
        full_rows: usize,
        config: &RawConfig,
    ) -> Result<(BTreeMap<StageKey, StageTensor>, usize), EvidenceError> {
        let in_layers = |name: &&String| name.starts_with("layers.");
        if let Some(name) =
            self.names.iter().find(|name| in_layers(name) && StageKey::parse(name).is_none())
        {
            return Err(self.inconsistent(name, "the name of a stage".into(), "another".into()));
        }
        let parsed = self.tensors.keys().filter_map(|name| StageKey::parse(name));
        let keys: BTreeSet<StageKey> = parsed.collect();
        if keys.is_empty() && stage_rows.is_none() {
            return Ok((BTreeMap::new(), 0));
        }
        self.check_layers(&keys, config)?;
        let rows = stage_rows.unwrap_or(full_rows);
        if rows == 0 || rows > full_rows || keys.is_empty() {
            let expected = format!("1 to {full_rows} rows and stage tensors");
            let got = format!("{rows} rows, {} stage tensors", keys.len());
            return Err(self.inconsistent("stage_rows", expected, got));
        }
        let mut stages = BTreeMap::new();
        for key in keys {
            let (name, shape) = (key.to_string(), stage_shape(key.stage, rows, config));
            let values = if key.stage == Stage::RouterIds {
                StageValues::Ids(self.take_ids(&name, &shape, config.num_experts)?)
            } else {
                StageValues::Real(self.take_real(&name, &shape, true)?.0)
            };
            stages.insert(key, StageTensor { shape, values });
        }
        Ok((stages, rows))
    }

    /// A stage that one layer has, every layer of its kind has that has any: one that was renamed
    /// or lost does not leave the judgement unseen.
    fn check_layers(
        &self,
        keys: &BTreeSet<StageKey>,
        config: &RawConfig,
    ) -> Result<(), EvidenceError> {
        let kind = |layer: usize| {
            (config.kda_layers.contains(&(layer + 1)), layer < config.first_k_dense_replace)
        };
        let mut of_kind: BTreeMap<(bool, bool), BTreeSet<Stage>> = BTreeMap::new();
        let layers: BTreeSet<usize> = keys.iter().filter_map(|key| key.layer).collect();
        for key in keys {
            let Some(layer) = key.layer else { continue };
            if layer >= config.num_hidden_layers {
                let expected = format!("layers below {}", config.num_hidden_layers);
                return Err(self.inconsistent(&key.to_string(), expected, layer.to_string()));
            }
            of_kind.entry(kind(layer)).or_default().insert(key.stage);
        }
        let asked = layers.iter().flat_map(|&layer| {
            of_kind[&kind(layer)].iter().map(move |&stage| StageKey::layer(layer, stage))
        });
        match asked.into_iter().find(|key| !keys.contains(key)) {
            None => Ok(()),
            Some(missing) => Err(self.missing(&missing.to_string())),
        }
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
