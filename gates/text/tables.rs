//! Trial D13: the files of a vocabulary, one damage at a time.

use std::path::Path;

use k3_checkpoint::Malformed;
use k3_text::{Markers, RankTable, Tokenizer};

use crate::support::vocabulary::{bytes_and, plain, rank_file, refused, write_folder};

fn parsed(text: &str) -> RankTable {
    RankTable::parse(text.as_bytes(), Path::new("tiktoken.model")).unwrap()
}

/// A small file with one line replaced is refused for that line, by a message with `what`.
#[track_caller]
fn bad_line(line: usize, with: &str, what: &str) {
    let text = rank_file(&bytes_and(&["ab"]));
    let mut lines: Vec<&str> = text.lines().collect();
    lines[line - 1] = with;
    let problem = refused(&lines.join("\n")).problem;
    assert_eq!(problem.at, format!("line {line}"), "{problem}");
    assert!(problem.what.contains(what), "{problem}");
}

/// D13: a byte without a token is named, since a text with it could not be encoded.
#[test]
fn d13_a_missing_byte_is_named() {
    let mut tokens = bytes_and(&["ab"]);
    tokens[0xE2] = b"abc".to_vec();
    let error = refused(&rank_file(&tokens));
    assert!(error.problem.what.ends_with("got none for byte 0xE2"), "{error}");
    assert!(error.to_string().starts_with("tiktoken.model: "), "{error}");
    // The same by leaving its line out.
    let text = rank_file(&bytes_and(&["ab"]));
    let lines: Vec<&str> = text.lines().filter(|line| !line.ends_with(" 226")).collect();
    assert_eq!(refused(&lines.join("\n")), error);
}

/// D13: line ends of two characters, a blank last line and no last line end are the same table.
#[test]
fn d13_line_ends_are_free() {
    let text = rank_file(&bytes_and(&["ab", "abc"]));
    for same in [
        text.replace('\n', "\r\n"),
        format!("{text}\n"),
        format!("{}\r\n", text.replace('\n', "\r\n")),
        text.trim_end().to_owned(),
    ] {
        let table = parsed(&same);
        assert_eq!(table.count(), 258);
        assert_eq!(table.token(257), b"abc");
        let mut ids = Vec::new();
        table.encode("abc", &mut ids);
        assert_eq!(ids, [257]);
    }
}

/// D13: what is refused, with its line.
#[test]
fn d13_bad_lines_are_refused() {
    let last = 257;
    bad_line(last, "YWI= 3", "got rank 3 again (first on line 4)");
    bad_line(last, "AA== 256", "expected every token once, got that of line 1 again");
    for bad in ["x", "-1", "1.0", "0256", "+256", "163584", "4294967552", ""] {
        let what = format!("expected a rank from 0 to 163583 in decimal digits, got {bad:?}");
        bad_line(last, &format!("YWI= {bad}"), &what);
    }
    for bad in ["YWI", "YWI!", "YW=I", "YWJ=", "Y\u{e9}I=", "YW-_"] {
        bad_line(last, &format!("{bad} 256"), "expected base64 in fours");
    }
    bad_line(last, " 256", "expected a token of at least one byte, got none");
    for bad in ["YWI=", "YWI=\t256", "YWI= 256 7", "YWI=  256"] {
        bad_line(last, bad, "expected base64, one space and a rank");
    }
    bad_line(100, "", "got a blank line");
    for empty in ["", "\n\n"] {
        assert!(refused(empty).problem.what.ends_with("got an empty file"));
    }
    let pointer = refused("version https://git-lfs.github.com/spec/v1\n");
    assert_eq!(pointer.problem.at, "line 1", "{pointer}");
}

/// A gap in the ranks is an id without a token.
#[test]
fn d13_a_gap_is_refused() {
    let text = rank_file(&bytes_and(&["ab", "abc"]));
    let lines: Vec<&str> = text.lines().filter(|line| !line.ends_with(" 256")).collect();
    let gap = refused(&lines.join("\n"));
    assert!(gap.problem.what.contains("ranks 0 to 257 without a gap, got none for rank 256"));
}

fn markers(text: &str) -> Result<Markers, Malformed> {
    Markers::parse(text.as_bytes(), Path::new("tokenizer_config.json"), 163_584)
}

