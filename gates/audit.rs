//! `inspect`, `check` and `plan RANGE` from outside: what they say of a whole checkpoint, of every
//! kind of damage, and of the replica of the release.

use std::path::{Path, PathBuf};
use std::process::Command;

use k3_checkpoint::Checkpoint;

use super::support::{arg, binary, expect, overwrite, scratch};

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

fn sha256(path: &Path) -> String {
    use sha2::Digest as _;
    k3_core::hex(sha2::Sha256::digest(std::fs::read(path).unwrap()))
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
    let model = Model::new();
    let list = model.path.join("list.txt");
    let line = |digest: &str| format!("{digest}  model-00001-of-000005.safetensors\n");
    let right = sha256(&model.shard(1));
    let arguments = ["check", arg(&model.path), "--headers-only", "--sha256", arg(&list)];
    for (content, code) in [
        (line(&right), 0),
        (line(&"0".repeat(64)), 1),
        (format!("{right}  gone.safetensors\n"), 4),
        // Item 12: lists are made in other places and with other tools.
        (format!("\u{feff}{right}  ./model-00001-of-000005.safetensors\r\n"), 0),
        (format!("{} */far/away/model-00001-of-000005.safetensors\n", right.to_uppercase()), 0),
        (format!("SHA256 (model-00001-of-000005.safetensors) = {right}\n"), 0),
        (format!("SHA2-256(/far/model-00001-of-000005.safetensors)= {right}\n"), 0),
        (format!("SHA256 (./model-00001-of-000005.safetensors) = {}\n", "0".repeat(64)), 1),
        (format!("SHA256 (gone.safetensors) = {right}\n"), 4),
        (line(&right) + &line(&"0".repeat(64)), 3),
        (format!("MD5 (model-00001-of-000005.safetensors) = {right}\n"), 3),
        (format!("{right}  folder/\n"), 3),
        ("no digest\n".to_owned(), 3),
        (String::new(), 3),
    ] {
        std::fs::write(&list, &content).unwrap();
        expect(&arguments, code);
    }
}

/// Item 7: whatever multiplies and is all zero, of every dtype and class; what is added may be
/// zero.
#[test]
fn item_7_tensors_of_zeros_are_damage_where_they_multiply() {
    let model = Model::new();
    let checkpoint = Checkpoint::open(&model.path).unwrap();
    let zero = |name: &str, byte: u8| {
        let bytes = checkpoint.tensor(name).unwrap().byte_len;
        model.poke(name, 0, &vec![byte; bytes as usize]);
    };
    let layer = |rest: &str| format!("{LAYER}{rest}");
    let added = [
        layer("0.self_attn.dt_bias"),
        layer("2.block_sparse_moe.gate.e_score_correction_bias"),
        layer("1.self_attn.A_log"),
    ];
    added.iter().for_each(|name| zero(name, 0));
    let stdout = expect(&["check", arg(&model.path)], 0).stdout;
    assert!(stdout.contains("3 tensors that are added, not multiplied by, are all zero"));
    let damaged = [
        "language_model.lm_head.weight".to_owned(),
        "language_model.model.norm.weight".to_owned(),
        "language_model.model.output_attn_res_proj.weight".to_owned(),
        layer("0.mlp.up_proj.weight"),
        layer("0.self_attn.q_proj.weight"),
        layer("0.self_attn.k_conv1d.weight"),
        layer("1.self_attn.o_norm.weight"),
        layer("1.mlp_res_norm.weight"),
        layer("1.block_sparse_moe.gate.weight"),
        layer("2.block_sparse_moe.shared_experts.down_proj.weight"),
        layer("2.block_sparse_moe.experts.3.w2.weight_scale"),
        layer("2.block_sparse_moe.routed_expert_up_proj.weight"),
        layer("3.self_attn.kv_b_proj.weight"),
        layer("3.self_attn.q_a_layernorm.weight"),
        layer("3.block_sparse_moe.experts.0.w3.weight_packed"),
    ];
    damaged.iter().for_each(|name| zero(name, 0));
    model.damaged(&damaged.each_ref().map(|name| name.as_str()));
    model.damaged(&[&format!(", {} wrong", damaged.len())]);
}

/// Item 7: a page of zeros at any offset, also where two tensors meet, with its range.
#[test]
fn item_7_a_hole_of_zeros_is_damage_and_its_range_is_told() {
    for (name, at) in [
        ("language_model.model.embed_tokens.weight", 4096),
        ("language_model.lm_head.weight", 1234),
        (&*format!("{LAYER}0.self_attn.o_proj.weight"), 0),
        (&*format!("{LAYER}3.block_sparse_moe.routed_expert_down_proj.weight"), 6),
    ] {
        let model = Model::new();
        model.poke(name, at, &[0; 4096]);
        let range = format!("{name}: a hole of 4096 zero bytes");
        model.damaged(&[&range, &format!("bytes {at}..{} of the tensor", at + 4096)]);
    }
    let model = Model::new();
    let checkpoint = Checkpoint::open(&model.path).unwrap();
    let tensors: Vec<_> = checkpoint.tensors().collect();
    let both = |pair: &&[k3_checkpoint::TensorInfo<'_>]| {
        pair[0].shard == pair[1].shard && pair.iter().all(|info| info.byte_len > 4096)
    };
    let [first, second] = tensors.windows(2).find(both).unwrap() else { unreachable!() };
    let at = first.byte_len - 2048;
    model.poke(first.name, at, &[0; 2048]);
    model.poke(second.name, 0, &[0; 2048]);
    let start = first.offset + at;
    let range = format!("bytes {start}..{} of the file, from its byte {at}", start + 4096);
    model.damaged(&[first.name, &range, &format!("to byte 2048 of {}", second.name)]);
}

