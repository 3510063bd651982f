//! Strict JSON: what is refused, with its place, and agreement with `serde_json` on the rest.

use k3_checkpoint::json::{MAX_DEPTH, MAX_NUMBER_BYTES, Value};
use proptest::prelude::*;

/// The text is refused with a message that has `what` in it; the place is `byte`.
#[track_caller]
fn refused(text: impl AsRef<[u8]>, byte: usize, what: &str) {
    let text = text.as_ref();
    let problem = Value::parse(text).expect_err("refused");
    let shown = String::from_utf8_lossy(&text[..text.len().min(60)]);
    assert_eq!(problem.at, format!("byte {byte}"), "{shown}: {problem}");
    assert!(problem.what.contains(what), "{shown}: {problem}");
}

#[test]
fn broken_syntax_is_refused_at_its_place() {
    for (text, byte, what) in [
        ("", 0, "EOF"),
        ("{", 0, "EOF"),
        ("[1", 1, "EOF"),
        ("\"a", 1, "EOF"),
        ("NaN", 0, "expected value"),
        ("[1,\n -Infinity]", 6, "invalid number"),
        ("+1", 0, "expected value"),
        ("[.5]", 1, "expected value"),
        ("[1 2]", 3, "expected `,` or `]`"),
        ("{a:1}", 1, "key must be a string"),
        ("{\"a\" 1}", 5, "expected `:`"),
        ("\u{FEFF}1", 0, "expected value"),
        ("{\"a\":\n[1,]}", 9, "expected value"),
        ("[01]", 2, "invalid number"),
        ("1.", 1, "invalid number"),
        ("\"\u{1}\"", 0, "control character"),
        (r#""\x41""#, 2, "invalid escape"),
        (r#"[7,"\ud800"]"#, 10, "hex escape"),
        (r#"["\ud800\u0041"]"#, 13, "surrogate"),
        ("{}{}", 2, "trailing characters"),
        ("null x", 5, "trailing characters"),
    ] {
        refused(text, byte, what);
    }
    // A lone continuation byte, UTF-16 bytes, an overlong form, a surrogate in UTF-8.
    for bytes in [&b"\"\x80\""[..], b"\"\xFF\xFE\"", b"\"\xC0\xAF\"", b"\"\xED\xA0\x80\""] {
        refused(bytes, 1, "not UTF-8");
    }
}

/// Two readers see different values under an equal key.
#[test]
fn equal_keys_are_refused() {
    for (text, byte) in
        [(r#"{"w":1,"w":1}"#, 11), (r#"{"w":1,"\u0077":1}"#, 16), (r#"[{"a":{"":1,"":2}}]"#, 15)]
    {
        refused(text, byte, "duplicate key");
    }
    assert!(Value::parse(br#"{"a":{"w":1},"b":{"w":1},"w":1}"#).is_ok());
}

#[test]
fn depth_and_digits_have_limits() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(Value::parse(nested(MAX_DEPTH).as_bytes()).is_ok());
    for depth in [MAX_DEPTH + 1, 1000, 1_000_000] {
        refused(nested(depth), MAX_DEPTH, "nested deeper");
    }
    let digits = "1".repeat(MAX_NUMBER_BYTES);
    assert!(Value::parse(digits.as_bytes()).is_ok());
    refused(format!("{digits}1"), 0, "number longer");
}

/// An integer that has passed through a double is another one; escapes are resolved.
#[test]
fn values_are_kept_as_written() {
    let text = r#"[18446744073709551617, 1.50, "\ud83d\ude00\n", "é"]"#;
    let Ok(Value::Array(items)) = Value::parse(text.as_bytes()) else { panic!("an array") };
    assert_eq!(items[0], Value::Number("18446744073709551617"));
    assert_eq!(items[1], Value::Number("1.50"));
    assert_eq!(items[2], Value::String("\u{1F600}\n".into()));
    assert_eq!(items[3], Value::String("é".into()));
}

fn plain(value: &Value<'_>) -> serde_json::Value {
    match value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(value) => (*value).into(),
        Value::Number(text) => serde_json::from_str(text).expect("a number"),
        Value::String(text) => (**text).into(),
        Value::Array(items) => items.iter().map(plain).collect(),
        Value::Object(members) => {
            members.iter().map(|(key, value)| (key.clone().into_owned(), plain(value))).collect()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Equal values, or both refuse, but for equal keys; numbers that no double holds are left
    /// to whoever reads a number.
    #[test]
    fn agrees_with_serde_on_texts_of_json_pieces(
        pieces in prop::collection::vec(
            prop::sample::select(vec![
                "{", "}", "[", "]", ",", ":", "\"a\"", "\"b\"", "1", "0", "-", ".5", "e3", "E+2",
                "true", "null", " ", "\n", "\"\\u0061\"", "\"\\ud800\"", "\"é\"", "\\", "\"",
            ]),
            0..12,
        )
    ) {
        let text = pieces.concat();
        let ours = Value::parse(text.as_bytes());
        match serde_json::from_str::<serde_json::Value>(&text) {
            Ok(other) => match ours {
                Ok(value) => assert_eq!(plain(&value), other, "{text:?}"),
                Err(problem) => assert!(problem.what.contains("duplicate key"), "{problem}"),
            },
            Err(error) => assert!(ours.is_err() || error.to_string().contains("out of range")),
        }
    }
}
