//! `inspect`, `check` and `plan RANGE` from outside: what they say of a whole checkpoint, of every
//! kind of damage, and of the replica of the release.

use std::path::{Path, PathBuf};
use std::process::Command;

use k3_checkpoint::Checkpoint;

use super::support::{arg, expect, overwrite, scratch};

/// A small checkpoint in six shards, made by `synth`.
struct Model {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Model {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        expect(&["synth", arg(&path), "--layers", "4", "--probe", "0"], 0);
        Self { _folder: folder, path }
    }

    fn shard(&self, number: usize) -> PathBuf {
        self.path.join(format!("model-{number:05}-of-000005.safetensors"))
    }

    /// Overwrites bytes of a tensor.
    fn poke(&self, name: &str, at: u64, bytes: &[u8]) {
        overwrite(&self.path, name, at, bytes);
    }

    /// Runs `check`: code 1, and every part is in the report.
    #[track_caller]
    fn damaged(&self, parts: &[&str]) {
        let stdout = expect(&["check", arg(&self.path)], 1).stdout;
        assert!(stdout.contains("DAMAGED"), "{stdout}");
        for part in parts {
            assert!(stdout.contains(part), "{part:?} is not in\n{stdout}");
        }
    }
}

const LAYER: &str = "language_model.model.layers.";

/// The checks of a sound checkpoint pass and look at something; two readers agree.
#[test]
fn a_sound_checkpoint_has_no_damage() {
    let model = Model::new();
    let command = ["check", arg(&model.path), "--cross-read", "--format", "json"];
    let report = expect(&command, 0).json();
    let verdict = |id: &str| {
        let checks = report["checks"].as_array().unwrap();
        checks.iter().find(|row| row["id"] == id).unwrap()["verdict"].clone()
    };
    for id in ["files", "index", "bind", "cross-read", "values"] {
        assert_eq!(verdict(id), "PASS", "{id}");
    }
    assert_eq!(verdict("sizes"), "NOT APPLICABLE");
    assert_eq!(verdict("sha256"), "NOT SELECTED");
}

/// C02: a pointer text, a web page and an unfinished download under a shard's name or next to it.
#[test]
fn c02_files_that_are_something_else_are_named_as_such() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n";
    for (content, says) in [
        (&pointer[..], "Git LFS pointer"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "a web page"),
    ] {
        let model = Model::new();
        std::fs::write(model.shard(2), content).unwrap();
        model.damaged(&["model-00002-of-000005.safetensors", says]);
    }
    let model = Model::new();
    std::fs::write(model.path.join("model-00009.safetensors.incomplete"), b"x").unwrap();
    model.damaged(&["model-00009.safetensors.incomplete", "an unfinished download"]);
    let model = Model::new();
    std::fs::write(model.path.join("tokenizer_config.json"), pointer).unwrap();
    model.damaged(&["tokenizer_config.json", "Git LFS pointer"]);
}

/// C09: cut one byte short, half-way, right after the header; every damaged file is named.
#[test]
fn c09_shards_cut_short_are_each_named() {
    let model = Model::new();
    for (number, keep) in [(2, -1_i64), (3, -2)] {
        let file = std::fs::OpenOptions::new().write(true).open(model.shard(number)).unwrap();
        let length = file.metadata().unwrap().len();
        let keep = if keep == -1 { length - 1 } else { length / 2 };
        file.set_len(keep).unwrap();
    }
    model.damaged(&["model-00002-of-000005", "model-00003-of-000005", "2 wrong"]);
}

