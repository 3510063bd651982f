//! The command from outside: what passes, ranges, parts, journals, partial checkpoints.

use std::path::Path;

use k3_core::seal::seal;
use k3_gates::evidence::EvidenceSet;
use k3_gates::outcome::Verdict;
use k3_gates::report::layers::{LayerRow, LayersProvenance, LayersReport};

use super::Tiny;
use crate::support::proof::{IDS, all_layers_pass, read_report, report};
use crate::support::{Ran, arg, expect, read_json, scratch, tiny};

/// A reference or an engine that reads another tensor, an input that does not fit, a bound that
/// forgets a rounding at magnitudes the ladder never has.
#[test]
fn all_layers_pass_with_synthetic_and_with_chained_input() {
    all_layers_pass(&tiny());
}

/// Another ε on one side alone is a matter of tolerances elsewhere; on both sides nothing may show.
#[test]
fn epsilon_of_the_low_rank_norms_goes_to_both_sides() {
    let model = tiny();
    let base = ["layers", "3", "--model", arg(&model), "--mla-norm-eps", "1e-5"];
    assert_eq!(report(&base, 0).question.mla_norm_eps, 1e-5);
}

#[test]
fn h03_ranges_that_mean_nothing_exit_2_and_93_layers_are_in_reach() {
    let model = tiny();
    for range in [
        "0..13",
        "13",
        "0..94",
        "5..3",
        "..",
        "0..",
        "0..=12",
        " 1..2",
        "1..2..3",
        "3,3",
        "",
        "0..18446744073709551616",
        "-1..3",
    ] {
        let Ran { stdout, stderr } = expect(&["layers", range, "--model", arg(&model)], 2);
        assert!(stdout.is_empty() && stderr.starts_with("error: "), "{range}: {stdout}{stderr}");
    }
    let stderr = expect(&["layers", "0..13", "--model", arg(&model)], 2).stderr;
    assert!(stderr.contains("0..12 (both ends included)"), "{stderr}");
    let run = report(&["layers", "0,11..12", "--model", arg(&model)], 0);
    assert_eq!(run.selected, [0, 11, 12]);
    let stdout = expect(&["layers", "12..12", "--model", arg(&model)], 0).stdout;
    let first = stdout.lines().next().unwrap();
    assert!(first.contains("both ends included") && first.contains("1 of 13"), "{first}");
}

#[test]
fn bad_arguments_exit_2_and_a_missing_model_3() {
    let model = tiny();
    for arguments in [
        &["--input", "chain"][..],
        &["--ids", "1,2"],
        &["--input", "chain", "--ids", "256"],
        &["--input", "chain", "--ids", "1,x"],
        &["--input", "chain", "--ids", "-1"],
        &["--part", "0/4"],
        &["--part", "5/4"],
        &["--prefill", "0"],
        &["--input", "chain", "--ids", "1,2", "--prefill", "1"],
        &["--input", "chain", "--ids", "1,2", "--seed", "1"],
        &["--mla-norm-eps", "nan"],
        &["--threads", "0"],
        &["--resume"],
    ] {
        let all = [&["layers", "0", "--model", arg(&model)][..], arguments].concat();
        expect(&all, 2);
    }
    expect(&["layers", "0", "--model", "/nonexistent/model"], 3);
    expect(&["layers", "0", "--model", arg(&model), "--input", "/nonexistent/dump"], 3);
    expect(&["layers", "0", "--model", arg(&model), "--out", "/dev/null/x"], 3);
}

fn without_provenance(mut report: LayersReport) -> LayersReport {
    report.provenance = LayersProvenance::default();
    report
}

fn part(model: &Path, folder: &Path, part: &str, more: &[&str]) -> String {
    let out = folder.join(part.replace('/', "-of-"));
    let base = ["layers", "all", "--model", arg(model), "--part", part, "--out", arg(&out)];
    expect(&[&base[..], more].concat(), 0);
    arg(&out).to_owned()
}

