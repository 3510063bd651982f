//! The engine's single operations on the shipped fixtures, before any layer.
//!
//! A layer's tolerances are bounds that any right order of a sum keeps, and a few layers lack data
//! that some mistakes need (a tie of the router, a subnormal weight). The kernel fixtures have that
//! data and hold the engine to the bits of its contract, on this machine and in a tenth of a
//! second.

use crate::fixtures::Fixtures;
use crate::kernels::KernelFixtures;
use crate::outcome::{Outcome, Verdict};
use crate::registry::of_kernels;
use crate::report::layers::{LayerRow, StageRow};
use crate::runner::shipped_kernels;
use crate::subjects;
use k3_engine::kernels::table::Kernels;

/// One row, with a stage per kernel.
#[must_use]
pub fn judge(kernels: Kernels) -> LayerRow {
    let fixtures = Fixtures::embedded().map_err(|error| error.to_string());
    match fixtures.and_then(|fixtures| shipped_kernels(&fixtures)) {
        Ok(fixtures) => judge_on(&fixtures, kernels),
        Err(problem) => LayerRow::not_run(PLACE, None, problem),
    }
}

/// The same on fixtures that are open.
#[must_use]
pub fn judge_on(fixtures: &KernelFixtures, kernels: Kernels) -> LayerRow {
    let source = subjects::of_kernels(kernels);
    let outcomes = of_kernels().map(|gate| (gate.id, fixtures.judge(gate, &source)));
    let known = outcomes.filter(|(_, outcome)| outcome.verdict != Verdict::NotApplicable);
    let stages: Vec<StageRow> = known.map(|(kernel, outcome)| stage(kernel, &outcome)).collect();
    let has = |verdict| stages.iter().any(|stage| stage.verdict == verdict);
    let verdict = if has(Verdict::Fail) {
        Verdict::Fail
    } else if has(Verdict::NotRun) || stages.is_empty() {
        Verdict::NotRun
    } else {
        Verdict::Pass
    };
    LayerRow { verdict, problem: None, stages, ..LayerRow::not_run(PLACE, None, String::new()) }
}

const PLACE: &str = "kernels";

fn stage(kernel: &str, outcome: &Outcome) -> StageRow {
    let records = || outcome.comparisons.iter().map(|named| &named.record);
    let verdict = outcome.verdict;
    let is_finite = |ratio: &f64| ratio.is_finite();
    StageRow {
        stage: kernel.to_owned(),
        verdict,
        problem: (verdict != Verdict::Pass).then(|| outcome.summary.clone()),
        count: records().map(|record| record.count).sum(),
        mismatches: records().map(|record| record.mismatches).sum(),
        ratio: records().filter_map(|record| record.ratio).reduce(f64::max).filter(is_finite),
        required: None,
        worst: None,
        first: None,
        ties: 0,
        chained: None,
    }
}
