//! Dumps: a foreign engine's stages judged in its own precision, and as input of our engine.

use std::collections::BTreeMap;
use std::path::Path;

use k3_core::config::MLA_NORM_EPS;
use k3_core::stages::{Stage, StageDump, StageKey, StageValues};
use k3_gates::outcome::Verdict;
use k3_reference::Model;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::support::proof::report;
use crate::support::{arg, expect, scratch, tiny};

/// The reference as a foreign f64 engine.
fn dump(model: &Path) -> StageDump {
    let reference = Model::open(model, MLA_NORM_EPS).unwrap();
    let mut dump = StageDump::default();
    reference.sequence().feed(&[3, 17, 200, 5, 9, 44], &mut dump).unwrap();
    dump
}

fn write(dump: &StageDump, path: &Path) {
    let mut bytes: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> = BTreeMap::new();
    for (key, tensor) in &dump.tensors {
        let (dtype, data) = match &tensor.values {
            StageValues::Real(v) => (Dtype::F64, v.iter().flat_map(|v| v.to_le_bytes()).collect()),
            StageValues::Ids(v) => (Dtype::I32, v.iter().flat_map(|v| v.to_le_bytes()).collect()),
        };
        bytes.insert(key.to_string(), (dtype, tensor.shape.clone(), data));
    }
    let views = bytes.iter().map(|(name, (dtype, shape, data))| {
        (name, TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// A dump judged by the bounds of another precision, or against what our engine would have made
/// of it rather than from its own inputs.
#[test]
fn a_foreign_dump_is_judged_in_its_own_precision() {
    let model = tiny();
    let (_folder, file) = scratch("dump.safetensors");
    let whole = dump(&model);
    write(&whole, &file);
    let base = ["layers", "all", "--model", arg(&model), "--engine-dump", arg(&file)];
    let run = report(&base, 0);
    assert_eq!((run.question.arithmetic.as_str(), run.rows.len()), ("f64", 14));

    // One value of one stage, moved by a part in a million: nothing in f32, far too much in f64.
    let mut moved = whole.clone();
    let key = StageKey::layer(5, Stage::MlpNorm);
    if let StageValues::Real(values) = &mut moved.tensors.get_mut(&key).unwrap().values {
        values[7] *= 1.000_001;
    }
    write(&moved, &file);
    let run = report(&base, 1);
    assert_eq!(run.first_divergence.unwrap().at, "layers.5.mlp_norm");

    // What the dump lacks is NOT RUN, unless it was not asked for.
    let mut partial = whole.clone();
    partial.tensors.retain(|key, _| key.stage != Stage::MoeSum);
    write(&partial, &file);
    let run = report(&base, 4);
    let lacking = run.rows.iter().flat_map(|row| &row.stages);
    let lacking = lacking.filter(|stage| stage.verdict == Verdict::NotRun);
    assert!(lacking.clone().all(|stage| ["moe.sum", "mlp_out"].contains(&stage.stage.as_str())));
    assert!(lacking.count() > 0);
    let narrowed = [&base[..], &["--stages", "kda.*"]].concat();
    // MLA layers have no such stage, and none was asked of them.
    let run = report(&narrowed, 0);
    assert_eq!(run.rows[0].verdict, Verdict::Pass);
    assert_eq!(run.rows[3].verdict, Verdict::NotSelected);
    let kda = ["layers", "0..2", "--model", arg(&model), "--engine-dump", arg(&file)];
    report(&[&kda[..], &["--stages", "kda.*"]].concat(), 0);

    expect(&["layers", "0", "--model", arg(&model), "--engine-dump", arg(&model)], 3);
    std::fs::write(&file, b"no dump").unwrap();
    expect(&base, 3);
}

/// The prefix where the mixture is expected has the right shape and must fail.
#[test]
fn a15_the_running_sum_in_place_of_the_mixture_fails() {
    let model = tiny();
    let (_folder, file) = scratch("dump.safetensors");
    let mut whole = dump(&model);
    let sum = whole.tensors[&StageKey::layer(11, Stage::Out)].clone();
    whole.tensors.insert(StageKey::layer(12, Stage::AttnMix), sum);
    write(&whole, &file);
    let base = ["layers", "12", "--model", arg(&model), "--engine-dump", arg(&file)];
    let run = report(&base, 1);
    assert_eq!(run.first_divergence.unwrap().at, "layers.12.attn_mix");
    let stdout = expect(&base, 1).stdout;
    assert!(stdout.contains("diverges at layers.12.attn_mix ["), "{stdout}");
}

/// Running sums of any engine as input of ours.
#[test]
fn a_dump_feeds_our_engine() {
    let model = tiny();
    let (_folder, file) = scratch("dump.safetensors");
    let mut whole = dump(&model);
    whole.tensors.retain(|key, _| matches!(key.stage, Stage::Out | Stage::Embed));
    write(&whole, &file);
    let base = ["layers", "all", "--model", arg(&model), "--input", arg(&file)];
    let run = report(&base, 0);
    assert_eq!((run.rows.len(), run.question.calls), (14, vec![4, 1, 1]));
    whole.tensors.remove(&StageKey::layer(4, Stage::Out));
    write(&whole, &file);
    let run = report(&base, 4);
    let row = run.rows.iter().find(|row| row.layer == Some(5)).unwrap();
    assert_eq!(row.verdict, Verdict::NotRun);
}
