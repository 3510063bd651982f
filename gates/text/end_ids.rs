//! The ids that end a turn, wherever the files of a checkpoint name them: `generate` stops there,
//! and every command refuses what names no id.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::vocabulary::{bytes_and, rank_file};
use crate::support::{
    arg, binary, copy_folder, expect, expect_of, ids, ids_of, read_json, scratch, tiny, typed,
};

/// Sets fields of a JSON file by their pointers; a file that is not there begins empty.
fn set(folder: &Path, file: &str, fields: &[(&str, Value)]) {
    let path = folder.join(file);
    let mut root = if path.exists() { read_json(&path) } else { json!({}) };
    for (field, value) in fields {
        let (parent, key) = field.rsplit_once('/').unwrap();
        root.pointer_mut(parent).unwrap()[key] = value.clone();
    }
    fs::write(path, root.to_string()).unwrap();
}

/// The tiny oracle whose config names no end.
fn endless(name: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let (folder, model) = scratch(name);
    copy_folder(&tiny(), &model);
    let none = json!(null);
    let fields = [("/eos_token_id", none.clone()), ("/text_config/eos_token_id", none)];
    set(&model, "config.json", &fields);
    (folder, model)
}

fn report(model: &Path, more: &[&str]) -> Value {
    let prompt = typed(&ids("prompt_ids"));
    let mut command = binary();
    command.args(["generate", "--model", arg(model), "--ids", &prompt, "--gen", "20"]);
    expect_of(command.args(["--format", "json"]).args(more), 0).json()
}

/// Each place that may name an end, and each form: the id is kept, the report names file and
/// field, `inspect` lists it, and --ignore-eos goes on.
#[test]
fn a_run_ends_where_the_checkpoint_says() {
    let greedy = ids("greedy_ids");
    let end = greedy[2];
    let stop = greedy.iter().position(|id| *id == end).unwrap() + 1;
    let never = (0..256).find(|id| !greedy.contains(id)).unwrap();
    let added = |id: u32| json!({ id.to_string(): {"content": "</s>", "special": true} });
    let generation = "generation_config.json";
    let tokenizer = "tokenizer_config.json";
    for (file, field, fields) in [
        ("config.json", "eos_token_id", vec![("/eos_token_id", json!(end))]),
        (
            "config.json",
            "text_config.eos_token_id",
            vec![("/text_config/eos_token_id", json!([never, end]))],
        ),
        (generation, "eos_token_id", vec![("/eos_token_id", json!(end))]),
        (generation, "eos_token_id", vec![("/eos_token_id", json!([never, end]))]),
        (
            tokenizer,
            "eos_token",
            vec![("/eos_token", json!("</s>")), ("/added_tokens_decoder", added(end))],
        ),
        (
            tokenizer,
            "eos_token",
            vec![
                ("/eos_token", json!({"content": "</s>", "lstrip": false})),
                ("/added_tokens_decoder", added(end)),
            ],
        ),
    ] {
        let (_folder, model) = endless("model");
        set(&model, file, &fields);
        let ended = report(&model, &[]);
        assert_eq!(ids_of(&ended["generated_ids"]), greedy[..stop], "{file} {fields:?}");
        assert_eq!(ended["stopped_by"], end);
        assert_eq!(ended["stopped_by_source"], format!("{file} {field}"));
        let inspected = expect(&["inspect", arg(&model)], 0).stdout;
        assert!(inspected.contains(&format!("{file}, {field}")), "{inspected}");
        let whole = report(&model, &["--ignore-eos"]);
        assert_eq!(ids_of(&whole["generated_ids"]), greedy);
        assert_eq!(whole["stopped_by"], Value::Null);
        // --stop-id adds, with and without.
        let first = greedy[0].to_string();
        for more in [&["--stop-id", &first][..], &["--stop-id", &first, "--ignore-eos"]] {
            let stopped = report(&model, more);
            assert_eq!(ids_of(&stopped["generated_ids"]), greedy[..1]);
            assert_eq!(stopped["stopped_by_source"], "--stop-id");
        }
    }
}

