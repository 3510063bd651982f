//! G04, G05, G06: saved states, growth, and batches.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use super::make::{engine, engine_of, feed, generate, open, resident, streamed};
use crate::support::{binary, bits, command_on, expect_of, ids, scratch, tiny, typed};
use k3_checkpoint::identity::Identity;
use k3_engine::generate::state_file::{Header, SavedState, save};
use k3_engine::model::{EngineOptions, EngineSequence};

/// G04: rows are added one position at a time, and a cache that was made large enough at once has
/// the same bits as one that grows, at and around a step of growth.
#[test]
fn g04_growth_changes_no_bit() {
    let files = open(&tiny(), None);
    let streamed = engine(&files, &resident());
    let step = 8;
    let ids: Vec<u32> = ids("full_ids");
    for prompt in [step - 1, step, step + 1] {
        let run = |room: usize| {
            let mut sequence = EngineSequence::new(Arc::clone(&streamed.engine));
            sequence.state.reserve(&files.shape, room);
            let mut got = bits(&sequence.feed(&ids[..prompt]).unwrap());
            for id in &ids[prompt..prompt + 2 * step] {
                got.extend(bits(&sequence.feed(&[*id]).unwrap()));
            }
            got
        };
        let grown = run(0);
        assert!(grown == run(step), "prompt of {prompt}");
        assert!(grown == run(prompt + 2 * step), "prompt of {prompt}");
    }
}

/// G06: however many rows go through together, the bits are those of one after the other.
#[test]
fn g06_batches_and_chunks_change_no_bit() {
    let files = open(&tiny(), None);
    let ids = &ids("full_ids")[..16];
    let run = |chunk_tokens: usize, batch: usize| {
        let options = EngineOptions { chunk_tokens, threads: 2 };
        let streamed = engine_of(&files, &streamed(2, 3), options);
        let mut sequence = EngineSequence::new(Arc::clone(&streamed.engine));
        let mut got = Vec::new();
        for part in ids.chunks(batch) {
            got.extend(bits(&sequence.feed(part).unwrap()));
        }
        got
    };
    let serial = run(1, 1);
    for batch in [1, 2, 3, 8] {
        for chunk in [1, 2, 3, 8, 64] {
            assert!(run(chunk, batch) == serial, "batch {batch}, chunk {chunk}");
        }
    }
}

/// A saved state of the tiny oracle after six tokens, and its header.
fn saved(folder: &Path) -> (PathBuf, Header) {
    let files = open(&tiny(), None);
    let streamed = engine(&files, &resident());
    let mut sequence = EngineSequence::new(Arc::clone(&streamed.engine));
    let ids = ids("full_ids")[..6].to_vec();
    sequence.feed(&ids).unwrap();
    let identity = files.identity().unwrap();
    let header = Header::new(identity, 1e-6, &files.shape, 6, ids);
    let path = folder.join("state");
    save(&path, &header, &sequence.state).unwrap();
    (path, header)
}

fn loaded(path: &Path, ours: &Header) -> Result<(), String> {
    let files = open(&tiny(), None);
    let mut state = k3_engine::model::State::new(&files.shape);
    let saved = SavedState::open(path).map_err(|error| error.to_string())?;
    saved.check(ours).map_err(|error| error.to_string())?;
    let read = saved.load_into(&mut state).map_err(|error| error.to_string());
    // A state that failed to load is marked: the engine will not continue from it.
    assert_eq!(state.interrupted, read.is_err());
    read
}

/// G05: cut anywhere, a byte flipped anywhere, another model, another type, a newer version, a
/// longer one than the run has room for: refused each, in one line.
#[test]
fn g05_every_bad_state_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (path, header) = saved(folder.path());
    let good = fs::read(&path).unwrap();
    loaded(&path, &header).unwrap();
    for cut in [0, 7, 8, 15, 16, 100, good.len() / 2, good.len() - 33, good.len() - 1] {
        fs::write(&path, &good[..cut]).unwrap();
        let error = loaded(&path, &header).unwrap_err();
        assert!(!error.contains('\n'), "{error}");
    }
    fs::write(&path, [&good[..], &[0]].concat()).unwrap();
    assert!(loaded(&path, &header).unwrap_err().contains("bytes"));
    let values = good.len() - 32;
    for flip in [0, 9, 13, 40, values / 2, values - 1, values, good.len() - 1] {
        let mut damaged = good.clone();
        damaged[flip] ^= 4;
        fs::write(&path, &damaged).unwrap();
        assert!(loaded(&path, &header).is_err(), "byte {flip}");
    }
    let mut newer = good.clone();
    newer[8] = 2;
    fs::write(&path, &newer).unwrap();
    assert!(loaded(&path, &header).unwrap_err().contains("version 2"));
    fs::write(&path, &good).unwrap();
    let other = |change: fn(&mut Header)| {
        let mut header = header.clone();
        change(&mut header);
        loaded(&path, &header).unwrap_err()
    };
    assert!(other(|h| h.identity = Identity([1; 32]).to_string()).contains("identity"));
    assert!(other(|h| h.dtype = "BF16".to_owned()).contains("dtype"));
    assert!(other(|h| h.layers = 12).contains("layers: expected 12, got 13"));
    assert!(other(|h| h.mla_norm_eps = 1e-5).contains("mla_norm_eps"));
    let mut command = binary();
    command.args(["generate", "--gen", "1", "--ids", "1", "--memory", "24MB"]);
    let mut long = header.clone();
    (long.position, long.ids) = (100_000, vec![0; 100_000]);
    let files = open(&tiny(), None);
    let mut state = k3_engine::model::State::new(&files.shape);
    for cache in &mut state.mla {
        cache.rows = vec![0.0; 100_000 * files.shape.mla.cache_width];
    }
    save(&path, &long, &state).unwrap();
    command.arg("--model").arg(tiny()).arg("--load-state").arg(&path);
    let stderr = expect_of(&mut command, 5).stderr;
    assert!(stderr.contains("refused"), "{stderr}");
}

