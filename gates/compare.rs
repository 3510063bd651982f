//! `logits`, `compare` and `dump` from outside: what must never exit 0, and what must be named.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::support::{arg, expect, fixture};

const IDS: &str = "10,20,30,40";

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn written(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// Every one of these pairs has a difference of zero or nothing to subtract, and a tolerance that
/// allows anything: a comparator that only looks at the difference would pass them.
#[test]
fn logit_files_that_prove_nothing_never_exit_0() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| written(folder.path(), name, bytes);
    let right = file("right.bin", &bytes_of(&[1.0, 2.0, 3.0, 4.0]));
    let nan = file("nan.bin", &bytes_of(&[1.0, f32::NAN, 3.0, 4.0]));
    let infinite = file("inf.bin", &bytes_of(&[1.0, f32::INFINITY, 3.0, 4.0]));
    let zeros = file("zeros.bin", &bytes_of(&[0.0; 4]));
    let short = file("short.bin", &bytes_of(&[1.0, 2.0, 3.0]));
    let odd = file("odd.bin", &bytes_of(&[1.0, 2.0, 3.0, 4.0])[..15]);
    let empty = file("empty.bin", b"");
    let text = file("text.json", b"{\"logits_bits\": [1, 2, 3, ");
    let missing = folder.path().join("missing.bin");
    for (a, b, code) in [
        (&nan, &right, 1),
        (&right, &nan, 1),
        (&nan, &nan, 1),
        (&infinite, &infinite, 1),
        (&zeros, &zeros, 1),
        (&zeros, &right, 1),
        (&right, &zeros, 1),
        (&short, &right, 1),
        (&right, &short, 1),
        (&odd, &odd, 3),
        (&right, &odd, 3),
        (&empty, &empty, 3),
        (&empty, &right, 3),
        (&text, &right, 3),
        (&missing, &right, 3),
        (&right, &missing, 3),
    ] {
        expect(&["logits", arg(a), arg(b), "--budget", "1e30"], code);
        expect(&["logits", arg(a), arg(b)], code);
    }
    expect(&["logits", arg(&right), arg(&right)], 0);
}

/// Without a word on how far apart two files may be, only equal bits pass.
#[test]
fn a_tolerance_is_never_assumed_in_silence() {
    let folder = tempfile::tempdir().unwrap();
    let a = written(folder.path(), "a.bin", &bytes_of(&[1.0, 2.0, 3.0]));
    let b = written(folder.path(), "b.bin", &bytes_of(&[1.0, 2.0, 3.25]));
    let report = expect(&["logits", arg(&a), arg(&b)], 1).stdout;
    assert!(report.contains("equal bits"), "{report}");
    expect(&["logits", arg(&a), arg(&b), "--budget", "0.2"], 1);
    let report = expect(&["logits", arg(&a), arg(&b), "--budget", "0.25"], 0).stdout;
    assert!(report.contains("ASSUMED"), "{report}");
    for wrong in ["nan", "-1", "inf", "x"] {
        expect(&["logits", arg(&a), arg(&b), "--budget", wrong], 2);
    }
    expect(&["logits", arg(&a), arg(&b), "--precision", "f8"], 2);
    expect(&["logits", arg(&a), arg(&b), "--precision", "f32", "--budget", "1"], 2);
}

/// Dumps of the tiny oracle: the engine's, the reference's, and part of the engine's.
struct Dumps {
    folder: tempfile::TempDir,
    engine: PathBuf,
    reference: PathBuf,
}

fn dumps() -> Dumps {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("tiny/model");
    let dump = |by: &str| {
        let out = folder.path().join(by);
        let text = expect(&["dump", arg(&model), "--ids", IDS, "--by", by, arg(&out)], 0).stdout;
        let has_last = text.lines().any(|line| line.trim_start().starts_with("12  "));
        assert!(has_last && text.contains("max |h|"), "{text}");
        out
    };
    let (engine, reference) = (dump("engine"), dump("reference"));
    Dumps { folder, engine, reference }
}

/// Where the data of a tensor begin in a safetensors file.
fn start_of(bytes: &[u8], name: &str) -> usize {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    8 + length + header[name]["data_offsets"][0].as_u64().unwrap() as usize
}

