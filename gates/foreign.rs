//! Foreign engines run by `--engine-cmd`, right and wrong.
//!
//! The target plays the engine itself: called with the word `engine` first, it reads a checkpoint
//! and ids and writes logits and ids, like a program of somebody else. It can carry a mistake from
//! the lists of mutants, keep its activations in bf16, write its logits in several forms, or
//! misbehave.

#![allow(clippy::unwrap_used)]
#![allow(clippy::print_stdout, reason = "the engine prints its ids")]

#[allow(dead_code, reason = "written for all targets; `integration` uses all of it")]
mod support;

use k3_gates::subject::Opening;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::support::scratch;
use k3_core::Precision;
use k3_core::config::MLA_NORM_EPS;
use k3_core::stages::{NoStages, StageDump, StageSink, StageValues};
use k3_gates::subject::{Sequence, argmax};
use k3_gates::subjects;
use k3_gates::tensor_file::{TensorOut, encode, encode_stages};
use k3_reference as reference;
use k3_reference::Model;
use k3_reference::rounding::{RoundedStages, rounded_formulas};
use libtest_mimic::{Arguments, Trial};
use support::{arg, expect, fixture};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "engine") {
        return engine(&words[1..]);
    }
    let tests: [(&str, fn()); 7] = [
        ("right_engines_conform_in_every_form", right_engines),
        ("a_planted_mistake_is_found_and_named", planted_mistake),
        ("a_mistake_of_the_carried_state_is_found", state_mistake),
        ("a_dump_locates_the_mistake", dump_locates),
        ("bf16_conforms_and_with_a_mistake_does_not", bf16),
        ("what_gives_no_answer_is_not_run_and_what_gives_a_wrong_one_fails", misbehaviour),
        ("every_rounding_point_is_documented", documented),
    ];
    let trial = |(name, run): (&str, fn())| {
        Trial::test(name, move || {
            run();
            Ok(())
        })
    };
    let trials = tests.into_iter().map(trial).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

// ---- the engine