/// The table of markers, one damage at a time; the valid variant next to it is accepted.
#[test]
fn d13_the_table_of_markers() {
    let entry = |id: &str, entry: &str| format!(r#"{{"added_tokens_decoder":{{"{id}":{entry}}}}}"#);
    let right = markers(&entry("163590", r#"{"content":"<x>","special":true,"lstrip":false}"#));
    let right = right.unwrap();
    assert_eq!(right.name(163_590), Some("<x>"));
    assert_eq!(right.name(163_591), Some("<|reserved_token_163591|>"));
    assert_eq!((right.name(163_583), right.name(163_840)), (None, None));
    for (text, says) in [
        ("{}".to_owned(), "added_tokens_decoder: expected an object of markers by id, got none"),
        ("[]".to_owned(), "expected an object"),
        ("{".to_owned(), "not valid JSON"),
        (entry("163583", r#"{"content":"x"}"#), "163583"),
        (entry("163840", r#"{"content":"x"}"#), "163840"),
        (entry("0163600", r#"{"content":"x"}"#), "0163600"),
        (entry("x", r#"{"content":"x"}"#), "\"x\""),
        (entry("163600", r#"{"content":""}"#), "163600.content"),
        (entry("163600", r#"{"content":7}"#), "163600.content"),
        (entry("163600", "{}"), "163600.content"),
        (
            entry("163600", &format!(r#"{{"content":"{}"}}"#, "x".repeat(257))),
            "163600.content: expected a text of at most 256 bytes, got 257 bytes",
        ),
        (entry("163600", "7"), "163600: expected an object"),
        (entry("163600", r#"{"content":"x","special":1}"#), "163600.special"),
        (entry("163600", r#"{"content":"<|reserved_token_163700|>"}"#), "which names 163700"),
        (entry("163600", r#"{"content":"x"},"163601":{"content":"x"}"#), "which names 163600"),
        (entry("163600", r#"{"content":"x"},"163600":{"content":"y"}"#), "duplicate key"),
    ] {
        let error = markers(&text).unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
        assert!(error.contains("tokenizer_config.json"), "{error}");
    }
}

/// Names that were too long, or too many, ended in a panic; the most that is read is found again.
#[test]
fn names_at_the_limit_are_found_and_more_are_refused() {
    let name = |id: u32| format!("{id:-<85}").replace('-', "\u{8a71}");
    let named = |ids: std::ops::Range<u32>| {
        let entries = ids.map(|id| format!(r#""{id}":{{"content":"{}"}}"#, name(id)));
        let entries: Vec<String> = entries.collect();
        format!(r#"{{"added_tokens_decoder":{{{}}}}}"#, entries.join(","))
    };
    let most = markers(&named(163_584..163_840)).unwrap();
    let text = name(163_839);
    let found: Vec<u32> = most.find(&text).map(|(_, id)| id).collect();
    assert_eq!(found, [163_839]);
    let path = Path::new("tokenizer_config.json");
    let error = Markers::parse(named(300..600).as_bytes(), path, 257).unwrap_err();
    assert!(error.to_string().contains("at most 256 markers, got 300"), "{error}");
}

/// Of several markers at one place the longest is taken, and those of a small table may be right
/// above its ranks.
#[test]
fn the_longest_marker_wins() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"{"added_tokens_decoder":{"257":{"content":"<a"},"258":{"content":"<ab>"}}}"#;
    write_folder(folder.path(), &rank_file(&bytes_and(&["ab"])), config);
    let tokenizer = Tokenizer::open(folder.path()).unwrap();
    let ids = tokenizer.encode("<ab><ac", k3_text::Special::Token);
    assert_eq!(ids, [258, 257, 99]);
    assert_eq!(plain(&tokenizer, "<ab>"), [60, 256, 62]);
    assert!(tokenizer.decode(&[259]).is_err());
}

/// Files that are missing or something else are named.
#[test]
fn files_that_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Tokenizer::open(folder.path()).unwrap_err().to_string();
    assert!(open().contains("tiktoken.model: no such file"));
    std::fs::write(folder.path().join("tiktoken.model"), rank_file(&bytes_and(&[]))).unwrap();
    assert!(open().contains("tokenizer_config.json: no such file"));
    let pointer = "version https://git-lfs.github.com/spec/v1\n";
    std::fs::write(folder.path().join("tiktoken.model"), pointer).unwrap();
    assert!(open().contains("a Git LFS pointer"));
}
