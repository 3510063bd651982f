//! The engine on the tiny oracle: its reader, its state, its stages. The answers themselves are
//! compared by the gates.

use std::sync::Arc;

use k3_core::stages::{Stage, StageDump, StageKey};
use k3_engine::kernels::table::Kernels;
use k3_engine::model::{Engine, EngineOptions, EngineSequence, Shape};

use crate::support::bits;
use crate::support::engine::{Tiny, greedy_ids_and_incremental_bits};

/// The strict reader and the crate's reader give the engine the same weights.
#[test]
fn strict_reader_gives_the_same_bits() {
    let tiny = Tiny::open();
    let checkpoint = k3_checkpoint::Checkpoint::open(&tiny.oracle.model).unwrap();
    let (shape, options) = (Shape::derive(&tiny.checkpoint.raw), EngineOptions::default());
    let engine = Engine::resident(Kernels::SCALAR, shape.unwrap(), &checkpoint, options).unwrap();
    let strict = EngineSequence::new(Arc::new(engine)).feed(&tiny.prompt_ids).unwrap();
    let plain = EngineSequence::new(tiny.engine(options)).feed(&tiny.prompt_ids).unwrap();
    assert_eq!(bits(&strict), bits(&plain));
}

#[test]
fn greedy_ids_and_incremental_bits_of_the_tiny_oracle() {
    greedy_ids_and_incremental_bits(&Tiny::open());
}

/// Every stage is put, in its shape, whatever the chunks.
#[test]
fn every_stage_is_put_with_its_shape() {
    let tiny = Tiny::open();
    let dump_with = |chunk_tokens| {
        let options = EngineOptions { chunk_tokens, ..EngineOptions::default() };
        let mut dump = StageDump::default();
        let mut sequence = EngineSequence::new(tiny.engine(options));
        sequence.feed_with(&tiny.prompt_ids, &mut dump).unwrap();
        dump
    };
    let whole = dump_with(64);
    assert!(whole == dump_with(7), "chunks show in the stages");
    for stage in Stage::ALL {
        let count = whole.tensors.keys().filter(|key| key.stage == stage).count();
        let expected = match stage.name() {
            name if !stage.is_per_layer() => usize::from(!name.is_empty()),
            name if name.starts_with("kda.") => 9,
            name if name.starts_with("mla.") => 4,
            name if name.starts_with("router_") || name.starts_with("moe.") => 12,
            _ => 13,
        };
        assert_eq!(count, expected, "{stage:?}");
    }
    let shape = |name: &str| whole.tensors[&StageKey::parse(name).unwrap()].shape.clone();
    assert_eq!(shape("layers.0.kda.state"), [5, 16, 16]);
    assert_eq!(shape("layers.0.kda.conv"), [3, 3, 80]);
    assert_eq!(shape("layers.3.mla.latent"), [12, 40]);
    assert_eq!(shape("layers.3.mla.k_rope"), [12, 8]);
    assert_eq!(shape("layers.1.router_ids"), [12, 2]);
    assert_eq!(shape("logits"), [12, 256]);
}
