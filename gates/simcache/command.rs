//! The command from outside: exit codes, one-line errors, files written whole.

use std::path::Path;

use k3_cache::policy::PolicyName;
use k3_cache::slot_table::{Requests, Reserve};

use super::trace_v1::recorded;
use crate::support::traces::{pairs, small_zipf};
use crate::support::{Ran, binary, expect_of, read_and_close};

/// Runs `simcache` and checks the exit code; errors are one line and a hint.
#[track_caller]
fn expect(arguments: &[&str], code: i32) -> Ran {
    let ran = expect_of(binary().arg("simcache").args(arguments), code);
    if [3, 4].contains(&code) && !ran.stderr.is_empty() {
        let stderr = &ran.stderr;
        assert!(stderr.starts_with("error: ") && stderr.lines().count() <= 2, "{stderr}");
    }
    ran
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_string()
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_string()
    }
}

#[test]
fn a_one_request_trace_ends_with_a_sensible_report() {
    let folder = Folder::new();
    let one = folder.file("one.bin", &pairs(&[(1, 5)]));
    let hits = folder.file("hits.bin", &pairs(&[(1, 5); 40]));
    for (trace, rate) in [(&one, "0.00"), (&hits, "97.50")] {
        let out = folder.path("out");
        let arguments = [trace, "--slots", "1", "--requests", "single", "--out", &out];
        let report = expect(&arguments, 0).stdout;
        assert!(report.contains("1 distinct experts"), "{report}");
        assert!(report.contains(rate), "{report}");
        for file in ["report.json", "report.txt", "report.html", "hit-rate-recorded.svg"] {
            assert!(Path::new(&out).join(file).exists(), "{file}");
        }
        // Without any options, too.
        expect(&[trace], 0);
    }
}

#[test]
fn json_is_the_report_and_the_folder_holds_the_same() {
    let folder = Folder::new();
    let bytes =
        recorded(&small_zipf(6), 9, PolicyName::LayerCycle, Requests::Batch, Reserve::Late, 0);
    let trace = folder.file("trace.k3t", &bytes);
    let out = folder.path("deep/er/out");
    let output = expect(&[&trace, "--format", "json", "--out", &out], 0);
    let json = output.json();
    assert_eq!(json["schema"], "k3-verify.simcache");
    assert_eq!(json["schema_version"], 1);
    assert_eq!(json["recorded_runs"][0]["difference"], serde_json::Value::Null);
    assert_eq!(json["provenance"]["inputs"][0], trace);
    let file = std::fs::read(Path::new(&out).join("report.json")).unwrap();
    assert_eq!(file, output.stdout.as_bytes());
    let page = std::fs::read_to_string(Path::new(&out).join("report.html")).unwrap();
    assert!(
        page.contains("<svg")
            && !page.contains("<script")
            && !page.contains("http://www.w3.org/1999")
    );
    // Nothing temporary is left behind.
    let names: Vec<String> = std::fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(names.iter().all(|name| !name.starts_with('.')), "{names:?}");
}

#[test]
fn usage_errors_are_2() {
    let folder = Folder::new();
    let trace = folder.file("trace.bin", &pairs(&[(1, 5)]));
    for arguments in [
        vec![],
        vec![trace.as_str(), "--slots", "0"],
        vec![&trace, "--slots", "-4"],
        vec![&trace, "--slots", "three"],
        vec![&trace, "--policy", "mru"],
        vec![&trace, "--memory", "8"],
        vec![&trace, "--disk-gbs", "NaN"],
        vec![&trace, "--disk-gbs", "0"],
        vec![&trace, "--order", "sideways"],
        vec![&trace, "--layers", "5..93"],
        vec![&trace, "--layers", "9..2"],
        vec![&trace, "--top-k", "0"],
        vec![&trace, "--top-k", "897"],
        vec![&trace, "--cache-gb", "0.001"],
    ] {
        expect(&arguments, 2);
    }
    let bytes = recorded(&small_zipf(6), 9, PolicyName::Lru, Requests::Batch, Reserve::Late, 0);
    let stated = folder.file("trace.k3t", &bytes);
    let output = expect(&[&stated, "--top-k", "4"], 2);
    assert!(output.stderr.contains("states 3"));
    expect(&[&stated, "--top-k", "3"], 0);
}

