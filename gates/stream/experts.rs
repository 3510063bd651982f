//! The expert cache: bounds, failing reads, counters against a replay of the run's own trace.

use k3_core::choice::Choice as _;
use std::fs::File;
use std::sync::{Arc, Mutex};

use super::make::{EXPERTS, TOP_K, Unreadable, engine_of, feed, open, resident, streamed};
use crate::support::{bits, ids, tiny};
use k3_cache::policy::PolicyName;
use k3_cache::slot_table::{Requests, Reserve};
use k3_cache::trace::Phase;
use k3_cache::trace::v1;
use k3_cache::trace::v1::Header;
use k3_engine::model::{EngineOptions, EngineSequence, ExpertSource};
use k3_engine::stream::experts::{ExpertCache, ExpertStore, sizes, slot_bytes};
use k3_engine::stream::fault_hooks::NoFaults;
use k3_engine::stream::read::BlockFile;
use k3_engine::stream::recorder::Recorder;
use k3_engine::stream::runs::{Run, open_shards};
use k3_simcache::recorded_run;

/// A sink that can be looked into afterwards.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A disk that is full after some bytes.
struct Full(usize);

impl std::io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0 < bytes.len() {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.0 -= bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn header(shape: &k3_engine::model::Shape, slots: usize, policy: PolicyName) -> Header {
    Header {
        slot_count: slots as u32,
        requests: Some(Requests::Union),
        reserve: Some(Reserve::Late),
        policy: policy.name().to_owned(),
        ..Header::of_shape(sizes(shape))
    }
}

/// F08 for the engine, and the agreement of run and laboratory: at every capacity, policy and
/// chunking the bound holds, bits are those of the unbounded run, and a replay of the run's trace
/// decides the same every time and counts the same.
#[test]
fn counters_are_those_of_a_replay_of_the_runs_trace() {
    let files = open(&tiny(), None);
    let ids = &ids("full_ids")[..9];
    let expected = feed(&super::make::engine(&files, &resident()), ids);
    for slots in [TOP_K, TOP_K + 1, 7, EXPERTS / 2, EXPERTS] {
        for &policy in PolicyName::ALL {
            // Chunks cut the unions; that is the same for every policy.
            let both = policy == PolicyName::LayerCycle;
            for chunk_tokens in if both { vec![3, 32] } else { vec![3] } {
                let mut stream = streamed(2, slots);
                stream.policy = policy;
                let options = EngineOptions { chunk_tokens, threads: 2 };
                let streamed = engine_of(&files, &stream, options);
                let sink = Shared::default();
                let header = header(&files.shape, slots, policy);
                let recorder =
                    Recorder::create("t".as_ref(), Box::new(sink.clone()), &header).unwrap();
                streamed.experts.record(recorder);
                let mut sequence = EngineSequence::new(Arc::clone(&streamed.engine));
                let mut got = Vec::new();
                streamed.experts.begin_step(Phase::Prefill, 0, 7).unwrap();
                got.extend(bits(&sequence.feed(&ids[..7]).unwrap()));
                for (place, id) in ids.iter().enumerate().skip(7) {
                    streamed.experts.begin_step(Phase::Decode, place, 1).unwrap();
                    got.extend(bits(&sequence.feed(&[*id]).unwrap()));
                    let (resident, bound) = streamed.experts.residents();
                    assert!(resident <= bound && bound == slots);
                }
                assert!(got == expected, "{slots} slots, {policy:?}, chunk {chunk_tokens}");
                streamed.experts.finish_record().unwrap();
                let trace = v1::read(&sink.0.lock().unwrap()).unwrap();
                let replay = recorded_run::check(&trace).unwrap();
                assert_eq!(replay.difference, None, "{slots} slots, {policy:?}");
                let counters = streamed.experts.counters();
                assert_eq!(replay.replayed, Some(counters.table));
                assert_eq!(replay.recorded_hits, counters.table.hits);
                let expert_bytes = trace.shape.expert_bytes;
                assert_eq!(counters.read_bytes, counters.table.misses * expert_bytes);
                assert!(slots > 20 || counters.table.evictions > 0);
            }
        }
    }
}

/// A trace that cannot be written ends the run; it never continues silently without one.
#[test]
fn a_full_disk_under_the_trace_ends_the_run() {
    let files = open(&tiny(), None);
    let streamed = super::make::engine(&files, &streamed(1, 4));
    let header = header(&files.shape, 4, PolicyName::LayerCycle);
    let recorder = Recorder::create("full".as_ref(), Box::new(Full(9000)), &header).unwrap();
    streamed.experts.record(recorder);
    streamed.experts.begin_step(Phase::Prefill, 0, 30).unwrap();
    let mut sequence = EngineSequence::new(Arc::clone(&streamed.engine));
    let fed = sequence.feed(&ids("full_ids")[..30]);
    let ended = fed.map(|_| ()).err().map(|error| error.to_string());
    let ended = ended.or_else(|| {
        let finished = streamed.experts.finish_record();
        finished.err().map(|error| error.to_string())
    });
    assert!(ended.is_some_and(|text| text.contains("full")), "the disk was not full");
}

/// E11: an expert that cannot be read: alone and in a batch alike, an error, never its neighbour's
/// bytes; and the cache, whose table is now wrong, serves no further requests.
#[test]
fn e11_an_unreadable_expert_fails_alone_and_in_a_batch() {
    let files = open(&tiny(), None);
    let (layer, bad) = (4, 5);
    let tensors = files.binding.expert(layer, bad).unwrap();
    let run = Run::of(&files.checkpoint, &tensors.in_order());
    let (file, from) = run.place();
    let cache = || {
        let shards = files.checkpoint.shards().iter().enumerate();
        let shards = shards.map(|(index, shard)| {
            // The middle of the expert: its first blocks may be a neighbour's last.
            let (from, to) = if index == file { (from + 2000, from + 4000) } else { (0, 0) };
            let file = File::open(shard.path()).unwrap();
            BlockFile::of(shard.path(), Box::new(Unreadable { file, from, to }), None)
        });
        let store = ExpertStore {
            checkpoint: Arc::clone(&files.checkpoint),
            binding: Arc::clone(&files.binding),
            files: shards.collect(),
            slots: 6,
            slot_bytes: slot_bytes(&files.checkpoint, &files.binding, 13).0,
            policy: PolicyName::Lru,
            io_threads: 3,
        };
        ExpertCache::open(files.shape.clone(), store, Arc::new(NoFaults)).unwrap()
    };
    for batch in [vec![bad], vec![0, bad], vec![0, 1, bad, 7]] {
        let cache = cache();
        let text = cache.experts(layer, &batch).unwrap_err().to_string();
        assert!(text.contains("layer 4") && text.contains('5'), "{text}");
        assert!(text.contains("damaged") && text.contains(".safetensors"), "{text}");
        let later = cache.experts(layer + 1, &[0]).unwrap_err().to_string();
        assert!(later.contains("earlier"), "{later}");
    }
    assert!(cache().experts(layer + 1, &[0, 1]).is_ok());
}

/// E11: memory that was never written shows: buffers full of NaN change no bit.
#[test]
fn e11_no_scratch_is_read_before_it_is_written() {
    let files = open(&tiny(), None);
    let streamed = super::make::engine(&files, &streamed(2, 5));
    let ids = &ids("full_ids")[..9];
    let expected = feed(&streamed, ids);
    let engine = &streamed.engine;
    let mut work = engine.workspace();
    let t = work.chunk_tokens;
    let (residual, kda, mla, moe) =
        (&mut work.residual, &mut work.kda, &mut work.mla, &mut work.moe);
    let mut rows = vec![
        &mut residual.running,
        &mut residual.mixed,
        &mut residual.normed,
        &mut residual.output,
        &mut kda.low_rank,
        &mut kda.z,
        &mut kda.log_decay,
        &mut kda.alpha,
        &mut kda.beta,
        &mut kda.gate,
        &mut kda.output,
        &mut mla.q_low,
        &mut mla.q_low_normed,
        &mut mla.q,
        &mut mla.compressed,
        &mut mla.cache_rows,
        &mut mla.gate,
        &mut mla.output,
        &mut moe.scores,
        &mut moe.latent,
        &mut moe.expert_outputs,
        &mut moe.sum,
        &mut moe.sum_normed,
        &mut moe.routed,
        &mut moe.shared,
    ];
    rows.extend(residual.banks.iter_mut());
    rows.extend(kda.inputs.iter_mut().chain(&mut kda.vectors));
    for rows in rows {
        rows.first_mut(t).fill(f32::NAN);
    }
    let pairs = t * files.shape.moe.top_k;
    for rows in [
        &mut moe.gathered,
        &mut moe.expert_gate,
        &mut moe.expert_up,
        &mut moe.expert_activated,
        &mut moe.expert_grouped,
    ] {
        rows.first_mut(pairs).fill(f32::NAN);
    }
    for buffer in [&mut work.mlp.gate, &mut work.mlp.up, &mut work.mlp.activated] {
        buffer.fill(f32::NAN);
    }
    let mut state = engine.state();
    let mut sink = k3_core::stages::NoStages;
    let logits = engine.feed(&mut work, &mut state, ids, &mut sink).unwrap();
    assert!(bits(&logits) == expected);
}

/// Two sequences on two threads share a cache of few slots and a ring: neither waits forever, and
/// neither gets the other's weights.
#[test]
fn two_threads_share_ring_and_cache() {
    let files = open(&tiny(), None);
    let streamed = super::make::engine(&files, &streamed(2, TOP_K));
    let forwards = ids("full_ids");
    let backwards: Vec<u32> = forwards.iter().rev().copied().collect();
    let alone = [feed(&streamed, &forwards), feed(&streamed, &backwards)];
    std::thread::scope(|scope| {
        let runs = [&forwards, &backwards].map(|ids| {
            let streamed = &streamed;
            scope.spawn(move || feed(streamed, ids))
        });
        for (run, alone) in runs.into_iter().zip(alone) {
            assert!(run.join().unwrap() == alone);
        }
    });
    assert!(open_shards(&files.checkpoint, false).is_ok());
}
