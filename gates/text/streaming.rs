//! Text while its ids still come: trial D02.

use k3_text::Utf8Stream;
use proptest::prelude::*;

use crate::support::vocabulary::{plain, small};

/// The chunks of bytes given one by one, the end included.
fn chunks(bytes: &[u8]) -> Vec<String> {
    let mut stream = Utf8Stream::default();
    let mut chunks: Vec<String> = bytes.iter().map(|byte| stream.push(&[*byte])).collect();
    chunks.push(stream.finish());
    chunks
}

/// D02: characters of three and four bytes over a vocabulary of single bytes: no chunk holds half
/// of one, and joined they are the text. One that truly holds U+FFFD keeps it.
#[test]
fn d02_characters_come_whole() {
    let tokenizer = small(&[]);
    for text in ["한국어 테스트 příliš 👩‍👩‍👧 話說", "a\u{fffd}b", "é", ""]
    {
        let ids = plain(&tokenizer, text);
        assert_eq!(ids.len(), text.len());
        let bytes = tokenizer.decode(&ids).unwrap();
        let chunks = chunks(&bytes);
        assert_eq!(chunks.concat(), text);
        let whole = chunks.iter().filter(|chunk| !chunk.is_empty());
        assert_eq!(whole.count(), text.chars().count());
    }
}

/// D02: bytes that can never become a character do not stall what follows, and are one marker.
#[test]
fn d02_what_cannot_complete_is_one_marker() {
    assert_eq!(chunks(b"\xea\xb0A"), ["", "", "\u{fffd}A", ""]);
    assert_eq!(chunks(b"\xffA"), ["\u{fffd}", "A", ""]);
    assert_eq!(chunks(b"\xf0\x9f\x98A").concat(), "\u{fffd}A");
    // A surrogate and an overlong form begin like nothing.
    assert_eq!(chunks(b"\xed\xa0\x80").concat(), "\u{fffd}".repeat(3));
    assert_eq!(chunks(b"\xc0\x80").concat(), "\u{fffd}".repeat(2));
}

/// D02: a last token that is half a character is flushed.
#[test]
fn d02_the_end_is_flushed() {
    assert_eq!(chunks(b"A\xea\xb0"), ["A", "", "", "\u{fffd}"]);
    assert_eq!(chunks(b"A\xf0"), ["A", "", "\u{fffd}"]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// However bytes are cut into tokens, the chunks joined are the decode of the whole.
    #[test]
    fn d02_the_chunks_are_the_whole(
        bytes in proptest::collection::vec(
            prop_oneof![any::<u8>(), Just(0xE4), Just(0xBD), Just(0xA0), Just(0xF0), Just(0x9F)],
            0..40,
        ),
        cuts in proptest::collection::vec(1_usize..5, 40),
    ) {
        let (mut stream, mut text, mut rest) = (Utf8Stream::default(), String::new(), &bytes[..]);
        for cut in cuts {
            let (token, others) = rest.split_at(cut.min(rest.len()));
            text.push_str(&stream.push(token));
            rest = others;
        }
        text.push_str(&stream.push(rest));
        text.push_str(&stream.finish());
        prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
    }
}
