//! The f64 reference against answers made by others (`$K3_EXTERNAL/tiny-k3-a`), its own carried
//! state, and every mutant of it. What is judged here is the reference, not the engine.

#![allow(clippy::unwrap_used)] // a test that cannot read its input fails

use std::path::{Path, PathBuf};
use std::sync::Arc;

use k3_core::config::{MLA_NORM_EPS, RawConfig};
use k3_core::stages::{NoStages, Stage, StageDump, StageKey, StageValues};
use k3_reference::formulas::{Formulas, RELEASED};
use k3_reference::model::embed;
use k3_reference::moe::decode_mxfp4;
use k3_reference::mutants::{ReferenceMutant, mutants};
use k3_reference::rows::values;
use k3_reference::{
    AsComputed, LayerWeights, Logits, Model, Pass, Reader, ReferenceError, Residual, Sequence,
    StageHook,
};
use rayon::prelude::*;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use tempfile::TempDir;

/// The external evidence, or a message that the test did not run.
fn external(part: &str) -> Option<PathBuf> {
    match std::env::var_os("K3_EXTERNAL") {
        Some(folder) => Some(Path::new(&folder).join(part)),
        None => {
            eprintln!("NOT RUN: K3_EXTERNAL is not set, {part} is not there");
            None
        }
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The evidence set `tiny-k3-a`.
struct TinyA {
    folder: PathBuf,
    config: RawConfig,
    expected: Value,
    tensors: Vec<u8>,
}

impl TinyA {
    fn open() -> Option<Self> {
        let set = external("tiny-k3-a")?;
        let folder = set.join("model");
        Some(Self {
            config: k3_checkpoint::config::read(&folder.join("config.json")).unwrap(),
            expected: json(&set.join("expected.json")),
            tensors: std::fs::read(set.join("expected.safetensors")).unwrap(),
            folder,
        })
    }

    fn model(&self) -> Model {
        Model::open(&self.folder, MLA_NORM_EPS).unwrap()
    }

    fn ids(&self, name: &str) -> Vec<u32> {
        let ids = self.expected[name].as_array().unwrap();
        ids.iter().map(|id| id.as_u64().unwrap() as u32).collect()
    }

    /// An expected tensor, widened.
    fn tensor(&self, name: &str) -> Vec<f64> {
        let file = SafeTensors::deserialize(&self.tensors).unwrap();
        let view = file.tensor(name).unwrap();
        let words = view.data().as_chunks::<4>().0;
        match view.dtype() {
            Dtype::F32 => words.iter().map(|w| f64::from(f32::from_le_bytes(*w))).collect(),
            Dtype::I32 => words.iter().map(|w| f64::from(i32::from_le_bytes(*w))).collect(),
            Dtype::F64 => {
                let words = view.data().as_chunks::<8>().0;
                words.iter().map(|w| f64::from_le_bytes(*w)).collect()
            }
            other => panic!("{name}: unexpected dtype {other:?}"),
        }
    }
}

/// The largest |a − b|; NaN anywhere counts as infinite.
fn max_abs_difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    assert!(!a.is_empty());
    let difference = |(a, b): (&f64, &f64)| {
        let d = (a - b).abs();
        if d.is_nan() { f64::INFINITY } else { d }
    };
    a.iter().zip(b).map(difference).fold(0.0, f64::max)
}

fn feed_all(model: &Model, ids: &[u32]) -> Logits {
    model.sequence().feed(ids, &mut NoStages).unwrap()
}

fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Any wrong formula: the reference's logits are not the f64 answer of two foreign programs.
#[test]
fn logits_are_those_of_the_released_code() {
    let Some(tiny) = TinyA::open() else { return };
    let ids = tiny.ids("full_ids");
    let logits = feed_all(&tiny.model(), &ids);
    let difference = max_abs_difference(&logits.values, &tiny.tensor("logits.f64"));
    eprintln!("max |Δ| to logits.f64: {difference:e}");
    assert!(difference <= 1e-9, "{difference:e}");
    let argmax: Vec<u32> = (0..logits.rows).map(|row| logits.argmax(row)).collect();
    assert_eq!(argmax, tiny.ids("argmax_per_position"));
}

/// A mistake in one layer that later layers dilute: outputs and routing of every layer.
#[test]
fn layer_outputs_and_routing_are_those_of_the_released_code() {
    let Some(tiny) = TinyA::open() else { return };
    let mut dump = StageDump::default();
    let ids = tiny.ids("full_ids");
    tiny.model().sequence().feed(&ids, &mut dump).unwrap();
    let real = |layer, stage| match &dump.tensors[&StageKey::layer(layer, stage)].values {
        StageValues::Real(values) => values.clone(),
        StageValues::Ids(ids) => ids.iter().map(|id| f64::from(*id)).collect(),
    };
    let all = |layers: std::ops::Range<usize>, stage| -> Vec<f64> {
        layers.flat_map(|layer| real(layer, stage)).collect()
    };
    let outs = all(0..13, Stage::Out);
    assert!(max_abs_difference(&outs, &tiny.tensor("layer_out.released")) < 1e-3);
    let router_ids = all(1..13, Stage::RouterIds);
    assert_eq!(router_ids, tiny.tensor("router_ids.released"));
    let weights = all(1..13, Stage::RouterWeights);
    let expected = tiny.tensor("router_weights.released");
    assert!(max_abs_difference(&weights, &expected) < 5e-5);
}

/// State lost, shifted or cut between calls: greedy decoding with carried state against the ids,
/// and against recomputation from nothing in bits, for several ways to cut the prompt.
#[test]
fn carried_state_gives_the_bits_of_full_recompute() {
    let Some(tiny) = TinyA::open() else { return };
    let model = tiny.model();
    let (prompt, full) = (tiny.ids("prompt_ids"), tiny.ids("full_ids"));
    let whole = feed_all(&model, &full);
    for chunk in [1, 2, 3, 7, prompt.len()] {
        let mut sequence = model.sequence();
        let mut values = Vec::new();
        let mut next = 0;
        for ids in prompt.chunks(chunk) {
            let logits = sequence.feed(ids, &mut NoStages).unwrap();
            next = logits.argmax(logits.rows - 1);
            values.extend(logits.values);
        }
        let mut generated = vec![next];
        while generated.len() < 20 {
            let logits = sequence.feed(&[next], &mut NoStages).unwrap();
            next = logits.argmax(0);
            generated.push(next);
            values.extend(logits.values);
        }
        assert_eq!(generated, tiny.ids("greedy_ids"), "chunks of {chunk}");
        assert_eq!(bits(&values), bits(&whole.values[..values.len()]), "chunks of {chunk}");
    }
}

/// Stages of chunks put together are the stages of the whole, states included.
#[test]
fn stages_do_not_depend_on_chunks() {
    let Some(tiny) = TinyA::open() else { return };
    let model = tiny.model();
    let ids = tiny.ids("prompt_ids");
    let (mut whole, mut parts) = (StageDump::default(), StageDump::default());
    model.sequence().feed(&ids, &mut whole).unwrap();
    let mut sequence = model.sequence();
    for chunk in ids.chunks(3) {
        sequence.feed(chunk, &mut parts).unwrap();
    }
    assert_eq!(whole, parts);
    // 9 KDA, 4 MLA, 1 dense, 12 MoE layers.
    let expected = 13 * 7 + 9 * 9 + 4 * 4 + 12 * 6 + 4;
    assert_eq!(whole.tensors.len(), expected);
}

/// `rms_norm_eps` in the two low-rank norms: the known slip, and its known answer.
#[test]
fn the_other_mla_epsilon_gives_the_other_engines_logits() {
    let Some(tiny) = TinyA::open() else { return };
    let model = Model::open(&tiny.folder, 1e-5).unwrap();
    let logits = feed_all(&model, &tiny.ids("full_ids"));
    let to_released = max_abs_difference(&logits.values, &tiny.tensor("logits.f64"));
    let other = tiny.tensor("logits.released_mla_eps_1e-5");
    let to_other = max_abs_difference(&logits.values, &other);
    eprintln!("max |Δ|: {to_released} to the released ε, {to_other:e} to 1e-5");
    assert!(to_released > 8.0, "{to_released}");
    assert!(to_other < 2e-3, "{to_other}");
}

/// Ids beyond the table are named, and a refused call leaves the sequence usable.
#[test]
fn ids_outside_the_vocabulary_are_refused() {
    let Some(tiny) = TinyA::open() else { return };
    let model = tiny.model();
    let mut sequence = model.sequence();
    let refused = sequence.feed(&[1, 256], &mut NoStages);
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("input id 256 at position 1"), "{message}");
    let empty = sequence.feed(&[], &mut NoStages);
    assert!(empty.unwrap_err().to_string().contains("no input ids"));
    let logits = sequence.feed(&[1], &mut NoStages).unwrap();
    assert_eq!(bits(&logits.values), bits(&feed_all(&model, &[1]).values));
}

