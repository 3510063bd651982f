//! Somebody's engine on the shipped ladder, inside somebody's `cargo test`: the least that it
//! takes. The engine is a toy with an honest answer: it gives logits in f32 and nothing else, and
//! computes them with the f64 reference.

use k3_core::config::MLA_NORM_EPS;
use k3_core::stages::NoStages;
use k3_gates::outcome::Verdict;
use k3_gates::{Ladder, Opening, Precision, Recomputed, Subject, SubjectError, SubjectSource};
use k3_reference::Model;

/// The toy, with its ε of MLA's two low-rank norms.
struct Toy {
    epsilon: f64,
}

impl SubjectSource for Toy {
    fn name(&self) -> &str {
        "toy"
    }

    fn precision(&self) -> Precision {
        Precision::F32
    }

    fn open(&self, model: Opening<'_>) -> Result<Box<dyn Subject>, SubjectError> {
        let engine = Model::open(model.dir, self.epsilon)
            .map_err(|error| SubjectError::Refused(error.to_string()))?;
        Ok(Box::new(Recomputed::new(model.config.vocab_size, move |ids: &[u32]| {
            let logits = engine.sequence().feed(ids, &mut NoStages);
            let logits = logits.map_err(|error| SubjectError::Failed(error.to_string()))?;
            Ok(logits.values.into_iter().map(|value| value as f32).collect::<Vec<f32>>())
        })))
    }
}

#[test]
fn a_right_engine_conforms() {
    let report = Ladder::shipped().subject(Toy { epsilon: MLA_NORM_EPS }).run();
    report.assert_conforms();
    let rows = |verdict| report.gates.iter().filter(move |row| row.outcome.verdict == verdict);
    let passed: Vec<&str> = rows(Verdict::Pass).map(|row| row.id.as_str()).collect();
    let expected = [
        "shipped/fixtures",
        "tiny/teacher-forcing",
        "tiny/teacher-forcing-long",
        "tiny/greedy",
        "mild/teacher-forcing",
        "mild/greedy",
        "faint/teacher-forcing",
        "faint/greedy",
    ];
    assert_eq!(passed, expected);
    // What it does not offer is not taken for right: it is said, with the reason.
    assert_eq!(rows(Verdict::NotApplicable).count(), report.gates.len() - expected.len());
    assert!(rows(Verdict::NotApplicable).all(|row| !row.outcome.summary.is_empty()));
}

/// The other well-known reading of the config: the two norms with the ε of all the others.
#[test]
#[should_panic(expected = "FAIL            tiny/teacher-forcing       toy")]
fn a_wrong_epsilon_is_refused_by_the_gate_that_sees_it() {
    Ladder::shipped().subject(Toy { epsilon: 1e-5 }).only("tiny/teacher-*").run().assert_conforms();
}

/// An engine that gives nothing at all has not conformed.
#[test]
fn an_engine_that_nothing_was_asked_of_does_not_conform() {
    let toy = Toy { epsilon: MLA_NORM_EPS };
    assert!(!Ladder::shipped().subject(toy).only("tiny/stages").run().conforms());
}
