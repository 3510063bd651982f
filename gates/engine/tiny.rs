//! The engine on `tiny-k3-a`: answers made by mlx-lm and by the released modelling code.

use std::sync::Arc;

use super::checkpoint::TestCheckpoint;
use super::external;
use k3_core::stages::{Stage, StageDump, StageKey, StageValues};
use k3_engine::kernels::path::KernelPath;
use k3_engine::kernels::table::Kernels;
use k3_engine::model::{Engine, EngineOptions, EngineSequence, Shape};

pub struct Tiny {
    pub checkpoint: TestCheckpoint,
    pub full_ids: Vec<u32>,
    pub prompt_ids: Vec<u32>,
    pub greedy_ids: Vec<u32>,
    expected: Vec<u8>,
}

impl Tiny {
    pub fn open() -> Option<Self> {
        let folder = external("tiny-k3-a")?;
        let json = std::fs::read(folder.join("expected.json")).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let ids = |key: &str| {
            let list = json[key].as_array().unwrap();
            list.iter().map(|id| id.as_u64().unwrap() as u32).collect()
        };
        Some(Self {
            checkpoint: TestCheckpoint::open(&folder.join("model")),
            full_ids: ids("full_ids"),
            prompt_ids: ids("prompt_ids"),
            greedy_ids: ids("greedy_ids"),
            expected: std::fs::read(folder.join("expected.safetensors")).unwrap(),
        })
    }

    pub fn engine(&self, options: EngineOptions) -> Arc<Engine> {
        self.engine_on(KernelPath::SCALAR, options)
    }

    pub fn engine_on(&self, path: KernelPath, options: EngineOptions) -> Arc<Engine> {
        let shape = Shape::derive(&self.checkpoint.raw).unwrap();
        let kernels = Kernels::on(path);
        Arc::new(Engine::resident(kernels, shape, &self.checkpoint, options).unwrap())
    }

    fn numbers(&self, name: &str) -> Vec<f64> {
        let tensors = safetensors::SafeTensors::deserialize(&self.expected).unwrap();
        let view = tensors.tensor(name).unwrap();
        match view.dtype() {
            safetensors::Dtype::F64 => elements(view.data(), f64::from_le_bytes),
            safetensors::Dtype::F32 => {
                let values = elements(view.data(), f32::from_le_bytes);
                values.into_iter().map(f64::from).collect()
            }
            _ => {
                let values = elements(view.data(), i32::from_le_bytes);
                values.into_iter().map(f64::from).collect()
            }
        }
    }
}

fn elements<T, const N: usize>(bytes: &[u8], read: fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|bytes| read(*bytes)).collect()
}

pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

fn largest_difference(ours: &[f32], theirs: &[f64]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let differences = ours.iter().zip(theirs).map(|(a, b)| (f64::from(*a) - b).abs());
    differences.fold(0.0, f64::max)
}

/// The whole composition, against the high-precision value of the same function.
#[test]
fn logits_are_near_the_f64_answer() {
    let Some(tiny) = Tiny::open() else { return };
    let mut sequence = EngineSequence::new(tiny.engine(EngineOptions::default()));
    let logits = sequence.feed(&tiny.full_ids).unwrap();
    let worst = largest_difference(&logits, &tiny.numbers("logits.f64"));
    println!("largest logit difference to logits.f64: {worst:.3e}");
    assert!(worst < 2e-4, "{worst}");
    let mut shape = Shape::derive(&tiny.checkpoint.raw).unwrap();
    shape.mla_norm_eps = 1e-5;
    let options = EngineOptions::default();
    let wrong = Engine::resident(Kernels::SCALAR, shape, &tiny.checkpoint, options).unwrap();
    let mut sequence = EngineSequence::new(Arc::new(wrong));
    let logits = sequence.feed(&tiny.full_ids).unwrap();
    let other = largest_difference(&logits, &tiny.numbers("logits.released_mla_eps_1e-5"));
    println!("with epsilon 1e-5 in the low-rank norms: {other:.3e}");
    assert!(other < 1e-3, "{other}");
    assert!(largest_difference(&logits, &tiny.numbers("logits.f64")) > 1.0);
}

