//! The ladder: every gate as a data record, in the order in which they are climbed.

use super::checks::{bind, damage, greedy, incremental, invariance, stages, teacher_forcing};
use super::context::Context;
use super::evidence::EvidenceSet;
use super::outcome::Outcome;

/// A gate: what it looks at, what it allows, what it would catch, and the function that judges.
pub struct Gate {
    /// Name of the gate; its full id is `SET/GATE`.
    pub id: &'static str,
    /// What passes.
    pub what: &'static str,
    /// What it reads.
    pub inputs: &'static str,
    /// How far off is allowed, and where that number comes from.
    pub budget: &'static str,
    /// The kind of mistake it is there for.
    pub catches: &'static str,
    /// Which sets it can be run on.
    pub applies: fn(&EvidenceSet) -> Applies,
    /// Judges one subject on one set.
    pub check: fn(&Context<'_>) -> Outcome,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gate({})", self.id)
    }
}

/// Whether a gate can be run on a set; if not, why.
pub type Applies = Result<(), &'static str>;

fn always(_set: &EvidenceSet) -> Applies {
    Ok(())
}

/// What does not depend on the values of the weights is asked once.
fn no_twin(set: &EvidenceSet) -> Applies {
    let is_twin =
        "same files and shapes as its twin's, where this is asked; --exhaustive asks again";
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

fn has_padded_log_decay(set: &EvidenceSet) -> Applies {
    no_twin(set)?;
    let has = set.config.kda_num_heads < set.config.kda_head_dim;
    has.then_some(()).ok_or("A_log has no padding at this shape")
}

/// The gate on all logits of the full ids.
pub const TEACHER_FORCING: &str = "teacher-forcing";

/// The oracle gates, run on every evidence set.
pub const ORACLE_GATES: [Gate; 11] = [
    Gate {
        id: "bind",
        what: "every tensor is bound or listed as unused by class; none is missing",
        inputs: "the checkpoint's headers and config",
        budget: "exact",
        catches: "a misread layer map, a skipped or transposed tensor, another dtype",
        applies: always,
        check: bind::every_tensor,
    },
    Gate {
        id: "refuse-missing-norm",
        what: "a checkpoint without one latent expert norm is refused by name",
        inputs: "a copy with the tensor renamed",
        budget: "exact",
        catches: "a loader that computes on without a tensor it needs",
        applies: no_twin,
        check: damage::missing_norm,
    },
    Gate {
        id: "refuse-transposed-shape",
        what: "a tensor of transposed shape is refused by name",
        inputs: "a copy with the dimensions of b_proj exchanged",
        budget: "exact",
        catches: "a loader that compares element counts and not shapes",
        applies: no_twin,
        check: damage::transposed_shape,
    },
    Gate {
        id: "refuse-log-decay-tail",
        what: "an A_log whose padding is not zero is refused by name",
        inputs: "a copy with one value behind the heads",
        budget: "exact",
        catches: "a reader that slices off what it does not look at",
        applies: has_padded_log_decay,
        check: damage::log_decay_tail,
    },
    Gate {
        id: "refuse-nan-scale",
        what: "MXFP4 scale byte 255 is refused by name",
        inputs: "a copy with that byte in every expert of the last layer",
        budget: "exact",
        catches: "damage turned into zeros or large numbers in silence",
        applies: no_twin,
        check: damage::nan_scale,
    },
    Gate {
        id: "stages",
        what: "every intermediate value the set has is right, in execution order",
        inputs: "stage tensors, router ids and weights, layer outputs",
        budget: "the set's tolerance, relative to each tensor's largest value; 1e-3 on layer \
                 outputs and 5e-5 on routing weights that were made in f32",
        catches: "a wrong value that the logits forgive, and the place of one they do not",
        applies: has_stages,
        check: stages::against_answers,
    },
    Gate {
        id: TEACHER_FORCING,
        what: "argmax and every logit are right at all positions of the full ids",
        inputs: "full_ids, logits.f64",
        budget: "the set's tolerance for the subject's precision",
        catches: "any wrong clause of the forward pass",
        applies: always,
        check: teacher_forcing::full,
    },
    Gate {
        id: "teacher-forcing-long",
        what: "the same on the long sequence",
        inputs: "long_ids, long.logits.f64",
        budget: "the set's tolerance for the subject's precision",
        catches: "what shows beyond the first chunk: a short cache, a cut history",
        applies: has_long,
        check: teacher_forcing::long,
    },
    Gate {
        id: "greedy",
        what: "full recompute at every step chooses the set's greedy ids",
        inputs: "prompt_ids, greedy_ids",
        budget: "exact",
        catches: "state that leaks from one sequence into the next",
        applies: always,
        check: greedy::full_recompute,
    },
    Gate {
        id: "incremental",
        what: "carried state chooses the greedy ids, with logits equal to recompute in bits",
        inputs: "prompt_ids, greedy_ids, long_ids",
        budget: "equal bits",
        catches: "state that is lost, stale, or of another place",
        applies: no_twin,
        check: incremental::carried_state,
    },
    Gate {
        id: "invariance",
        what: "equal bits over kernel paths, threads, chunks, rings, caches, interleaving, state",
        inputs: "full_ids",
        budget: "equal bits",
        catches: "sums split over threads, chunk borders, slots given out twice, stale reads, \
                  state of another sequence",
        applies: no_twin,
        check: invariance::however_run,
    },
];
