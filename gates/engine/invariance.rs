//! Equal bits whatever the threads, chunks, interleaving and carrying of state (A11).

use crate::support::bits;
use crate::support::engine::Tiny;
use k3_engine::kernels::path::KernelPath;
use k3_engine::model::{EngineOptions, EngineSequence};

/// Threads 1, 2, 3, 8 and chunks 1, 3, 7, all.
#[test]
fn threads_and_chunks_change_no_bit() {
    let tiny = Tiny::open();
    let run = |threads, chunk_tokens| {
        let options = EngineOptions { threads, chunk_tokens };
        bits(&EngineSequence::new(tiny.engine(options)).feed(&tiny.full_ids).unwrap())
    };
    let expected = run(1, 64);
    for threads in [1, 2, 3, 8] {
        for chunk in [1, 3, 7, 64] {
            assert!(run(threads, chunk) == expected, "{threads} threads, chunks of {chunk}");
        }
    }
}

/// Every kernel path of this processor against the scalar one, prefill and single tokens.
#[test]
fn kernel_paths_change_no_bit() {
    let tiny = Tiny::open();
    let run = |path, chunk_tokens| {
        let options = EngineOptions { threads: 2, chunk_tokens };
        let engine = tiny.engine_on(path, options);
        bits(&EngineSequence::new(engine).feed(&tiny.full_ids).unwrap())
    };
    let expected = run(KernelPath::SCALAR, 64);
    for path in KernelPath::available() {
        for chunk in [1, 7, 64] {
            assert!(run(path, chunk) == expected, "{}, chunks of {chunk}", path.name());
        }
    }
}

/// A05, A06: the state cloned out, used for something else, and put back, at every position.
#[test]
fn a06_state_taken_out_and_put_back_at_every_position() {
    let tiny = Tiny::open();
    let engine = tiny.engine(EngineOptions::default());
    let ids = &tiny.full_ids;
    let whole = bits(&EngineSequence::new(engine.clone()).feed(ids).unwrap());
    let vocabulary = engine.shape().vocab;
    let mut sequence = EngineSequence::new(engine);
    for cut in 1..ids.len() {
        sequence.state = sequence.engine().state();
        sequence.feed(&ids[..cut]).unwrap();
        let taken = sequence.state.clone();
        sequence.feed(&[1, 2, 3]).unwrap();
        sequence.state = taken;
        let rest = bits(&sequence.feed(&ids[cut..]).unwrap());
        assert!(rest == whole[cut * vocabulary..], "cut at {cut}");
    }
}

/// A05: two sequences interleaved know nothing of each other.
#[test]
fn a05_interleaved_sequences_do_not_meet() {
    let tiny = Tiny::open();
    let engine = tiny.engine(EngineOptions { threads: 2, ..EngineOptions::default() });
    let (p, q): (Vec<u32>, Vec<u32>) =
        (tiny.full_ids.clone(), tiny.full_ids.iter().rev().copied().collect());
    let alone = |ids: &[u32]| bits(&EngineSequence::new(engine.clone()).feed(ids).unwrap());
    let (p_alone, q_alone) = (alone(&p), alone(&q));
    let (mut first, mut second) =
        (EngineSequence::new(engine.clone()), EngineSequence::new(engine.clone()));
    let (mut p_bits, mut q_bits) = (Vec::new(), Vec::new());
    for (p, q) in p.chunks(3).zip(q.chunks(3)) {
        p_bits.extend(bits(&first.feed(p).unwrap()));
        q_bits.extend(bits(&second.feed(q).unwrap()));
    }
    assert!(p_bits == p_alone && q_bits == q_alone);
}

/// A04, A19: prompts of 1 to 5 ids, each followed by single tokens, against full recomputation.
#[test]
fn a04_a19_short_prompts_then_single_tokens() {
    let tiny = Tiny::open();
    let engine = tiny.engine(EngineOptions::default());
    for prompt in 1..=5 {
        let mut sequence = EngineSequence::new(engine.clone());
        let mut last = sequence.feed_last(&tiny.full_ids[..prompt]).unwrap();
        for length in prompt..prompt + 6 {
            let full = EngineSequence::new(engine.clone()).feed_last(&tiny.full_ids[..length]);
            assert_eq!(bits(&full.unwrap()), bits(&last), "prompt {prompt}, length {length}");
            last = sequence.feed_last(&tiny.full_ids[length..=length]).unwrap();
        }
    }
}
