//! `tokenize` from outside: ids and back, exit codes, lines of error, closed pipes.

use std::io::Write as _;
use std::process::{Output, Stdio};

use k3_text::{K3_RANKS, UNICODE_VERSION};
use serde_json::Value;

use crate::support::vocabulary::{bytes_and, rank_file, write_folder};
use crate::support::{Ran, arg, binary, expect, read_and_close, scratch};

/// Runs `tokenize` with an input on stdin.
pub fn tokenize(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = binary()
        .arg("tokenize")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that refuses its arguments reads nothing.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// Ids are one line; as JSON a field; and they decode to the very bytes, halves of characters and
/// the mark at the start of a file included.
#[test]
fn there_and_back() {
    let text = "\u{feff}hello world!\r\n<|open|> \u{1f44d}";
    let line = tokenize(&["-"], text.as_bytes());
    Ran::of(&line, 0);
    let json = tokenize(&["--format", "json", "-"], text.as_bytes());
    let report = Ran::of(&json, 0).json();
    let ids: Vec<String> = report["ids"].as_array().unwrap().iter().map(Value::to_string).collect();
    assert_eq!(line.stdout, format!("{}\n", ids.join(",")).as_bytes());
    assert_eq!(report["special"], "text");
    assert_eq!(
        (&report["tokenizer"], &report["unicode"]),
        (&"built-in".into(), &UNICODE_VERSION.into())
    );
    let spaced = ids.join(" ,\n ");
    for ids in [&line.stdout[..], spaced.as_bytes()] {
        let back = tokenize(&["--decode", "-"], ids);
        Ran::of(&back, 0);
        assert_eq!(back.stdout, text.as_bytes());
    }
    // The first byte of a thumb alone.
    let half = tokenize(&["--decode", "-"], b"172");
    assert_eq!(half.stdout.len(), 1);
    let json = tokenize(&["--decode", "--format", "json", "-"], b"172");
    let report = Ran::of(&json, 0).json();
    assert_eq!((&report["text"], &report["is_utf8"]), (&"\u{fffd}".into(), &false.into()));
}

/// D05: the default is text, --help says so, and only --special token makes tokens.
#[test]
fn d05_markers_by_default() {
    let text = b"a<|close|>message<|sep|><|end_of_msg|>";
    let ids = |arguments: &[&str]| {
        let output = tokenize(arguments, text);
        Ran::of(&output, 0);
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(ids(&["--special", "token", "-"]), "64,163588,2778,163589,163586\n");
    assert_eq!(ids(&["-"]), ids(&["--special", "text", "-"]));
    let below = |id: &str| id.parse::<usize>().unwrap() < K3_RANKS;
    assert!(ids(&["-"]).trim().split(',').all(below));
    for (command, says) in [("tokenize", "[default: text]"), ("generate", "--special")] {
        let help = expect(&[command, "--help"], 0).stdout;
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains(says) && help.contains("plain text unless"), "{help}");
    }
}

/// D10: nothing in, nothing out.
#[test]
fn d10_nothing_is_nothing() {
    let output = tokenize(&["-"], b"");
    Ran::of(&output, 0);
    assert_eq!(output.stdout, b"\n");
    let output = tokenize(&["--decode", "-"], b" \n");
    Ran::of(&output, 0);
    assert!(output.stdout.is_empty());
}

/// D11: the version of the tables is told.
#[test]
fn d11_the_help_names_the_unicode_version() {
    let help = expect(&["tokenize", "--help"], 0).stdout;
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains(&format!("Unicode {UNICODE_VERSION}")), "{help}");
}

