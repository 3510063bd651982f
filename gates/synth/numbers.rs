//! The engine against the f64 reference on synthetic models, by the same tolerances as elsewhere:
//! every stage within its local bound, the logits within eight times the floor of f32.

use std::path::Path;
use std::sync::Arc;

use k3_checkpoint::Checkpoint;
use k3_core::config::{MLA_NORM_EPS, RawConfig};
use k3_core::stages::{NoStages, Stage, StageDump, StageKey};
use k3_engine::kernels::table::Kernels;
use k3_engine::model::{Engine, EngineOptions, EngineSequence, Shape};
use k3_reference::local::{Arithmetic, LocalValues, recompute};
use k3_reference::{Model, StageHook};

use super::expect;
use crate::support::largest_difference;

/// Factor on the measured noise floor for a comparison end to end.
const CHAINED_FACTOR: f64 = 8.0;

/// Rounds every stored activation, which is what an f32 engine cannot avoid.
#[derive(Debug)]
struct StoredInF32;

impl StageHook for StoredInF32 {
    fn stored(&self, _key: StageKey, values: &mut [f64]) {
        for value in values {
            *value = f64::from(*value as f32);
        }
    }

    fn stored_ids(&self, _key: StageKey, _chosen: &mut [Vec<usize>]) {}
}

fn ids(count: u32, vocab: usize) -> Vec<u32> {
    (0..count).map(|n| (n * 97 + 5) % vocab as u32).collect()
}

/// The engine's stages on `ids`.
fn engine_dump(folder: &Path, config: &RawConfig, ids: &[u32], mla_norm_eps: f64) -> StageDump {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let options = EngineOptions { threads: 2, ..EngineOptions::default() };
    let mut shape = Shape::derive(config).unwrap();
    shape.mla_norm_eps = mla_norm_eps;
    let engine = Engine::resident(Kernels::SCALAR, shape, &checkpoint, options).unwrap();
    let mut dump = StageDump::default();
    let mut sequence = EngineSequence::new(Arc::new(engine));
    sequence.feed_with(ids, &mut dump).unwrap();
    dump
}

/// Stages of the dump that leave their local bounds; ties and left-out stages are not allowed.
fn beyond(model: &Model, dump: &StageDump, ids: &[u32]) -> Vec<StageKey> {
    let local = recompute(model, dump, ids, Arithmetic::F64Sums).unwrap();
    assert_eq!(local.skipped, []);
    assert_eq!(local.stages.len(), dump.tensors.len());
    let mut failing = Vec::new();
    let mut worst = (0.0, None);
    for stage in &local.stages {
        if let LocalValues::Ids { ties, .. } = &stage.values {
            assert_eq!(ties, &[] as &[usize], "{}", stage.key);
        }
        let record = stage.judge(dump);
        let ratio = record.ratio.unwrap_or(0.0);
        if ratio > worst.0 {
            worst = (ratio, Some(stage.key));
        }
        if !record.passed {
            failing.push(stage.key);
        }
    }
    println!("worst stage: {worst:?}");
    failing
}

/// Logits of a dump, engine or reference.
fn logits(dump: &StageDump) -> Vec<f64> {
    match &dump.tensors[&StageKey::model(Stage::Logits)].values {
        k3_core::stages::StageValues::Real(values) => values.clone(),
        k3_core::stages::StageValues::Ids(_) => panic!("logits are numbers"),
    }
}

/// Engine and reference on a synthetic model; then the engine with another ε in MLA, which the
/// same check must see.
fn engine_agrees(arguments: &str, count: u32) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    expect(out, &format!("--probe 0 {arguments}"), 0);
    let config = k3_checkpoint::config::read(&out.join("config.json")).unwrap();
    let model = Model::open(out, MLA_NORM_EPS).unwrap();
    let ids = ids(count, config.vocab_size);
    let dump = engine_dump(out, &config, &ids, MLA_NORM_EPS);
    assert_eq!(beyond(&model, &dump, &ids), []);

    let right = model.sequence().feed(&ids, &mut NoStages).unwrap().values;
    let mut stored = model.sequence_with(&StoredInF32);
    let floor = largest_difference(&stored.feed(&ids, &mut NoStages).unwrap().values, &right);
    let got = largest_difference(&logits(&dump), &right);
    println!("{arguments}: logits differ by {got:e}, floor {floor:e}");
    assert!(floor > 0.0 && got <= CHAINED_FACTOR * floor, "{got:e}, floor {floor:e}");

    let wrong = engine_dump(out, &config, &ids, 1e-5);
    let failing = beyond(&model, &wrong, &ids);
    let is_normed = |key: &StageKey| matches!(key.stage, Stage::MlaQ | Stage::MlaLatent);
    let normed: Vec<StageKey> = wrong.tensors.keys().copied().filter(is_normed).collect();
    assert!(!normed.is_empty());
    assert_eq!(failing, normed);
}

/// The widths that kernels for the release demand.
#[test]
fn engine_and_reference_agree_on_five_layers_of_kernel_width() {
    engine_agrees("--shape kernel --experts 8 --vocab 256", 10);
}

/// The model of the chat tests.
#[test]
fn engine_and_reference_agree_on_a_tiny_model_of_320_ids() {
    engine_agrees("--shape tiny --vocab 320", 10);
}
