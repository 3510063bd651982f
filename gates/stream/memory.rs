//! The memory plan: limits to the byte, long contexts, what is pinned, and measured peaks.

use super::make::{generate, open};
use crate::support::{command_on, expect_of, scratch, tiny};
use k3_engine::memory::{Demand, Wishes};
use k3_engine::model::{LayerKind, State};

fn demand(positions: usize) -> Demand {
    let mut demand = open(&tiny(), None).demand(positions, 8);
    // What is measured differs from call to call.
    demand.baseline_bytes = 10_000_000;
    demand
}

fn fixed() -> Wishes {
    Wishes {
        trunk_bytes: Some(1_000_000),
        expert_bytes: None,
        expert_slots: Some(5),
        ring_slots: Some(2),
    }
}

/// E06: a margin in percent refuses good runs on large machines. 6 MB above the plan runs, the
/// plan itself runs, 6 MB below is refused with both numbers.
#[test]
fn e06_the_limit_is_exact() {
    let demand = demand(100);
    let plan = demand.plan(&fixed(), None).unwrap();
    let total = plan.total_bytes;
    assert_eq!(total, plan.components.iter().map(|line| line.bytes).sum::<u64>());
    for limit in [total + 6_000_000, total] {
        let at = demand.plan(&fixed(), Some(limit)).unwrap();
        assert_eq!((at.total_bytes, at.limit_bytes), (total, Some(limit)));
    }
    let refusal = demand.plan(&fixed(), Some(total - 6_000_000)).unwrap_err();
    assert_eq!(refusal.needed_bytes, total);
    let text = refusal.to_string();
    let mb = |bytes: u64| format!("{:.3} MB", bytes as f64 / 1e6);
    assert!(text.contains(&mb(total)) && text.contains(&mb(total - 6_000_000)), "{text}");
    assert!(text.contains("would fit") || text.contains("the least"), "{text}");
}

/// A limit of its own for the trunk or the experts is kept or refused, never exceeded in silence.
#[test]
fn parts_with_limits_of_their_own() {
    let demand = demand(100);
    let largest = *demand.layer_bytes.iter().max().unwrap();
    let trunk =
        |bytes, ring| Wishes { trunk_bytes: Some(bytes), ring_slots: ring, ..Wishes::default() };
    let refusal = demand.plan(&trunk(largest / 2, None), None).unwrap_err();
    assert!(refusal.needed_bytes > refusal.limit_bytes, "{refusal}");
    assert!(refusal.to_string().contains("a ring that holds any layer"));
    assert!(demand.plan(&trunk(2 * largest, Some(3)), None).is_err());
    let kept = demand.plan(&trunk(4 * largest, Some(3)), None).unwrap();
    let trunk_lines = kept.components.iter().filter(|line| line.name.starts_with("trunk"));
    assert!(trunk_lines.map(|line| line.bytes).sum::<u64>() <= 4 * largest);
    for slots in [0, 1] {
        let wishes = Wishes { expert_slots: Some(slots), ..Wishes::default() };
        let text = demand.plan(&wishes, None).unwrap_err().to_string();
        assert!(text.contains("2 expert slots"), "{text}");
    }
}

/// A chosen split never exceeds its limit, and what the refusal calls the least does fit.
#[test]
fn every_choice_keeps_its_limit() {
    let demand = demand(64);
    let everything = demand.plan(&Wishes::default(), None).unwrap();
    assert_eq!(everything.pinned_layers.len(), 13);
    assert_eq!(everything.expert_slots, 96);
    let mut smallest = None;
    for limit in (9_000_000..everything.total_bytes + 500_000).step_by(37_000) {
        match demand.plan(&Wishes::default(), Some(limit)) {
            Ok(plan) => {
                assert!(plan.total_bytes <= limit);
                assert!(plan.expert_slots >= 2);
                assert!(plan.pinned_layers.len() == 13 || plan.ring_slots > 0);
                smallest = smallest.or(Some(plan.total_bytes));
            }
            Err(refusal) => {
                assert!(smallest.is_none(), "{limit} does not fit and less does");
                assert!(refusal.needed_bytes > limit);
            }
        }
    }
    assert!(smallest.is_some());
}

/// G04: one position too many is refused before anything is computed; the last that fits is not.
#[test]
fn g04_capacity_to_the_position() {
    let limit = demand(100).plan(&fixed(), None).unwrap().total_bytes;
    for (positions, fits) in [(99, true), (100, true), (101, false)] {
        let plan = demand(positions).plan(&fixed(), Some(limit));
        assert_eq!(plan.is_ok(), fits, "{positions} positions");
    }
}

/// The latent cache: kv_lora + rope floats per position and MLA layer, in the plan and in memory;
/// KDA layers add nothing. 576 floats at the released widths.
#[test]
fn long_contexts_cost_the_latent_only() {
    let (short, long) = (demand(1000), demand(3000));
    let shape = &short.shape;
    let mla = shape.count(LayerKind::Mla) as u64;
    let per_position = 4 * mla * (shape.mla.kv_lora + shape.mla.rope) as u64;
    let total = |demand: &Demand| demand.plan(&fixed(), None).unwrap().total_bytes;
    assert_eq!(total(&long) - total(&short), 2000 * per_position);
    assert_eq!(long.recurrent_bytes(), short.recurrent_bytes());
    let mut state = State::new(shape);
    state.reserve(shape, 3000);
    let held: usize = state.mla.iter().map(|cache| 4 * cache.rows.capacity()).sum();
    assert_eq!(held as u64, 3000 * per_position);
    let recurrent = state.kda.iter();
    let values: usize = recurrent.map(|slot| slot.recurrent.len() + slot.convolution.len()).sum();
    assert_eq!(4 * values as u64, short.recurrent_bytes());
}

/// E05: a limit below the need is refused with both numbers and exit 5, one above it runs, however
/// full the page cache is.
#[test]
fn e05_memory_limits_refuse_and_run() {
    let output = expect_of(generate(&["--gen", "2", "--memory", "1MB"]), 5);
    let stderr = output.stderr;
    assert!(stderr.contains("refused") && stderr.contains("the limit is 1.000 MB"), "{stderr}");
    assert!(stderr.lines().any(|line| line.starts_with("hint: ")), "{stderr}");
    expect_of(generate(&["--gen", "2", "--memory", "64MB"]), 0);
}

/// E07: a model whose vocabulary is most of it: the peak is within the stated distance of the
/// plan, which a second copy of either table would break; streaming the vocabulary saves both.
#[test]
fn e07_the_measured_peak_is_the_planned_one() {
    let (_folder, model) = scratch("wide");
    crate::support::widen::widen_vocabulary(&tiny(), &model, 400_000);
    let report = |arguments: &[&str]| {
        let mut command = command_on("generate", &model);
        command.args(["--ids", "5,6,7", "--gen", "2", "--format", "json"]);
        expect_of(command.args(arguments), 0).json()
    };
    let resident = report(&[]);
    let bytes = |report: &serde_json::Value, field: &str| report["peak"][field].as_u64().unwrap();
    assert!(bytes(&resident, "planned_bytes") > 200_000_000);
    assert_eq!(resident["peak"]["within"], true, "{}", resident["peak"]);
    let ultra = report(&["--preset", "ultra"]);
    assert_eq!(ultra["peak"]["within"], true, "{}", ultra["peak"]);
    let saved = bytes(&resident, "peak_resident_bytes") - bytes(&ultra, "peak_resident_bytes");
    assert!(saved > 150_000_000, "{saved}");
    assert_eq!(ultra["generated_ids"], resident["generated_ids"]);
}