/// A merge that loses a layer, counts one twice or mixes runs would call a half-proved model
/// proved.
#[test]
fn parts_make_up_the_undivided_report_or_are_refused() {
    let model = tiny();
    let folder = tempfile::tempdir().unwrap();
    let chain = ["--input", "chain", "--ids", IDS];
    for more in [&[][..], &chain[..]] {
        let folder = folder.path().join(if more.is_empty() { "synthetic" } else { "chain" });
        let base = ["layers", "all", "--model", arg(&model)];
        let whole = report(&[&base[..], more].concat(), 0);
        let parts: Vec<String> =
            ["1/4", "2/4", "3/4", "4/4"].map(|name| part(&model, &folder, name, more)).to_vec();
        let order = [&parts[2], &parts[0], &parts[3], &parts[1]].map(String::as_str);
        let merged = report(&[&["merge"][..], &order].concat(), 0);
        assert_eq!(without_provenance(merged), without_provenance(whole));
    }
    let at = |name: &str| arg(&folder.path().join("synthetic").join(name)).to_owned();
    let [one, two, three, four] = ["1-of-4", "2-of-4", "3-of-4", "4-of-4"].map(at);
    let gap = expect(&["merge", &one, &two, &four], 4).stderr;
    assert!(gap.contains("parts missing: 1 of 4: [3]"), "{gap}");
    let overlap = expect(&["merge", &one, &two, &three, &three, &four], 3).stderr;
    assert!(overlap.contains("part 3 is already in"), "{overlap}");
    let chained = arg(&folder.path().join("chain/3-of-4")).to_owned();
    let input = expect(&["merge", &one, &two, &chained, &four], 3).stderr;
    assert!(input.contains("the input differs"), "{input}");
    let seeded = part(&model, &folder.path().join("seed"), "3/4", &["--seed", "9"]);
    expect(&["merge", &one, &two, &seeded, &four], 3);
    // A machine whose kernels fail speaks for all.
    let other = forged(&three, &folder.path().join("kernels"), |json| {
        json["kernels"]["verdict"] = "FAIL".into();
        json["kernels"]["stages"][0]["verdict"] = "FAIL".into();
    });
    let merged = report(&["merge", &one, &two, &other, &four], 1);
    assert_eq!(merged.first_divergence.unwrap().at, "kernels/mxfp4-decode");
    // One that says nothing of its kernels has not run them, which hides no failure of another.
    let silent = forged(&one, &folder.path().join("silent"), |json| {
        json["kernels"] = serde_json::Value::Null;
    });
    report(&["merge", &silent, &two, &three, &four], 4);
    report(&["merge", &silent, &two, &other, &four], 1);
    // Whether the bytes are those of a set that ships shows in the whole, not in a part.
    let unheld = forged(&three, &folder.path().join("unheld"), |json| {
        json["question"]["ratchet"] = serde_json::Value::Null;
    });
    let merged = report(&["merge", &one, &two, &unheld, &four], 0);
    assert_eq!(merged.question.ratchet, None);
    for (field, value, says) in
        [("program", "9.9.9", "version differs"), ("subject", "another", "question differs")]
    {
        let other = forged(&three, &folder.path().join(field), |json| {
            json["question"][field] = value.into();
        });
        let error = expect(&["merge", &one, &two, &other, &four], 3).stderr;
        assert!(error.contains(says), "{error}");
    }
    let other = forged(&three, &folder.path().join("bytes"), |json| {
        for digest in json["sources"]["shards"].as_object_mut().unwrap().values_mut() {
            *digest = "0".repeat(64).into();
        }
    });
    let error = expect(&["merge", &one, &two, &other, &four], 3).stderr;
    assert!(error.contains("the checkpoint's"), "{error}");
    // Item 6: a number that nobody computed.
    let report = std::fs::read_to_string(Path::new(&three).join("report.json")).unwrap();
    let altered = folder.path().join("altered.json");
    std::fs::write(&altered, report.replacen("\"exit_code\": 0", "\"exit_code\": 1", 1)).unwrap();
    let error = expect(&["merge", &one, &two, arg(&altered), &four], 3).stderr;
    assert!(error.contains("altered.json") && error.contains("its digest is"), "{error}");
    expect(&["merge", arg(&model)], 3);
    expect(&["merge"], 2);
}

