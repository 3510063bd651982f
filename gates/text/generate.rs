//! Text in and out of `generate`, on the tiny oracle with K3's vocabulary: its text means nothing,
//! so what is checked is that it is the text of the ids, and the ids those of the prompt.

use std::fs;
use std::path::PathBuf;

use k3_checkpoint::Checkpoint;
use k3_text::{K3_RANKS, K3_VOCABULARY, Special};
use serde_json::Value;

use crate::support::vocabulary::{built_in, bytes_and, plain, rank_file, write_folder};
use crate::support::widen::widen_vocabulary;
use crate::support::{
    Ran, arg, binary, expect, ids, ids_of, overwrite, read_and_close, tiny, typed,
};

/// Ids of the tiny oracle.
const BYTES: usize = 256;
const PROMPT: &str = "Hello \u{4e16}\u{754c}<|open|>";

/// A model with K3's vocabulary, in a folder that goes away with it.
struct Model {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Model {
    /// The tiny oracle, whose 256 ids are the single bytes of K3's vocabulary; what else has an id
    /// is a row of zeros. Quickly made, and its text is full of halves of characters.
    fn bytes() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        widen_vocabulary(&tiny(), &path, K3_VOCABULARY);
        Self { _folder: folder, path }
    }

    /// The tiny oracle with its ids spread over K3's vocabulary: what it answers is known, and each
    /// id is a token of several bytes.
    fn spread() -> Self {
        let model = Self::bytes();
        let checkpoint = Checkpoint::open(&model.path).unwrap();
        for table in ["embed_tokens.weight", "lm_head.weight"] {
            let tensor = checkpoint.tensors().find(|tensor| tensor.name.ends_with(table));
            let tensor = tensor.unwrap();
            let row_bytes = tensor.byte_len as usize / K3_VOCABULARY;
            let rows = checkpoint.read(tensor.name).unwrap();
            let rows = &rows[..BYTES * row_bytes];
            overwrite(&model.path, tensor.name, 0, &vec![0; rows.len()]);
            for (id, row) in (0..).zip(rows.chunks_exact(row_bytes)) {
                let place = u64::from(spread(&[id])[0]) * row_bytes as u64;
                overwrite(&model.path, tensor.name, place, row);
            }
        }
        model
    }

    /// Arguments of `generate` on it.
    fn generate<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        [&["generate", "--model", arg(&self.path)], arguments].concat()
    }

    fn run(&self, arguments: &[&str], code: i32) -> Ran {
        expect(&self.generate(arguments), code)
    }

    fn report(&self, arguments: &[&str]) -> Value {
        let arguments = [arguments, &["--format", "json"]].concat();
        self.run(&arguments, 0).json()
    }
}

/// Where the oracle's ids are in [`Model::spread`].
fn spread(ids: &[u32]) -> Vec<u32> {
    ids.iter().map(|id| 1000 + 500 * id).collect()
}

fn text_of(ids: &[u32]) -> String {
    String::from_utf8_lossy(&built_in().decode(ids).unwrap()).into_owned()
}

/// A prompt is its ids, to the bit of the logits; what streams is the text of the generated ids,
/// the same as in the report; the peak keeps to a plan with a line for the tokenizer.
#[test]
fn text_in_and_out() {
    let model = Model::spread();
    let [one, other] = ["one", "other"].map(|name| model.path.with_file_name(name));
    let prompt = plain(built_in(), PROMPT);
    let typed_prompt = typed(&prompt);
    let by_text = ["--prompt", PROMPT, "--gen", "3", "--dump-logits", arg(&one)];
    let by_text = model.run(&by_text, 0).stdout;
    let by_ids = ["--ids", &typed_prompt, "--gen", "3", "--dump-logits", arg(&other)];
    let report = model.report(&by_ids);
    assert_eq!(fs::read(&one).unwrap(), fs::read(&other).unwrap());
    assert_eq!(ids_of(&report["prompt_ids"]), prompt);
    assert_eq!(report["generated_text"], by_text.as_str());
    // Where the oracle has an answer.
    let oracle = |key: &str| spread(&ids(key));
    let ids_typed = typed(&oracle("prompt_ids"));
    let streamed = model.run(&["--ids", &ids_typed, "--gen", "12"], 0).stdout;
    let report = model.report(&["--ids", &ids_typed, "--gen", "12"]);
    let generated = ids_of(&report["generated_ids"]);
    assert_eq!(generated, oracle("greedy_ids")[..12]);
    assert_eq!(streamed, text_of(&generated));
    assert_eq!(report["generated_text"], streamed.as_str());
    assert_eq!(report["settings"]["vocabulary_of_text"], "built in");
    assert_eq!(report["peak"]["within"], true, "{}", report["peak"]);
    let lines = report["plan"]["components"].as_array().unwrap();
    assert!(lines.iter().any(|line| line["name"] == "tokenizer"));
    // A stop id is kept, and so is its text.
    let stop = generated[4].to_string();
    let stopped = model.run(&["--ids", &ids_typed, "--gen", "12", "--stop-id", &stop], 0).stdout;
    assert_eq!(stopped, text_of(&generated[..5]));
    assert_eq!(model.run(&["--ids", &ids_typed, "--gen", "0"], 0).stdout, "");
}

