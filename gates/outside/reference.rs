//! The f64 reference against answers made by others.

use k3_core::config::MLA_NORM_EPS;
use k3_core::stages::{NoStages, Stage, StageDump, StageKey, StageValues};
use k3_reference::formulas::RELEASED;
use k3_reference::moe::decode_mxfp4;
use k3_reference::{Logits, Model};
use serde_json::Value;

use super::external;
use crate::support::{Oracle, bits_f64, largest_difference, read_json};

fn open() -> Oracle {
    Oracle::open(&external("tiny-k3-a"))
}

fn model(oracle: &Oracle, mla_norm_eps: f64) -> Model {
    Model::open(&oracle.model, mla_norm_eps).unwrap()
}

fn feed_all(model: &Model, ids: &[u32]) -> Logits {
    model.sequence().feed(ids, &mut NoStages).unwrap()
}

/// Any wrong formula: the reference's logits are not the f64 answer of two foreign programs.
pub fn logits_are_those_of_the_released_code() {
    let tiny = open();
    let ids = tiny.ids("full_ids");
    let logits = feed_all(&model(&tiny, MLA_NORM_EPS), &ids);
    let difference = largest_difference(&logits.values, &tiny.tensor("logits.f64"));
    eprintln!("max |Δ| to logits.f64: {difference:e}");
    assert!(difference <= 1e-9, "{difference:e}");
    let argmax: Vec<u32> = (0..logits.rows).map(|row| logits.argmax(row)).collect();
    assert_eq!(argmax, tiny.ids("argmax_per_position"));
}

/// A mistake in one layer that later layers dilute: outputs and routing of every layer.
pub fn layer_outputs_and_routing_are_those_of_the_released_code() {
    let tiny = open();
    let mut dump = StageDump::default();
    let ids = tiny.ids("full_ids");
    model(&tiny, MLA_NORM_EPS).sequence().feed(&ids, &mut dump).unwrap();
    let real = |layer, stage| match &dump.tensors[&StageKey::layer(layer, stage)].values {
        StageValues::Real(values) => values.clone(),
        StageValues::Ids(ids) => ids.iter().map(|id| f64::from(*id)).collect(),
    };
    let all = |layers: std::ops::Range<usize>, stage| -> Vec<f64> {
        layers.flat_map(|layer| real(layer, stage)).collect()
    };
    let outs = all(0..13, Stage::Out);
    assert!(largest_difference(&outs, &tiny.tensor("layer_out.released")) < 1e-3);
    let router_ids = all(1..13, Stage::RouterIds);
    assert_eq!(router_ids, tiny.tensor("router_ids.released"));
    let weights = all(1..13, Stage::RouterWeights);
    let expected = tiny.tensor("router_weights.released");
    assert!(largest_difference(&weights, &expected) < 5e-5);
}

/// `rms_norm_eps` in the two low-rank norms: the known slip, and its known answer.
pub fn the_other_mla_epsilon_gives_the_other_engines_logits() {
    let tiny = open();
    let model = model(&tiny, 1e-5);
    let logits = feed_all(&model, &tiny.ids("full_ids"));
    let to_released = largest_difference(&logits.values, &tiny.tensor("logits.f64"));
    let other = tiny.tensor("logits.released_mla_eps_1e-5");
    let to_other = largest_difference(&logits.values, &other);
    eprintln!("max |Δ|: {to_released} to the released ε, {to_other:e} to 1e-5");
    assert!(to_released > 8.0, "{to_released}");
    assert!(to_other < 2e-3, "{to_other}");
}

/// Swapped nibbles or a shifted scale, on bytes of the real model.
pub fn released_mxfp4_bytes_decode_exactly() {
    let file = read_json(&external("kimi-k3-mxfp4/mxfp4.json"));
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
    assert_eq!(bits_f64(&decoded), bits_f64(&reals(&file["expected"]["data"])));
    let swapped = reals(&file["expected_swapped_nibbles"]["first64"]);
    assert_ne!(bits_f64(&decoded[..64]), bits_f64(&swapped));
}
