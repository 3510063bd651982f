//! The ladder: every gate as a data record, in ladder order: cheap gates first.
//!
//! The list, the runner, the kill matrix, the least detectable errors and the reports all read this
//! one table. A gate says what it runs on, what it needs of a subject, and how it judges.

use super::checks::{bind, damage, greedy, incremental, invariance, stages, teacher_forcing};
use super::context::Context;
use super::evidence::EvidenceSet;
use super::fixtures::Fixtures;
use super::outcome::Outcome;
use super::runner::judge_fixtures;
use super::subject::SubjectSource;

/// A gate: what it reads, how far off is allowed, what it would catch, and how it judges.
pub struct Gate {
    /// Name of the gate; [`Gate::full_id`] has the name of what it is run on before it.
    pub id: &'static str,
    /// What passes.
    pub passes: &'static str,
    /// What it reads.
    pub reads: &'static str,
    /// How far off is allowed, and where that number comes from.
    pub tolerance: &'static str,
    /// The kind of mistake it is there for.
    pub catches: &'static str,
    /// What a subject has to offer; it is not applicable to one that does not.
    pub needs: Needs,
    /// Whether it judges numbers or what is chosen by them, so that there is a least error that it
    /// detects. The others judge what a loader does with names, shapes and damage, or compare a
    /// subject with itself.
    pub numbers: bool,
    /// What it is run on, and how it judges there.
    pub on: On,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gate({})", self.id)
    }
}

impl Gate {
    /// `WHERE/GATE`, where a gate of the evidence sets is run on `set`.
    #[must_use]
    pub fn full_id(&self, set: &str) -> String {
        format!("{}/{}", self.place(set), self.id)
    }

    /// The first half of its full id.
    #[must_use]
    pub fn place<'a>(&self, set: &'a str) -> &'a str {
        match self.on {
            On::Shipped(_) => "shipped",
            On::Kernel => "kernels",
            On::Set { .. } => set,
        }
    }
}

/// What a gate is run on, and how it judges there.
#[derive(Debug, Clone, Copy)]
pub enum On {
    /// The fixture files themselves, without a subject.
    Shipped(fn(&Fixtures) -> Outcome),
    /// The fixtures of the kernel that has the gate's name, one subject at a time.
    Kernel,
    /// An evidence set, one subject at a time.
    Set {
        /// Whether it can be run on a set; if not, why.
        applies: fn(&EvidenceSet) -> Applies,
        /// Judges one subject on one set.
        check: fn(&Context<'_>) -> Outcome,
    },
}

/// Whether a gate can be run on a set; if not, why.
pub type Applies = Result<(), &'static str>;

/// What a gate needs of a subject. Logits every subject has, the rest it may offer
/// ([`SubjectSource::offers`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// No subject.
    Nothing,
    /// A single operation on the inputs of a fixture ([`SubjectSource::operation`]).
    Operation,
    /// Logits of any ids.
    Logits,
    /// Intermediate values, handed to the sink of a sequence.
    Stages,
    /// That it reads the checkpoint folder itself and refuses a damaged one by name.
    Folder,
    /// Equal bits however it is run, with carried state that can be taken out and put back.
    Bits,
}

impl Needs {
    /// Everything that a subject may offer apart from logits.
    pub const ALL: &'static [Self] = &[Self::Stages, Self::Folder, Self::Bits];

    /// The word in the list of gates.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Operation => "the operation",
            Self::Logits => "logits",
            Self::Stages => "stages",
            Self::Folder => "its own reader of the checkpoint folder",
            Self::Bits => "equal bits",
        }
    }

    /// Why a subject cannot be judged, if it does not offer this. Of operations it is asked one by
    /// one.
    #[must_use]
    pub fn missing_in(self, source: &dyn SubjectSource) -> Option<&'static str> {
        let reason = match self {
            Self::Nothing | Self::Operation | Self::Logits => return None,
            Self::Stages => "the subject provides no intermediate values",
            Self::Folder => "the subject does not report why it refuses a checkpoint",
            Self::Bits => "the subject does not promise equal bits",
        };
        (!source.offers().contains(&self)).then_some(reason)
    }
}

fn always(_set: &EvidenceSet) -> Applies {
    Ok(())
}

/// A check that does not depend on the values of the weights runs once.
fn no_twin(set: &EvidenceSet) -> Applies {
    let is_twin = "same files as `tiny`, checked there; --exhaustive repeats it";
    if set.twin { Err(is_twin) } else { Ok(()) }
}

fn has_long(set: &EvidenceSet) -> Applies {
    let has = set.long.is_some();
    has.then_some(()).ok_or("the set has no long sequence")
}

