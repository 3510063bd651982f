//! The rules of pieces, merges and markers, trials D01 and D03 to D12: by both encoders, the order
//! of merges on small tables. Expected pieces are the trials', taken from OpenAI's tiktoken 0.14.0.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use k3_text::merge::Merger;
use k3_text::pieces::{Splitter, apart};
use k3_text::{K3_RANKS, K3_VOCABULARY, Special, UNICODE_VERSION};
use proptest::prelude::*;

use crate::support::vocabulary::{both, built_in, plain, small, table};

fn splitter() -> &'static Splitter {
    static READY: OnceLock<Splitter> = OnceLock::new();
    READY.get_or_init(Splitter::new)
}

/// The text is cut into these pieces, and both encoders keep to the cuts: their ids are those of
/// each piece by itself.
#[track_caller]
fn cut(pieces: &[&str]) {
    let text = pieces.concat();
    let got: Vec<&str> = splitter().split(&text).collect();
    assert_eq!(got, pieces);
    for (name, tokenizer) in both() {
        let apart: Vec<u32> = pieces.iter().flat_map(|piece| plain(tokenizer, piece)).collect();
        assert_eq!(plain(tokenizer, &text), apart, "{name}: {text:?}");
    }
}

/// D01: long runs of one kind, and a line of base64: both encoders come back with the same ids, and
/// decoding gives the text. (A recursive one would overflow its stack here.)
#[test]
fn d01_long_runs() {
    let base64: String = (0..50_000_u32)
        .map(|at| {
            let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
            digits[(at.wrapping_mul(2_654_435_761) >> 26) as usize] as char
        })
        .collect();
    let runs = ["a", "^", " ", "\n", "\u{4e2d}", "1", "aA", "\u{3000}x"];
    for text in runs.map(|run| run.repeat(50_000)).iter().chain([&base64]) {
        let ids = plain(built_in(), text);
        assert!(ids == plain(table(), text), "{:?}", text.get(..6));
        assert!(built_in().decode(&ids).unwrap() == text.as_bytes());
    }
}

/// D01: the number of ranks looked up, which is the work, grows as the length of the piece does;
/// looking at every pair for each merge would make it grow with the square.
#[test]
fn d01_the_work_is_linear() {
    let lookups = |length: usize| {
        let piece = b"ab".repeat(length / 2);
        let count = AtomicUsize::new(0);
        let mut merger = Merger::default();
        merger.merge(&piece, |token| {
            count.fetch_add(1, Ordering::Relaxed);
            // Any run of both letters has a rank, up to 64 bytes.
            (token.len() <= 64).then_some(token.len() as u32)
        });
        assert_eq!(merger.parts(&piece).flatten().count(), piece.len());
        count.into_inner()
    };
    let (once, twice) = (lookups(10_000), lookups(20_000));
    assert!(once <= 3 * 10_000, "{once}");
    assert!(twice <= 2 * once + 64, "{once} {twice}");
}

/// D01: parts handed to the crate are of bounded length however the white space is placed, and
/// joined they give the pieces of the whole.
#[test]
fn d01_parts_are_short_and_change_nothing() {
    let lines = "\u{3002}\n\u{3000}\u{3000}\u{8a71}\u{8aaa}\u{3000}\r\n".repeat(400);
    let parts: Vec<&str> = apart(&lines, 64).collect();
    assert_eq!(parts.concat(), lines);
    assert!(parts.iter().all(|part| part.len() < 128));
    let blank = "\n ".repeat(1000);
    assert_eq!(apart(&blank, 64).collect::<Vec<_>>().concat(), blank);
}

/// D03: every id of the vocabulary decodes, markers to some text, and the first beyond is refused.
#[test]
fn d03_every_id_decodes() {
    for (name, tokenizer) in both() {
        for id in 0..K3_VOCABULARY as u32 {
            let bytes = tokenizer.decode(&[id]).unwrap();
            assert!(!bytes.is_empty(), "{name}: {id}");
            if id as usize >= K3_RANKS {
                assert!(std::str::from_utf8(&bytes).is_ok(), "{name}: {id}");
            }
        }
        for id in [K3_VOCABULARY as u32, u32::MAX] {
            let error = tokenizer.decode(&[5, id]).unwrap_err().to_string();
            assert!(error.contains(&format!("got {id}")), "{error}");
        }
    }
}