/// Changes one f32 of a tensor [4, 128, …] at row 2, column 5.
fn plant(dump: &Path, name: &str, width: usize, out: &Path) {
    let mut bytes = fs::read(dump).unwrap();
    let at = start_of(&bytes, name) + 4 * (2 * width + 5);
    let value = f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    bytes[at..at + 4].copy_from_slice(&(value + 0.01).to_le_bytes());
    fs::write(out, bytes).unwrap();
}

#[test]
fn one_planted_change_is_named_with_its_index() {
    let dumps = dumps();
    let (engine, reference) = (arg(&dumps.engine), arg(&dumps.reference));
    let report = expect(&["compare", engine, reference], 0).stdout;
    assert!(report.contains("no divergence in 264 tensors"), "{report}");
    assert!(report.contains("measured when the exact side was made"), "{report}");
    let planted = dumps.folder.path().join("planted");
    plant(&dumps.engine, "layers.5.mlp_norm", 128, &planted);
    let report = expect(&["compare", arg(&planted), reference], 1).stdout;
    assert!(report.contains("first divergence: layers.5.mlp_norm at [2, 5]"), "{report}");
    assert!(report.contains("1 of 264 differ"), "{report}");
    let report = expect(&["compare", engine, arg(&planted)], 1).stdout;
    assert!(report.contains("first divergence: layers.5.mlp_norm at [2, 5]"), "{report}");
    // Three ways: the side that is off is named.
    let report = expect(&["compare", engine, arg(&planted), "--f64", reference], 1).stdout;
    assert!(report.contains("B diverges from C, first at layers.5.mlp_norm"), "{report}");
    expect(&["compare", engine, reference, "--f64", engine], 3);
}

#[test]
fn what_a_partial_dump_lacks_is_not_run() {
    let dumps = dumps();
    let partial = dumps.folder.path().join("partial");
    let model = fixture("tiny/model");
    let arguments = ["dump", arg(&model), "--ids", IDS, arg(&partial), "--stages", "layers.3.*"];
    expect(&arguments, 0);
    let report = expect(&["compare", arg(&partial), arg(&dumps.reference)], 4).stdout;
    assert!(report.contains("NOT RUN") && report.contains("embed"), "{report}");
    let narrowed = ["compare", arg(&partial), arg(&dumps.reference), "--stages", "layers.3.*"];
    expect(&narrowed, 0);
    let nothing = ["compare", arg(&partial), arg(&dumps.reference), "--stages", "no.such"];
    expect(&nothing, 4);
    let other = dumps.folder.path().join("other");
    expect(&["dump", arg(&model), "--ids", "10,20,30,41", arg(&other)], 0);
    let error = expect(&["compare", arg(&other), arg(&dumps.reference)], 1).stderr;
    assert!(error.contains("different ids"), "{error}");
}

/// Wrong arguments are found before any work, and nothing is left half-written.
#[test]
fn dump_refuses_wrong_ids_places_and_patterns() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("tiny/model");
    let out = folder.path().join("out");
    for ids in ["abc", "1,,2", "1,2,", "-1", "256", "4294967296", "0x10", "+1", "1.0", ""] {
        expect(&["dump", arg(&model), &format!("--ids={ids}"), arg(&out)], 2);
    }
    expect(&["dump", "--ids", IDS, arg(&out)], 2);
    expect(&["dump", arg(&model), "--model", arg(&model), "--ids", IDS, arg(&out)], 2);
    expect(&["dump", arg(&model), "--ids", IDS, "/nonexistent/x"], 3);
    expect(&["dump", arg(&folder.path().join("no")), "--ids", IDS, arg(&out)], 3);
    expect(&["dump", arg(&model), "--ids", IDS, arg(&out), "--stages", "foo"], 4);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Damage to a set is the set's: it is named, and no engine is judged.