fn has_stages(set: &EvidenceSet) -> Applies {
    let has = set.stage_rows > 0 || set.router.is_some() || set.layer_outputs.is_some();
    has.then_some(()).ok_or("the set has no stage tensors, routing or layer outputs")
}

fn has_kda(set: &EvidenceSet) -> Applies {
    no_twin(set)?;
    let has = !set.config.kda_layers.is_empty();
    has.then_some(()).ok_or("the model has no KDA layer")
}

fn has_padded_log_decay(set: &EvidenceSet) -> Applies {
    has_kda(set)?;
    let has = set.config.kda_num_heads < set.config.kda_head_dim;
    has.then_some(()).ok_or("A_log has no padding at this shape")
}

fn has_transposable(set: &EvidenceSet) -> Applies {
    has_kda(set)?;
    let is_square = set.config.kda_num_heads == set.config.hidden_size;
    if is_square { Err("b_proj is square at this shape") } else { Ok(()) }
}

fn has_experts(set: &EvidenceSet) -> Applies {
    no_twin(set)?;
    let has = set.config.first_k_dense_replace < set.config.num_hidden_layers;
    has.then_some(()).ok_or("the model has no MoE layer")
}

/// Tolerance of the kernel gates that hold an f32 subject to the contract's bits.
pub const BITS: &str = "the bits of the contract; an f64 subject within 1e-12 of the largest value";
const BOUND: &str = "a bound per element that counts the contract's f32 roundings; an f64 subject \
                     within 1e-12 of the largest value";

macro_rules! kernel {
    ($id:literal, $passes:literal, $tolerance:expr, $catches:literal) => {
        Gate {
            id: $id,
            passes: $passes,
            reads: concat!("fixtures/kernels/", $id, ".safetensors"),
            tolerance: $tolerance,
            catches: $catches,
            needs: Needs::Operation,
            numbers: true,
            on: On::Kernel,
        }
    };
}

/// The gate on all logits of the full ids.
pub const TEACHER_FORCING: &str = "teacher-forcing";

/// The gates whose subject is a program: on the kernel fixtures, then on a set.
pub fn of_subjects() -> impl Iterator<Item = &'static Gate> {
    LADDER.iter().filter(|gate| !matches!(gate.on, On::Shipped(_)))
}

/// The gates on the kernel fixtures.
pub fn of_kernels() -> impl Iterator<Item = &'static Gate> {
    LADDER.iter().filter(|gate| matches!(gate.on, On::Kernel))
}

/// The gates on an evidence set.
pub fn of_sets() -> impl Iterator<Item = &'static Gate> {
    LADDER.iter().filter(|gate| matches!(gate.on, On::Set { .. }))
}