/// Swapped nibbles or a shifted scale, on bytes of the real model.
#[test]
fn released_mxfp4_bytes_decode_exactly() {
    let Some(file) = external("kimi-k3-mxfp4/mxfp4.json") else {
        return;
    };
    let file = json(&file);
    let integers = |name: &str| -> Vec<u8> {
        let data = file[name]["data"].as_array().unwrap();
        data.iter().map(|b| b.as_u64().unwrap() as u8).collect()
    };
    let columns = file["logical_width"].as_u64().unwrap() as usize;
    let (packed, scales) = (integers("packed"), integers("scales"));
    let decoded = decode_mxfp4(&RELEASED, columns, &packed, &scales).unwrap();
    let reals = |value: &Value| -> Vec<f64> {
        value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
    };
    assert_eq!(bits(&decoded), bits(&reals(&file["expected"]["data"])));
    let swapped = reals(&file["expected_swapped_nibbles"]["first64"]);
    assert_ne!(bits(&decoded[..64]), bits(&swapped));
}

/// Mutants that `tiny-k3-a` cannot tell from the reference, each with the input that can.
const UNSEEN_ON_TINY_A: &[(&str, &str)] = &[
    ("norm-eps-literal", "tiny-k3-a has the released rms_norm_eps; another value shows it"),
    ("norm-eps-literal-*", "as above, in one place each"),
    ("decay-bound-literal", "tiny-k3-a has the released bound; another value shows it"),
    ("situ-beta-literal", "tiny-k3-a has the released cap; another value shows it"),
    ("situ-linear-beta-literal", "tiny-k3-a has the released cap; another value shows it"),
    (
        "mla-cache-of-64",
        "the ids do not fill 64 positions; the long sequence of the tiny oracle shows it",
    ),
    ("router-scaling-off", "tiny-k3-a scales by 1; another value shows it"),
    ("router-ties-to-higher", "no two scores are equal; equal biases on equal rows show it"),
    ("decay-padding-not-checked", "the padding is zero; a damaged A_log shows it"),
    ("mxfp4-scale-zero-flushed", "no scale byte is 0; a checkpoint with one shows it"),
    ("mxfp4-nan-scale-is-zero", "no scale byte is 255; a damaged scale shows it"),
    ("mxfp4-nan-scale-is-a-power", "no scale byte is 255; a damaged scale shows it"),
];