/// A copy of a part's report with something changed.
fn forged(part: &str, to: &Path, change: impl Fn(&mut serde_json::Value)) -> String {
    let mut json = read_json(&Path::new(part).join("report.json"));
    change(&mut json);
    std::fs::create_dir_all(to).unwrap();
    std::fs::write(to.join("report.json"), seal(&json).unwrap().to_string()).unwrap();
    arg(to).to_owned()
}

/// A resumed run that repeats, skips or mixes rows.
#[test]
fn a_cut_journal_is_taken_up_where_it_was() {
    let model = tiny();
    let (_folder, out) = scratch("out");
    let chain = ["--input", "chain", "--ids", IDS, "--out", arg(&out)];
    let base = [&["layers", "all", "--model", arg(&model)][..], &chain].concat();
    let whole = report(&base, 0);
    let journal = out.join("journal.jsonl");
    let lines = std::fs::read_to_string(&journal).unwrap();
    let kept: Vec<&str> = lines.split_inclusive('\n').collect();
    assert_eq!(kept.len(), 16);
    // Six rows, and half a line as a power cut leaves it.
    let cut = format!("{}{}", kept[..7].concat(), &kept[7][..kept[7].len() / 2]);
    std::fs::write(&journal, cut).unwrap();
    let resumed = report(&[&base[..], &["--resume"]].concat(), 0);
    assert_eq!(resumed.provenance.resumed_rows, 6);
    assert_eq!(without_provenance(resumed), without_provenance(whole));
    // Item 6: lines that were whole once, and the chain.
    let again = [&base[..], &["--resume"]].concat();
    for (altered, at) in [
        (kept.concat().replacen("PASS", "PAST", 1), "line 2"),
        (kept[..6].concat() + &kept[6].replace("\"ratio\":0.", "\"ratio\":0.0"), "line 7"),
        (kept[..6].concat() + "\n", "line 7"),
        (kept[0].replacen("\"seed\":", "\"seed\":1", 1), "not a journal"),
    ] {
        std::fs::write(&journal, altered).unwrap();
        let error = expect(&again, 3).stderr;
        assert!(error.contains("journal.jsonl") && error.contains(at), "{error}");
    }
    std::fs::write(&journal, kept[..7].concat()).unwrap();
    let chain = out.join("chain.safetensors");
    let mut bytes = std::fs::read(&chain).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&chain, bytes).unwrap();
    let error = expect(&again, 3).stderr;
    assert!(error.contains("chain.safetensors: not a chain: altered"), "{error}");
    let other = ["layers", "all", "--model", arg(&model), "--out", arg(&out), "--resume"];
    let error = expect(&other, 2).stderr;
    assert!(error.contains("the journal of another run"), "{error}");
    for file in ["report.json", "report.txt", "report.html", "layers.svg"] {
        assert!(out.join(file).exists(), "{file}");
    }
}

/// Ctrl-C in the middle: the finished layers are in a valid report, and the exit code says that it
/// is not the whole.
#[test]
fn an_interrupted_run_leaves_a_valid_partial_report() {
    use std::io::Read as _;
    let model = tiny();
    let (_folder, out) = scratch("out");
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_k3-verify"))
        .args(["layers", "all", "--model", arg(&model), "--prefill", "400", "--threads", "1"])
        .args(["--out", arg(&out)])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // The first rows are out, so the signal comes between two layers of many.
    let mut stdout = child.stdout.take().unwrap();
    let (mut seen, mut byte) = (String::new(), [0]);
    while seen.lines().count() < 6 && stdout.read(&mut byte).unwrap() == 1 {
        seen.push(char::from(byte[0]));
    }
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    stdout.read_to_string(&mut seen).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(4), "{seen}");
    let report = read_report(&out);
    assert_eq!(report.exit_code, 4);
    assert!(!report.rows.is_empty() && !report.outstanding.is_empty());
    assert_eq!(report.rows.len() + report.outstanding.len(), 15);
    assert!(report.rows.iter().all(|row| row.verdict == Verdict::Pass));
    assert!(seen.contains("INCOMPLETE") && seen.contains("interrupted before"), "{seen}");
}