#[test]
fn unreadable_or_corrupt_input_is_3_and_names_the_file() {
    let folder = Folder::new();
    let missing = folder.path("missing.bin");
    assert!(expect(&[&missing], 3).stderr.contains("missing.bin"));
    let half = folder.file("half.bin", &[0; 12]);
    assert!(expect(&[&half], 3).stderr.contains("half.bin: half a record"));
    let good = folder.file("good.bin", &pairs(&[(1, 5)]));
    let measured = folder.file("ladder.tsv", b"cache_slots\n1\n");
    assert!(expect(&[&good, "--measured", &measured], 3).stderr.contains("ladder.tsv"));
    let not_a_folder = folder.path("good.bin/out");
    expect(&[&good, "--out", &not_a_folder], 3);
    // Another model's trace is refused until its sizes are given.
    let other = folder.file("other.bin", &pairs(&[(100, 900)]));
    assert!(expect(&[&other], 3).stderr.contains("hint: a trace of another model"));
    expect(&[&other, "--model-layers", "128", "--experts", "1024", "--top-k", "8"], 0);
}

#[test]
fn nothing_to_study_is_4() {
    let folder = Folder::new();
    let empty = folder.file("empty.bin", &[]);
    let output = expect(&[&empty], 4);
    assert!(output.stderr.contains("the trace is empty"));
    let good = folder.file("good.bin", &pairs(&[(1, 5), (3, 5), (2, 5)]));
    expect(&[&good, "--layers", "50..60"], 4);
    expect(&[&good, "--order", "decode"], 4);
    let measured = folder.file("ladder.tsv", b"cache_slots\texpert_hit_true\n1\t0\n");
    expect(&[&good, "--measured", &measured], 4);
    // Every capacity below top-k is refused: nothing was replayed.
    let batch: Vec<(i32, i32)> = (0..32).map(|expert| (1, expert)).collect();
    let batch = folder.file("batch.bin", &pairs(&batch));
    let output = expect(&[&batch, "--requests", "batch", "--slots", "15"], 4);
    assert!(output.stdout.contains("15 slots are too few: 16 experts are used together"));
    expect(&[&batch, "--requests", "batch", "--slots", "15,16"], 0);
}

#[test]
fn disagreement_is_1() {
    let folder = Folder::new();
    let trace = small_zipf(6);
    let mut bytes = recorded(&trace, 9, PolicyName::Lru, Requests::Batch, Reserve::Late, 0);
    // The header states other slots than the cache had; the checksum is made to fit.
    bytes[88..92].copy_from_slice(&10_u32.to_le_bytes());
    let end = bytes.len() - 56;
    let digest = <sha2::Sha256 as sha2::Digest>::digest(&bytes[..end]);
    bytes[end + 24..].copy_from_slice(&digest);
    let wrong = folder.file("wrong.k3t", &bytes);
    let output = expect(&[&wrong], 1);
    assert!(output.stdout.contains("DIFFERS: decision"));
    let good = recorded(&trace, 9, PolicyName::Lru, Requests::Batch, Reserve::Late, 0);
    let good = folder.file("good.k3t", &good);
    let measured = folder.file("ladder.tsv", b"cache_slots\texpert_hit_true\n9\t99.0\n");
    expect(&[&good, "--measured", &measured], 1);
    expect(&[&good, "--measured", &measured, "--tolerance", "100"], 0);
}

#[test]
fn a_closed_pipe_is_quiet() {
    let folder = Folder::new();
    let trace = folder.file("trace.bin", &pairs(&[(1, 5); 64]));
    let output = read_and_close(binary().args(["simcache", &trace, "--format", "json"]), 0);
    assert!(output.stderr.is_empty());
    assert!(output.status.code().is_some(), "ended by a signal");
}

