//! Makes the answers of an evidence set for any checkpoint, by the f64 reference.

use k3_core::choice::Choice as _;
use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use super::evidence::{DEFAULT_F32_TOLERANCE, DEFAULT_F64_TOLERANCE, EvidenceSet, TeacherForced};
use super::noise_floor::NoiseFloor;
use super::subject::argmax;
use crate::tensor_file::{TensorOut, encode};
use k3_core::Precision;
use k3_core::config::RawConfig;
use k3_core::stages::{Stage, StageDump, StageKey, StageSink, StageValues};
use k3_reference::{Model, ReferenceError};

/// Why there are no answers.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// The reference refuses the checkpoint or the ids, or fails.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// Logits that choose nothing.
    #[error("position {0}: the logits are not finite")]
    NotFinite(usize),
    /// The tensors cannot be encoded.
    #[error("expected.safetensors: {0}")]
    Encode(#[from] safetensors::SafeTensorError),
}

/// Everything the reference says about a prompt and what it appends to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Answers {
    /// The ids given.
    pub prompt_ids: Vec<u32>,
    /// The ids it appends, each the argmax of the logits before it.
    pub greedy_ids: Vec<u32>,
    /// The argmax at each of the T positions.
    pub argmax: Vec<u32>,
    /// `[T, vocabulary]`.
    pub logits: Vec<f64>,
    /// Router ids, router weights and layer outputs of all positions.
    pub stages: StageDump,
    /// Smallest distance between the two largest logits of a position.
    pub least_gap: f64,
}

/// Keeps what an evidence set has room for.
#[derive(Default)]
struct Kept(StageDump);

impl StageSink for Kept {
    fn wants(&self, key: StageKey) -> bool {
        matches!(key.stage, Stage::RouterIds | Stage::RouterWeights | Stage::Out)
    }

    fn put(&mut self, key: StageKey, shape: &[usize], values: &[f64]) {
        self.0.put(key, shape, values);
    }

    fn put_ids(&mut self, key: StageKey, shape: &[usize], ids: &[i32]) {
        self.0.put_ids(key, shape, ids);
    }
}

impl Answers {
    /// Runs the reference: the prompt, then `count` greedy ids with carried state.
    ///
    /// # Errors
    ///
    /// [`AnswerError`], but for encoding.
    pub fn make(
        folder: &Path,
        mla_norm_eps: f64,
        prompt: &[u32],
        count: usize,
    ) -> Result<Self, AnswerError> {
        let model = Model::open(folder, mla_norm_eps)?;
        let mut kept = Kept::default();
        let mut sequence = model.sequence();
        let mut logits = sequence.feed(prompt, &mut kept)?.values;
        let width = model.config().vocab_size;
        let mut greedy_ids = Vec::with_capacity(count);
        for _ in 0..count {
            let row = &logits[logits.len() - width..];
            let position = logits.len() / width - 1;
            let id = argmax(row).ok_or(AnswerError::NotFinite(position))?;
            greedy_ids.push(id);
            logits.extend(sequence.feed(&[id], &mut kept)?.values);
        }
        let choice = |(position, row)| argmax(row).ok_or(AnswerError::NotFinite(position));
        let argmax = logits.chunks(width).enumerate().map(choice);
        let argmax = argmax.collect::<Result<Vec<u32>, _>>()?;
        Ok(Self {
            prompt_ids: prompt.to_vec(),
            greedy_ids,
            argmax,
            least_gap: logits.chunks(width).map(gap).fold(f64::INFINITY, f64::min),
            logits,
            stages: kept.0,
        })
    }

    /// Prompt and greedy ids.
    #[must_use]
    pub fn full_ids(&self) -> Vec<u32> {
        [self.prompt_ids.as_slice(), &self.greedy_ids].concat()
    }

    /// The MoE layers, zero-based.
    #[must_use]
    pub fn moe_layers(&self) -> Vec<usize> {
        let keys = self.stages.tensors.keys();
        keys.filter(|key| key.stage == Stage::RouterIds).filter_map(|key| key.layer).collect()
    }

