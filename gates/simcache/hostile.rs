//! Every way a trace can be wrong: one hostile input, one test named after it.

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

fn says(error: TraceError, words: &str) {
    assert!(error.to_string().contains(words), "expected {words:?}, got {error}");
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
    let error =
        read(std::path::Path::new("/nowhere/trace.bin"), &ModelShape::K3, &Default::default())
            .unwrap_err();
    assert!(matches!(error, TraceError::Io(_)));
}

#[test]
fn too_large() {
    let (_folder, path) = scratch("sparse");
    std::fs::File::create(&path).unwrap().set_len((4 << 30) + 8).unwrap();
    let error = read(&path, &ModelShape::K3, &Default::default()).unwrap_err();
    says(error, "more than the limit of 4294967296");
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
        says(error(&bytes), "half a record at the end");
    }
}

#[test]
fn byte_swapped() {
    let bytes: Vec<u8> = [1_i32, 5].iter().flat_map(|value| value.to_be_bytes()).collect();
    let error = error(&bytes);
    assert!(matches!(error, TraceError::ByteSwapped(_)), "{error}");
    says(error, "record 0: byte-swapped");
}

#[test]
fn negative_layer() {
    says(error(&pairs(&[(-1, 0)])), "layer -1 is negative");
}

#[test]
fn negative_expert() {
    let error = error(&pairs(&[(1, 0), (1, i32::MIN)]));
    says(error, "record 1: expert -2147483648 is negative");
}

#[test]
fn layer_out_of_range() {
    let headerless = error(&pairs(&[(93, 0)]));
    assert!(matches!(headerless, TraceError::OutOfRange(_)));
    says(headerless, "layer 93 is not one of the model's MoE layers 0..92");
    // A header says which layers have experts: layer 0 of this model has none.
    for layer in [0, 6, u32::MAX] {
        let error = error(&with_records(&[STEP, CHUNK, (3, &[layer, 0, 3, 4, 5])]));
        assert!(matches!(error, TraceError::OutOfRange(_)));
        says(error, &format!("record 2: layer {layer} is not one of the model's MoE layers 1..5"));
    }
}

#[test]
fn expert_out_of_range() {
    says(error(&pairs(&[(92, 896)])), "expert 896 is out of range");
    let error = error(&with_records(&[STEP, CHUNK, (3, &[1, 0, 3, 4, 12])]));
    assert!(matches!(error, TraceError::OutOfRange(_)));
    says(error, "record 2: expert 12 is out of range, layers have 12 experts");
}

#[test]
fn magic_mangled() {
    // A text-mode copy turns CR LF into LF.
    let mut bytes = good();
    bytes.remove(4);
    says(error(&bytes), "line ends were converted");
}

#[test]
fn unsupported_version() {
    says(header_word(8, 2), "trace version 2 is not known (this program reads version 1)");
}

#[test]
fn header_cut() {
    for length in 8..HEADER_BYTES {
        says(error(&good()[..length]), &format!("the header is cut: {length} bytes"));
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
        says(header_word(offset, word), &format!("header field {named} is "));
    }
}

#[test]
fn header_policy() {
    let spaces = header_word(104, u32::from_le_bytes(*b"a b "));
    says(spaces, "header field policy is no ASCII name");
    let after_end = header_word(112, u32::from_le_bytes(*b"\0\0x\0"));
    says(after_end, "header field policy is no ASCII name");
}

#[test]
fn cut_record_and_no_end_record() {
    let bytes = good();
    for length in HEADER_BYTES..bytes.len() {
        let error = error(&bytes[..length]);
        assert!(matches!(error, TraceError::Cut(_)), "{length}: {error}");
    }
    let length = with_records(&[STEP]).len() - (8 + 48);
    let no_end = error(&with_records(&[STEP])[..length]);
    says(no_end, "the trace is cut after 1 records: the end record is missing");
}

#[test]
fn cut_record_with_a_huge_word_count() {
    let mut bytes = good()[..HEADER_BYTES].to_vec();
    bytes.extend(3_u32.to_le_bytes());
    bytes.extend(u32::MAX.to_le_bytes());
    says(error(&bytes), "record 0 is cut");
}

#[test]
fn bytes_after_end() {
    let mut bytes = good();
    bytes.push(0);
    says(error(&bytes), "1 bytes follow the end record");
}

#[test]
fn unknown_record() {
    let error = error(&with_records(&[STEP, (9, &[])]));
    says(error, "record 1: kind 9 does not exist");
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
        says(error(&with_records(&[STEP, CHUNK, record])), &format!("record 2 ({kind}): "));
    }
}

#[test]
fn unknown_phase() {
    let error = error(&with_records(&[(1, &[4, 0, 1])]));
    says(error, "phase 4 does not exist");
}

#[test]
fn positions_outside() {
    let outside = |records: &[(u32, &[u32])]| {
        error(&with_records(records)).to_string().contains("lie outside")
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
        error(&with_records(records)).to_string().contains(" before any ")
    };
    assert!(outside(&[CHUNK]));
    assert!(outside(&[STEP, DEMAND]));
    assert!(outside(&[STEP, (4, &[1, 2])]));
    assert!(outside(&[STEP, CHUNK, STEP, DEMAND]), "the chunk belongs to the step before");
}

#[test]
fn expert_twice() {
    let error = error(&with_records(&[STEP, CHUNK, (3, &[1, 0, 3, 4, 3])]));
    says(error, "expert 3 of layer 1 twice in one demand");
}

#[test]
fn unknown_outcome() {
    let none = u32::MAX;
    for words in [[1, 3, 3, none, none], [1, 3, 0, 1, 3], [1, 3, 1, none, 3]] {
        let error = error(&with_records(&[STEP, CHUNK, DEMAND, (5, &words)]));
        says(error, &format!("record 3: outcome {} does not exist", words[2]));
    }
}

#[test]
fn decision_not_requested() {
    let none = u32::MAX;
    let error = error(&with_records(&[STEP, CHUNK, DEMAND, (5, &[1, 4, 1, none, none])]));
    says(error, "decision 0 is about another expert");
}

#[test]
fn end_counts() {
    let bytes = with_records(&[STEP, CHUNK, DEMAND]);
    let body = bytes[..bytes.len() - 56].to_vec();
    for (counts, named) in [([2, 0, 3, 0], "records"), ([3, 0, 2, 0], "requests")] {
        let error = error(&end(body.clone(), counts)).to_string();
        assert!(error.contains("the end record counts") && error.contains(named), "{error}");
    }
    let none = u32::MAX;
    let short = error(&with_records(&[STEP, CHUNK, DEMAND, (5, &[1, 3, 1, none, none])]));
    says(short, "the end record counts 1 decisions, the file holds 3");
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
    says(error(&changed), "the checksum does not fit");
}

#[test]
fn different_models() {
    let mut first = parse(&good(), &ModelShape::K3).unwrap();
    let headerless = parse(&pairs(&[(1, 1)]), &ModelShape::K3).unwrap();
    let error = first.append(&headerless).unwrap_err();
    says(error, "the traces have different sizes");
    let identified = |byte: u8| {
        let mut trace = parse(&good(), &ModelShape::K3).unwrap();
        trace.header.as_mut().unwrap().checkpoint_identity = [byte; 32];
        trace
    };
    let error = identified(1).append(&identified(2)).unwrap_err();
    says(error, "different checkpoint identities");
}