/// `MODEL IDS GEN LOGITS [key=value]…`.
fn engine(words: &[String]) -> ExitCode {
    let [model, ids, count, out, options @ ..] = words else {
        return ExitCode::from(2);
    };
    let options: BTreeMap<&str, &str> =
        options.iter().filter_map(|option| option.split_once('=')).collect();
    let ids: Vec<u32> = ids.split(',').map(|id| id.parse().unwrap()).collect();
    let count: usize = count.parse().unwrap();
    let model = Path::new(model);
    let mut dump = StageDump::default();
    let (rows, chosen) = compute(model, &options, &ids, count, &mut dump);
    if let Some(path) = options.get("dump") {
        let bytes = encode_stages(&dump, &ids, true, &BTreeMap::new()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    answer(&options, rows, chosen, ids.len(), Path::new(out))
}

/// Prefill and greedy decoding with carried state: a row per position fed, and the ids.
fn compute(
    folder: &Path,
    options: &BTreeMap<&str, &str>,
    ids: &[u32],
    count: usize,
    dump: &mut StageDump,
) -> (Vec<Vec<f64>>, Vec<u32>) {
    let config = k3_checkpoint::config::read(&folder.join("config.json")).unwrap();
    let fault = options.get("fault").copied();
    let eps = options.get("eps").map_or(MLA_NORM_EPS, |eps| eps.parse().unwrap());
    if options.get("precision") == Some(&"bf16") {
        let formulas = fault.map_or_else(
            || rounded_formulas(Precision::Bf16),
            |id| {
                let mut mutants = reference::mutants::mutants().into_iter();
                mutants.find(|mutant| mutant.id == id).unwrap().formulas
            },
        );
        let model = Model::open_with(folder, eps, &formulas).unwrap();
        let hook = RoundedStages(Precision::Bf16);
        return decode(&mut model.sequence_with(&hook), ids, count, dump);
    }
    let source = match fault {
        None => subjects::shipped().into_iter().find(|s| s.name() == "engine").unwrap(),
        Some(id) => {
            // The last of that name: mistakes of the model come in f64 first, then rounded to f32.
            let mut mutants = subjects::mutants().into_iter().rev();
            mutants.find(|mutant| mutant.id == id).unwrap().source
        }
    };
    let model = Opening { dir: folder, config: &config, mla_norm_eps: eps };
    let subject = source.open(model).unwrap();
    let mut sequence = subject.sequence();
    decode(sequence.as_mut(), ids, count, dump)
}

fn decode(
    sequence: &mut dyn Sequence,
    ids: &[u32],
    count: usize,
    dump: &mut StageDump,
) -> (Vec<Vec<f64>>, Vec<u32>) {
    let mut rows: Vec<Vec<f64>> = Vec::new();
    let mut chosen = Vec::new();
    let mut feed = ids.to_vec();
    for step in 0..count {
        let sink: &mut dyn StageSink = if step == 0 { dump } else { &mut NoStages };
        let logits = sequence.feed(&feed, sink).unwrap();
        rows.extend(logits.values.chunks(logits.vocabulary).map(<[f64]>::to_vec));
        let id = argmax(rows.last().unwrap()).unwrap();
        chosen.push(id);
        feed = vec![id];
    }
    (rows, chosen)
}

/// Writes logits and ids, rightly or not.
fn answer(
    options: &BTreeMap<&str, &str>,
    mut rows: Vec<Vec<f64>>,
    mut chosen: Vec<u32>,
    given: usize,
    out: &Path,
) -> ExitCode {
    let form = options.get("form").copied().unwrap_or("positions");
    match form {
        "generated" => drop(rows.drain(..given - 1)),
        "prompt" => rows.truncate(given),
        "row-missing" => drop(rows.drain(..2)),
        "nan" => rows[1][3] = f64::NAN,
        "late-by-one" => rows.rotate_right(1),
        "id-missing" => drop(chosen.pop()),
        _ => {}
    }
    let values = rows.concat();
    let raw = values.iter().flat_map(|value| (*value as f32).to_le_bytes());
    let mut bytes: Vec<u8> = raw.collect();
    if form == "safetensors" {
        let tensor = TensorOut {
            name: "logits",
            shape: &[1, rows.len(), rows[0].len()],
            values: &StageValues::Real(values),
            as_f32: true,
        };
        bytes = encode(&[tensor], &BTreeMap::new()).unwrap();
    }
    if form == "cut" {
        bytes.pop();
    }
    if form == "empty" {
        bytes.clear();
    }
    std::fs::write(out, bytes).unwrap();
    let line: Vec<String> = chosen.iter().map(u32::to_string).collect();
    match form {
        "json" => println!("{{\"generated_ids\": [{}]}}", line.join(", ")),
        "garbage" => println!("here you are"),
        _ => println!("ids follow\n{}", line.join(",")),
    }
    if form == "failing" {
        eprintln!("loading\nno such kernel");
        return ExitCode::from(9);
    }
    ExitCode::SUCCESS
}

// ---- the tests

fn command(options: &str) -> String {
    let own = std::env::current_exe().unwrap();
    format!("'{}' engine {{model}} {{ids}} {{gen}} {{logits}} {options}", own.display())
}

/// The shipped sets as folders, written out once per test.
fn sets() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let (folder, out) = scratch("sets");
    expect(&["export", "--sets", arg(&out)], 0);
    (folder, out.join("tiny"), out.join("mild"))
}

fn gates(set: &Path, options: &str, more: &[&str], code: i32) -> String {
    let command = command(options);
    let arguments = ["gates", "--evidence", arg(set), "--engine-cmd", &command];
    expect(&[&arguments[..], more].concat(), code).stdout
}

fn right_engines() {
    let (_folder, tiny, mild) = sets();
    let report = gates(&mild, "", &[], 0);
    assert!(report.contains("3 passed, 0 failed"), "{report}");
    for form in ["prompt", "safetensors", "json"] {
        let report = gates(&mild, &format!("form={form}"), &["--only", "incremental"], 0);
        let bits = report.contains(" the bits of its recompute");
        assert!(bits, "our own engine keeps its bits: {form}: {report}");
    }
    let report = gates(&mild, "form=generated", &["--only", "incremental"], 0);
    assert!(report.contains("20 of 20 rows"), "{report}");
    let report = gates(&tiny, "", &["--precision", "f32"], 0);
    assert!(report.contains("4 passed") && report.contains("noise floor of f32"), "{report}");
    // Under another epsilon the answers are made anew, and this engine keeps the released one.
    let report = gates(&tiny, "", &["--only", "greedy", "--mla-norm-eps", "1e-5"], 1);
    assert!(report.contains("OVERRIDDEN"), "{report}");
    let twin = "eps=1e-5";
    gates(&tiny, twin, &["--only", "greedy", "--mla-norm-eps", "1e-5"], 0);
}

fn planted_mistake() {
    let (_folder, tiny, _) = sets();
    let only = ["--only", "teacher-forcing"];
    let report = gates(&tiny, "fault=l2norm-on-v", &only, 1);
    let named = report.lines().find(|line| line.contains("conforms to a known mistake"));
    let named = named.unwrap_or_else(|| panic!("it is not named:\n{report}"));
    // The same mistake, found in the list of the reference's.
    assert!(named.contains("l2norm-on-v [K3]"), "{named}");
    assert!(named.contains("look at layers.0.kda.v first"), "{named}");
}

/// Right logits over a whole prompt, wrong ones after it.
fn state_mistake() {
    let (_folder, tiny, _) = sets();
    let report = gates(&tiny, "fault=kda-state-not-carried", &["--only", "tiny/*e*"], 1);
    for row in [
        "PASS            tiny/teacher-forcing ",
        "FAIL            tiny/greedy",
        "FAIL            tiny/incremental",
    ] {
        assert!(report.contains(row), "{row}: {report}");
    }
}

fn dump_locates() {
    let (folder, ..) = sets();
    let (dump, exact) = (folder.path().join("dump"), folder.path().join("exact"));
    let model = fixture("tiny/model");
    let ids = "10,20,30,40";
    let logits = folder.path().join("logits");
    let options = [arg(&logits), "fault=l2norm-on-v"];
    let own = std::env::current_exe().unwrap();
    let status = std::process::Command::new(own)
        .args(["engine", arg(&model), ids, "1"])
        .args(options)
        .arg(format!("dump={}", dump.display()))
        .output()
        .unwrap();
    assert!(status.status.success());
    expect(&["dump", arg(&model), "--ids", ids, "--by", "reference", arg(&exact)], 0);
    let report = expect(&["compare", arg(&dump), arg(&exact)], 1).stdout;
    assert!(report.contains("first divergence: layers.0.kda.v"), "{report}");
}

fn bf16() {
    let (_folder, tiny, mild) = sets();
    let precision = ["--precision", "bf16"];
    let report = gates(&mild, "precision=bf16", &precision, 0);
    assert!(report.contains("3 passed"), "{report}");
    // What the mild twin cannot show is said: both ε, and how they are seen.
    let verdict = report.lines().find(|line| line.starts_with("VERDICT")).unwrap();
    let (_, blind) = verdict.split_once("CONFORMS IN BF16, BLIND TO: ").expect(verdict);
    assert!(blind.contains("N3") && blind.contains("K3"), "{verdict}");
    assert!(report.contains("layers 0..LAST --model DIR --engine-dump"), "{report}");
    gates(&mild, "precision=bf16 eps=1e-5", &precision, 0);
    // The faint twin shows them, and passes a right engine.
    let faint = mild.with_file_name("faint");
    let report = gates(&faint, "precision=bf16", &precision, 0);
    assert!(report.contains("VERDICT: CONFORMS IN BF16"), "{report}");
    for mistake in ["eps=1e-5", "fault=l2norm-eps-1e-5"] {
        let report = gates(&faint, &format!("precision=bf16 {mistake}"), &precision, 1);
        assert!(report.contains("FAIL"), "{mistake}: {report}");
    }
    for fault in ["l2norm-on-v", "mix-values-normed", "kda-gate-skipped"] {
        let options = format!("precision=bf16 fault={fault}");
        let only = ["--precision", "bf16", "--only", "incremental"];
        let report = gates(&mild, &options, &only, 1);
        assert!(report.contains("FAIL"), "{fault}: {report}");
    }
    // Rounding alone changes what the tiny oracle chooses: it must not judge bf16 at all.
    let report = gates(&tiny, "precision=bf16", &precision, 4);
    assert!(report.contains("cannot judge bf16"), "{report}");
    // Nor does an engine in bf16 pass for one in f32.
    gates(&mild, "precision=bf16", &["--precision", "f32"], 1);
}

fn misbehaviour() {
    let (_folder, _, mild) = sets();
    for (form, says, code) in [
        ("failing", "exit status: 9: loading | no such kernel", 4),
        ("row-missing", "rows of 256", 1),
        ("nan", "not finite, first in row 1, id 3", 1),
        ("late-by-one", "does not conform", 1),
        ("id-missing", "expected 20 ids", 1),
        ("garbage", "here you are", 4),
        ("cut", "a multiple of 4 bytes", 4),
        ("empty", "an empty file", 4),
    ] {
        let report = gates(&mild, &format!("form={form}"), &["--only", "incremental"], code);
        let found = report.to_lowercase().contains(&says.to_lowercase());
        assert!(found, "{form}: {report}");
    }
    let set = arg(&mild);
    for (text, code) in [
        ("", 2),
        ("true {ids}", 2),
        ("true {model} {ids} {gen} {logits} {more}", 2),
        ("true '{model} {ids} {gen} {logits}", 2),
        ("/no/such/engine {model} {ids} {gen} {logits}", 4),
    ] {
        expect(&["gates", "--evidence", set, "--engine-cmd", text], code);
    }
    let arguments = ["gates", "--evidence", set, "--only", "greedy", "--engine-timeout", "1"];
    for (script, says) in [
        ("sleep 60", "did not end within 1 s"),
        ("mkfifo $4", "not a regular file"),
        ("mkdir $4", "not a regular file"),
        ("ln -s /dev/zero $4", "not a regular file"),
        ("truncate -s 1T $4", "expected at most"),
        ("echo Traceback; echo no torch >&2; exit 1", "exit status: 1: no torch"),
        ("echo no torch >&2", "does not exist: no torch"),
    ] {
        let command = format!("sh -c '{script}' {{model}} {{model}} {{ids}} {{gen}} {{logits}}");
        let report = expect(&[&arguments[..], &["--engine-cmd", &command]].concat(), 4).stdout;
        assert!(report.contains("NOT RUN") && report.contains(says), "{script}: {report}");
    }
}

/// The table in `gates/PRECISION.md` has every point of the code, and no other.
fn documented() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("gates/PRECISION.md");
    let text = std::fs::read_to_string(path).unwrap();
    let section = text.split("## Rounding points").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows: Vec<&str> = section
        .lines()
        .filter(|line| line.starts_with("| ") && !line.contains("---"))
        .skip(1)
        .collect();
    assert_eq!(rows.len(), reference::rounding::POINTS.len());
    for (row, point) in rows.iter().zip(reference::rounding::POINTS) {
        let kept = if point.at_least_single { "f32" } else { "P" };
        assert_eq!(*row, format!("| {} | {kept} |", point.value));
    }
}