/// A layer of which a shard is absent is NOT RUN, and the others are proved all the same.
#[test]
fn a_partial_checkpoint_is_proved_as_far_as_it_goes() {
    let (_folder, model) = scratch("model");
    expect(&["synth", arg(&model), "--shape", "kernel", "--experts", "8", "--probe", "0"], 0);
    std::fs::remove_file(model.join("model-00003-of-000006.safetensors")).unwrap();
    let run = report(&["layers", "1..3", "--model", arg(&model)], 4);
    let verdicts: Vec<Verdict> = run.rows.iter().map(|row| row.verdict).collect();
    assert_eq!(verdicts, [Verdict::Pass, Verdict::NotRun, Verdict::Pass]);
    // Asked for alone, the layers present are complete.
    assert_eq!(report(&["layers", "1,3", "--model", arg(&model)], 0).rows.len(), 2);
    // The shard of embedding and head is asked for by what opens and closes the model alone.
    let last = model.join("model-00006-of-000006.safetensors");
    std::fs::rename(&last, model.join("aside")).unwrap();
    let run = report(&["layers", "all", "--model", arg(&model)], 4);
    let verdict = |row: &LayerRow| (row.place.clone(), row.verdict);
    let verdicts: Vec<_> = run.rows.iter().map(verdict).collect();
    let expected = [
        ("embed", Verdict::NotRun),
        ("layer", Verdict::Pass),
        ("layer", Verdict::Pass),
        ("layer", Verdict::NotRun),
        ("layer", Verdict::Pass),
        ("layer", Verdict::Pass),
        ("closing", Verdict::NotRun),
    ];
    let expected = expected.map(|(place, verdict)| (place.to_owned(), verdict));
    assert_eq!(verdicts, expected);
    std::fs::rename(model.join("aside"), &last).unwrap();
    // A chain cannot pass over a gap.
    let chain = ["layers", "3", "--model", arg(&model), "--input", "chain", "--ids", "1,2,3"];
    let run = report(&chain, 4);
    assert!(run.rows[0].problem.as_ref().unwrap().contains("stops before layer 2"));
}

/// A shipped set judged without what was recorded of it, or another checkpoint held to it.
#[test]
fn shipped_sets_are_held_to_the_ratchet_and_nothing_else_is() {
    let tiny = Tiny::open();
    let model = tiny.model();
    let base = ["layers", "3", "--model", arg(&model)];
    let recorded = |more: &[&str]| report(&[&base[..], more].concat(), 0).question.ratchet;
    assert_eq!(recorded(&[]).as_deref(), Some("tiny/layers@engine synthetic"));
    let set = EvidenceSet::open("tiny", &tiny.fixtures.root.join("tiny")).unwrap();
    let ids: Vec<String> = set.full.ids.iter().map(ToString::to_string).collect();
    let chain = ["--input", "chain", "--ids", &ids.join(",")];
    assert_eq!(recorded(&chain).as_deref(), Some("tiny/layers@engine chain"));
    for other in [
        &["--seed", "2"][..],
        &["--singles", "1"],
        &["--mla-norm-eps", "1e-5"],
        &["--input", "chain", "--ids", "1,2,3"],
    ] {
        assert_eq!(recorded(other), None, "{other:?}");
    }
    let mild = tiny.fixtures.compose_twin("mild").unwrap();
    let stdout = expect(&["layers", "0", "--model", arg(&mild)], 0).stdout;
    let line = stdout.lines().nth(2).unwrap();
    assert_eq!(line, "ratchet: mild/layers@engine synthetic");
}

/// Stages that were not asked for are not missing; a pattern that matches no stage is.
#[test]
fn stages_that_are_not_selected_do_not_fail() {
    let model = tiny();
    let base = ["layers", "all", "--model", arg(&model), "--stages"];
    let run = report(&[&base[..], &["kda.*"]].concat(), 0);
    for row in &run.rows {
        let is_kda = row.attention.as_deref() == Some("KDA");
        let expected = if is_kda { Verdict::Pass } else { Verdict::NotSelected };
        assert_eq!(row.verdict, expected, "{row:?}");
        assert_eq!(row.stages.is_empty(), !is_kda, "{row:?}");
    }
    let run = report(&[&base[..], &["kda.nothing"]].concat(), 4);
    assert!(run.rows.iter().all(|row| row.verdict == Verdict::NotSelected));
}