/// Half a character waits for its other half, and none is left out at the end.
#[test]
fn d02_halves_of_characters_in_a_run() {
    let model = Model::bytes();
    let prompt = typed(&ids("prompt_ids"));
    let streamed = model.run(&["--ids", &prompt, "--gen", "20"], 0).stdout;
    let greedy = ids("greedy_ids");
    assert!(streamed.contains('\u{fffd}'), "no half in {greedy:?}: choose another model");
    assert_eq!(streamed, text_of(&greedy));
    // A run that ends in the middle of a character.
    let in_the_middle = |count: &usize| {
        let bytes = built_in().decode(&greedy[..*count]).unwrap();
        std::str::from_utf8(bytes.utf8_chunks().last().unwrap().invalid())
            .is_err_and(|error| error.error_len().is_none())
    };
    let count = (1..=greedy.len()).find(in_the_middle).expect("a half at some end");
    let streamed = model.run(&["--ids", &prompt, "--gen", &count.to_string()], 0).stdout;
    assert!(streamed.ends_with('\u{fffd}'));
    assert_eq!(streamed, text_of(&greedy[..count]));
}

/// A file's prompt is taken byte for byte, markers are tokens only where asked, and a report folder
/// has the text.
#[test]
fn prompts_from_files() {
    let model = Model::bytes();
    let file = model.path.join("prompt");
    let prompted = |text: &str, arguments: &[&str]| {
        fs::write(&file, text).unwrap();
        let given = ["--prompt-file", arg(&file), "--gen", "1"];
        ids_of(&model.report(&[&given, arguments].concat())["prompt_ids"])
    };
    let text = format!("\u{feff}{PROMPT}\r\n");
    assert_eq!(prompted(&text, &[]), plain(built_in(), &text));
    let tokens = built_in().encode(&text, Special::Token);
    assert!(tokens.contains(&163_587));
    assert_eq!(prompted(&text, &["--special", "token"]), tokens);
    let out = model.path.with_file_name("out");
    let streamed = model.run(&["--prompt", "a", "--gen", "3", "--out", arg(&out)], 0).stdout;
    let report = fs::read_to_string(out.join("report.txt")).unwrap();
    assert!(report.contains(&format!("generated text: {streamed:?}")), "{report}");
    assert!(fs::read_to_string(out.join("report.html")).unwrap().contains("generated text: "));
    fs::write(&file, b"ab\xff").unwrap();
    let stderr = model.run(&["--prompt-file", arg(&file)], 3).stderr;
    assert!(stderr.contains("prompt: byte 2: expected UTF-8"), "{stderr}");
    model.run(&["--prompt-file", "/no/such/file"], 3);
    // It is encoded before memory can be planned: what that may take is bounded.
    fs::write(&file, vec![b'a'; (4 << 20) + 1]).unwrap();
    let stderr = model.run(&["--prompt-file", arg(&file)], 3).stderr;
    assert!(stderr.contains("larger than the limit of 4194304 bytes"), "{stderr}");
    fs::write(&file, "").unwrap();
    model.run(&["--prompt-file", arg(&file)], 2);
    model.run(&["--prompt", ""], 2);
    model.run(&["--prompt", "a", "--tf-check"], 2);
    let forced = model.run(&["--prompt", PROMPT, "--tf-check"], 0).stdout;
    let positions = plain(built_in(), PROMPT).len() - 1;
    assert!(forced.ends_with(&format!(" of {positions}\n")), "{forced}");
}