/// C10: an absent shard alone is no damage, but not the whole either.
#[test]
fn c10_an_absent_shard_is_incomplete_and_inspect_says_what_lacks() {
    let model = Model::new();
    std::fs::remove_file(model.shard(3)).unwrap();
    let stdout = expect(&["check", arg(&model.path), "--cross-read"], 4).stdout;
    assert!(stdout.contains("model-00003-of-000005.safetensors"), "{stdout}");
    assert!(stdout.contains("layer 2: ") && stdout.contains("INCOMPLETE"), "{stdout}");
    let stdout = expect(&["inspect", arg(&model.path)], 0).stdout;
    assert!(stdout.contains("layers complete: 3 of 4"), "{stdout}");
    assert!(stdout.contains("1 missing shards: model-00003-of-000005"), "{stdout}");
}

/// C11: a tensor that no header declares any more.
#[test]
fn c11_an_index_that_names_what_no_header_has_is_damage() {
    let model = Model::new();
    let path = model.path.join("model.safetensors.index.json");
    let index = std::fs::read_to_string(&path).unwrap();
    let name = format!("\"{LAYER}1.input_layernorm.weight\"");
    assert!(index.contains(&name));
    std::fs::write(&path, index.replace(&name, "\"nobody.knows\"")).unwrap();
    model.damaged(&["FAIL", "index", "input_layernorm.weight"]);
}

#[test]
fn damaged_values_are_located() {
    let model = Model::new();
    let scale = format!("{LAYER}2.block_sparse_moe.experts.1.w2.weight_scale");
    let groups = Checkpoint::open(&model.path).unwrap().tensor(&scale).unwrap().shape[1] as u64;
    model.poke(&scale, 3 * groups + 1, &[255]);
    model.damaged(&["layer 2, expert 1, w2, row 3, group 1: scale byte 255"]);

    let model = Model::new();
    let nan = 0x7fc0_u16.to_le_bytes();
    model.poke(&format!("{LAYER}1.input_layernorm.weight"), 10, &nan);
    model.poke("language_model.model.norm.weight", 0, &0xff80_u16.to_le_bytes());
    model.damaged(&["layers.1.input_layernorm.weight: index [5]", "NaN", "index [0]", "-inf"]);

    let model = Model::new();
    let codes = format!("{LAYER}3.block_sparse_moe.experts.0.w1.weight_packed");
    let checkpoint = Checkpoint::open(&model.path).unwrap();
    let bytes = checkpoint.tensor(&codes).unwrap().byte_len as usize;
    // Minus zero is zero too.
    model.poke(&codes, 0, &vec![0x88; bytes]);
    model.damaged(&["layer 3, expert 0, w1, every code is zero"]);
    let stdout = expect(&["inspect", arg(&model.path), "--tensor", &codes], 0).stdout;
    assert!(stdout.contains("ALL ZERO"), "{stdout}");

    let model = Model::new();
    let a_log = format!("{LAYER}0.self_attn.A_log");
    let checkpoint = Checkpoint::open(&model.path).unwrap();
    let last = checkpoint.tensor(&a_log).unwrap().byte_len - 4;
    model.poke(&a_log, last, &1.0_f32.to_le_bytes());
    model.damaged(&["A_log[", "is padding", "got 1"]);
}

