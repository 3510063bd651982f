//! The f64 reference: its carried state, every mutant of it, what it refuses. What is judged here
//! is the reference, not the engine.

use std::sync::Arc;

use k3_core::config::{MLA_NORM_EPS, RawConfig};
use k3_core::stages::{NoStages, Stage, StageDump, StageKey, StageValues};
use k3_reference::formulas::{Formulas, RELEASED};
use k3_reference::model::embed;
use k3_reference::mutants::{ReferenceMutant, mutants};
use k3_reference::rows::values;
use k3_reference::{
    AsComputed, LayerWeights, Logits, Model, Pass, Reader, ReferenceError, Residual, Sequence,
    StageHook,
};
use rayon::prelude::*;
use tempfile::TempDir;

use super::local::OUT_OF_SIGHT;
use super::support::{Oracle, bits_f64, copy_folder, largest_difference, overwrite};

fn model(tiny: &Oracle) -> Model {
    Model::open(&tiny.model, MLA_NORM_EPS).unwrap()
}

fn feed_all(model: &Model, ids: &[u32]) -> Logits {
    model.sequence().feed(ids, &mut NoStages).unwrap()
}

/// State lost, shifted or cut between calls: greedy decoding with carried state against the ids,
/// and against recomputation from nothing in bits, for several ways to cut the prompt.
#[test]
fn carried_state_gives_the_bits_of_full_recompute() {
    let tiny = Oracle::tiny();
    let model = model(&tiny);
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
        assert_eq!(bits_f64(&values), bits_f64(&whole.values[..values.len()]), "chunks of {chunk}");
    }
}

/// Stages of chunks put together are the stages of the whole, states included.
#[test]
fn stages_do_not_depend_on_chunks() {
    let tiny = Oracle::tiny();
    let model = model(&tiny);
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

/// Ids beyond the table are named, and a refused call leaves the sequence usable.
#[test]
fn ids_outside_the_vocabulary_are_refused() {
    let tiny = Oracle::tiny();
    let model = model(&tiny);
    let mut sequence = model.sequence();
    let refused = sequence.feed(&[1, 256], &mut NoStages);
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("input id 256 at position 1"), "{message}");
    let empty = sequence.feed(&[], &mut NoStages);
    assert!(empty.unwrap_err().to_string().contains("no input ids"));
    let logits = sequence.feed(&[1], &mut NoStages).unwrap();
    assert_eq!(bits_f64(&logits.values), bits_f64(&feed_all(&model, &[1]).values));
}

/// Logits of the ids fed at once, and fed in calls.
fn whole_and_carried(
    tiny: &Oracle,
    formulas: &Formulas,
    ids: &[u32],
) -> Result<[Vec<f64>; 2], ReferenceError> {
    let model = Model::open_as(&tiny.model, tiny.config.clone(), MLA_NORM_EPS, formulas)?;
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

/// What a mutant does on `the tiny oracle`: max |Δlogit| fed at once and carried, or the error.
fn effect(tiny: &Oracle, mutant: &ReferenceMutant, ids: &[u32], right: &[f64]) -> (f64, String) {
    match whole_and_carried(tiny, &mutant.formulas, ids) {
        Ok([whole, carried]) => {
            let whole = largest_difference(&whole, right);
            let carried = largest_difference(&carried, right);
            (whole.max(carried), format!("{whole:9.2e} {carried:9.2e}"))
        }
        Err(error) => (f64::INFINITY, format!("error: {error}")),
    }
}

/// A mutant that changes nothing is no mutant, and a formula that nothing reads is not computed.
#[test]
fn every_mutant_changes_the_logits() {
    let tiny = Oracle::tiny();
    let ids = &tiny.ids("full_ids")[..24];
    let [right, carried] = whole_and_carried(&tiny, &RELEASED, ids).unwrap();
    assert_eq!(bits_f64(&right), bits_f64(&carried));
    let all = mutants();
    let effects: Vec<(f64, String)> =
        all.par_iter().map(|mutant| effect(&tiny, mutant, ids, &right)).collect();
    let mut wrong = Vec::new();
    for (mutant, (largest, text)) in all.iter().zip(&effects) {
        let clauses = mutant.clauses.join(" ");
        eprintln!("{:44} {clauses:8} {text}", mutant.id);
        if (*largest > 1e-9) == OUT_OF_SIGHT.iter().any(|(id, _)| *id == mutant.id) {
            wrong.push(format!("{}: {text}", mutant.id));
        }
    }
    assert!(wrong.is_empty(), "{} mutants not as listed:\n{}", wrong.len(), wrong.join("\n"));
}

/// Values written into the code where the config has a field: seen under another config, judged
/// against the reference itself.
#[test]
fn literal_values_show_under_another_config() {
    let mut tiny = Oracle::tiny();
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
    let tiny = Oracle::tiny();
    let ids = &tiny.ids("full_ids")[..10];
    let mut dump = StageDump::default();
    model(&tiny).sequence().feed(ids, &mut dump).unwrap();
    let model = model(&tiny);
    let right = feed_in_calls(model.sequence(), ids).unwrap();
    let in_some_layers = |key: &&StageKey| key.layer.is_none_or(|n| [0, 3, 4].contains(&n));
    for key in dump.tensors.keys().filter(in_some_layers) {
        let nudged = feed_in_calls(model.sequence_with(&Nudged(*key)), ids).unwrap();
        assert!(largest_difference(&nudged, &right) > 1e-9, "{key}");
    }
}

/// A copy of the model with some bytes of one tensor overwritten.
fn damaged(tiny: &Oracle, tensor: &str, at_byte: u64, bytes: &[u8]) -> TempDir {
    let copy = TempDir::new().unwrap();
    copy_folder(&tiny.model, copy.path());
    overwrite(copy.path(), tensor, at_byte, bytes);
    copy
}

/// The formulas of a mutant by id.
fn mutant(id: &str) -> Formulas {
    mutants().into_iter().find(|m| m.id == id).unwrap().formulas
}

/// A NaN scale taken for a number: the place is named, and the silent mutants go through.
#[test]
fn a_nan_scale_is_reported_with_its_place() {
    let tiny = Oracle::tiny();
    let expert = tiny.tensor("router_ids.f64")[0];
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
    let tiny = Oracle::tiny();
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
    let tiny = Oracle::tiny();
    let refused = |change: fn(&mut RawConfig)| {
        let mut config = tiny.config.clone();
        change(&mut config);
        Model::open_as(&tiny.model, config, MLA_NORM_EPS, &RELEASED).unwrap_err().to_string()
    };
    let message = refused(|config| config.num_experts = 9);
    assert!(message.contains("experts.8.w1.weight_packed: missing"), "{message}");
    let message = refused(|config| config.kv_lora_rank = 64);
    assert!(message.contains("expected shape [72, 128], got [48, 128]"), "{message}");
}

/// One layer loaded and run alone gives what the whole model gives there.
#[test]
fn a_layer_runs_alone() {
    let tiny = Oracle::tiny();
    let ids = tiny.ids("prompt_ids");
    let mut dump = StageDump::default();
    model(&tiny).sequence().feed(&ids, &mut dump).unwrap();
    let pass = Pass {
        config: &tiny.config,
        mla_norm_eps: MLA_NORM_EPS,
        formulas: &RELEASED,
        hook: &AsComputed,
    };
    let reader = Arc::new(Reader::open(&tiny.model).unwrap());
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
