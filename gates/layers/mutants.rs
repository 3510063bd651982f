//! Every mutant of the engine that the ladder kills by its answers is killed here as well, in a
//! layer and at a stage of its clause.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use k3_verify::checkpoint::{Checkpoint, ModelShape};
use k3_verify::config::{MLA_NORM_EPS, RawConfig};
use k3_verify::layers::judge::Judge;
use k3_verify::layers::run::{Chain, Input, Run, Step, Subject};
use k3_verify::layers::subject::EngineSubject;
use k3_verify::model::mutants::{EngineMutant, mutants};
use k3_verify::model::{EngineOptions, Operations};
use k3_verify::reference::Reader;
use k3_verify::reference::local::Arithmetic;
use k3_verify::report::layers::{LayerRow, Verdict};
use rayon::prelude::*;

use super::Tiny;

/// Layers of the chain: both kinds of attention, both MLPs, a second bank.
const CHAINED: [Step; 6] = [
    Step::Embed,
    Step::Layer(0),
    Step::Layer(1),
    Step::Layer(2),
    Step::Layer(3),
    Step::Layer(4),
];

/// Layers of drawn input: a block's first layer, the last layer, and what closes the model.
const DRAWN: [Step; 4] = [
    Step::Layer(6),
    Step::Layer(7),
    Step::Layer(12),
    Step::Closing,
];

/// What came of a mutant: the first stage beyond its budget, or that it did not get so far.
#[derive(Debug, Clone, PartialEq)]
enum Fate {
    Survived,
    Refused(String),
    Killed(String),
}

struct Bench {
    config: RawConfig,
    shape: ModelShape,
    checkpoint: Arc<Checkpoint>,
    reader: Arc<Reader>,
}

impl Bench {
    fn rows(
        &self,
        operations: Arc<dyn Operations>,
        input: Input,
        calls: Vec<usize>,
    ) -> Result<Vec<LayerRow>, String> {
        let options = EngineOptions {
            threads: 1,
            chunk_tokens: calls[0],
            mla_norm_eps: MLA_NORM_EPS,
        };
        let checkpoint = Arc::clone(&self.checkpoint);
        let engine = EngineSubject::new(operations, &self.config, checkpoint, options);
        let engine = engine.map_err(|error| error.to_string())?;
        let mut run = Run {
            judge: Judge {
                config: &self.config,
                mla_norm_eps: MLA_NORM_EPS,
                arithmetic: Arithmetic::F64Sums,
                stages: None,
            },
            shape: &self.shape,
            checkpoint: Arc::clone(&self.checkpoint),
            reader: Arc::clone(&self.reader),
            subject: Subject::Engine(Box::new(engine)),
            input,
            calls,
        };
        // A chain through both kinds, the dense MLP and the second block; drawn input elsewhere.
        let steps: &[Step] = match &run.input {
            Input::Chain { .. } => &CHAINED,
            _ => &DRAWN,
        };
        let mut rows = Vec::new();
        for step in steps {
            let row = run.step(*step).map_err(|error| error.to_string())?;
            let is_over = row.verdict == Verdict::Fail;
            rows.push(row);
            if is_over {
                break;
            }
        }
        Ok(rows)
    }

    fn fate(&self, mutant: &EngineMutant) -> Fate {
        let inputs: [fn() -> Input; 2] = [
            || Input::Chain {
                ids: (0..18).map(|n| (n * 97 + 5) % 256).collect(),
                chain: Chain::default(),
            },
            || Input::Synthetic { seed: 1, rows: 18 },
        ];
        for input in inputs {
            let run = || self.rows(mutant.operations(), input(), vec![14, 1, 1, 1, 1]);
            let rows = match catch_unwind(AssertUnwindSafe(run)) {
                Err(_) => return Fate::Refused("it panics".to_owned()),
                Ok(Err(error)) => return Fate::Refused(error),
                Ok(Ok(rows)) => rows,
            };
            for row in &rows {
                if let Some(stage) = row.first_divergence() {
                    return Fate::Killed(stage.stage.clone());
                }
            }
        }
        Fate::Survived
    }
}