#[test]
fn a_damaged_evidence_set_accuses_no_engine() {
    use std::os::unix::fs::FileExt as _;
    type Damage<'a> = (&'a str, &'a str, &'a dyn Fn(&Path));
    let folder = tempfile::tempdir().unwrap();
    let sets = folder.path().join("sets");
    expect(&["export", "--sets", arg(&sets)], 0);
    let set = sets.join("mild");
    let shard = "model/model-00002-of-000003.safetensors";
    let states = "does not have the sha256 that expected.json states";
    let damages: [Damage<'_>; 9] = [
        (shard, "00002", &|path| fs::remove_file(path).unwrap()),
        (shard, "00002", &|path| {
            fs::File::options().write(true).open(path).unwrap().set_len(9000).unwrap();
        }),
        (shard, states, &|path| {
            let file = fs::File::options().read(true).write(true).open(path).unwrap();
            let (at, mut byte) = (file.metadata().unwrap().len() - 1, [0]);
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 1], at).unwrap();
        }),
        (shard, "not a regular file", &fifo),
        ("model/config.json", "not a regular file", &fifo),
        ("expected.json", "not a regular file", &fifo),
        ("expected.safetensors", "not a regular file", &fifo),
        ("expected.safetensors", "bytes, got 1099511627776", &|path| {
            fs::File::options().write(true).open(path).unwrap().set_len(1 << 40).unwrap();
        }),
        ("expected.safetensors", states, &|path| {
            let mut bytes = fs::read(path).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(path, bytes).unwrap();
        }),
    ];
    let gates = ["gates", "--evidence", arg(&set), "--only", "bind"];
    for (file, says, damage) in damages {
        let (path, kept) = (set.join(file), folder.path().join("kept"));
        fs::copy(&path, &kept).unwrap();
        damage(&path);
        let error = expect(&gates, 3).stderr;
        assert!(error.contains(says), "{file}: {error}");
        let _ = fs::remove_file(&path);
        fs::copy(&kept, &path).unwrap();
    }
    let report = expect(&gates, 0).stdout;
    assert!(!report.contains("whose sha256"), "{report}");
}

/// What a cut model has no layer for is not asked of it.
#[test]
fn a_model_of_one_dense_layer_conforms_to_its_own_evidence() {
    let folder = tempfile::tempdir().unwrap();
    let (model, set) = (folder.path().join("model"), folder.path().join("set"));
    expect(&["synth", arg(&model), "--shape", "tiny", "--layers", "1"], 0);
    expect(&["evidence", arg(&model), "--ids", "1,2,3", "--gen", "2", arg(&set)], 0);
    let report = expect(&["gates", "--evidence", arg(&set), "--only", "refuse-*"], 0).stdout;
    assert!(report.contains("the model has no MoE layer"), "{report}");
}

