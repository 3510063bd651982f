//! The ratchet on the layers of the shipped sets: how close each stage has come to its tolerance.
//!
//! What is recorded, in the same committed file as the ladder's ratios ([`crate::ratchet`]):
//! our engine on each shipped set, once on synthetic input as `layers all` draws it by default and
//! once on the chain of the set's own ids; per stage the worst ratio over all layers, local and end
//! to end. A run that asks one of these questions, of all layers or some, is held to them. Whether
//! a checkpoint is a shipped set is told by the digests of its config and its shards.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::judge::Judge;
use super::run::{Chain, Input, Run, Subject, steps};
use super::sources::{Sources, sources};
use super::subject::EngineSubject;
use crate::evidence::EvidenceSet;
use crate::fixtures::{Fixtures, embedded_configs, hex_sha256};
use crate::outcome::Verdict;
use crate::ratchet::Ratchet;
use crate::report::layers::{LayerRow, Question, StageRow};
use crate::runner::{SetState, shipped_sets};
use crate::subject::Precision;
use k3_checkpoint::{Checkpoint, ModelShape};
use k3_core::config::MLA_NORM_EPS;
use k3_engine::kernels::table::Kernels;
use k3_engine::model::{EngineOptions, Shape};
use k3_reference::local::Arithmetic;
use k3_reference::{Reader, read_config};

/// Seed and calls of the recorded synthetic input, which are the command's defaults.
const SEED: u64 = 1;
const CALLS: [usize; 3] = [8, 1, 1];

/// Single tokens at the end of the recorded chain.
const SINGLES: usize = 2;

/// The files of a set that ships.
fn shipped_sources(set: &EvidenceSet) -> Result<Sources, String> {
    let shape = ModelShape::derive(&set.config).map_err(|error| error.to_string())?;
    let checkpoint = Checkpoint::open(&set.model_dir).map_err(|error| error.to_string())?;
    let every: Vec<usize> = (0..shape.layers.len()).collect();
    sources(&checkpoint, &shape, &every, true).map_err(|error| error.to_string())
}

/// The recorded run that a run is held to.
#[derive(Debug)]
pub struct Recorded {
    ratchet: Ratchet,
    /// Set and input, `tiny/layers@engine synthetic`.
    pub name: String,
}

impl Recorded {
    /// The recorded run with this question on these bytes, if there is one.
    ///
    /// # Errors
    /// The shipped sets cannot be read.
    pub fn of(question: &Question, read: &Sources) -> Result<Option<Self>, String> {
        let is_ours = question.subject == "engine" && !question.reference_copy;
        if !is_ours || question.mla_norm_eps != MLA_NORM_EPS {
            return Ok(None);
        }
        let mut configs = embedded_configs();
        if !configs.any(|config| hex_sha256(config) == read.config) {
            return Ok(None);
        }
        let fixtures = Fixtures::embedded().map_err(|error| error.to_string())?;
        for state in &shipped_sets(&fixtures) {
            let set = match state {
                SetState::Ready(set) => set,
                SetState::NotRun { name, reason } => return Err(format!("set {name}: {reason}")),
            };
            let shipped = shipped_sources(set)?;
            let is_part =
                |(name, digest): (&String, &String)| shipped.shards.get(name) == Some(digest);
            if shipped.config == read.config && read.shards.iter().all(is_part) {
                let input = input_name(question, set);
                return Ok(input.map(|input| Self {
                    ratchet: Ratchet::shipped(),
                    name: run_name(&set.name, input),
                }));
            }
        }
        Ok(None)
    }

    /// Turns stages red whose ratio has grown fourfold or was never recorded.
    pub fn judge(&self, row: &mut LayerRow) {
        for stage in &mut row.stages {
            let ratios = ratios_of(&self.name, row.layer, stage);
            let finding = self.ratchet.finding(Precision::F32, ratios);
            if let (Some(line), Verdict::Pass) = (finding, stage.verdict) {
                stage.verdict = Verdict::Fail;
                stage.problem = Some(line);
                row.verdict = Verdict::Fail;
            }
        }
    }
}

fn run_name(set: &str, input: &str) -> String {
    format!("{set}/layers@engine {input}")
}

/// Which of the recorded inputs the question has.
fn input_name(question: &Question, set: &EvidenceSet) -> Option<&'static str> {
    let is_synthetic = question.seed == Some(SEED) && question.calls == CALLS;
    let is_chain = question.ids == set.full.ids && question.calls == chain_calls(set);
    match question.input.as_str() {
        "synthetic" if is_synthetic => Some("synthetic"),
        "chain" if is_chain => Some("chain"),
        _ => None,
    }
}

fn chain_calls(set: &EvidenceSet) -> Vec<usize> {
    let mut calls = vec![set.full.ids.len() - SINGLES];
    calls.extend([1; SINGLES]);
    calls
}

