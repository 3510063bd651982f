//! `logits` on other people's files: what is read, what is refused by name, what never passes.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::support::{arg, command_on, expect, expect_of, tiny};

fn written(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// Bell-shaped values between about ±4, the same for the same seed.
fn logits(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..count).map(|_| (0..6).map(|_| uniform()).sum::<f32>() * 3.0 - 9.0).collect()
}

fn raw(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn npy(descr: &str, order: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n");
    let length = u16::try_from(header.len()).unwrap().to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), data].concat()
}

fn json(rows: &[&[f32]], rest: &str) -> String {
    format!("{{\"logits\": {rows:?}{rest}}}")
}

#[test]
fn content_of_a_known_form_is_never_read_as_raw_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let values = logits(1, 768);
    let half: Vec<u8> = values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect();
    let brain: Vec<u8> =
        values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
    let double: Vec<u8> = values.iter().flat_map(|v| f64::from(*v).to_le_bytes()).collect();
    let swapped: Vec<u8> = values.iter().flat_map(|v| v.to_be_bytes()).collect();
    let csv: String = values.iter().map(|v| format!("{v},{v}\n")).collect();
    for (name, bytes, says) in [
        ("half.bin", half, "16-bit or 64-bit"),
        ("brain.bin", brain, "BF16"),
        ("double.bin", double, "16-bit or 64-bit"),
        ("swapped.bin", swapped, "byte order"),
        ("model.gguf", [b"GGUF\x03\0\0\0", &raw(&values)[..]].concat(), "GGUF"),
        ("a.csv", csv.clone().into_bytes(), "CSV"),
        ("a.txt", csv.replace(',', " ").into_bytes(), "text"),
        ("a.gz", [b"\x1f\x8b\x08\0", &raw(&values)[..]].concat(), "gzip"),
        ("a.pt", [b"\x80\x02\x8a\x0a", &raw(&values)[..]].concat(), "pickle"),
        ("a.html", b"<!DOCTYPE html><html>not found</html>...".to_vec(), "HTML"),
    ] {
        let path = written(folder.path(), name, &bytes);
        let options = ["logits", arg(&path), arg(&path), "--vocabulary", "256"];
        for more in [&[][..], &["--precision", "f32"], &["--budget", "1e30"]] {
            let said = expect(&[&options[..], more].concat(), 3).stderr;
            assert!(said.contains(name) && said.contains(says), "{said}");
        }
    }
}

/// Two NumPy files that differ at one logit, 50 against 1.34, are read as what they are.
#[test]
fn numpy_arrays_are_read_or_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| written(folder.path(), name, bytes);
    let right = logits(2, 768);
    let mut wrong = right.clone();
    wrong[300] = 50.0;
    let a = file("a.npy", &npy("<f4", "False", "(3, 256)", &raw(&right)));
    let c = file("c.npy", &npy("<f4", "False", "(3, 256)", &raw(&wrong)));
    expect(&["logits", arg(&a), arg(&a)], 0);
    let report = expect(&["logits", arg(&c), arg(&a), "--precision", "f32"], 1).stdout;
    assert!(report.contains("row 1, id 44"), "{report}");
    let widened: Vec<u8> = right.iter().flat_map(|v| f64::from(*v).to_le_bytes()).collect();
    let double = file("d.npy", &npy("<f8", "False", "(1, 3, 256)", &widened));
    expect(&["logits", arg(&a), arg(&double)], 0);
    let single = file("s.bin", &raw(&right));
    expect(&["logits", arg(&single), arg(&a)], 0);
    for (descr, order, says) in [
        ("<f4", "True", "Fortran order"),
        (">f4", "False", "big-endian"),
        ("|O", "False", "pickled"),
    ] {
        let path = file("x.npy", &npy(descr, order, "(3, 256)", &raw(&right)));
        let said = expect(&["logits", arg(&path), arg(&a)], 3).stderr;
        assert!(said.contains(says), "{said}");
    }
}

