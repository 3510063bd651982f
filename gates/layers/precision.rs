//! Subjects in BF16 and half: judged in their own precision, not passed as f32, and a mistake in
//! them found in spite of the wider tolerances.

use k3_core::choice::Choice as _;
use std::path::Path;

use k3_core::Precision;
use k3_core::config::MLA_NORM_EPS;
use k3_core::stages::{Stage, StageDump, StageKey, StageValues};
use k3_gates::layers::judge::Judge;
use k3_gates::outcome::Verdict;
use k3_reference::local::{Arithmetic, SubjectResidual};
use k3_reference::model::embed;
use k3_reference::mutants::mutants;
use k3_reference::rounding::{RoundedStages, kept_in, rounded_formulas};
use k3_reference::rows::from_values;
use k3_reference::{AsComputed, Formulas, Model, Residual};
use rayon::prelude::*;
use safetensors::Dtype;

use super::Tiny;
use crate::local::OUT_OF_SIGHT;
use crate::support::proof::report;
use crate::support::{arg, expect, scratch, tiny};

const IDS: [u32; 8] = [3, 17, 200, 5, 9, 44, 100, 7];

/// An engine of that precision: the reference by these formulas, every stage stored in it. Fed in
/// several calls, so that what is carried shows.
fn subject(model: &Path, formulas: &Formulas, precision: Precision) -> Option<StageDump> {
    let model = Model::open_with(model, MLA_NORM_EPS, formulas).ok()?;
    let stages = RoundedStages(precision);
    let mut sequence = model.sequence_with(&stages);
    let mut dump = StageDump::default();
    for call in [&IDS[..4], &IDS[4..5], &IDS[5..7], &IDS[7..]] {
        sequence.feed(call, &mut dump).ok()?;
    }
    Some(dump)
}