fn is_unseen_on_tiny_a(id: &str) -> bool {
    UNSEEN_ON_TINY_A.iter().any(|(name, _)| match name.strip_suffix('*') {
        Some(stem) => id.starts_with(stem),
        None => id == *name,
    })
}

/// Logits of the ids fed at once, and fed in calls.
fn whole_and_carried(
    tiny: &TinyA,
    formulas: &Formulas,
    ids: &[u32],
) -> Result<[Vec<f64>; 2], ReferenceError> {
    let model = Model::open_as(&tiny.folder, tiny.config.clone(), MLA_NORM_EPS, formulas)?;
    let whole = model.sequence().feed(ids, &mut NoStages)?.values;
    Ok([whole, feed_in_calls(model.sequence(), ids)?])
}

/// Logits of the ids fed in calls of 5, 1, 1, 2 and then 1 or 2.
fn feed_in_calls(mut sequence: Sequence<'_>, ids: &[u32]) -> Result<Vec<f64>, ReferenceError> {
    let (mut carried, mut rest) = (Vec::new(), ids);
    for length in [5, 1, 1, 2].into_iter().chain([1, 2].into_iter().cycle()) {
        let (call, later) = rest.split_at(length.min(rest.len()));
        if call.is_empty() {
            break;
        }
        carried.extend(sequence.feed(call, &mut NoStages)?.values);
        rest = later;
    }
    Ok(carried)
}

/// What a mutant does on `tiny-k3-a`: max |Δlogit| fed at once and carried, or the error.
fn effect(tiny: &TinyA, mutant: &ReferenceMutant, ids: &[u32], right: &[f64]) -> (f64, String) {
    match whole_and_carried(tiny, &mutant.formulas, ids) {
        Ok([whole, carried]) => {
            let whole = max_abs_difference(&whole, right);
            let carried = max_abs_difference(&carried, right);
            (whole.max(carried), format!("{whole:9.2e} {carried:9.2e}"))
        }
        Err(error) => (f64::INFINITY, format!("error: {error}")),
    }
}