    /// `expected.json`, with the answers and the noise floors.
    #[must_use]
    pub fn json(
        &self,
        name: &str,
        mla_norm_eps: f64,
        floors: &[NoiseFloor],
        sha256: &BTreeMap<String, String>,
    ) -> serde_json::Value {
        let noise: BTreeMap<&str, serde_json::Value> = floors
            .iter()
            .map(|floor| {
                let key = StageKey::model(Stage::Logits);
                let max_abs = floor.stages.get(&key).map(|floor| floor.max_abs);
                let text = json!({"max_abs_vs_f64": max_abs, "first_flip": floor.flipped});
                (floor.precision.name(), text)
            })
            .collect();
        let mut tensors = json!({
            "logits.f64": "[T,V] F64, teacher forcing on full_ids",
            "layer_out.f64": "[layers,T,E] F64, the running sum after each layer",
        });
        if !self.moe_layers().is_empty() {
            tensors["router_ids.f64"] = "[MoE layers,T,k] I32, ascending expert id".into();
            tensors["router_weights.f64"] = "[MoE layers,T,k] F64, in the order of the ids".into();
        }
        json!({
            "set": name,
            "prompt_ids": self.prompt_ids,
            "greedy_ids": self.greedy_ids,
            "full_ids": self.full_ids(),
            "argmax_per_position": self.argmax,
            "moe_layers": self.moe_layers(),
            "margins": {"min_top1_top2_gap": self.least_gap},
            "noise": noise,
            "suggested_tolerance": {
                "float32_engine_max_abs_vs_f64": DEFAULT_F32_TOLERANCE,
                "float64_engine_max_abs_vs_f64": DEFAULT_F64_TOLERANCE,
            },
            "note": format!(
                "answers by the f64 reference of k3-verify {}, epsilon of the MLA low-rank norms \
                 {mla_norm_eps:e}",
                env!("CARGO_PKG_VERSION")
            ),
            "sha256": sha256,
            "tensors": tensors,
        })
    }

    /// `expected.safetensors`.
    ///
    /// # Errors
    ///
    /// [`AnswerError::Encode`].
    pub fn tensors(&self, config: &RawConfig) -> Result<Vec<u8>, AnswerError> {
        let rows = self.argmax.len();
        let gather = |stage: Stage| {
            let mut real = Vec::new();
            let mut ids = Vec::new();
            for (_, tensor) in self.stages.tensors.iter().filter(|(k, _)| k.stage == stage) {
                match &tensor.values {
                    StageValues::Real(values) => real.extend_from_slice(values),
                    StageValues::Ids(values) => ids.extend_from_slice(values),
                }
            }
            if stage == Stage::RouterIds { StageValues::Ids(ids) } else { StageValues::Real(real) }
        };
        let routed = [self.moe_layers().len(), rows, config.num_experts_per_token];
        let outputs = [config.num_hidden_layers, rows, config.hidden_size];
        let logits_shape = [rows, config.vocab_size];
        let logits = StageValues::Real(self.logits.clone());
        let [out, ids, weights] = [Stage::Out, Stage::RouterIds, Stage::RouterWeights].map(gather);
        let tensor = |name, shape, values| TensorOut { name, shape, values, as_f32: false };
        let mut tensors = vec![
            tensor("logits.f64", &logits_shape[..], &logits),
            tensor("layer_out.f64", &outputs, &out),
        ];
        if routed[0] > 0 {
            tensors.push(tensor("router_ids.f64", &routed, &ids));
            tensors.push(tensor("router_weights.f64", &routed, &weights));
        }
        Ok(encode(&tensors, &BTreeMap::new())?)
    }
}

/// Distance between the two largest values.
fn gap(row: &[f64]) -> f64 {
    let (mut first, mut second) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
    for &value in row {
        if value > first {
            (first, second) = (value, first);
        } else if value > second {
            second = value;
        }
    }
    first - second
}

/// The noise floors of f32 and bf16 on some ids, for the set's readers.
///
/// # Errors
///
/// What the reference says.
pub fn floors(
    folder: &Path,
    mla_norm_eps: f64,
    ids: &[u32],
) -> Result<Vec<NoiseFloor>, ReferenceError> {
    let measure = |precision| NoiseFloor::measure(folder, mla_norm_eps, ids, precision);
    [Precision::F32, Precision::Bf16].into_iter().map(measure).collect()
}

/// Answers a set anew under another epsilon of MLA's low-rank norms: logits and ids. What the set
/// has of the inside (stages, routers, layer outputs) belongs to the released one and is dropped.
///
/// # Errors
///
/// As [`Answers::make`].
pub fn replace(set: &mut EvidenceSet, mla_norm_eps: f64) -> Result<(), AnswerError> {
    let make = |prompt: &[u32], count| Answers::make(&set.model_dir, mla_norm_eps, prompt, count);
    let answers = make(&set.prompt_ids, set.greedy_ids.len())?;
    let long = match &set.long {
        Some(long) => Some((long.ids.clone(), make(&long.ids, 0)?)),
        None => None,
    };
    set.full =
        TeacherForced { ids: answers.full_ids(), argmax: answers.argmax, logits: answers.logits };
    set.greedy_ids = answers.greedy_ids;
    set.long =
        long.map(|(ids, long)| TeacherForced { ids, argmax: long.argmax, logits: long.logits });
    set.router = None;
    set.long_router_ids = None;
    set.layer_outputs = None;
    set.stages = BTreeMap::new();
    set.stage_rows = 0;
    set.other_logits = BTreeMap::new();
    Ok(())
}