#[test]
fn whole_files_are_held_against_a_list_of_digests() {
    use sha2::{Digest as _, Sha256};
    let model = Model::new();
    let digest = |path: &Path| {
        let digest = Sha256::digest(std::fs::read(path).unwrap());
        digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let list = model.path.join("list.txt");
    let line = |digest: &str| format!("{digest}  model-00001-of-000005.safetensors\n");
    let right = digest(&model.shard(1));
    let arguments = ["check", arg(&model.path), "--headers-only", "--sha256", arg(&list)];
    for (content, code) in [
        (line(&right), 0),
        (line(&"0".repeat(64)), 1),
        (format!("{right}  gone.safetensors\n"), 4),
        (format!("{right}  ../model/config.json\n"), 3),
        ("no digest\n".to_owned(), 3),
        (String::new(), 3),
    ] {
        std::fs::write(&list, &content).unwrap();
        expect(&arguments, code);
    }
}

#[test]
fn bad_folders_and_patterns_have_their_codes() {
    let model = Model::new();
    for command in ["inspect", "check"] {
        expect(&[command], 2);
        expect(&[command, "/nonexistent/model"], 3);
        expect(&[command, arg(&model.shard(1))], 3);
    }
    expect(&["inspect", arg(&model.path), "--tensor", "no.such.tensor*"], 4);
    std::fs::remove_file(model.path.join("config.json")).unwrap();
    for command in ["inspect", "check"] {
        let error = expect(&[command, arg(&model.path)], 3).stderr;
        assert!(error.starts_with("error: ") && error.contains("config.json"), "{error}");
    }
}

/// A09, A16, C17 on the replica of the release: counts, expert bytes, layers not counted twice.
#[test]
fn the_replica_of_the_release_is_counted_right() {
    let (_folder, model) = scratch("replica");
    expect(&["synth", arg(&model), "--sparse"], 0);
    let stdout = expect(&["inspect", arg(&model)], 0).stdout;
    for part in [
        "69 KDA + 24 MLA = 93 layers; dense MLP in 1 of them",
        "896 routed experts, 16 of a token, 2 shared; 92 MoE layers x 896",
        "one routed expert: 17547264 bytes, 33.03 million parameters",
        "497220 tensors, 1560860324864 bytes",
    ] {
        assert!(stdout.contains(part), "{part}\n{stdout}");
    }
    let stdout = expect(&["check", arg(&model), "--headers-only"], 0).stdout;
    assert!(stdout.contains("96 published sizes"), "{stdout}");
    let json = ["plan", "0..92", "--parts", "16", "--model", arg(&model), "--format", "json"];
    let ours = expect(&json, 0).json();
    let parts = ours["parts"].as_array().unwrap();
    assert_eq!(parts.len(), 16);
    let layers: Vec<u64> = parts
        .iter()
        .flat_map(|part| part["layers"].as_array().unwrap())
        .map(|layer| layer.as_u64().unwrap())
        .collect();
    assert_eq!(layers, (0..93).collect::<Vec<u64>>());
    // The release planned without a folder is the same plan.
    let without = ["plan", "0..92", "--parts", "16", "--format", "json"];
    let released = expect(&without, 0).json();
    assert_eq!(released["parts"], ours["parts"]);
    // Two shards wrong in opposite directions keep the sum.
    for (number, change) in [(2_usize, 1_i64), (3, -1)] {
        let path = model.join(format!("model-{number:05}-of-000096.safetensors"));
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        let length = file.metadata().unwrap().len() as i64;
        file.set_len((length + change) as u64).unwrap();
    }
    let stdout = expect(&["check", arg(&model), "--headers-only"], 1).stdout;
    assert!(stdout.contains("model-00002-of-000096") && stdout.contains("model-00003-of-000096"));
}

#[test]
fn plans_refuse_what_they_cannot_split_and_emit_scripts() {
    for arguments in [
        &["plan"][..],
        &["plan", "0..93"],
        &["plan", "5..3"],
        &["plan", "0..3", "--parts", "5"],
        &["plan", "0..3", "--parts", "0"],
    ] {
        expect(arguments, 2);
    }
    let urls = expect(&["plan", "0..3", "--emit", "urls", "--base-url", "http://h/x/"], 0).stdout;
    let urls: Vec<&str> = urls.lines().collect();
    assert_eq!(urls.len(), 6);
    assert_eq!(urls[0], "http://h/x/config.json");
    assert_eq!(urls[5], "http://h/x/model-00004-of-000096.safetensors");
    let script = expect(&["plan", "0..92", "--parts", "4", "--emit", "script"], 0).stdout;
    assert!(script.contains("#SBATCH --array=1-4"), "{script}");
    let mut child =
        Command::new("bash").arg("-n").stdin(std::process::Stdio::piped()).spawn().unwrap();
    use std::io::Write as _;
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "bash does not take the script");
}