/// Mutants that no run of single layers on undamaged weights can show, by reason. The ladder kills
/// them by bits of kernel fixtures made for their clause, by its invariances, or by damage.
const OUT_OF_SIGHT: &[(&str, &[&str])] = &[
    (
        "the tiny model lacks the data: no tail, tie, NaN scale or subnormal weight",
        &[
            "k8-tail-not-looked-at",
            "e2-ties-to-the-higher-index",
            "e2-one-expert-twice",
            "e4-one-expert-renormalised",
            "q1-minus-zero-lost",
            "q3-nan-test-on-the-value",
            "a1-scale-zero-flushed",
            "a1-largest-scales-clamped",
            "a1-bf16-subnormals-flushed",
            "a1-bf16-through-f16",
            "q4-nan-scale-is-zero",
            "q4-nan-scale-not-reported",
            "a1-weights-through-f32",
        ],
    ),
    (
        "another order or place of rounding, which the derived bounds allow to any right engine",
        &[
            "a2-one-lane",
            "a2-four-lanes",
            "a2-eight-lanes",
            "a2-thirty-two-lanes",
            "a2-contiguous-lanes",
            "a2-falling",
            "a2-tail-after-the-fold",
            "a3-neighbours-first",
            "a3-lane-after-lane",
            "a3-split-sum",
            "a12-subnormals-flushed",
            "a10-exp-of-the-platform",
            "a10-tanh-of-the-platform",
            "a10-tanh-by-quotient",
            "a10-exp-flushes-subnormals",
            "a4-falling-order",
            "a4-pairwise",
            "a4-f32-accumulator",
            "a4-sources-reversed",
            "a5-l2-in-f32",
            "a5-l2-sum-in-f32",
            "a6-blocked-and-rescaled",
            "a6-maximum-not-subtracted",
            "a6-falling-order",
            "a7-expanded",
            "a7-expanded-in-prefill-only",
            "a7-scale-on-the-query",
            "a8-decayed-state-rounded",
            "a8-write-rounded",
            "a8-decayed-key-not-rounded",
            "a9-order-of-arrival",
            "a9-f32-expert-sum",
            "a9-situ-in-f64",
            "a9-situ-other-order",
            "a12-decay-contracted",
            "a12-silu-in-f64",
            "a11-threads-split-sums",
        ],
    ),
    (
        "sums of the recurrence in f32: beyond its bound in some layers, not in these few",
        &["a8-f32-sums"],
    ),
    (
        "shows between two runs or in long blocks only",
        &[
            "a11-last-rows-of-a-block-dropped",
            "k13-state-of-another-sequence",
        ],
    ),
];

#[test]
fn engine_mutants_are_killed_at_a_stage_of_their_clause() {
    let tiny = Tiny::open();
    let folder = tiny.model();
    let config = RawConfig::read(&folder.join("config.json")).unwrap();
    let bench = Bench {
        shape: ModelShape::derive(&config).unwrap(),
        checkpoint: Arc::new(Checkpoint::open(&folder).unwrap()),
        reader: Arc::new(Reader::open(&folder).unwrap()),
        config,
    };
    let survives = |mutant: &EngineMutant| {
        let fate = bench.fate(mutant);
        println!("{} {:?}: {fate:?}", mutant.id, mutant.clauses);
        (fate == Fate::Survived).then_some(mutant.id)
    };
    let mut survivors: Vec<&str> = mutants().par_iter().filter_map(survives).collect();
    let known = OUT_OF_SIGHT.iter().flat_map(|(_, ids)| *ids).copied();
    let mut expected: Vec<&str> = known.collect();
    expected.sort_unstable();
    survivors.sort_unstable();
    assert_eq!(survivors, expected);
}