/// The strict reader and the crate's reader give the engine the same weights.
#[test]
fn strict_reader_gives_the_same_bits() {
    let Some(tiny) = Tiny::open() else { return };
    let folder = external("tiny-k3-a").unwrap().join("model");
    let checkpoint = k3_checkpoint::Checkpoint::open(&folder).unwrap();
    let (shape, options) = (Shape::derive(&tiny.checkpoint.raw), EngineOptions::default());
    let engine = Engine::resident(Kernels::SCALAR, shape.unwrap(), &checkpoint, options).unwrap();
    let strict = EngineSequence::new(Arc::new(engine)).feed(&tiny.prompt_ids).unwrap();
    let plain = EngineSequence::new(tiny.engine(options)).feed(&tiny.prompt_ids).unwrap();
    assert_eq!(bits(&strict), bits(&plain));
}

/// Greedy decoding with a carried state gives the published ids, and its logits are those of full
/// recomputation in bits.
#[test]
fn greedy_ids_and_incremental_bits() {
    let Some(tiny) = Tiny::open() else { return };
    let engine = tiny.engine(EngineOptions::default());
    let mut carried = EngineSequence::new(engine.clone());
    let mut last = carried.feed_last(&tiny.prompt_ids).unwrap();
    let mut ids = tiny.prompt_ids.clone();
    for expected in &tiny.greedy_ids {
        let recomputed = EngineSequence::new(engine.clone()).feed_last(&ids).unwrap();
        assert_eq!(bits(&recomputed), bits(&last), "after {} ids", ids.len());
        assert_eq!(argmax(&last), *expected);
        ids.push(*expected);
        last = carried.feed_last(&[*expected]).unwrap();
    }
    assert_eq!(ids, tiny.full_ids);
}

pub fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Layer outputs, router ids and router weights of the released code.
#[test]
fn layers_and_routing_match_the_released_code() {
    let Some(tiny) = Tiny::open() else { return };
    let mut sequence = EngineSequence::new(tiny.engine(EngineOptions::default()));
    let mut dump = StageDump::default();
    sequence.feed_with(&tiny.full_ids, &mut dump).unwrap();
    let gather = |stage, layers: std::ops::Range<usize>| -> Vec<f32> {
        let values =
            layers.flat_map(|layer| match &dump.tensors[&StageKey::layer(layer, stage)].values {
                StageValues::Real(values) => values.clone(),
                StageValues::Ids(ids) => ids.iter().map(|&id| f64::from(id)).collect(),
            });
        values.map(|value| value as f32).collect()
    };
    let worst = largest_difference(&gather(Stage::Out, 0..13), &tiny.numbers("layer_out.released"));
    println!("largest difference of a layer output: {worst:.3e}");
    assert!(worst < 1e-3);
    let ids = gather(Stage::RouterIds, 1..13);
    assert_eq!(largest_difference(&ids, &tiny.numbers("router_ids.released")), 0.0);
    let weights = gather(Stage::RouterWeights, 1..13);
    assert!(largest_difference(&weights, &tiny.numbers("router_weights.released")) < 5e-5);
}

/// Every stage is put, in its shape, whatever the chunks.
#[test]
fn every_stage_is_put_with_its_shape() {
    let Some(tiny) = Tiny::open() else { return };
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
    assert_eq!(shape("layers.0.kda.state"), [4, 16, 16]);
    assert_eq!(shape("layers.0.kda.conv"), [3, 3, 64]);
    assert_eq!(shape("layers.3.mla.latent"), [20, 32]);
    assert_eq!(shape("layers.3.mla.k_rope"), [20, 8]);
    assert_eq!(shape("layers.1.router_ids"), [20, 2]);
    assert_eq!(shape("logits"), [20, 256]);
}