/// Writes a dump as an engine of the precision would: what it keeps in f32 as F32.
fn write(dump: &StageDump, precision: Precision, path: &Path) {
    let encode = |stage: Stage, values: &[f64]| match kept_in(stage, precision) {
        Precision::Bf16 => {
            let word = |v: &f64| half::bf16::from_f64(*v).to_le_bytes();
            (Dtype::BF16, values.iter().flat_map(word).collect())
        }
        Precision::F16 => {
            let word = |v: &f64| half::f16::from_f64(*v).to_le_bytes();
            (Dtype::F16, values.iter().flat_map(word).collect())
        }
        _ => {
            let word = |v: &f64| (*v as f32).to_le_bytes();
            (Dtype::F32, values.iter().flat_map(word).collect())
        }
    };
    let tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = dump
        .tensors
        .iter()
        .map(|(key, tensor)| {
            let (dtype, bytes) = match &tensor.values {
                StageValues::Real(values) => encode(key.stage, values),
                StageValues::Ids(ids) => {
                    let bytes = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
                    (Dtype::I32, bytes)
                }
            };
            (key.to_string(), dtype, tensor.shape.clone(), bytes)
        })
        .collect();
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        let view = safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap();
        (name, view)
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// A dump in few bits held to the bounds of f32 (a right engine fails), or an f32 bound widened
/// for all (a wrong one passes). The dtype decides; where a dump was widened, what is stated does.
#[test]
fn a_dump_in_few_bits_passes_in_its_precision_and_in_no_finer_one() {
    let tiny = Tiny::open();
    let (_folder, file) = scratch("dump.safetensors");
    for (model, precision) in [
        (tiny.model(), Precision::Bf16),
        (tiny.model(), Precision::F16),
        (tiny.fixtures.compose_twin("mild").unwrap(), Precision::Bf16),
    ] {
        let right = subject(&model, &rounded_formulas(precision), precision).unwrap();
        let judged = |dump: &StageDump, stored: Precision, stated: &[&str], code: i32| {
            write(dump, stored, &file);
            let base = ["layers", "all", "--model", arg(&model)];
            let base = [&base[..], &["--engine-dump", arg(&file)], stated].concat();
            report(&base, code)
        };
        let run = judged(&right, precision, &[], 0);
        assert_eq!(run.question.arithmetic, precision.name());
        let worst = run.worst.unwrap().ratio.unwrap();
        assert!(worst > 0.5, "{worst}: the tolerances let anything pass");
        let run = judged(&right, precision, &["--precision", "f32"], 1);
        assert_eq!(run.first_divergence.unwrap().at, "layers.0.attn_norm");
        // Widened to F32, as many tools write it.
        judged(&right, Precision::F32, &[], 1);
        judged(&right, Precision::F32, &["--precision", precision.name()], 0);

        // Without the layer's input there is no comparison end to end, so no verdict.
        let mut partial = right.clone();
        partial.tensors.remove(&StageKey::layer(2, Stage::Out));
        write(&partial, precision, &file);
        let base = ["layers", "3", "--model", arg(&model)];
        let narrowed = ["--engine-dump", arg(&file), "--stages", "mla.*"];
        report(&[&base[..], &narrowed].concat(), 4);
        // What is wrong by its own inputs is wrong without it.
        let key = StageKey::layer(3, Stage::MlaO);
        scale_largest(&mut partial, key, 2.0);
        write(&partial, precision, &file);
        report(&[&base[..], &narrowed].concat(), 1);

        // Two mistakes: one value off by a tenth, and the routed sum taken without its weights.
        let mut moved = right.clone();
        scale_largest(&mut moved, StageKey::layer(5, Stage::KdaZ), 1.1);
        let run = judged(&moved, precision, &[], 1);
        assert_eq!(run.first_divergence.unwrap().at, "layers.5.kda.z");
        let wrong = Formulas {
            combine: |outputs, weights, width| {
                let even = vec![1.0 / weights.len() as f64; weights.len()];
                (k3_reference::RELEASED.combine)(outputs, &even, width)
            },
            ..rounded_formulas(precision)
        };
        let wrong = subject(&model, &wrong, precision).unwrap();
        let run = judged(&wrong, precision, &[], 1);
        assert_eq!(run.first_divergence.unwrap().at, "layers.1.moe.sum");
    }
    let model = tiny.model();
    let base = ["layers", "0", "--model", arg(&model)];
    expect(&[&base[..], &["--precision", "bf16"]].concat(), 2);
}

/// One more that few bits hide: 1e-3 outside the root is less than four roundings to BF16 here.
const HIDDEN_BY_FEW_BITS: &str = "norm-eps-outside-root-mla-q";

/// Tolerances so wide that a wrong formula passes as rounding: BF16's, and those of the engine's
/// own arithmetic, under which a mistake in a clause of the model has to be seen in an f32 engine.
#[test]
fn tolerances_see_the_mutants_of_the_reference() {
    let folder = tiny();
    let mut out_of_sight = OUT_OF_SIGHT.map(|(id, _)| id).to_vec();
    see_the_mutants(&folder, (Arithmetic::F64Sums, Precision::F32), &out_of_sight);
    out_of_sight.push(HIDDEN_BY_FEW_BITS);
    see_the_mutants(&folder, (Arithmetic::Bf16, Precision::Bf16), &out_of_sight);
}

/// All but the expected mutants are seen in dumps of a precision under the tolerances of an
/// arithmetic.
fn see_the_mutants(
    folder: &Path,
    (arithmetic, precision): (Arithmetic, Precision),
    out_of_sight: &[&str],
) {
    let config = k3_checkpoint::config::read(&folder.join("config.json")).unwrap();
    let right = Model::open(folder, MLA_NORM_EPS).unwrap();
    let judge = Judge { config: &config, mla_norm_eps: MLA_NORM_EPS, arithmetic, stages: None };
    let rows = |dump: &StageDump, key: StageKey| match &dump.tensors[&key].values {
        StageValues::Real(values) => from_values(config.hidden_size, values.clone()),
        StageValues::Ids(_) => unreachable!(),
    };
    let pass = judge.pass(&AsComputed);
    let embedded = embed(right.reader(), &pass, &IDS).unwrap();
    let passes = |dump: &StageDump| {
        if judge.embed(&embedded, dump).verdict != Verdict::Pass {
            return Err(Some("embed".to_owned()));
        }
        let embed = rows(dump, StageKey::model(Stage::Embed));
        let mut residual = Residual::new(embed);
        for weights in right.layers() {
            let before = SubjectResidual::carried(&residual);
            let (row, _) = judge.layer(weights, &before, dump).unwrap();
            if row.verdict != Verdict::Pass {
                return Err(row
                    .first_divergence()
                    .map(|stage| format!("{} {}", weights.index, stage.stage)));
            }
            if weights.index % config.attn_res_block_size == 0 {
                residual.banks.push(residual.sum);
            }
            residual.sum = rows(dump, StageKey::layer(weights.index, Stage::Out));
        }
        let before = SubjectResidual::carried(&residual);
        let row = judge.closing(right.closing(), &before, dump).unwrap();
        match row.verdict {
            Verdict::Pass => Ok(()),
            _ => Err(row.first_divergence().map(|stage| stage.stage.clone())),
        }
    };
    let mutants = mutants();
    let survives = |mutant: &k3_reference::mutants::ReferenceMutant| {
        let dump = subject(folder, &mutant.formulas, precision)?;
        let fate = passes(&dump);
        println!("{} {}: {fate:?}", precision.name(), mutant.id);
        fate.is_ok().then_some(mutant.id)
    };
    let mut survivors: Vec<&str> = mutants.par_iter().filter_map(survives).collect();
    let mut expected = out_of_sight.to_vec();
    survivors.sort_unstable();
    expected.sort_unstable();
    assert_eq!(survivors, expected, "{}", precision.name());
}

/// Multiplies the value of a stage that is farthest from zero.
fn scale_largest(dump: &mut StageDump, key: StageKey, factor: f64) {
    let values = &mut dump.tensors.get_mut(&key).unwrap().values;
    let StageValues::Real(values) = values else {
        panic!("{key} has no real values");
    };
    let largest = (0..values.len()).max_by(|a, b| values[*a].abs().total_cmp(&values[*b].abs()));
    values[largest.unwrap()] *= factor;
}