/// A mutant that changes nothing is no mutant, and a formula that nothing reads is not computed.
#[test]
fn every_mutant_changes_the_logits() {
    let Some(tiny) = TinyA::open() else { return };
    let ids = &tiny.ids("full_ids")[..24];
    let [right, carried] = whole_and_carried(&tiny, &RELEASED, ids).unwrap();
    assert_eq!(bits(&right), bits(&carried));
    let all = mutants();
    let effects: Vec<(f64, String)> =
        all.par_iter().map(|mutant| effect(&tiny, mutant, ids, &right)).collect();
    let mut wrong = Vec::new();
    for (mutant, (largest, text)) in all.iter().zip(&effects) {
        let clauses = mutant.clauses.join(" ");
        eprintln!("{:44} {clauses:8} {text}", mutant.id);
        if (*largest > 1e-9) == is_unseen_on_tiny_a(mutant.id) {
            wrong.push(format!("{}: {text}", mutant.id));
        }
    }
    assert!(wrong.is_empty(), "{} mutants not as listed:\n{}", wrong.len(), wrong.join("\n"));
}

/// Values written into the code where the config has a field: seen under another config, judged
/// against the reference itself.
#[test]
fn literal_values_show_under_another_config() {
    let Some(mut tiny) = TinyA::open() else {
        return;
    };
    tiny.config.rms_norm_eps = 3e-5;
    tiny.config.gate_lower_bound = -4.0;
    tiny.config.activation_situ_beta = 3.0;
    tiny.config.activation_situ_linear_beta = 20.0;
    tiny.config.routed_scaling_factor = 1.7;
    let ids = &tiny.ids("full_ids")[..12];
    let [right, _] = whole_and_carried(&tiny, &RELEASED, ids).unwrap();
    let literal = |m: &ReferenceMutant| m.id.contains("literal") || m.id == "router-scaling-off";
    let literals: Vec<ReferenceMutant> = mutants().into_iter().filter(literal).collect();
    assert_eq!(literals.len(), 14);
    for mutant in literals {
        let (largest, text) = effect(&tiny, &mutant, ids, &right);
        assert!(largest > 1e-9, "{}: {text}", mutant.id);
    }
}

/// Moves the values of one stage a little before anything reads them.
#[derive(Debug)]
struct Nudged(StageKey);

impl StageHook for Nudged {
    fn stored(&self, key: StageKey, values: &mut [f64]) {
        if key == self.0 {
            for (index, value) in values.iter_mut().enumerate() {
                *value += 1e-3 * (index % 3) as f64;
            }
        }
    }

    fn stored_ids(&self, key: StageKey, chosen: &mut [Vec<usize>]) {
        if key == self.0 {
            chosen.iter_mut().for_each(|ids| *ids = vec![1, 6]);
        }
    }
}

/// A stage that nothing reads would be compared in vain: every one of them decides the logits.
#[test]
fn every_stage_is_read_by_what_follows() {
    let Some(tiny) = TinyA::open() else { return };
    let ids = &tiny.ids("full_ids")[..10];
    let mut dump = StageDump::default();
    tiny.model().sequence().feed(ids, &mut dump).unwrap();
    let model = tiny.model();
    let right = feed_in_calls(model.sequence(), ids).unwrap();
    let in_some_layers = |key: &&StageKey| key.layer.is_none_or(|n| [0, 3, 4].contains(&n));
    for key in dump.tensors.keys().filter(in_some_layers) {
        let nudged = feed_in_calls(model.sequence_with(&Nudged(*key)), ids).unwrap();
        assert!(max_abs_difference(&nudged, &right) > 1e-9, "{key}");
    }
}

/// A copy of the model with some bytes of one tensor overwritten.
fn damaged(tiny: &TinyA, tensor: &str, at_byte: usize, bytes: &[u8]) -> TempDir {
    let copy = TempDir::new().unwrap();
    for entry in std::fs::read_dir(&tiny.folder).unwrap() {
        let file = entry.unwrap().path();
        let mut content = std::fs::read(&file).unwrap();
        if file.extension().is_some_and(|e| e == "safetensors") {
            let (header_bytes, metadata) = SafeTensors::read_metadata(&content).unwrap();
            if let Some(info) = metadata.info(tensor) {
                let begin = 8 + header_bytes + info.data_offsets.0 + at_byte;
                content[begin..begin + bytes.len()].copy_from_slice(bytes);
            }
        }
        std::fs::write(copy.path().join(file.file_name().unwrap()), content).unwrap();
    }
    copy
}