/// D04: reserved tokens are named by their absolute id; a name by index is plain text.
#[test]
fn d04_reserved_names_are_absolute() {
    for (name, tokenizer) in both() {
        let ids = |text| tokenizer.encode(text, Special::Token);
        assert_eq!(ids("<|reserved_token_163700|>"), [163_700], "{name}");
        assert!(ids("<|reserved_token_116|>").len() > 1, "{name}");
        // 163584 has a name of its own.
        assert!(ids("<|reserved_token_163584|>").len() > 1, "{name}");
        assert_eq!(ids("a[BOS]<|sep|>"), [64, 163_584, 163_589], "{name}");
    }
}

/// D05: markers in a text are text: no id of theirs, and the text comes back.
#[test]
fn d05_markers_are_text_unless_asked() {
    let text = "a<|close|>message<|sep|><|end_of_msg|>";
    for (name, tokenizer) in both() {
        let ids = plain(tokenizer, text);
        assert!(ids.iter().all(|id| (*id as usize) < K3_RANKS), "{name}");
        assert_eq!(tokenizer.decode(&ids).unwrap(), text.as_bytes());
        let tokens = tokenizer.encode(text, Special::Token);
        assert_eq!(tokens, [64, 163_588, 2778, 163_589, 163_586], "{name}");
        assert_eq!(tokenizer.decode(&tokens).unwrap(), text.as_bytes());
    }
}

/// D06: neighbouring segments are encoded apart, with a table in which the joint would merge, and
/// in K3's own.
#[test]
fn d06_segments_do_not_merge() {
    let tokenizer = small(&["=\"", "\".", "=\".", "hidden"]);
    let segments = ["=\"", ".hidden\""];
    let apart: Vec<u32> = segments.iter().flat_map(|text| plain(&tokenizer, text)).collect();
    let text = segments.map(|text| (text, Special::Text));
    assert_eq!(tokenizer.encode_segments(&text), apart);
    assert_eq!(apart[..2], [256, 46]);
    assert_eq!(plain(&tokenizer, "=\".hidden\"")[0], 258);
    for (name, tokenizer) in both() {
        let text =
            [("New", Special::Text), ("s<|sep|>", Special::Text), ("<|sep|>", Special::Token)];
        let joined = plain(tokenizer, "News<|sep|>");
        let ids = tokenizer.encode_segments(&text);
        assert_ne!(ids[..ids.len() - 1], joined, "{name}");
        assert_eq!(ids.last(), Some(&163_589), "{name}");
    }
}

/// D07: a slash does not join the line end before it, and a rank for the two is not used.
#[test]
fn d07_no_slash_in_the_tail() {
    cut(&["}\n", "///"]);
    cut(&["x", ".\n", "/y"]);
    let tokenizer = small(&["\n/"]);
    assert_eq!(plain(&tokenizer, "}\n///"), [125, 10, 47, 47, 47]);
}

/// D08: Han runs come first, the ideographic full stop takes the line ends after it.
#[test]
fn d08_han() {
    cut(&["\u{3002}\n\n", "\u{3000}", "\u{3000}", "\u{8a71}\u{8aaa}"]);
    cut(&["\u{4e16}\u{754c}", "I'm"]);
    cut(&["I'm", "\u{4e16}\u{754c}"]);
    cut(&["\u{4e00}", "\u{301}"]);
    cut(&["\u{3007}\u{4e09}"]);
    cut(&["a", "\u{3007}", "b"]);
    cut(&["\u{2167}", "\u{516b}"]);
}

/// D09: the neighbouring pair whose join has the lowest rank merges; a piece in the table is taken
/// whole, whatever its merges would give.
#[test]
fn d09_the_lowest_rank_merges_first() {
    let tokenizer = small(&["ab", "bc", "abc", "bcd"]);
    assert_eq!(plain(&tokenizer, "abcd"), [258, 100]);
    // No pair of `wxyz` has a rank, so no merge would ever reach it.
    let tokenizer = small(&["wxyz"]);
    assert_eq!(plain(&tokenizer, "wxyz"), [256]);
    assert_eq!(plain(&tokenizer, "wxyzw").len(), 5);
    // Of equal joins the leftmost.
    assert_eq!(plain(&small(&["aa"]), "aaa"), [256, 97]);
}