/// Bytes that are not UTF-8 are refused at their place, and so is what is no list of ids.
#[test]
fn inputs_that_are_none() {
    let stderr = Ran::of(&tokenize(&["-"], b"ab\xc3\xa9\xffc"), 3).stderr;
    assert!(stderr.contains("stdin: byte 4: expected UTF-8, got 0xFF"), "{stderr}");
    Ran::of(&tokenize(&["-"], b"ab\xe4\xbd"), 3);
    for (ids, says) in [
        ("1,,2", "byte 2"),
        ("1,", "byte 2"),
        (",1", "byte 0"),
        (",", "byte 0"),
        ("1,x", "byte 2: 'x'"),
        ("1;2", "'1;2'"),
        ("-1", "'-1'"),
        ("1 2.0", "byte 2: '2.0'"),
        ("163840", "163840"),
        ("4294967296", "4294967296"),
    ] {
        let output = tokenize(&["--decode", "-"], ids.as_bytes());
        assert!(output.stdout.is_empty());
        let stderr = Ran::of(&output, 3).stderr;
        assert!(stderr.contains(says), "{ids}: {stderr}");
    }
    let stderr = expect(&["tokenize", "/no/such/file"], 3).stderr;
    assert!(stderr.contains("/no/such/file: no such file"), "{stderr}");
    for wrong in [
        &["tokenize"][..],
        &["tokenize", "-", "--special", "yes"],
        &["tokenize", "-", "--decode", "--special", "text"],
        &["tokenize", "-", "-"],
    ] {
        expect(wrong, 2);
    }
}

/// D13: another folder's vocabulary, said not to be K3's; a damaged one is refused with file,
/// line, expected and got.
#[test]
fn d13_the_vocabulary_of_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (path, ranks) = (folder.path(), rank_file(&bytes_and(&["ab", "bc", "abc", "bcd"])));
    let run = |ranks: &str, config: &str| {
        write_folder(path, ranks, config);
        tokenize(&["--tokenizer", arg(path), "-"], b"abcd")
    };
    let config = r#"{"added_tokens_decoder":{}}"#;
    let output = run(&ranks, config);
    assert_eq!(output.stdout, b"258,100\n");
    assert!(Ran::of(&output, 0).stderr.contains("260 ranks"));
    let stderr = Ran::of(&run(&ranks.replace("YWI= 256", "YWI= 25x"), config), 3).stderr;
    let line =
        "tiktoken.model: line 257: expected a rank from 0 to 163583 in decimal digits, got \"25x\"";
    assert!(stderr.contains(line), "{stderr}");
    let stderr = Ran::of(&run(&ranks.replace("4g== 226", "YWJj 226"), config), 3).stderr;
    assert!(stderr.contains("line 259: expected every token once"), "{stderr}");
    let stderr = Ran::of(&run(&ranks.replace("4g== 226", "YWJjZA== 226"), config), 3).stderr;
    assert!(stderr.contains("0xE2"), "{stderr}");
    let stderr = Ran::of(&run(&ranks, "{}"), 3).stderr;
    assert!(stderr.contains("tokenizer_config.json: added_tokens_decoder"), "{stderr}");
    let stderr = Ran::of(&tokenize(&["--tokenizer", arg(&path.join("none")), "-"], b"a"), 3).stderr;
    assert!(stderr.contains("no such file"), "{stderr}");
}

/// A reader that closes the pipe early is no error.
#[test]
fn a_closed_pipe_is_quiet() {
    let (_folder, text) = scratch("text");
    std::fs::write(&text, "aA".repeat(300_000)).unwrap();
    let output = read_and_close(binary().args(["tokenize", arg(&text)]), 10);
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}

/// Text where a file is expected: the hint names the option that takes it.
#[test]
fn text_in_place_of_a_file_is_told_how() {
    let said = expect(&["tokenize", "some text"], 3).stderr;
    assert!(said.contains("some text: no such file") && said.contains("--text"), "{said}");
    let ids = tokenize(&["-"], b"some text").stdout;
    let ids = String::from_utf8(ids).unwrap();
    assert_eq!(expect(&["tokenize", "--text", "some text"], 0).stdout, ids);
    let decoded = expect(&["tokenize", "--decode", "--text", ids.trim()], 0).stdout;
    assert_eq!(decoded, "some text");
    let said = expect(&["tokenize", "--decode", "--text", "1,x"], 3).stderr;
    assert!(said.contains("--text: byte 2"), "{said}");
    for wrong in [&["tokenize"][..], &["tokenize", "--text", "a", "b"]] {
        expect(wrong, 2);
    }
}