/// Four rows in one file without a word on their length are not one row.
#[test]
fn a_raw_length_that_fits_several_vocabularies_needs_one_stated() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(folder.path(), "a.bin", &raw(&logits(3, 1024)));
    let said = expect(&["logits", arg(&path), arg(&path)], 2).stderr;
    assert!(said.contains("--vocabulary"), "{said}");
    let report = expect(&["logits", arg(&path), arg(&path), "--vocabulary", "256"], 0).stdout;
    assert!(report.contains("4 of 4 rows"), "{report}");
}

/// A column that suppresses an id in both files says nothing about the rest of the row.
#[test]
fn one_extreme_column_does_not_widen_the_tolerance_of_the_others() {
    let folder = tempfile::tempdir().unwrap();
    for extreme in [-1e9f32, -1e30, f32::MIN] {
        let file = |name: &str, seed: u64, noise: f32| {
            let mut values = logits(seed, 1024);
            for (at, value) in values.iter_mut().enumerate() {
                *value += noise * if at % 2 == 0 { 1.0 } else { -1.0 };
            }
            values.chunks_mut(256).for_each(|row| row[255] = extreme);
            written(folder.path(), name, &raw(&values))
        };
        let (a, b) = (file("a.bin", 4, 0.0), file("b.bin", 5, 0.0));
        let close = file("close.bin", 4, 1e-6);
        for precision in ["f32", "bf16"] {
            let with = ["--vocabulary", "256", "--precision", precision];
            for masked in [&[][..], &["--mask-ids", "255"]] {
                let compared = |x, y, code| {
                    expect(&[&["logits", arg(x), arg(y)], &with[..], masked].concat(), code).stdout
                };
                let report = compared(&a, &b, 1);
                assert!(report.contains("0 of 4 rows"), "{report}");
                compared(&close, &a, 0);
            }
        }
    }
}

#[test]
fn unrelated_logits_pass_under_no_tolerance() {
    let folder = tempfile::tempdir().unwrap();
    let a = written(folder.path(), "a.bin", &raw(&logits(6, 256)));
    let b = written(folder.path(), "b.bin", &raw(&logits(7, 256)));
    let report = expect(&["logits", arg(&a), arg(&b), "--budget", "1e30"], 1).stdout;
    assert!(report.contains("something else"), "{report}");
}

#[test]
fn masked_ids_must_be_ids_of_the_vocabulary() {
    let folder = tempfile::tempdir().unwrap();
    let a = written(folder.path(), "a.bin", &raw(&logits(6, 256)));
    for mask in ["256", "0..255", "x", "9..3", "1..99999999999"] {
        expect(&["logits", arg(&a), arg(&a), "--mask-ids", mask], 2);
    }
    expect(&["logits", arg(&a), arg(&a), "--mask-ids", "0..9,200"], 0);
}

/// The spellings of Hugging Face, vLLM, llama.cpp and our own.
#[test]
fn ids_under_any_known_name_must_agree() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (logits(8, 256), logits(9, 256));
    let rows: [&[f32]; 2] = [&first, &second];
    let file = |name: &str, rest: &str| written(folder.path(), name, json(&rows, rest).as_bytes());
    let right = file("right.json", ", \"prompt_ids\": [7, 8]");
    for name in ["prompt_ids", "input_ids", "prompt_token_ids", "tokens", "ids"] {
        let same = file("same.json", &format!(", \"{name}\": [7, 8]"));
        expect(&["logits", arg(&same), arg(&right)], 0);
        let nested = file("nested.json", &format!(", \"{name}\": [[7, 8]]"));
        expect(&["logits", arg(&nested), arg(&right)], 0);
        let other = file("other.json", &format!(", \"{name}\": [7, 9]"));
        let said = expect(&["logits", arg(&other), arg(&right)], 1).stderr;
        assert!(said.contains("different ids"), "{said}");
    }
}

