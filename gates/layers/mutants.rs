//! Every mutant of the engine that the ladder kills is killed here as well; the first divergence is
//! in a layer of the kind and at a stage where a mistake in the mutant's clause begins.

mod expected;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use k3_checkpoint::{Checkpoint, ModelShape};
use k3_core::config::{MLA_NORM_EPS, RawConfig};
use k3_engine::model::mutants::{EngineMutant, mutants};
use k3_engine::model::{Contract, EngineError, EngineOptions, Operations};
use k3_gates::kernels::KernelFixtures;
use k3_gates::layers::again::Extent;
use k3_gates::layers::judge::Judge;
use k3_gates::layers::kernels;
use k3_gates::layers::run::{Chain, Input, Run, RunError, Step, Subject};
use k3_gates::layers::subject::EngineSubject;
use k3_gates::outcome::Verdict;
use k3_gates::report::layers::LayerRow;
use k3_gates::runner::shipped_kernels;
use k3_reference::Reader;
use k3_reference::local::Arithmetic;
use rayon::prelude::*;

use self::expected::{KERNELS, LATE, REFUSED, first_with, is_expected};
use super::Tiny;

/// What the names of a layer begin with.
const LAYER: &str = "language_model.model.layers.";

/// Layers of the chain: both kinds of attention, both MLPs, a second bank.
const CHAINED: [Step; 6] =
    [Step::Embed, Step::Layer(0), Step::Layer(1), Step::Layer(2), Step::Layer(3), Step::Layer(4)];

/// Layers of drawn input: a block's first layer, the last layer, and what closes the model.
const DRAWN: [Step; 4] = [Step::Layer(6), Step::Layer(7), Step::Layer(12), Step::Closing];

/// What came of a mutant: where the first stage beyond its budget is, or that it did not get so
/// far.
#[derive(Debug, Clone, PartialEq)]
enum Fate {
    Survived,
    /// The engine refuses the checkpoint.
    Refused(String),
    /// At a stage of a layer, or of what opens and closes the model.
    Killed {
        layer: Option<usize>,
        kind: String,
        stage: String,
    },
    /// In the layers not one bit differs; by the kernel on its fixtures.
    ByKernel(String),
}

struct Bench {
    config: RawConfig,
    shape: ModelShape,
    checkpoint: Arc<Checkpoint>,
    reader: Arc<Reader>,
    kernels: KernelFixtures,
}

impl Bench {
    fn open(tiny: &Tiny, folder: &Path) -> Self {
        let config = k3_checkpoint::config::read(&folder.join("config.json")).unwrap();
        Self {
            shape: ModelShape::derive(&config).unwrap(),
            checkpoint: Arc::new(Checkpoint::open(folder).unwrap()),
            reader: Arc::new(Reader::open(folder).unwrap()),
            kernels: shipped_kernels(&tiny.fixtures).unwrap(),
            config,
        }
    }

    /// Who refuses a layer, and with which words.
    fn refusal(&self, operations: Arc<dyn Operations>, layer: usize) -> RunError {
        let input = Input::Synthetic { seed: 1, rows: 8 };
        let mut run = self.run(operations, input, (vec![6, 1, 1], 1)).unwrap();
        run.step(Step::Layer(layer)).unwrap_err()
    }

    fn run(
        &self,
        operations: Arc<dyn Operations>,
        input: Input,
        (calls, threads): (Vec<usize>, usize),
    ) -> Result<Run<'_, dyn Operations>, EngineError> {
        let options = EngineOptions { threads, chunk_tokens: calls[0], mla_norm_eps: MLA_NORM_EPS };
        let checkpoint = Arc::clone(&self.checkpoint);
        let engine = EngineSubject::new(operations, &self.config, checkpoint, options)?;
        Ok(Run {
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
        })
    }

    fn rows(
        &self,
        operations: Arc<dyn Operations>,
        input: Input,
        feeding: (Vec<usize>, usize),
    ) -> Result<Vec<LayerRow>, String> {
        let run = self.run(operations, input, feeding);
        let mut run = run.map_err(|error| error.to_string())?;
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
        // Three threads divide few of the model's widths.
        for (input, threads) in [(inputs[0], 1), (inputs[1], 1), (inputs[0], 3)] {
            let run = || self.rows(mutant.operations(), input(), (vec![14, 1, 1, 1, 1], threads));
            let rows = match catch_unwind(AssertUnwindSafe(run)) {
                Err(_) => return Fate::Refused("it panics".to_owned()),
                Ok(Err(error)) => return Fate::Refused(error),
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
        let operations = mutant.operations();
        let run = || kernels::judge_on(&self.kernels, &*operations);
        let Ok(row) = catch_unwind(AssertUnwindSafe(run)) else {
            return Fate::Refused("a kernel panics".to_owned());
        };
        match row.first_divergence() {
            Some(stage) => Fate::ByKernel(stage.stage.clone()),
            None => Fate::Survived,
        }
    }
}

/// Mutants that show on a damaged checkpoint alone, as on the ladder: the layer and what is damaged
/// in it. A right engine refuses it; these compute on, and the reference refuses.
const FORGIVING: [(&str, usize, Damage); 3] = [
    ("k8-tail-not-looked-at", 0, Damage::LogDecayTail),
    ("q4-nan-scale-is-zero", 1, Damage::NanScales),
    ("q4-nan-scale-not-reported", 1, Damage::NanScales),
];

/// What is wrong with a copy.
#[derive(Debug, Clone, Copy)]
enum Damage {
    /// The last value of `A_log` is 1.
    LogDecayTail,
    /// A scale byte of every expert is 255.
    NanScales,
}

impl Damage {
    /// Plants it in a layer of the copy, and says what a refusal must name.
    fn plant(self, folder: &Path, config: &RawConfig, layer: usize) -> &'static str {
        let checkpoint = Checkpoint::open(folder).unwrap();
        let poke = |name: &str, bytes: &[u8]| {
            let info = checkpoint.tensor(&format!("{LAYER}{layer}.{name}")).unwrap();
            let shard = checkpoint.shard_path(info.shard);
            let file = File::options().write(true).open(shard).unwrap();
            let end = info.offset + info.byte_len;
            file.write_all_at(bytes, end - bytes.len() as u64).unwrap();
        };
        match self {
            Self::LogDecayTail => {
                poke("self_attn.A_log", &1.0_f32.to_le_bytes());
                "A_log"
            }
            Self::NanScales => {
                for expert in 0..config.num_experts {
                    poke(&format!("block_sparse_moe.experts.{expert}.w2.weight_scale"), &[255]);
                }
                "255"
            }
        }
    }
}