/// Item 7: a snapshot of the Hugging Face cache names its blobs by their SHA-256.
#[test]
fn item_7_a_blob_has_the_digest_in_its_name() {
    let model = Model::new();
    std::fs::create_dir(model.path.join("../blobs")).unwrap();
    for number in [1, 2] {
        let blob = format!("../blobs/{}", sha256(&model.shard(number)));
        std::fs::rename(model.shard(number), model.path.join(&blob)).unwrap();
        std::os::unix::fs::symlink(blob, model.shard(number)).unwrap();
    }
    let stdout = expect(&["check", arg(&model.path)], 0).stdout;
    assert!(stdout.contains("2 files hashed"), "{stdout}");
    model.poke(&format!("{LAYER}1.self_attn.k_proj.weight"), 320, &[1; 64]);
    model.damaged(&["model-00002-of-000005.safetensors: expected SHA-256 ", "1 wrong"]);
}

/// Item 21: a bad value is told with the file it is in, by engine and reference, resident and
/// streamed.
#[test]
fn item_21_bad_values_are_told_with_their_file() {
    let scales = (".layers.2.", ".w2.weight_scale", 3, &[255][..], 3);
    let padding = (".layers.1.", ".A_log", 60, &1.0_f32.to_le_bytes()[..], 2);
    for (layer, end, at, bytes, shard) in [scales, padding] {
        let model = Model::new();
        let checkpoint = Checkpoint::open(&model.path).unwrap();
        let is_meant = |name: &&str| name.contains(layer) && name.ends_with(end);
        let names = checkpoint.tensors().map(|info| info.name).filter(is_meant);
        names.for_each(|name| model.poke(name, at, bytes));
        let file = format!("model-{shard:05}-of-000005.safetensors: ");
        let (folder, out) = (arg(&model.path), model.path.join("../dump.safetensors"));
        let ids = "1,2,3,4,5,6,7,8";
        for command in [
            &["generate", "--model", folder, "--ids", ids, "--gen", "1"][..],
            &["dump", folder, "--ids", ids, arg(&out)],
            &["dump", folder, "--ids", ids, arg(&out), "--by", "reference", "--no-noise-floor"],
        ] {
            let error = expect(command, 3).stderr;
            assert!(error.contains(&file), "{command:?}: {error}");
        }
    }
}

/// Item 21: a dump has as many tensors by the command that wrote it as by the one that reads it.
#[test]
fn item_21_one_way_of_counting_tensors() {
    let model = Model::new();
    let out = model.path.join("../dump.safetensors");
    let count = |text: &str| -> u64 {
        let (before, _) = text.split_once(" tensors,").unwrap();
        before.rsplit([' ', '\n']).next().unwrap().parse().unwrap()
    };
    let written = expect(&["dump", arg(&model.path), "--ids", "1,2,3", arg(&out)], 0).stdout;
    let compared = expect(&["compare", arg(&out), arg(&out), "--precision", "f32"], 0).stdout;
    assert_eq!(count(&written), count(&compared), "{written}\n{compared}");
}

/// Item 21: what cannot be read is neither damaged nor sound.
#[test]
fn item_21_a_file_that_cannot_be_read_was_not_checked() {
    for is_index in [false, true] {
        let model = Model::new();
        let path = match is_index {
            true => model.path.join("model.safetensors.index.json"),
            false => model.shard(2),
        };
        for make in [
            &(|| std::fs::create_dir(&path).unwrap()) as &dyn Fn(),
            &|| std::os::unix::fs::symlink("nowhere", &path).unwrap(),
            &|| assert!(Command::new("mkfifo").arg(&path).status().unwrap().success()),
        ] {
            let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path));
            make();
            // Unlike other refusals this one comes with the report: the rest was checked.
            let output = binary().args(["check", arg(&model.path)]).output().unwrap();
            assert_eq!(output.status.code(), Some(3));
            let [said, error] =
                [output.stdout, output.stderr].map(|b| String::from_utf8(b).unwrap());
            assert!(!said.contains("DAMAGED"), "{said}");
            assert!(error.starts_with("error: ") && error.contains(arg(&path)), "{error}");
            assert!(said.contains("NOT CHECKED"), "{said}");
        }
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