/// The formulas of a mutant by id.
fn mutant(id: &str) -> Formulas {
    mutants().into_iter().find(|m| m.id == id).unwrap().formulas
}

/// A NaN scale taken for a number: the place is named, and the silent mutants go through.
#[test]
fn a_nan_scale_is_reported_with_its_place() {
    let Some(tiny) = TinyA::open() else { return };
    let expert = tiny.tensor("router_ids.released")[0];
    let stem = "language_model.model.layers.1.block_sparse_moe.experts";
    // w3 is [64, 64]: two scale bytes a row; row 5, group 1.
    let tensor = format!("{stem}.{expert}.w3.weight_scale");
    let copy = damaged(&tiny, &tensor, 5 * 2 + 1, &[255]);
    let run = |formulas: &Formulas| {
        let model = Model::open_with(copy.path(), MLA_NORM_EPS, formulas)?;
        model.sequence().feed(&tiny.ids("full_ids")[..1], &mut NoStages)
    };
    let message = run(&RELEASED).unwrap_err().to_string();
    let place = format!("layer 1, expert {expert}, w3.weight_scale, row 5, group 1");
    assert!(message.contains(&place), "{message}");
    for silent in ["mxfp4-nan-scale-is-zero", "mxfp4-nan-scale-is-a-power"] {
        assert!(run(&mutant(silent)).is_ok(), "{silent}");
    }
}

/// Padding of `A_log` that holds something: another layout than the one assumed.
#[test]
fn non_zero_padding_of_a_log_is_refused() {
    let Some(tiny) = TinyA::open() else { return };
    let tensor = "language_model.model.layers.2.self_attn.A_log";
    let copy = damaged(&tiny, tensor, 7 * 4, &0.25f32.to_le_bytes());
    let open = |f: &Formulas| Model::open_with(copy.path(), MLA_NORM_EPS, f);
    let message = open(&RELEASED).unwrap_err().to_string();
    assert!(message.contains("layer 2: A_log[7]") && message.contains("0.25"), "{message}");
    assert!(open(&mutant("decay-padding-not-checked")).is_ok());
}

/// A tensor of the wrong size for its config, named before anything is computed.
#[test]
fn a_config_that_does_not_fit_is_refused_by_tensor() {
    let Some(tiny) = TinyA::open() else { return };
    let refused = |change: fn(&mut RawConfig)| {
        let mut config = tiny.config.clone();
        change(&mut config);
        Model::open_as(&tiny.folder, config, MLA_NORM_EPS, &RELEASED).unwrap_err().to_string()
    };
    let message = refused(|config| config.num_experts = 9);
    assert!(message.contains("experts.8.w1.weight_packed: missing"), "{message}");
    let message = refused(|config| config.kv_lora_rank = 64);
    assert!(message.contains("expected shape [72, 128], got [40, 128]"), "{message}");
}

/// One layer loaded and run alone gives what the whole model gives there.
#[test]
fn a_layer_runs_alone() {
    let Some(tiny) = TinyA::open() else { return };
    let ids = tiny.ids("prompt_ids");
    let mut dump = StageDump::default();
    tiny.model().sequence().feed(&ids, &mut dump).unwrap();
    let pass = Pass {
        config: &tiny.config,
        mla_norm_eps: MLA_NORM_EPS,
        formulas: &RELEASED,
        hook: &AsComputed,
    };
    let reader = Arc::new(Reader::open(&tiny.folder).unwrap());
    let mut residual = Residual::new(embed(&reader, &pass, &ids).unwrap());
    for index in 0..4 {
        let layer = LayerWeights::load(&reader, &pass, index).unwrap();
        let mut state = layer.new_state(&tiny.config);
        layer.forward(&pass, &mut residual, 0, &mut state, &mut NoStages).unwrap();
        let expected = &dump.tensors[&StageKey::layer(index, Stage::Out)].values;
        assert_eq!(*expected, StageValues::Real(values(&residual.sum).to_vec()));
    }
    assert_eq!(residual.banks.len(), 2);
}