#[test]
fn csv_holds_the_order_that_is_studied() {
    let folder = Folder::new();
    let bytes = recorded(&small_zipf(6), 9, PolicyName::Lru, Requests::Batch, Reserve::Late, 0);
    let trace = folder.file("trace.k3t", &bytes);
    let csv = folder.path("trace.csv");
    expect(&[&trace, "--csv", &csv, "--layers", "2..3"], 0);
    let written = std::fs::read_to_string(csv).unwrap();
    assert_eq!(written.lines().count(), 1 + 2 * 16 * 3);
}

/// JSON lines of a model of 4 layers that chooses 2 of 8: position, layer and choice decide the id.
fn json_lines() -> String {
    let row = |tok: u32, layer: u32| format!("[{}, {}]", (tok + layer) % 8, (tok + layer + 3) % 8);
    let line = |tok| {
        let rows: Vec<String> = (0..4).map(|layer| row(tok, layer)).collect();
        format!("{{\"tok\": {tok}, \"layers\": [{}]}}\n", rows.join(", "))
    };
    (0..40).map(line).collect()
}

/// The same rows as (token, layer, expert).
fn triples() -> Vec<(i32, i32, i32)> {
    let cells = (0..40).flat_map(|tok| (0..4).map(move |layer| (tok, layer)));
    cells.flat_map(|(t, l)| [(t, l, (t + l) % 8), (t, l, (t + l + 3) % 8)]).collect()
}

