//! The engine on `tiny-k3-a`: answers made by mlx-lm and by the released modelling code.

use std::sync::Arc;

use k3_core::stages::{Stage, StageDump, StageKey, StageValues};
use k3_engine::kernels::table::Kernels;
use k3_engine::model::{Engine, EngineOptions, EngineSequence, Shape};

use super::external;
use crate::support::engine::{Tiny, greedy_ids_and_incremental_bits};
use crate::support::{Oracle, largest_difference};

fn open() -> Tiny {
    Tiny::of(Oracle::open(&external("tiny-k3-a")))
}

fn widened(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

/// The whole composition, against the high-precision value of the same function.
pub fn logits_are_near_the_f64_answer() {
    let tiny = open();
    let mut sequence = EngineSequence::new(tiny.engine(EngineOptions::default()));
    let logits = sequence.feed(&tiny.full_ids).unwrap();
    let worst = largest_difference(&widened(&logits), &tiny.oracle.tensor("logits.f64"));
    println!("largest logit difference to logits.f64: {worst:.3e}");
    assert!(worst < 2e-4, "{worst}");
    let mut shape = Shape::derive(&tiny.checkpoint.raw).unwrap();
    shape.mla_norm_eps = 1e-5;
    let options = EngineOptions::default();
    let wrong = Engine::resident(Kernels::SCALAR, shape, &tiny.checkpoint, options).unwrap();
    let mut sequence = EngineSequence::new(Arc::new(wrong));
    let logits = sequence.feed(&tiny.full_ids).unwrap();
    let other =
        largest_difference(&widened(&logits), &tiny.oracle.tensor("logits.released_mla_eps_1e-5"));
    println!("with epsilon 1e-5 in the low-rank norms: {other:.3e}");
    assert!(other < 1e-3, "{other}");
    assert!(largest_difference(&widened(&logits), &tiny.oracle.tensor("logits.f64")) > 1.0);
}

/// Layer outputs, router ids and router weights of the released code.
pub fn layers_and_routing_match_the_released_code() {
    let tiny = open();
    let mut sequence = EngineSequence::new(tiny.engine(EngineOptions::default()));
    let mut dump = StageDump::default();
    sequence.feed_with(&tiny.full_ids, &mut dump).unwrap();
    let gather = |stage, layers: std::ops::Range<usize>| -> Vec<f64> {
        let values =
            layers.flat_map(|layer| match &dump.tensors[&StageKey::layer(layer, stage)].values {
                StageValues::Real(values) => values.clone(),
                StageValues::Ids(ids) => ids.iter().map(|&id| f64::from(id)).collect(),
            });
        values.collect()
    };
    let worst =
        largest_difference(&gather(Stage::Out, 0..13), &tiny.oracle.tensor("layer_out.released"));
    println!("largest difference of a layer output: {worst:.3e}");
    assert!(worst < 1e-3);
    let ids = gather(Stage::RouterIds, 1..13);
    assert_eq!(largest_difference(&ids, &tiny.oracle.tensor("router_ids.released")), 0.0);
    let weights = gather(Stage::RouterWeights, 1..13);
    assert!(largest_difference(&weights, &tiny.oracle.tensor("router_weights.released")) < 5e-5);
}

pub fn greedy_ids_are_the_published_ones() {
    greedy_ids_and_incremental_bits(&open());
}
