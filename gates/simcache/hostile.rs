//! Every way a trace can be wrong: one variant, one hostile input, one test named after it.

use k3_cache::shape::ModelShape;
use k3_cache::trace::v1::{HEADER_BYTES, Header, TraceWriter};
use k3_cache::trace::{Outcome, Phase, TraceError, parse, read};
use sha2::{Digest, Sha256};

use crate::support::scratch;
use crate::support::traces::{SMALL, pairs};

/// A good trace of one step, one chunk, one demand, one prefetch and three decisions.
pub fn good() -> Vec<u8> {
    let mut header = Header::of_shape(SMALL);
    header.policy = "lru".to_string();
    let mut writer = TraceWriter::create(Vec::new(), &header).unwrap();
    writer.step(Phase::Prefill, 0, 1).unwrap();
    writer.chunk(0, 1).unwrap();
    writer.demand(1, 0, &[3, 4, 5]).unwrap();
    writer.prefetch(2, &[7]).unwrap();
    for expert in [15, 16, 17] {
        writer.decision(SMALL.key(expert), Outcome::Loaded).unwrap();
    }
    writer.finish().unwrap()
}

/// The good trace with other records: (kind, words). The end record is made to fit.
fn with_records(records: &[(u32, &[u32])]) -> Vec<u8> {
    let mut bytes = good()[..HEADER_BYTES].to_vec();
    let mut requests = 0;
    for (kind, words) in records {
        bytes.extend(kind.to_le_bytes());
        bytes.extend((words.len() as u32).to_le_bytes());
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        requests += if *kind == 3 { words.len().saturating_sub(2) as u32 } else { 0 };
    }
    end(bytes, [records.len() as u32, 0, requests, 0])
}

