//! Against ids made by OpenAI's `tiktoken` package over the real vocabulary.

use k3_text::pieces::SPLIT_PATTERN;
use k3_text::{K3_RANKS, K3_VOCABULARY, Special, Tokenizer};
use serde_json::Value;

use super::external;
use crate::support::vocabulary::{both, built_in};
use crate::support::{ids_of, read_json};

fn vectors(name: &str) -> Value {
    read_json(&external("kimi-tokenizer").join(name))
}

/// All texts, markers as text and as tokens, by the built-in vocabulary, by the released file, and
/// by a table of the built-in ranks; and back.
pub fn every_vector_both_ways() {
    let released = Tokenizer::open(&external("kimi-tokenizer")).unwrap();
    let vectors = vectors("vectors.json");
    let cases = vectors["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 46);
    for (name, tokenizer) in both().into_iter().chain([("the file", &released)]) {
        for case in cases {
            let text = case["text"].as_str().unwrap();
            for (special, key) in
                [(Special::Text, "ids_special_as_text"), (Special::Token, "ids_special_as_tokens")]
            {
                let expected = ids_of(&case[key]);
                assert_eq!(tokenizer.encode(text, special), expected, "{name}: {text:?}");
                assert_eq!(tokenizer.decode(&expected).unwrap(), text.as_bytes());
            }
        }
    }
}

/// The pattern, the counts and the names are the published ones; the file holds the built-in ranks.
pub fn the_published_pattern_names_and_ranks() {
    let vectors = vectors("vectors.json");
    assert_eq!(vectors["pat_str"], SPLIT_PATTERN);
    assert_eq!(vectors["n_vocab"], K3_VOCABULARY);
    assert_eq!(vectors["n_ranks"], K3_RANKS);
    let named = vectors["named_special_tokens"].as_object().unwrap();
    let released = Tokenizer::open(&external("kimi-tokenizer")).unwrap();
    for tokenizer in [built_in(), &released] {
        assert_eq!(tokenizer.markers().iter().count(), K3_VOCABULARY - K3_RANKS);
        for (id, name) in tokenizer.markers().iter() {
            let reserved = format!("<|reserved_token_{id}|>");
            let expected = named.get(&id.to_string());
            let expected = expected.map_or(reserved.as_str(), |name| name.as_str().unwrap());
            assert_eq!(name, expected);
        }
    }
    for id in 0..K3_RANKS as u32 {
        assert_eq!(built_in().decode(&[id]).unwrap(), released.decode(&[id]).unwrap());
    }
}

/// Chat prompts: segments encoded apart, markers as tokens only where the segment says so.
pub fn d06_chat_segments() {
    let vectors = vectors("chat_vectors.json");
    let cases = vectors["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 6);
    for (name, tokenizer) in both() {
        for case in cases {
            let segments = case["segments"].as_array().unwrap().iter();
            let segments: Vec<(&str, Special)> = segments
                .map(|segment| {
                    let special =
                        if segment[1].as_bool().unwrap() { Special::Token } else { Special::Text };
                    (segment[0].as_str().unwrap(), special)
                })
                .collect();
            let got = tokenizer.encode_segments(&segments);
            assert_eq!(got, ids_of(&case["ids"]), "{name}: {}", case["case"]);
            let text = case["text"].as_str().unwrap();
            assert_eq!(tokenizer.decode(&got).unwrap(), text.as_bytes());
        }
    }
}
