//! A header with bytes cut, changed or removed anywhere: it means the same to both readers, or
//! nothing to ours.

use k3_checkpoint::Checkpoint;
use proptest::prelude::*;

use super::header::{entry, open};
use super::make::{Folder, raw_file};

/// A file of three tensors, metadata and padding, for damage at any place.
fn file_to_damage() -> Vec<u8> {
    let entries = [
        r#""__metadata__":{"format":"pt"}"#.to_owned(),
        entry("a", "BF16", "[2,3]", "[0,12]"),
        entry("b", "U8", "[]", "[12,13]"),
        entry("c", "F32", "[1]", "[13,17]"),
    ];
    let header = format!("{{{}}}  ", entries.join(","));
    raw_file(header.as_bytes(), &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17])
}

/// Whatever is accepted must mean the same to the other reader; nothing may panic.
fn same_as_the_crate(bytes: &[u8]) {
    let folder = Folder::new();
    let path = folder.put("a.safetensors", bytes);
    let Ok(ours) = Checkpoint::open_file(&path) else {
        return;
    };
    let other = safetensors::SafeTensors::deserialize(bytes).expect("accepted by ours only");
    assert_eq!(ours.len(), other.len());
    for (name, view) in other.tensors() {
        let info = ours.tensor(&name).expect("named by both");
        assert_eq!((info.shape, info.dtype.name()), (view.shape(), &*view.dtype().to_string()));
        assert_eq!(ours.read(&name).expect("read"), view.data());
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let whole = file_to_damage();
    same_as_the_crate(&whole);
    assert!(open(&whole).is_ok());
    for length in 0..whole.len() {
        assert!(open(&whole[..length]).is_err(), "cut at {length}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_files_mean_the_same_to_both_readers_or_nothing_to_ours(
        damage in prop::collection::vec((0_usize..260, prop::sample::select(
            b"{}[]\",:0123456789abcAB \\tF\x00\x80\xFF".to_vec())), 1..4),
        removed in 0_usize..260,
        count in 0_usize..3,
    ) {
        let mut bytes = file_to_damage();
        for (place, byte) in damage {
            let place = place % bytes.len();
            bytes[place] = byte;
        }
        let start = removed % bytes.len();
        bytes.drain(start..bytes.len().min(start + count));
        same_as_the_crate(&bytes);
    }

    #[test]
    fn swapped_digits_mean_the_same_to_both_readers_or_nothing_to_ours(
        places in prop::collection::vec((any::<prop::sample::Index>(), b'0'..=b'9'), 1..4),
    ) {
        let mut bytes = file_to_damage();
        let is_digit = |(place, byte): (usize, &u8)| byte.is_ascii_digit().then_some(place);
        let digits: Vec<_> = bytes.iter().enumerate().filter_map(is_digit).collect();
        for (place, digit) in places {
            bytes[digits[place.index(digits.len())]] = digit;
        }
        same_as_the_crate(&bytes);
    }
}