/// G05: a saved sequence continues as if it had never stopped, and the prompt is not recomputed.
#[test]
fn g05_a_restored_run_goes_on_in_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let json = |command: &mut std::process::Command| {
        expect_of(command.args(["--format", "json"]), 0).json()
    };
    let whole = json(&mut generate(&["--gen", "9", "--dump-logits", &file("whole")]));
    let first = json(&mut generate(&[
        "--gen",
        "4",
        "--dump-logits",
        &file("first"),
        "--save-state",
        &file("state"),
    ]));
    let mut command = command_on("generate", &tiny());
    command.args(["--gen", "5", "--ring", "2", "--trunk-gb", "0.001", "--expert-slots", "2"]);
    command.args(["--load-state", &file("state"), "--dump-logits", &file("second")]);
    let second = json(&mut command);
    let ids = |report: &serde_json::Value| report["generated_ids"].as_array().unwrap().clone();
    assert_eq!(ids(&whole), [ids(&first), ids(&second)].concat());
    let logits = |name: &str| fs::read(file(name)).unwrap();
    assert!(logits("whole") == [logits("first"), logits("second")].concat());
    // Five passes of one token each: thirteen layers per token, and not one for the prompt.
    assert_eq!(second["totals"]["layer_uses"], 5 * 13);
    assert_eq!(second["steps"][0]["positions"], 1);
    assert_eq!(second["steps"][0]["first_position"], 12 + 3);
}

/// G05: a kill at any moment of a save leaves the old state or the new one, whole.
#[test]
fn g05_a_killed_save_leaves_a_whole_state() {
    let (_folder, path) = scratch("state");
    let save = |ids: &[u32]| {
        let mut command = command_on("generate", &tiny());
        command.args(["--gen", "1", "--ids", &typed(ids)]);
        command.arg("--save-state").arg(&path);
        command
    };
    expect_of(&mut save(&[1, 2, 3]), 0);
    let mut seen = std::collections::BTreeSet::new();
    for delay in [1, 5, 10, 15, 20, 25, 30, 40] {
        let mut command = save(&[4, 5, 6, 7]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        let _ = child.kill();
        child.wait().unwrap();
        let state = SavedState::open(&path).unwrap();
        let mut ours = state.header.clone();
        ours.ids.clear();
        loaded(&path, &ours).unwrap();
        seen.insert(state.header.position);
    }
    assert!(seen.iter().all(|position| [3, 4].contains(position)), "{seen:?}");
}

/// A06: state out to a file and back at every position.
#[test]
fn a06_state_through_a_file_at_every_position() {
    let files = open(&tiny(), None);
    let streamed = engine(&files, &resident());
    let ids = &ids("full_ids")[..12];
    let expected = feed(&streamed, ids);
    let (_folder, path) = scratch("state");
    let vocabulary = files.shape.vocab;
    for cut in 1..ids.len() {
        let mut sequence = EngineSequence::new(Arc::clone(&streamed.engine));
        sequence.feed(&ids[..cut]).unwrap();
        let identity = Identity([7; 32]);
        let header = Header::new(identity, 1e-6, &files.shape, cut, ids[..cut].to_vec());
        save(&path, &header, &sequence.state).unwrap();
        let mut sequence = EngineSequence::new(Arc::clone(&streamed.engine));
        SavedState::open(&path).unwrap().load_into(&mut sequence.state).unwrap();
        let rest = bits(&sequence.feed(&ids[cut..]).unwrap());
        assert!(rest == expected[cut * vocabulary..], "cut at {cut}");
    }
}
