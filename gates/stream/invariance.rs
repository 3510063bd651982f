//! The gate `invariance` on the ways of streaming: green for the engine, red for each mistake.

use std::path::Path;

use k3_core::config::MLA_NORM_EPS;
use k3_gates::checks::invariance::however_run;
use k3_gates::context::Context;
use k3_gates::evidence::EvidenceSet;
use k3_gates::outcome::Verdict;
use k3_gates::subjects;

/// A ring slot overwritten in use, a cache slot given out twice, a stale read published: each is
/// right in memory, and `invariance` alone can tell.
#[test]
fn every_mistake_of_streaming_turns_invariance_red() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tiny");
    let set = EvidenceSet::open("tiny", &folder).unwrap();
    for id in
        ["a11-ring-slot-overwritten", "a11-expert-slot-given-twice", "a11-stale-read-published"]
    {
        let mutants = subjects::mutants();
        let mutant = mutants.iter().find(|mutant| mutant.id == id).unwrap();
        let context = Context::new(&set, mutant.source.as_ref(), MLA_NORM_EPS);
        let outcome = however_run(&context);
        assert_eq!(outcome.verdict, Verdict::Fail, "{id}: {}", outcome.summary);
        println!("{id}: {}", outcome.summary);
        // Without the variant the same subject is right: the mistake is in the streaming.
        assert_eq!(context.full_logits().unwrap().rows, set.full.ids.len());
    }
}