/// Every gate, in the order of the ladder: what ships, single operations, then set by set.
pub const LADDER: &[Gate] = &[
    Gate {
        id: "fixtures",
        passes: "every fixture file has the size and hash given in the manifest",
        reads: "fixtures/manifest.json and every file it lists",
        tolerance: "exact",
        catches: "a changed, truncated or missing fixture",
        needs: Needs::Nothing,
        numbers: false,
        on: On::Shipped(judge_fixtures),
    },
    kernel!("mxfp4-decode", "all codes under all scale bytes", BITS, "nibble order, sign, scale 0"),
    kernel!("bf16-widen", "BF16 patterns widen exactly", BITS, "flushed subnormals, a lost -0"),
    kernel!("elementary", "exp, tanh, sigmoid", BOUND, "cancellation near 0, early saturation"),
    kernel!("row-product", "the f64 sum of a row before rounding", BITS, "lanes, folds, tails"),
    kernel!("weighted-sum", "a weighted sum of vectors", BITS, "blocked or f32 accumulation"),
    kernel!("rms-norm", "RMSNorm", BITS, "a misplaced epsilon, another rounding point"),
    kernel!("l2-norm", "l2norm", BITS, "mean for sum, a dropped epsilon"),
    kernel!(
        "convolution",
        "causal convolution, SiLU, history",
        BOUND,
        "reversed taps, lost history"
    ),
    kernel!(
        "kda-decay",
        "log decay and decay",
        BOUND,
        "softplus, a bias outside, per-channel rates"
    ),
    kernel!(
        "kda-steps",
        "the delta rule over many steps",
        BITS,
        "order, transposed state, rounding"
    ),
    kernel!("gated-norm", "per-head norm, then the gate", BOUND, "gate before norm, SiLU gate"),
    kernel!(
        "softmax-sum",
        "softmax-weighted sum",
        BOUND,
        "maximum not subtracted, blocked rescaling"
    ),
    kernel!("mla-attention", "causal latent attention", BOUND, "scale, mask, halves of kv_b"),
    kernel!("residual-mix", "attention-residual mix", BOUND, "raw keys, normed values"),
    kernel!("router", "selection and weights", BOUND, "ties, bias in the weights, renormalisation"),
    kernel!("situ", "SiTU", BOUND, "the capped gate in the logistic, a missing cap"),
    kernel!("moe-sum", "the sum over experts", BITS, "order of arrival"),
    Gate {
        id: "bind",
        passes: "every tensor is loaded or listed as unused by class; none is missing",
        reads: "headers, config, and the names of the tensors that the subject loaded",
        tolerance: "exact",
        catches: "a misread layer map, a skipped or transposed tensor, another dtype",
        needs: Needs::Folder,
        numbers: false,
        on: On::Set { applies: always, check: bind::every_tensor },
    },
    Gate {
        id: "refuse-missing-norm",
        passes: "a checkpoint without one latent expert norm is refused by name",
        reads: "a copy with the tensor renamed",
        tolerance: "exact",
        catches: "a loader that runs without a tensor it needs",
        needs: Needs::Folder,
        numbers: false,
        on: On::Set { applies: has_experts, check: damage::missing_norm },
    },
    Gate {
        id: "refuse-transposed-shape",
        passes: "a tensor of transposed shape is refused by name",
        reads: "a copy with the dimensions of b_proj exchanged",
        tolerance: "exact",
        catches: "a loader that compares element counts instead of shapes",
        needs: Needs::Folder,
        numbers: false,
        on: On::Set { applies: has_transposable, check: damage::transposed_shape },
    },
    Gate {
        id: "refuse-log-decay-tail",
        passes: "an A_log whose padding is not zero is refused by name",
        reads: "a copy with one value after the heads",
        tolerance: "exact",
        catches: "a reader that drops the padding unchecked",
        needs: Needs::Folder,
        numbers: false,
        on: On::Set { applies: has_padded_log_decay, check: damage::log_decay_tail },
    },
    Gate {
        id: "refuse-nan-scale",
        passes: "MXFP4 scale byte 255 is refused by name",
        reads: "a copy with that byte in every expert of the last MoE layer",
        tolerance: "exact",
        catches: "damage silently turned into zeros or large numbers",
        needs: Needs::Folder,
        numbers: false,
        on: On::Set { applies: has_experts, check: damage::nan_scale },
    },
    Gate {
        id: "stages",
        passes: "every intermediate value in the set is right, in execution order",
        reads: "stage tensors, router ids and weights, layer outputs",
        tolerance: "the set's tolerance, relative to each tensor's largest value; 1e-3 on layer \
                 outputs and 5e-5 on routing weights computed in f32; of our engine also a bound \
                 per element from its own inputs, derived in src/reference/local/mod.rs",
        catches: "a wrong value that does not show in the logits, and where one that does begins",
        needs: Needs::Stages,
        numbers: true,
        on: On::Set { applies: has_stages, check: stages::against_answers },
    },
    Gate {
        id: TEACHER_FORCING,
        passes: "argmax and every logit are right at all positions of the full ids",
        reads: "full_ids, logits.f64",
        tolerance: "the set's tolerance for the subject's precision",
        catches: "any wrong clause of the forward pass",
        needs: Needs::Logits,
        numbers: true,
        on: On::Set { applies: always, check: teacher_forcing::full },
    },
    Gate {
        id: "teacher-forcing-long",
        passes: "the same on the long sequence",
        reads: "long_ids, long.logits.f64",
        tolerance: "the set's tolerance for the subject's precision",
        catches: "mistakes beyond the first chunk: a short cache, a truncated history",
        needs: Needs::Logits,
        numbers: true,
        on: On::Set { applies: has_long, check: teacher_forcing::long },
    },
    Gate {
        id: "greedy",
        passes: "full recompute at every step chooses the greedy ids of the set",
        reads: "prompt_ids, greedy_ids",
        tolerance: "exact",
        catches: "state that leaks from one sequence into the next",
        needs: Needs::Logits,
        numbers: true,
        on: On::Set { applies: always, check: greedy::full_recompute },
    },
    Gate {
        id: "incremental",
        passes: "carried state chooses the greedy ids, with logits bit-equal to full recompute",
        reads: "prompt_ids, greedy_ids, long_ids",
        tolerance: "equal bits",
        catches: "state that is lost, stale or in the wrong slot",
        needs: Needs::Logits,
        numbers: true,
        on: On::Set { applies: no_twin, check: incremental::carried_state },
    },
    Gate {
        id: "invariance",
        passes: "equal bits over kernel paths, threads, chunks, rings, caches, interleaving, state",
        reads: "full_ids",
        tolerance: "equal bits",
        catches: "sums split over threads, chunk boundaries, slots used twice, stale reads, state \
                  of another sequence",
        needs: Needs::Bits,
        numbers: false,
        on: On::Set { applies: no_twin, check: invariance::however_run },
    },
];
