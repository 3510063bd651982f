//! Every mutant of the engine's kernels and sources is killed here as well; the first divergence is
//! in a layer of the kind and at a stage where a mistake in the mutant's clause begins.
//!
//! Mutants of state slots and of what a sequence carries between its calls are not here: a layer
//! that is run alone has a state of its own. Mistakes in a clause of the model are judged as dumps,
//! in `precision`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use k3_checkpoint::{Checkpoint, ModelShape};
use k3_core::config::{MLA_NORM_EPS, RawConfig};
use k3_engine::kernels::table::Kernels;
use k3_engine::model::{EngineOptions, OnDemand, Shape};
use k3_gates::kernels::KernelFixtures;
use k3_gates::layers::judge::Judge;
use k3_gates::layers::kernels;
use k3_gates::layers::repeat::Extent;
use k3_gates::layers::run::{Chain, Input, Run, Step, Subject};
use k3_gates::layers::subject::EngineSubject;
use k3_gates::mutants::{EngineMutant, WrongEngine, mutants};
use k3_gates::outcome::Verdict;
use k3_gates::report::layers::LayerRow;
use k3_gates::runner::shipped_kernels;
use k3_reference::Reader;
use k3_reference::local::Arithmetic;
use rayon::prelude::*;

use super::Tiny;
use super::expected::{KERNELS, LATE, first_with, is_expected};

/// Layers of the chain: both kinds of attention, both MLPs, a second bank.
const CHAINED: [Step; 6] =
    [Step::Embed, Step::Layer(0), Step::Layer(1), Step::Layer(2), Step::Layer(3), Step::Layer(4)];

/// Layers of drawn input: a block's first layer, the last layer, and what closes the model.
const DRAWN: [Step; 4] = [Step::Layer(6), Step::Layer(7), Step::Layer(12), Step::Closing];

/// What came of a mutant: where the first stage beyond its tolerance is, or that it did not get so
/// far.
#[derive(Debug, Clone, PartialEq)]
enum Fate {
    Survived,
    /// It does not come to an end.
    Failed(String),
    /// At a stage of a layer, or of what opens and closes the model.
    Killed {
        layer: Option<usize>,
        kind: String,
        stage: String,
    },
    /// In the layers not one bit differs; by the kernel on its fixtures.
    ByKernel(String),
}

struct Rig {
    config: RawConfig,
    shape: ModelShape,
    checkpoint: Arc<Checkpoint>,
    reader: Arc<Reader>,
    kernels: KernelFixtures,
}

impl Rig {
    fn open(tiny: &Tiny) -> Self {
        let folder = tiny.model();
        let config = k3_checkpoint::config::read(&folder.join("config.json")).unwrap();
        Self {
            shape: ModelShape::derive(&config).unwrap(),
            checkpoint: Arc::new(Checkpoint::open(&folder).unwrap()),
            reader: Arc::new(Reader::open(&folder).unwrap()),
            kernels: shipped_kernels(&tiny.fixtures).unwrap(),
            config,
        }
    }

    fn run(
        &self,
        wrong: &WrongEngine,
        input: Input,
        (calls, threads): (Vec<usize>, usize),
    ) -> Run<'_> {
        let options = EngineOptions { threads, chunk_tokens: calls[0] };
        let checkpoint = Arc::clone(&self.checkpoint);
        let shape = Shape::derive(&self.config).unwrap();
        let experts = OnDemand { shape: shape.clone(), source: Arc::clone(&checkpoint) };
        let experts = wrong.experts_of(Box::new(experts));
        let engine =
            EngineSubject::with_experts(wrong.kernels, shape, checkpoint, options, experts);
        Run {
            judge: Judge {
                config: &self.config,
                mla_norm_eps: MLA_NORM_EPS,
                arithmetic: Arithmetic::F64Sums,
                stages: None,
            },
            shape: &self.shape,
            checkpoint: Arc::clone(&self.checkpoint),
            reader: Arc::clone(&self.reader),
            subject: Subject::Engine(Box::new(engine.unwrap())),
            input,
            calls,
        }
    }

    fn rows(
        &self,
        wrong: &WrongEngine,
        input: Input,
        feeding: (Vec<usize>, usize),
    ) -> Result<Vec<LayerRow>, String> {
        let mut run = self.run(wrong, input, feeding);
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
        let inputs: [fn() -> Input; 2] = [chain, drawn];
        // Three threads divide few of the model's widths.
        for (input, threads) in [(inputs[0], 1), (inputs[1], 1), (inputs[0], 3)] {
            let run = || self.rows(&mutant.engine(), input(), (vec![14, 1, 1, 1, 1], threads));
            let rows = match catch_unwind(AssertUnwindSafe(run)) {
                Err(_) => return Fate::Failed("it panics".to_owned()),
                Ok(Err(error)) => return Fate::Failed(error),
                Ok(Ok(rows)) => rows,
            };
            for row in &rows {
                if let Some(stage) = row.first_divergence() {
                    let kind = [row.attention.as_deref(), row.mlp.as_deref()];
                    return Fate::Killed {
                        layer: row.layer,
                        kind: kind.map(Option::unwrap_or_default).join(" "),
                        stage: stage.stage.clone(),
                    };
                }
            }
        }
        let row = kernels::judge_on(&self.kernels, mutant.engine().kernels);
        match row.first_divergence() {
            Some(stage) => Fate::ByKernel(stage.stage.clone()),
            None => Fate::Survived,
        }
    }
}

