//! Trace v1: what is written is read back; a recorded run is reproduced decision by decision.

use k3_cache::policy::PolicyName;
use k3_cache::shape::ModelShape;
use k3_cache::slot_table::{Requests, Reserve, SlotTable};
use k3_cache::trace::v1::{Header, TraceWriter};
use k3_cache::trace::{Decision, Phase, Trace, csv, parse};
use k3_core::choice::Choice as _;
use k3_simcache::recorded_run;
use k3_simcache::replay::serve_group;
use k3_simcache::workload::Workload;

use crate::support::traces::{SMALL, small_zipf};

/// Writes a trace as an engine would, with what a cache of these settings decides.
pub fn recorded(
    trace: &Trace,
    slots: usize,
    policy: PolicyName,
    requests: Requests,
    reserve: Reserve,
    prefetch_every: usize,
) -> Vec<u8> {
    let header = Header {
        slot_count: slots as u32,
        requests: Some(requests),
        reserve: Some(reserve),
        policy: policy.name().to_string(),
        trunk_bytes: 1000,
        checkpoint_identity: [7; 32],
        ..Header::of_shape(trace.shape)
    };
    let mut writer = TraceWriter::create(Vec::new(), &header).unwrap();
    let workload = Workload::new(trace, requests);
    let policy = policy.build(&trace.shape, slots);
    let mut table = SlotTable::new(trace.shape.expert_count(), slots, policy).unwrap();
    let (mut step, mut chunk) = (None, None);
    for group in &workload.groups {
        for index in group.demands.clone() {
            let demand = &trace.demands[index];
            let of = trace.chunks[demand.chunk as usize];
            if step != Some(of.step) {
                let mark = trace.steps[of.step as usize];
                writer.step(mark.phase, mark.first_position, mark.position_count).unwrap();
                step = Some(of.step);
            }
            if chunk != Some(demand.chunk) {
                writer.chunk(of.first_position, of.position_count).unwrap();
                chunk = Some(demand.chunk);
            }
            if prefetch_every > 0 && index == group.demands.start && index % prefetch_every == 1 {
                let layer = u32::from(demand.layer);
                let ahead = [index as u32 % 12, (index as u32 + 5) % 12];
                writer.prefetch(layer, &ahead).unwrap();
                let dense = ahead.map(|expert| layer * trace.shape.experts_per_layer + expert);
                table.prefetch(&dense).unwrap();
            }
            let experts: Vec<u32> = trace
                .experts(demand)
                .iter()
                .map(|&e| u32::from(trace.shape.key(e).expert))
                .collect();
            writer.demand(u32::from(demand.layer), demand.position, &experts).unwrap();
        }
        let mut decisions = Vec::new();
        serve_group(&mut table, &workload, group, reserve, |served| {
            decisions.push(Decision { expert: served.expert, outcome: served.outcome });
        })
        .unwrap();
        for decision in decisions {
            writer.decision(trace.shape.key(decision.expert), decision.outcome).unwrap();
        }
    }
    writer.finish().unwrap()
}

#[test]
fn what_is_written_is_read_back() {
    let trace = small_zipf(3);
    let bytes = recorded(&trace, 8, PolicyName::Lru, Requests::Batch, Reserve::Late, 0);
    let back = parse(&bytes, &ModelShape::K3).unwrap();
    assert_eq!(back.shape, SMALL);
    assert_eq!(back.requests, trace.requests);
    assert_eq!(back.demands, trace.demands);
    assert_eq!(back.chunks, trace.chunks);
    assert_eq!(back.steps, trace.steps);
    assert_eq!(back.decisions.len(), trace.requests.len());
    let header = back.header.unwrap();
    assert_eq!((header.slot_count, header.policy.as_str()), (8, "lru"));
    assert_eq!((header.trunk_bytes, header.checkpoint_identity), (1000, [7; 32]));
}

#[test]
fn a_recorded_run_is_reproduced_exactly_with_every_policy_and_unit() {
    let trace = small_zipf(4);
    for &policy in PolicyName::ALL {
        for requests in [Requests::Single, Requests::Batch, Requests::Union] {
            for reserve in [Reserve::Late, Reserve::Early] {
                let every = if requests == Requests::Batch { 5 } else { 0 };
                let bytes = recorded(&trace, 9, policy, requests, reserve, every);
                let back = parse(&bytes, &ModelShape::K3).unwrap();
                let run = recorded_run::check(&back).unwrap();
                assert_eq!(run.difference, None, "{policy:?} {requests:?} {reserve:?}");
                let replayed = run.replayed.unwrap();
                assert_eq!(
                    (replayed.hits, replayed.misses),
                    (run.recorded_hits, run.recorded_misses)
                );
                assert!(run.recorded_evictions > 0);
            }
        }
    }
}

#[test]
fn a_run_with_other_settings_than_it_states_is_found_out() {
    let trace = small_zipf(4);
    let bytes = recorded(&trace, 9, PolicyName::Lru, Requests::Batch, Reserve::Late, 0);
    let mut back = parse(&bytes, &ModelShape::K3).unwrap();
    back.header.as_mut().unwrap().slot_count = 10;
    let run = recorded_run::check(&back).unwrap();
    let difference = run.difference.unwrap();
    assert!(difference.starts_with("decision "), "{difference}");
    back.header.as_mut().unwrap().policy = "magic".to_string();
    let run = recorded_run::check(&back).unwrap();
    assert_eq!(run.replayed, None);
    assert_eq!(run.difference.unwrap(), "policy 'magic' is not known");
}

#[test]
fn a_step_needs_a_phase_and_a_policy_a_short_name() {
    let mut writer = TraceWriter::create(Vec::new(), &Header::of_shape(SMALL)).unwrap();
    assert!(writer.step(Phase::Unknown, 0, 1).is_err());
    let header = Header { policy: "x".repeat(25), ..Header::of_shape(SMALL) };
    assert!(TraceWriter::create(Vec::new(), &header).is_err());
}

#[test]
fn csv_has_one_line_per_request() {
    let trace = small_zipf(1);
    let mut out = Vec::new();
    csv::write(&trace, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "time,obj_id,obj_size,layer,expert,position");
    assert_eq!(lines.len(), 1 + trace.requests.len());
    let (expert, key) = (trace.requests[1], trace.shape.key(trace.requests[1]));
    assert_eq!(lines[2], format!("1,{expert},1000000000,{},{},0", key.layer, key.expert));
}