/// The model's own files come before the built-in vocabulary, `--tokenizer` before both; files that
/// are damaged or not K3's are refused, never passed over.
#[test]
fn whose_vocabulary() {
    let model = Model::bytes();
    let tokens = (0..K3_RANKS as u32).map(|id| built_in().decode(&[id]).unwrap());
    let ranks = rank_file(&tokens.collect::<Vec<_>>());
    let config = r#"{"added_tokens_decoder":{"163584":{"content":"[BOS]"}}}"#;
    write_folder(&model.path, &ranks, config);
    let report = model.report(&["--prompt", PROMPT, "--gen", "2"]);
    assert_eq!(report["settings"]["vocabulary_of_text"], "the model's folder");
    assert_eq!(ids_of(&report["prompt_ids"]), plain(built_in(), PROMPT));
    assert_eq!(report["peak"]["within"], true, "{}", report["peak"]);
    let other = model.path.join("other");
    write_folder(&other, &rank_file(&bytes_and(&[])), config);
    let stderr = model.run(&["--ids", "1", "--tokenizer", arg(&other)], 3).stderr;
    assert!(stderr.contains("expected K3's 163584 ranks, got 256"), "{stderr}");
    fs::remove_file(model.path.join("tokenizer_config.json")).unwrap();
    let stderr = model.run(&["--ids", "1", "--gen", "1"], 3).stderr;
    assert!(stderr.contains("tokenizer_config.json: no such file"), "{stderr}");
    assert!(stderr.contains("hint: --tokenizer DIR"), "{stderr}");
}

/// A run that fails on the way: the streamed text remains, one error line, the exit code as before.
#[test]
fn what_has_streamed_stands() {
    let model = Model::bytes();
    let first = ids_of(&model.report(&["--ids", "5,6,7", "--gen", "1"])["generated_ids"]);
    let checkpoint = Checkpoint::open(&model.path).unwrap();
    let table =
        checkpoint.tensors().find(|tensor| tensor.name.ends_with("embed_tokens.weight")).unwrap();
    let row_bytes = table.byte_len / table.shape[0] as u64;
    let nan = [0xC0, 0x7F].repeat(row_bytes as usize / 2);
    overwrite(&model.path, table.name, u64::from(first[0]) * row_bytes, &nan);
    let Ran { stdout, stderr } = model.run(&["--ids", "5,6,7", "--gen", "5"], 1);
    assert_eq!(stdout, text_of(&first));
    let errors = stderr.lines().filter(|line| line.starts_with("error: "));
    assert_eq!(errors.count(), 1, "{stderr}");
}

/// A reader that leaves ends a run that is for it alone, without a word.
#[test]
fn a_closed_pipe_ends_the_run() {
    let model = Model::bytes();
    let steps = 400;
    let count = steps.to_string();
    let arguments = model.generate(&["--prompt", PROMPT, "--gen", &count]);
    let output = read_and_close(binary().args(arguments), 1);
    let stderr = Ran::of(&output, 0).stderr;
    assert!(!stderr.contains("error"), "{stderr}");
    assert!(stderr.lines().count() < steps / 2, "{}", stderr.lines().count());
}

/// Text for a vocabulary that is not K3's, two prompts or none: refused before any work.
#[test]
fn text_needs_k3s_vocabulary() {
    let model = tiny();
    let run = |arguments: &[&str]| {
        expect(&[&["generate", "--model", arg(&model)], arguments].concat(), 2).stderr
    };
    for option in ["--prompt", "--prompt-file", "--tokenizer"] {
        let ids: &[&str] = if option == "--tokenizer" { &["--ids", "1"] } else { &[] };
        let stderr = run(&[&[option, "/no/such/file"], ids].concat());
        assert!(stderr.contains(option) && stderr.contains("163840"), "{stderr}");
        assert!(stderr.contains("got vocab_size 256") && stderr.contains("--ids"), "{stderr}");
    }
    for wrong in [
        &[][..],
        &["--ids", "1", "--prompt", "a"],
        &["--ids", "1", "--prompt-file", "a"],
        &["--prompt", "a", "--prompt-file", "a"],
        &["--ids", "1", "--special", "token"],
        &["--prompt", "a", "--special", "yes"],
        &["--ids", "1", "--chat"],
    ] {
        run(wrong);
    }
}