fn chain() -> Input {
    let ids = (0..18).map(|n| (n * 97 + 5) % 256).collect();
    Input::Chain { ids, chain: Chain::default() }
}

fn drawn() -> Input {
    Input::Synthetic { seed: 1, rows: 18 }
}

#[test]
fn engine_mutants_are_killed_in_the_layer_and_at_the_stage_of_their_clause() {
    let tiny = Tiny::open();
    let rig = Rig::open(&tiny);
    let in_a_layer = |wrong: WrongEngine| wrong.carried.is_none() && wrong.shape.is_none();
    // The loader here is not the mutant's: the gate `bind` sees a tensor that was not loaded.
    let mutants = mutants().into_par_iter().filter(|mutant| {
        in_a_layer(mutant.engine()) && mutant.id != "k6-bias-skipped-by-the-loader"
    });
    let fates: Vec<(EngineMutant, Fate)> =
        mutants.map(|mutant| (mutant, rig.fate(&mutant))).collect();
    assert!(fates.len() > 60);
    let mut elsewhere = Vec::new();
    for (mutant, fate) in &fates {
        println!("{} {:?}: {fate:?}", mutant.id, mutant.clauses);
        let is_right = match fate {
            Fate::Survived | Fate::Failed(_) => false,
            Fate::ByKernel(kernel) => {
                let mut kernels = KERNELS.iter();
                kernels.any(|(name, ids)| name == kernel && ids.contains(&mutant.id))
            }
            Fate::Killed { layer, kind, stage } => {
                let late = LATE.iter().find(|(id, _, _)| *id == mutant.id);
                let expected = late.map_or(first_with(kind, stage), |(_, layer, _)| Some(*layer));
                is_expected(mutant.clauses, kind, stage) && *layer == expected
            }
        };
        if !is_right {
            elsewhere.push(format!("{} {:?}: {fate:?}", mutant.id, mutant.clauses));
        }
    }
    assert_eq!(elsewhere, [] as [String; 0]);
}

/// Layer, stage and index of an element.
type Place = (Option<usize>, String, Vec<usize>);

/// The first stage with other bits when the last call alone is computed again, from the state that
/// the subject carried into it, and how many values that were.
fn last_call(
    rig: &Rig,
    wrong: &WrongEngine,
    steps: &[Step],
    input: Input,
) -> (usize, Option<Place>) {
    let mut run = rig.run(wrong, input, (vec![14, 1, 1, 1, 1], 1));
    let Subject::Engine(engine) = &mut run.subject else { unreachable!("the rig runs an engine") };
    engine.repeat(Extent::LastCall).unwrap();
    let mut values = 0;
    for step in steps {
        let row = run.step(*step).unwrap();
        let Some(repeated) = row.repeated else {
            continue;
        };
        assert!(repeated.values > 0, "{step:?}");
        values += repeated.values;
        if repeated.differing > 0 {
            let stage = row.first_divergence().unwrap();
            let index = stage.first.as_ref().unwrap().index.clone();
            return (values, Some((row.layer, stage.stage.clone(), index)));
        }
    }
    (values, None)
}

/// As a wide layer is repeated: a right engine has the same bits in both kinds of attention, both
/// MLPs and the closing stages; a wrong one has others in the token of the last call.
#[test]
fn the_last_call_is_computed_again_from_the_state_before_it() {
    let tiny = Tiny::open();
    let rig = Rig::open(&tiny);
    for kernels in [Kernels::SCALAR, Kernels::fastest()] {
        let right = WrongEngine { kernels, ..WrongEngine::default() };
        let (values, differing) = last_call(&rig, &right, &CHAINED, chain());
        assert_eq!(differing, None);
        let (closing, differing) = last_call(&rig, &right, &DRAWN, drawn());
        assert_eq!(differing, None);
        assert!(values > 1000 && closing > 256, "{values} {closing}");
    }
    for (id, layer, stage) in [
        ("a8-write-rounded", 0, "kda.o"),
        ("a7-expanded", 3, "mla.o"),
        ("a9-situ-other-order", 0, "mlp_out"),
    ] {
        let mutant = mutants().into_iter().find(|mutant| mutant.id == id);
        let wrong = mutant.unwrap().engine();
        let (_, differing) = last_call(&rig, &wrong, &CHAINED, chain());
        let (found, at, index) = differing.unwrap();
        assert_eq!((found, at.as_str(), index[0]), (Some(layer), stage, 17), "{id}");
    }
}