#[test]
fn engine_mutants_are_killed_in_the_layer_and_at_the_stage_of_their_clause() {
    let tiny = Tiny::open();
    let bench = Bench::open(&tiny, &tiny.model());
    let fates: Vec<(EngineMutant, Fate)> =
        mutants().into_par_iter().map(|mutant| (mutant, bench.fate(&mutant))).collect();
    let (mut survivors, mut elsewhere) = (Vec::new(), Vec::new());
    for (mutant, fate) in &fates {
        println!("{} {:?}: {fate:?}", mutant.id, mutant.clauses);
        let is_right = match fate {
            Fate::Survived => {
                survivors.push(mutant.id);
                true
            }
            Fate::Refused(words) => {
                let mut refused = REFUSED.iter();
                refused.any(|(id, named)| *id == mutant.id && words.contains(named))
            }
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
    survivors.sort_unstable();
    let mut expected = FORGIVING.map(|(id, _, _)| id);
    expected.sort_unstable();
    assert_eq!(survivors, expected);
}

/// On a damaged layer the engine is the first to refuse, by name; a mutant that forgives the damage
/// leaves that to what computes the layer again, or to the reference.
#[test]
fn engine_mutants_that_forgive_damage_are_told_by_who_refuses_the_layer() {
    let tiny = Tiny::open();
    for (id, layer, damage) in FORGIVING {
        let copy = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(tiny.model()).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        let config = k3_checkpoint::config::read(&copy.path().join("config.json")).unwrap();
        let named = damage.plant(copy.path(), &config, layer);
        let bench = Bench::open(&tiny, copy.path());
        let right = bench.refusal(Arc::new(Contract::fastest()), layer);
        assert!(matches!(right, RunError::Engine(_)), "{id}: {right}");
        assert!(right.to_string().contains(named), "{id}: {right}");
        let mutant = mutants().into_iter().find(|mutant| mutant.id == id).unwrap();
        let forgiven = bench.refusal(mutant.operations(), layer);
        assert!(
            matches!(forgiven, RunError::Again(_) | RunError::Reference(_)),
            "{id}: {forgiven}"
        );
        assert!(forgiven.to_string().contains(named), "{id}: {forgiven}");
    }
}

/// Layer, stage and index of an element.
type Place = (Option<usize>, String, Vec<usize>);

/// The first stage with other bits when the last call alone is computed again, from the state that
/// the subject carried into it, and how many values that were.
fn last_call(
    bench: &Bench,
    operations: &Arc<dyn Operations>,
    steps: &[Step],
    input: Input,
) -> (usize, Option<Place>) {
    let calls = (vec![14, 1, 1, 1, 1], 1);
    let mut run = bench.run(Arc::clone(operations), input, calls).unwrap();
    let Subject::Engine(engine) = &mut run.subject else {
        unreachable!("the bench runs an engine")
    };
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
    let bench = Bench::open(&tiny, &tiny.model());
    let chain = || Input::Chain {
        ids: (0..18).map(|n| (n * 97 + 5) % 256).collect(),
        chain: Chain::default(),
    };
    let drawn = || Input::Synthetic { seed: 1, rows: 18 };
    for operations in [Contract::default(), Contract::fastest()] {
        let right: Arc<dyn Operations> = Arc::new(operations);
        let (values, differing) = last_call(&bench, &right, &CHAINED, chain());
        assert_eq!(differing, None);
        let (closing, differing) = last_call(&bench, &right, &DRAWN, drawn());
        assert_eq!(differing, None);
        assert!(values > 1000 && closing > 256, "{values} {closing}");
    }
    for (id, layer, stage) in [
        ("a8-write-rounded", 0, "kda.o"),
        ("a7-expanded", 3, "mla.o"),
        ("a9-situ-other-order", 0, "mlp_out"),
    ] {
        let mutant = mutants().into_iter().find(|mutant| mutant.id == id);
        let wrong = mutant.unwrap().operations();
        let (_, differing) = last_call(&bench, &wrong, &CHAINED, chain());
        let (found, at, index) = differing.unwrap();
        assert_eq!((found, at.as_str(), index[0]), (Some(layer), stage, 17), "{id}");
    }
}