/// What nobody asked for is left; a name that is there twice, and a dtype that is not what the
/// name says, are damage of the set.
#[test]
fn the_tensors_of_a_set_are_what_their_names_say() {
    let folder = tempfile::tempdir().unwrap();
    let sets = folder.path().join("sets");
    expect(&["export", "--sets", arg(&sets)], 0);
    let set = sets.join("mild");
    let (answers, json) = (set.join("expected.safetensors"), set.join("expected.json"));
    // Without digests: here the content decides.
    let text = fs::read_to_string(&json).unwrap();
    let text = text.split_once(" \"sha256\"").unwrap().0.trim_end().trim_end_matches(',');
    fs::write(&json, format!("{text}}}")).unwrap();
    let bytes = fs::read(&answers).unwrap();
    let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let header = std::str::from_utf8(&bytes[8..8 + length]).unwrap().trim_end();
    let end = bytes.len() - 8 - length;
    let extra = format!(
        r#","attention_mask":{{"dtype":"BOOL","shape":[8],"data_offsets":[{end},{}]}}}}"#,
        end + 8
    );
    let with_mask = header.strip_suffix('}').unwrap().to_owned() + &extra;
    let halves = |text: &str| {
        // As many bytes in twice as many values.
        text.replacen(r#""dtype":"F64","shape":["#, r#""dtype":"F32","shape":[2,"#, 1)
    };
    let twice = header.strip_suffix('}').unwrap().to_owned();
    let first = header[1..].split_once("},").unwrap().0;
    for (header, tail, code, says) in [
        (with_mask, &[1_u8; 8][..], 0, "attention_mask"),
        (halves(header), &[], 3, "logits.f64"),
        (format!("{twice},{first}}}}}"), &[], 3, "is there twice"),
    ] {
        let padded = format!("{header:<width$}", width = header.len().next_multiple_of(8));
        let length = (padded.len() as u64).to_le_bytes();
        let payload = &bytes[bytes.len() - end..];
        fs::write(&answers, [&length, padded.as_bytes(), payload, tail].concat()).unwrap();
        let ran = expect(&["gates", "--evidence", arg(&set), "--only", "bind"], code);
        let (said, all) = (format!("{}{}", ran.stdout, ran.stderr), &ran);
        assert!(said.contains(says), "{says}: {all:?}");
    }
}

fn fifo(path: &Path) {
    fs::remove_file(path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// A set made for any checkpoint serves the ladder, and what is written out serves as fixtures.
#[test]
fn evidence_and_export_serve_the_ladder() {
    let folder = tempfile::tempdir().unwrap();
    let (out, set) = (folder.path().join("out"), folder.path().join("set"));
    expect(&["export", arg(&out)], 0);
    let gates = ["gates", "--fixtures", arg(&out), "--only", "fixtures"];
    let report = expect(&gates, 0).stdout;
    assert!(report.contains("PASS"), "{report}");
    expect(&["export", arg(&out)], 2);
    let model = out.join("tiny/model");
    let arguments = ["evidence", arg(&model), "--ids", "5,9,11,200,3", "--gen", "6", arg(&set)];
    let report = expect(&arguments, 0).stdout;
    assert!(report.contains("greedy ids: "), "{report}");
    let gates = ["gates", "--evidence", arg(&set), "--only", "set/*@engine"];
    let report = expect(&gates, 0).stdout;
    assert!(report.contains("set/stages") && !report.contains("FAIL"), "{report}");
    let wrong = ["gates", "--evidence", arg(&set), "--only", "greedy", "--mla-norm-eps", "1e-5"];
    expect(&wrong, 1);
    expect(&arguments, 2);
    for count in ["0", "-1", "65537"] {
        let fresh = folder.path().join("fresh");
        let ids = ["--ids", "5", "--gen", count];
        expect(&[&["evidence", arg(&model), arg(&fresh)], &ids[..]].concat(), 2);
    }
}

/// Two dumps say what they were made from in any of the spellings that `logits` knows, as a tensor
/// of any number type or as text of the header; other ids are refused, and ids are no values.
#[test]
fn dumps_of_other_ids_are_refused_in_every_spelling() {
    let folder = tempfile::tempdir().unwrap();
    let values = bytes_of(&[1.0, 2.0]);
    fn view(dtype: Dtype, bytes: &[u8]) -> TensorView<'_> {
        TensorView::new(dtype, vec![2], bytes).unwrap()
    }
    let tensor = |name: &str, dtype: Dtype, ids: &[u8]| {
        let tensors = [("embed", view(Dtype::F32, &values)), (name, view(dtype, ids))];
        written(folder.path(), "tensor", &safetensors::serialize(tensors, None).unwrap())
    };
    let text = |name: &str, ids: &str| {
        let header = [(name.to_owned(), ids.to_owned())].into_iter().collect();
        let tensors = [("embed", view(Dtype::F32, &values))];
        written(folder.path(), "text", &safetensors::serialize(tensors, Some(header)).unwrap())
    };
    let int64 = |ids: [i64; 2]| ids.map(i64::to_le_bytes).concat();
    let right = tensor("prompt_ids", Dtype::I64, &int64([7, 8]));
    let right = fs::copy(right, folder.path().join("right")).map(|_| folder.path().join("right"));
    let right = right.unwrap();
    for name in ["ids", "prompt_ids", "input_ids", "prompt_token_ids", "tokens", "input_tokens"] {
        for (id, code) in [(8_u8, 0), (9, 1)] {
            let real = bytes_of(&[7.0, f32::from(id)]);
            for dump in [
                tensor(name, Dtype::I64, &int64([7, id.into()])),
                text(name, &format!("7,{id}")),
                text(name, &format!("[7, {id}]")),
                tensor(name, Dtype::F32, &real),
            ] {
                let said = expect(&["compare", arg(&dump), arg(&right)], code).stderr;
                assert!(code == 0 || said.contains("different ids: 7,9"), "{name}: {said}");
            }
        }
    }
}