fn npy(descr: &str, order: &str, data: &[u8]) -> Vec<u8> {
    let header =
        format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': (40, 4, 2), }}\n");
    let length = (header.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", length.as_slice(), header.as_bytes(), data].concat()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, bytes).unwrap();
    gzip.finish().unwrap()
}

#[test]
fn one_trace_in_every_form_of_other_programs_is_one_study() {
    let folder = Folder::new();
    let table = |header: &str, separator: &str| {
        let line = |(t, l, e)| format!("{t}{separator}{l}{separator}{e}\n");
        header.to_string() + &triples().into_iter().map(line).collect::<String>()
    };
    let ids = |wide: bool| -> Vec<u8> {
        let bytes = |(_, _, e): (i32, i32, i32)| match wide {
            true => i64::from(e).to_le_bytes().to_vec(),
            false => e.to_le_bytes().to_vec(),
        };
        triples().into_iter().flat_map(bytes).collect()
    };
    let forms = [
        folder.file("a.jsonl", json_lines().as_bytes()),
        folder.file("a.jsonl.gz", &gzip(json_lines().as_bytes())),
        folder.file("bom.jsonl", format!("\u{feff}{}", json_lines()).as_bytes()),
        folder
            .file("crlf.csv", table("token;layer;expert\n", ";").replace('\n', "\r\n").as_bytes()),
        folder.file("a.csv", table("token,layer,expert\n", ",").as_bytes()),
        folder.file("a.tsv", table("position\tlayer\texpert\n", "\t").as_bytes()),
        folder.file("i4.npy", &npy("<i4", "False", &ids(false))),
        folder.file("i8.npy", &npy("<i8", "False", &ids(true))),
    ];
    let study = |path: &str, more: &[&str]| {
        let fixed = [path, "--expert-bytes", "1000000", "--slots", "8", "--format", "json"];
        let json = expect(&[fixed.as_slice(), more].concat(), 0).json();
        (json["trace"]["shape"].clone(), json["views"].clone())
    };
    let first = study(&forms[0], &[]);
    assert_eq!(first.0["layer_count"], 4);
    assert_eq!((&first.0["experts_per_layer"], &first.0["top_k"]), (&8.into(), &2.into()));
    for form in &forms[1..] {
        assert_eq!(study(form, &[]), first, "{form}");
    }
    let named = folder.file("n.csv", table("when,block,id\n", ",").as_bytes());
    assert_eq!(study(&named, &["--columns", "token=when,layer=block,expert=id"]), first);
    let stderr = expect(&[&named, "--expert-bytes", "1000000"], 3).stderr;
    assert!(stderr.contains("--columns"), "{stderr}");
    let stderr = expect(&[&forms[0]], 3).stderr;
    assert!(stderr.contains("--expert-bytes"), "{stderr}");
}

#[test]
fn what_no_router_writes_is_refused_with_its_likely_cause() {
    let folder = Folder::new();
    let of = |layers: i32, top_k: i32| -> Vec<(i32, i32)> {
        let rows = (0..60).flat_map(|tok| (0..layers).map(move |layer| (tok, layer)));
        rows.flat_map(|(tok, l)| (0..top_k).map(move |e| (l, (tok + e * 5) % 64))).collect()
    };
    let wide: Vec<u8> = of(16, 8)
        .iter()
        .flat_map(|&(l, e)| [i64::from(l), i64::from(e)])
        .flat_map(i64::to_le_bytes)
        .collect();
    let union: Vec<(i32, i32)> =
        (1..93).flat_map(|l| (0..60 + l % 7).map(move |e| (l, e * 13 % 896))).collect();
    let mut gap = of(16, 8);
    gap.drain(72..80);
    let gap: String = gap.iter().map(|(l, e)| format!("0,{l},{e}\n")).collect();
    let gap = format!("token,layer,expert\n{gap}");
    let lost = folder.file("gap.csv", gap.as_bytes());
    let stderr = expect(&[&lost, "--expert-bytes", "1000"], 3).stderr;
    assert!(stderr.contains("layer 10 is asked where layer 9 is due"), "{stderr}");
    let double: Vec<u8> = of(16, 8)
        .iter()
        .flat_map(|&(l, e)| [f64::from(l), f64::from(e)])
        .flat_map(f64::to_le_bytes)
        .collect();
    let ints = pairs(&of(16, 8));
    let words = |f: &dyn Fn(i32) -> Vec<u8>| -> Vec<u8> {
        ints.as_chunks::<4>().0.iter().flat_map(|word| f(i32::from_le_bytes(*word))).collect()
    };
    let table: String = triples().iter().map(|(t, l, e)| format!("{t},{l},{e}\n")).collect();
    let utf16: Vec<u8> = table.encode_utf16().flat_map(u16::to_be_bytes).collect();
    let columns = triples().iter().flat_map(|(t, l, e)| [*t, *l, *e]).collect::<Vec<_>>();
    let cut = gzip(table.as_bytes());
    let cases: [(&str, Vec<u8>, &str); 17] = [
        ("big-endian", words(&|word| word.to_be_bytes().to_vec()), "byte-swapped"),
        ("be-f32", words(&|word| (word as f32).to_be_bytes().to_vec()), "big-endian float32"),
        ("be-int64", words(&|word| i64::from(word).to_be_bytes().to_vec()), "big-endian int64"),
        ("utf-16", utf16, "UTF-16 text"),
        ("columns", columns.into_iter().flat_map(i32::to_le_bytes).collect(), "triples of int32"),
        ("bare.csv", table.into_bytes(), "the first line must name the columns"),
        ("cut.gz", cut[..cut.len() / 2].to_vec(), "gzip data is damaged"),
        ("double", double, "float64"),
        ("wide", wide, "int64"),
        ("olmoe", pairs(&of(16, 8)), "--model-layers 16 --experts 64 (or more) --top-k 8"),
        ("union", pairs(&union), "union of a prefill"),
        ("few", pairs(&of(12, 1).repeat(2)), "--top-k 1"),
        ("twice", pairs(&[(1, 5); 320]), "different ones"),
        ("zip", b"PK\x03\x04rest".to_vec(), "ZIP"),
        ("gguf", b"GGUF\x03\0\0\0".to_vec(), "GGUF"),
        ("html", b"<!doctype html>".to_vec(), "HTML"),
        ("fortran", npy("<i4", "True", &[0; 1280]), "Fortran order"),
    ];
    for (name, bytes, cause) in cases {
        let stderr = expect(&[&folder.file(name, &bytes)], 3).stderr;
        assert!(stderr.contains(cause), "{name}: {stderr}");
    }
    // The same model, named by its options, is accepted.
    let right = folder.file("right", &pairs(&of(16, 8)));
    let options = ["--model-layers", "16", "--experts", "64", "--top-k", "8", "--slots", "64"];
    expect(&[[right.as_str()].as_slice(), &options].concat(), 0);
}

/// J05: the cache trace of an engine whose prefill asks each layer once for all its positions, in
/// pairs and as a table: read, said, and counted by the single positions after it, with the rates
/// of the same run recorded position by position.
#[test]
fn j05_a_union_prefill_is_counted_by_what_follows_it() {
    let folder = Folder::new();
    let tokens = small_zipf(5);
    let prefill = 4;
    let row = |layer: u16, position: u32| {
        let demand = tokens.demands.iter().find(|d| (d.layer, d.position) == (layer, position));
        let experts = tokens.experts(demand.unwrap()).iter();
        experts.map(move |&expert| (layer.into(), tokens.shape.key(expert).expert.into()))
    };
    let mut single: Vec<(i32, i32)> = Vec::new();
    let mut union = single.clone();
    for layer in tokens.layers() {
        let asked: Vec<_> = (0..prefill).flat_map(|position| row(layer, position)).collect();
        let mut seen = std::collections::BTreeSet::new();
        union.extend(asked.iter().filter(|pair| seen.insert(**pair)));
        single.extend(asked);
    }
    assert!(union.len() < single.len());
    let first = union.len();
    for position in prefill..16 {
        for layer in tokens.layers() {
            single.extend(row(layer, position));
            union.extend(row(layer, position));
        }
    }
    let shape = tokens.shape;
    let sizes = [shape.layer_count, shape.experts_per_layer, shape.top_k].map(|n| n.to_string());
    let bytes = shape.expert_bytes.to_string();
    let options = ["--model-layers", &sizes[0], "--experts", &sizes[1], "--top-k", &sizes[2]];
    let options = [&options[..], &["--expert-bytes", &bytes, "--policy", "lru"]].concat();
    let study = |trace: &str| {
        let slots = ["--slots", "12,40,80", "--format", "json"];
        expect(&[&[trace], &options[..], &slots].concat(), 0).json()
    };
    let right = study(&folder.file("single", &pairs(&single)));
    let lines = union.iter().enumerate().map(|(at, (layer, expert))| {
        let per_token = tokens.layers().len() * shape.top_k as usize;
        let token = at.checked_sub(first).map_or(0, |later| 1 + later / per_token);
        format!("{token},{layer},{expert}\n")
    });
    let table = format!("token,layer,expert\n{}", lines.collect::<String>());
    for trace in [folder.file("pairs", &pairs(&union)), folder.file("t.csv", table.as_bytes())] {
        let found = study(&trace);
        let said = found["order"]["finding"].as_str().unwrap();
        assert!(said.contains("the union of its positions' experts"), "{said}");
        let (view, expected) = (&found["views"][0], &right["views"][0]);
        for field in ["focus_request_count", "requests_per_token", "ceiling_percent"] {
            assert_eq!(view[field], expected[field], "{field}");
        }
        assert_eq!(view["focus"], "decode");
        assert_eq!(view["request_count"], union.len());
        let refused = expect(&[&[&*trace], &options[..], &["--positions", "6"]].concat(), 4);
        assert!(refused.stderr.contains("union of a prefill"), "{}", refused.stderr);
    }
    for range in ["1,1", "1..2,2"] {
        let refused = expect(&[&folder.path("pairs"), "--layers", range], 2).stderr;
        assert!(refused.contains("is named twice"), "{refused}");
    }
}