/// A rank table resolves a token that is no marker.
#[test]
fn an_end_may_be_a_token_of_the_rank_table() {
    let greedy = ids("greedy_ids");
    let (_folder, model) = endless("model");
    let end = greedy.iter().find(|id| (32..127).contains(*id)).unwrap();
    fs::write(model.join("tiktoken.model"), rank_file(&bytes_and(&[]))).unwrap();
    let token = char::from(u8::try_from(*end).unwrap()).to_string();
    let fields = [("/eos_token", json!(token)), ("/added_tokens_decoder", json!({}))];
    set(&model, "tokenizer_config.json", &fields);
    assert_eq!(report(&model, &[])["stopped_by"], *end);
}

/// J11, D13: an end that is no id of the vocabulary, or markers that do not fit the rank table:
/// one line that names file and field, expected and got, from every command.
#[test]
fn j11_ends_that_name_no_id_are_refused_by_every_command() {
    let generation = "generation_config.json";
    let tokenizer = "tokenizer_config.json";
    let eos = |value: Value| json!({ "eos_token_id": value });
    let markers = |added: Value| json!({ "added_tokens_decoder": added });
    let named = |id: &str| json!({ id: {"content": "</s>", "special": true} });
    let ended = |added: Value| json!({ "eos_token": "</s>", "added_tokens_decoder": added });
    let ranks = Some(rank_file(&bytes_and(&[])));
    for (file, content, ranks, says) in [
        (generation, eos(json!("2")), None, "eos_token_id: expected a token id or a list"),
        (generation, eos(json!([[2]])), None, "eos_token_id: expected a token id or a list"),
        (generation, eos(json!(true)), None, "eos_token_id: expected a token id or a list"),
        (generation, eos(json!(-1)), None, "eos_token_id: expected a token id below 256"),
        (generation, eos(json!(2.0)), None, "eos_token_id: expected a token id below 256"),
        (generation, eos(json!([2, 300])), None, "size of the vocabulary, got 300"),
        (generation, json!([2]), None, "expected an object, got an array"),
        (tokenizer, json!({"eos_token": 2}), None, "eos_token: expected a token's text or null"),
        (tokenizer, json!({"eos_token": {"content": 2}}), None, "eos_token: expected a token's"),
        (tokenizer, ended(named("300")), None, "eos_token: expected a token id below 256"),
        (tokenizer, ended(named("2.0")), None, "eos_token: expected a token id below 256"),
        (tokenizer, markers(named("5")), ranks.clone(), "an id from 256 (the first after"),
        (tokenizer, markers(named("163840")), ranks.clone(), "to 163839, got \"163840\""),
        (tokenizer, ended(json!({})), ranks, "eos_token: expected a token of the vocabulary"),
    ] {
        let (folder, model) = endless("model");
        fs::write(model.join(file), content.to_string()).unwrap();
        let path = arg(&model);
        if let Some(ranks) = &ranks {
            fs::write(model.join("tiktoken.model"), ranks).unwrap();
        }
        let told = |arguments: &[&str], code: i32| {
            let ran = expect(arguments, code);
            let line = if code == 1 { ran.stdout } else { ran.stderr };
            assert!(line.contains(file) && line.contains(says), "{content}: {line}");
        };
        told(&["inspect", path], 3);
        told(&["check", path], 1);
        told(&["generate", path, "--ids", "1", "--gen", "1"], 3);
        expect(&["generate", path, "--ids", "1", "--gen", "1", "--ignore-eos"], 0);
        if ranks.is_some() && content["eos_token"].is_null() {
            let text = folder.path().join("text");
            fs::write(&text, "a").unwrap();
            told(&["tokenize", "--tokenizer", path, arg(&text)], 3);
        }
    }
    let (_folder, model) = endless("model");
    set(&model, "config.json", &[("/eos_token_id", json!(300))]);
    let line = expect(&["generate", arg(&model), "--ids", "1"], 3).stderr;
    assert!(line.contains("config.json: eos_token_id: 300 is not below vocab_size 256"), "{line}");
}