/// The ratios of a stage by the names they are recorded under; exact ones have none.
fn ratios_of(run: &str, layer: Option<usize>, stage: &StageRow) -> Vec<(String, f64)> {
    let place = if layer.is_some() { "layers.*." } else { "" };
    let chained = stage.chained.as_ref().and_then(|chained| chained.ratio);
    let named = [(" (local)", stage.ratio), ("", chained)];
    let key = |kind: &str| format!("{run} {place}{}{kind}", stage.stage);
    let ratios = named.into_iter();
    ratios.filter_map(|(kind, ratio)| Some((key(kind), ratio?))).collect()
}

/// The ratios of both recorded runs on every set, as they are now.
///
/// # Errors
/// A set that cannot be run, in words.
pub fn observe(sets: &[SetState], threads: usize) -> Result<BTreeMap<String, f64>, String> {
    let mut worst: BTreeMap<String, f64> = BTreeMap::new();
    for state in sets {
        let set = match state {
            SetState::Ready(set) => set,
            SetState::NotRun { name, reason } => return Err(format!("set {name}: {reason}")),
        };
        for input in ["synthetic", "chain"] {
            let name = run_name(&set.name, input);
            for row in run(set, input, threads)? {
                for stage in &row.stages {
                    for (key, ratio) in ratios_of(&name, row.layer, stage) {
                        let entry = worst.entry(key).or_default();
                        *entry = entry.max(ratio);
                    }
                }
            }
        }
    }
    Ok(worst)
}

fn run(set: &EvidenceSet, input: &str, threads: usize) -> Result<Vec<LayerRow>, String> {
    fn in_words(error: impl std::fmt::Display) -> String {
        error.to_string()
    }
    let (input, calls) = if input == "chain" {
        let (ids, chain) = (set.full.ids.clone(), Chain::default());
        (Input::Chain { ids, chain }, chain_calls(set))
    } else {
        let (seed, rows) = (SEED, CALLS.iter().sum());
        (Input::Synthetic { seed, rows }, CALLS.to_vec())
    };
    let shape = ModelShape::derive(&set.config).map_err(in_words)?;
    let checkpoint = Arc::new(Checkpoint::open(&set.model_dir).map_err(in_words)?);
    let options = EngineOptions { threads, chunk_tokens: calls.iter().copied().max().unwrap_or(1) };
    let own = Arc::clone(&checkpoint);
    let engine = Shape::derive(&set.config)
        .and_then(|shape| EngineSubject::new(Kernels::SCALAR, shape, own, options))
        .map_err(in_words)?;
    let reference_config = read_config(&set.model_dir).map_err(in_words)?;
    let mut run = Run {
        judge: Judge {
            config: &reference_config,
            mla_norm_eps: MLA_NORM_EPS,
            arithmetic: Arithmetic::F64Sums,
            stages: None,
        },
        shape: &shape,
        checkpoint,
        reader: Arc::new(Reader::open(&set.model_dir).map_err(in_words)?),
        subject: Subject::Engine(Box::new(engine)),
        input,
        calls,
    };
    let every: Vec<usize> = (0..shape.layers.len()).collect();
    let all = steps(&every, every.len(), [true, true]).into_iter();
    all.map(|step| run.step(step).map_err(in_words)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::layers::Chained;

    fn row(ratio: f64, chained: f64) -> LayerRow {
        let stage = StageRow {
            stage: "kda.q".to_owned(),
            verdict: Verdict::Pass,
            problem: None,
            count: 1,
            mismatches: 0,
            ratio: Some(ratio),
            required: None,
            worst: None,
            first: None,
            ties: 0,
            chained: Some(Chained {
                within: true,
                ratio: Some(chained),
                max_abs: None,
                floor: 1.0,
            }),
        };
        LayerRow {
            verdict: Verdict::Pass,
            stages: vec![stage],
            ..LayerRow::not_run("layer", Some(3), String::new())
        }
    }

    /// Growth under tolerance passes, or what was never recorded passes for good.
    #[test]
    fn a_fourfold_ratio_of_either_kind_fails_under_tolerance() {
        let recorded = |ratios: &[(&str, f64)]| {
            let mut ratchet = Ratchet::shipped();
            ratchet.ratios = ratios.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect();
            let name = run_name("tiny", "chain");
            Recorded { ratchet, name }
        };
        let local = "tiny/layers@engine chain layers.*.kda.q (local)";
        let both = recorded(&[(local, 0.1), ("tiny/layers@engine chain layers.*.kda.q", 0.01)]);
        let verdict = |recorded: &Recorded, mut row: LayerRow| {
            recorded.judge(&mut row);
            (row.verdict, row.stages[0].problem.clone().unwrap_or_default())
        };
        assert_eq!(verdict(&both, row(0.39, 0.039)).0, Verdict::Pass);
        let (failed, line) = verdict(&both, row(0.41, 0.01));
        assert_eq!(failed, Verdict::Fail);
        assert!(line.contains("kda.q (local) grew from 1.00e-1 to 4.10e-1"), "{line}");
        assert_eq!(verdict(&both, row(0.1, 0.041)).0, Verdict::Fail);
        let (failed, line) = verdict(&recorded(&[(local, 0.1)]), row(0.1, 0.01));
        assert_eq!(failed, Verdict::Fail);
        assert!(line.contains("nothing is recorded"), "{line}");
    }
}