fn end(mut bytes: Vec<u8>, counts: [u32; 4]) -> Vec<u8> {
    let digest = Sha256::digest(&bytes);
    bytes.extend(255_u32.to_le_bytes());
    bytes.extend(12_u32.to_le_bytes());
    bytes.extend(counts.iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend(digest);
    bytes
}

const STEP: (u32, &[u32]) = (1, &[1, 0, 4]);
const CHUNK: (u32, &[u32]) = (2, &[0, 4]);
const DEMAND: (u32, &[u32]) = (3, &[1, 0, 3, 4, 5]);

fn error(bytes: &[u8]) -> TraceError {
    parse(bytes, &ModelShape::K3).unwrap_err()
}

/// The good trace with a header word replaced.
fn header_word(offset: usize, word: u32) -> TraceError {
    let mut bytes = good();
    bytes[offset..offset + 4].copy_from_slice(&word.to_le_bytes());
    error(&bytes)
}

#[test]
fn the_good_trace_is_good() {
    let trace = parse(&good(), &ModelShape::K3).unwrap();
    assert_eq!(trace.requests, [15, 16, 17]);
    let same = with_records(&[STEP, CHUNK, DEMAND]);
    assert_eq!(parse(&same, &ModelShape::K3).unwrap().requests, [15, 16, 17]);
}

#[test]
fn io() {
    let error = read(std::path::Path::new("/nowhere/trace.bin"), &ModelShape::K3).unwrap_err();
    assert!(matches!(error, TraceError::Io(_)));
}

#[test]
fn too_large() {
    let (_folder, path) = scratch("sparse");
    std::fs::File::create(&path).unwrap().set_len((4 << 30) + 8).unwrap();
    let error = read(&path, &ModelShape::K3).unwrap_err();
    assert!(matches!(error, TraceError::TooLarge { .. }), "{error}");
}

#[test]
fn empty() {
    assert!(matches!(error(&[]), TraceError::Empty));
    assert!(matches!(error(&with_records(&[STEP, CHUNK])), TraceError::Empty));
}

#[test]
fn half_record() {
    for extra in 1..8 {
        let bytes = vec![0; 16 + extra];
        assert!(matches!(error(&bytes), TraceError::HalfRecord { .. }), "{extra}");
    }
}

#[test]
fn byte_swapped() {
    let bytes: Vec<u8> = [1_i32, 5].iter().flat_map(|value| value.to_be_bytes()).collect();
    assert!(matches!(error(&bytes), TraceError::ByteSwapped { record: 0, .. }));
}

#[test]
fn negative_layer() {
    assert!(matches!(error(&pairs(&[(-1, 0)])), TraceError::NegativeLayer { layer: -1, .. }));
}

#[test]
fn negative_expert() {
    let error = error(&pairs(&[(1, 0), (1, i32::MIN)]));
    assert!(matches!(error, TraceError::NegativeExpert { record: 1, expert: i32::MIN }));
}

#[test]
fn layer_out_of_range() {
    let headerless = error(&pairs(&[(93, 0)]));
    assert!(matches!(
        headerless,
        TraceError::LayerOutOfRange { layer: 93, first: 0, last: 92, .. }
    ));
    // A header says which layers have experts: layer 0 of this model has none.
    for layer in [0, 6, u32::MAX] {
        let error = error(&with_records(&[STEP, CHUNK, (3, &[layer, 0, 3, 4, 5])]));
        assert!(matches!(error, TraceError::LayerOutOfRange { record: 2, first: 1, last: 5, .. }));
    }
}

#[test]
fn expert_out_of_range() {
    assert!(matches!(
        error(&pairs(&[(92, 896)])),
        TraceError::ExpertOutOfRange { expert: 896, .. }
    ));
    let error = error(&with_records(&[STEP, CHUNK, (3, &[1, 0, 3, 4, 12])]));
    assert!(matches!(error, TraceError::ExpertOutOfRange { record: 2, expert: 12, count: 12 }));
}

#[test]
fn magic_mangled() {
    // A text-mode copy turns CR LF into LF.
    let mut bytes = good();
    bytes.remove(4);
    assert!(matches!(error(&bytes), TraceError::MagicMangled));
}

#[test]
fn unsupported_version() {
    let error = header_word(8, 2);
    assert!(matches!(error, TraceError::UnsupportedVersion { version: 2, known: 1 }));
}

#[test]
fn header_cut() {
    for length in 8..HEADER_BYTES {
        assert!(matches!(error(&good()[..length]), TraceError::HeaderCut { .. }), "{length}");
    }
}

#[test]
fn header_field() {
    for (offset, word, named) in [
        (12, 64, "header_bytes"),
        (16, 0, "layer_count"),
        (16, u32::MAX, "layer_count"),
        (20, 6, "first_moe_layer"),
        (24, 70_000, "experts_per_layer"),
        (28, 13, "top_k"),
        (36, u32::MAX, "expert_bytes"),
        (92, 4, "requests"),
        (96, 3, "reserve"),
        (100, 1, "reserved"),
    ] {
        match header_word(offset, word) {
            TraceError::HeaderField { field, .. } => assert_eq!(field, named),
            other => panic!("{offset}: {other}"),
        }
    }
}

#[test]
fn header_policy() {
    let spaces = header_word(104, u32::from_le_bytes(*b"a b "));
    assert!(matches!(spaces, TraceError::HeaderPolicy));
    let after_end = header_word(112, u32::from_le_bytes(*b"\0\0x\0"));
    assert!(matches!(after_end, TraceError::HeaderPolicy));
}

#[test]
fn cut_record_and_no_end_record() {
    let bytes = good();
    for length in HEADER_BYTES..bytes.len() {
        let error = error(&bytes[..length]);
        let cut = matches!(error, TraceError::CutRecord { .. } | TraceError::NoEndRecord { .. });
        assert!(cut, "{length}: {error}");
    }
    let length = with_records(&[STEP]).len() - (8 + 48);
    let no_end = error(&with_records(&[STEP])[..length]);
    assert!(matches!(no_end, TraceError::NoEndRecord { record: 1 }));
}

#[test]
fn cut_record_with_a_huge_word_count() {
    let mut bytes = good()[..HEADER_BYTES].to_vec();
    bytes.extend(3_u32.to_le_bytes());
    bytes.extend(u32::MAX.to_le_bytes());
    assert!(matches!(error(&bytes), TraceError::CutRecord { record: 0, .. }));
}

#[test]
fn bytes_after_end() {
    let mut bytes = good();
    bytes.push(0);
    assert!(matches!(error(&bytes), TraceError::BytesAfterEnd { bytes: 1 }));
}

#[test]
fn unknown_record() {
    let error = error(&with_records(&[STEP, (9, &[])]));
    assert!(matches!(error, TraceError::UnknownRecord { record: 1, kind: 9 }));
}

#[test]
fn record_length() {
    let four: &[u32] = &[1, 0, 1, 2, 3, 4];
    for (record, kind) in [
        ((1, &[1, 0][..]), "step"),
        ((2, &[0][..]), "chunk"),
        ((3, &[1, 0][..]), "demand"),
        ((3, four), "demand"),
        ((4, &[1][..]), "prefetch"),
        ((5, &[1, 2, 0][..]), "decision"),
    ] {
        match error(&with_records(&[STEP, CHUNK, record])) {
            TraceError::RecordLength { kind: named, record: 2, .. } => assert_eq!(named, kind),
            other => panic!("{kind}: {other}"),
        }
    }
}

#[test]
fn unknown_phase() {
    let error = error(&with_records(&[(1, &[4, 0, 1])]));
    assert!(matches!(error, TraceError::UnknownPhase { phase: 4, .. }));
}

#[test]
fn positions_outside() {
    let outside = |records: &[(u32, &[u32])]| {
        matches!(error(&with_records(records)), TraceError::PositionsOutside { .. })
    };
    assert!(outside(&[(1, &[1, 0, 0])]), "a step of no positions");
    assert!(outside(&[(1, &[1, u32::MAX, 2])]), "a step past the end of numbers");
    assert!(outside(&[STEP, (2, &[3, 2])]), "a chunk that leaves its step");
    assert!(outside(&[STEP, (2, &[u32::MAX, 2])]));
    assert!(outside(&[STEP, (2, &[0, 2]), (3, &[1, 2, 3, 4, 5])]), "a demand outside its chunk");
}

#[test]
fn outside_of() {
    let outside = |records: &[(u32, &[u32])]| {
        matches!(error(&with_records(records)), TraceError::OutsideOf { .. })
    };
    assert!(outside(&[CHUNK]));
    assert!(outside(&[STEP, DEMAND]));
    assert!(outside(&[STEP, (4, &[1, 2])]));
    assert!(outside(&[STEP, CHUNK, STEP, DEMAND]), "the chunk belongs to the step before");
}

#[test]
fn expert_twice() {
    let error = error(&with_records(&[STEP, CHUNK, (3, &[1, 0, 3, 4, 3])]));
    assert!(matches!(error, TraceError::ExpertTwice { layer: 1, expert: 3, .. }));
}

#[test]
fn unknown_outcome() {
    let none = u32::MAX;
    for words in [[1, 3, 3, none, none], [1, 3, 0, 1, 3], [1, 3, 1, none, 3]] {
        let error = error(&with_records(&[STEP, CHUNK, DEMAND, (5, &words)]));
        assert!(matches!(error, TraceError::UnknownOutcome { record: 3, .. }), "{words:?}");
    }
}

#[test]
fn decision_not_requested() {
    let none = u32::MAX;
    let error = error(&with_records(&[STEP, CHUNK, DEMAND, (5, &[1, 4, 1, none, none])]));
    assert!(matches!(error, TraceError::DecisionNotRequested { decision: 0 }));
}

#[test]
fn end_counts() {
    let bytes = with_records(&[STEP, CHUNK, DEMAND]);
    let body = bytes[..bytes.len() - 56].to_vec();
    for (counts, named) in [([2, 0, 3, 0], "records"), ([3, 0, 2, 0], "requests")] {
        match error(&end(body.clone(), counts)) {
            TraceError::EndCounts { what, .. } => assert_eq!(what, named),
            other => panic!("{named}: {other}"),
        }
    }
    let none = u32::MAX;
    let short = error(&with_records(&[STEP, CHUNK, DEMAND, (5, &[1, 3, 1, none, none])]));
    assert!(matches!(short, TraceError::EndCounts { what: "decisions", counted: 1, found: 3 }));
}

#[test]
fn checksum() {
    // Every byte that the structure does not already pin down is covered by the checksum.
    let bytes = good();
    for at in 8..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        assert!(parse(&changed, &ModelShape::K3).is_err(), "byte {at} can be changed unnoticed");
    }
    let mut changed = bytes;
    changed[60] ^= 0xff;
    assert!(matches!(error(&changed), TraceError::Checksum), "the checkpoint identity");
}

#[test]
fn different_models() {
    let mut first = parse(&good(), &ModelShape::K3).unwrap();
    let headerless = parse(&pairs(&[(1, 1)]), &ModelShape::K3).unwrap();
    let error = first.append(&headerless).unwrap_err();
    assert!(matches!(error, TraceError::DifferentModels { what: "sizes" }));
    let identified = |byte: u8| {
        let mut trace = parse(&good(), &ModelShape::K3).unwrap();
        trace.header.as_mut().unwrap().checkpoint_identity = [byte; 32];
        trace
    };
    let error = identified(1).append(&identified(2)).unwrap_err();
    assert!(matches!(error, TraceError::DifferentModels { what: "checkpoint identities" }));
}