/// The JSON of a run names its logits: it is read from anywhere, also after both were moved, and
/// says the ids; a JSON that names a JSON is refused.
#[test]
fn the_logits_of_a_run_are_read_through_its_report() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, prompt: &str| {
        let logits = folder.path().join(format!("{name}.bin"));
        let mut command = command_on("generate", &tiny());
        command.args(["--ids", prompt, "--gen", "4", "--ignore-eos", "--format", "json"]);
        let json = expect_of(command.arg("--dump-logits").arg(&logits), 0).stdout;
        (written(folder.path(), &format!("{name}.json"), json.as_bytes()), logits)
    };
    let (report, raw) = run("run", "5,6,7");
    let (other, _) = run("other", "5,6,8");
    let said = expect(&["logits", arg(&report), arg(&raw)], 0).stdout;
    assert!(said.contains("run JSON, 1024 logits, ids 5,6,7"), "{said}");
    assert!(said.contains("4 of 4 rows"), "{said}");
    let said = expect(&["logits", arg(&report), arg(&other)], 1).stderr;
    assert!(said.contains("5,6,7 against 5,6,8"), "{said}");
    let moved = folder.path().join("moved");
    fs::create_dir(&moved).unwrap();
    fs::rename(&raw, moved.join("run.bin")).unwrap();
    fs::rename(&report, moved.join("run.json")).unwrap();
    let report = moved.join("run.json");
    expect(&["logits", arg(&report), arg(&moved.join("run.bin"))], 0);
    let itself = written(folder.path(), "self.json", b"{\"logits_file\": \"self.json\"}");
    let said = expect(&["logits", arg(&itself), arg(&itself)], 3).stderr;
    assert!(said.contains("got JSON"), "{said}");
}

#[test]
fn nested_lists_are_rows_and_ragged_ones_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<Vec<f32>> = (0..3).map(|seed| logits(seed + 10, 256)).collect();
    let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
    let three = written(folder.path(), "three.json", json(&rows, "").as_bytes());
    let report = expect(&["logits", arg(&three), arg(&three)], 0).stdout;
    assert!(report.contains("3 of 3 rows"), "{report}");
    let ragged = [rows[0], &rows[1][..255]];
    let ragged = written(folder.path(), "ragged.json", json(&ragged, "").as_bytes());
    let said = expect(&["logits", arg(&ragged), arg(&ragged)], 3).stderr;
    assert!(said.contains("256") && said.contains("255"), "{said}");
}

/// What both have is compared; the rest is said, and is no pass.
#[test]
fn fewer_rows_are_compared_on_what_is_common() {
    let folder = tempfile::tempdir().unwrap();
    let all = logits(14, 32 * 256);
    let with_ids = |name: &str, rows: usize, ids: &str| {
        let rows: Vec<&[f32]> = all.chunks(256).take(rows).collect();
        let ids = format!(", \"input_ids\": [{ids}]");
        written(folder.path(), name, json(&rows, &ids).as_bytes())
    };
    let ids: Vec<String> = (1..=32).map(|id| id.to_string()).collect();
    let long = with_ids("long.json", 32, &ids.join(","));
    let short = with_ids("short.json", 31, &ids[..31].join(","));
    let report = expect(&["logits", arg(&short), arg(&long)], 4).stdout;
    assert!(report.contains("31 rows that both have"), "{report}");
    let other = with_ids("other.json", 31, &[&["99".to_owned()], &ids[1..31]].concat().join(","));
    expect(&["logits", arg(&other), arg(&long)], 1);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48, failure_persistence: None, ..Default::default()
    })]

    /// Random pairs: equal within the tolerance passes; wrong by more in any one element, with a
    /// row missing, or with two rows exchanged does not.
    #[test]
    fn random_pairs_get_the_right_verdict(
        seed in any::<u64>(), rows in 2usize..5, at in any::<prop::sample::Index>(), kind in 0..4
    ) {
        let folder = tempfile::tempdir().unwrap();
        let expected = logits(seed, rows * 256);
        let mut got: Vec<f32> = expected.iter().map(|value| value + 5e-4).collect();
        match kind {
            0 => (),
            1 => got[at.index(rows * 256)] += 0.01,
            2 => got.truncate((rows - 1) * 256),
            _ => got.rotate_left(256),
        }
        let a = written(folder.path(), "a.bin", &raw(&got));
        let b = written(folder.path(), "b.bin", &raw(&expected));
        let code = match kind { 0 => 0, 2 => 4, _ => 1 };
        expect(&["logits", arg(&a), arg(&b), "--vocabulary", "256", "--budget", "1e-3"], code);
    }
}