/// D10: what white space is, where its last character goes, and nothing is nothing.
#[test]
fn d10_white_space_and_control_characters() {
    cut(&["a", "\u{1c}\u{1d}", "b"]);
    cut(&["\u{85}", "\u{85}x"]);
    cut(&["\u{a0}", "\u{a0}x"]);
    cut(&["x", "  ", " y"]);
    cut(&["x", "   "]);
    cut(&["a", " \r\n", " b"]);
    cut(&["\t", "\tif"]);
    cut(&["\u{feff}hello"]);
    cut(&[]);
    for (_, tokenizer) in both() {
        assert!(tokenizer.encode("", Special::Token).is_empty());
        assert_eq!(tokenizer.decode(&[]).unwrap(), b"");
    }
}

/// D11: the tables are those of one Unicode version: what it knows and the next one's additions.
#[test]
fn d11_the_unicode_version() {
    assert_eq!(UNICODE_VERSION, "16.0.0");
    let knows = |age: &str| regex::Regex::new(&format!(r"\p{{Age={age}}}")).is_ok();
    assert!(knows("16.0") && !knows("17.0"));
    // Extensions B, G and I are Han; U+323B0 is of Unicode 17.
    cut(&["\u{20000}\u{31350}\u{2ebf0}", "\u{323b0}"]);
}

/// D12: digits in threes, contractions, underscores, capitals.
#[test]
fn d12_digits_and_words() {
    cut(&["123", "456", "7"]);
    cut(&["don't", "'ll"]);
    cut(&["CAN'T"]);
    cut(&["'S", " '", "tis"]);
    cut(&["__", "init", "__"]);
    cut(&["_foo", "_bar"]);
    cut(&["i", "OS's"]);
    cut(&["3", "rd's"]);
    cut(&["x", "\u{2019}s"]);
}

/// Characters of every class that a rule names.
fn characters() -> impl Strategy<Value = char> {
    let pool: Vec<char> = " \t\n\r\u{85}\u{a0}\u{3000}\u{2028}\u{1c}/.'\u{2019}sStTrReELldDmM019\
        \u{663}\u{b2}\u{2167}\u{3007}\u{4e09}\u{4e16}\u{3005}\u{3006}\u{304b}\u{30ab}\u{ac00}\
        \u{e9}\u{c9}\u{1c5}\u{2b0}\u{301}\u{20dd}\u{200d}\u{feff}\u{1f600}_<|>\u{df}\u{3a9}\u{416}\
        \u{5d0}\u{20000}\u{323b0}\u{10ffff}\u{e000}\u{fffd}\u{0}"
        .chars()
        .collect();
    prop_oneof![4 => proptest::sample::select(pool), 1 => any::<char>()]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Two encoders written apart give the same ids for any text, and the text comes back.
    #[test]
    fn both_encoders_agree(text in proptest::collection::vec(characters(), 0..60)) {
        let text: String = text.into_iter().collect();
        for special in [Special::Text, Special::Token] {
            let ids = built_in().encode(&text, special);
            prop_assert_eq!(&ids, &table().encode(&text, special));
            prop_assert_eq!(built_in().decode(&ids).unwrap(), text.as_bytes());
        }
    }

    /// Wherever a text may be cut, its parts have its pieces.
    #[test]
    fn parts_have_the_pieces_of_the_whole(
        text in proptest::collection::vec(characters(), 0..80),
        least in 1_usize..12,
    ) {
        let text: String = text.into_iter().collect();
        let whole: Vec<&str> = splitter().split(&text).collect();
        prop_assert_eq!(whole.concat(), text.as_str());
        let parts = apart(&text, least).flat_map(|part| splitter().split(part));
        prop_assert_eq!(whole, parts.collect::<Vec<_>>());
    }
}
