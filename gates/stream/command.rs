//! `generate`, `pack` and `plan` from outside: the same line and logits at every budget, exit
//! codes, files written whole.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::make::generate;
use crate::support::{
    Ran, binary, command_on, copy_folder, expect_of, ids, read_and_close, read_json, scratch, tiny,
    typed,
};

fn line(ids: &[u32]) -> String {
    typed(ids) + "\n"
}

/// The published greedy ids and one checksum of the logits: from shards and from a pack, with
/// rings of 1, 2 and 3, a cache of top-k, limits, threads, recompute, chunks, streamed vocabulary.
#[test]
fn the_same_ids_and_logits_under_every_limit() {
    let folder = tempfile::tempdir().unwrap();
    let trunk = folder.path().join("trunk").display().to_string();
    expect_of(binary().arg("pack").arg(tiny()).arg(&trunk), 0);
    let expected = line(&ids("greedy_ids"));
    let ways: [&[&str]; 16] = [
        &[],
        &["--ring", "1", "--trunk-gb", "0.0012", "--expert-slots", "2"],
        &["--ring", "2", "--trunk-gb", "0.0012", "--expert-slots", "2"],
        &["--ring", "3", "--trunk-gb", "0.0012", "--expert-slots", "3"],
        &["--trunk", &trunk, "--ring", "1", "--trunk-gb", "0.0012"],
        &["--trunk", &trunk, "--ring", "2", "--trunk-gb", "0.0012", "--cache-gb", "0.0001"],
        &["--trunk", &trunk, "--ring", "3", "--trunk-gb", "0.0012", "--policy", "lru"],
        &["--trunk", &trunk],
        &["--memory", "22MB"],
        &["--memory", "21.5MB", "--policy", "s3-fifo"],
        &["--threads", "1"],
        &["--threads", "3", "--preset", "ultra"],
        &["--threads", "8", "--prefill-chunk", "1"],
        &["--full-recompute", "--expert-slots", "5"],
        &["--prefill-chunk", "5", "--policy", "random", "--expert-slots", "4"],
        &["--preset", "laptop", "--prefill-chunk", "64"],
    ];
    let mut first: Option<Vec<u8>> = None;
    for way in ways {
        let dump = folder.path().join("logits");
        let mut command = generate(&["--gen", "20"]);
        let output = expect_of(command.args(way).arg("--dump-logits").arg(&dump), 0);
        assert_eq!(output.stdout, expected, "{way:?}");
        let logits = fs::read(dump).unwrap();
        assert_eq!(logits.len(), 20 * 256 * 4);
        assert!(first.get_or_insert_with(|| logits.clone()) == &logits, "{way:?}");
    }
}

/// The report says what `simcache` finds in the trace, to the count.
#[test]
fn the_report_and_the_laboratory_agree() {
    let (_folder, trace) = scratch("trace");
    for slots in ["2", "9", "40"] {
        let mut command = generate(&["--gen", "6", "--format", "json", "--expert-slots", slots]);
        let output = expect_of(command.arg("--dump-trace").arg(&trace), 0);
        let report = output.json();
        let study = expect_of(binary().args(["simcache", "--format", "json"]).arg(&trace), 0);
        let study = study.json();
        let run = &study["recorded_runs"][0];
        assert!(run["difference"].is_null(), "{run}");
        let table = &report["totals"]["experts"];
        assert_eq!(run["replayed"], *table);
        assert_eq!(run["recorded_hits"], table["hits"]);
        let by_step = report["steps"].as_array().unwrap().iter();
        let hits: u64 = by_step.map(|step| step["hits"].as_u64().unwrap()).sum();
        assert_eq!(table["hits"], hits);
    }
}

/// G08: nothing asked for is an empty list, no division by nothing, and one is the first of five.
#[test]
fn g08_none_and_one() {
    let report = |count: &str| {
        let ran = expect_of(generate(&["--gen", count, "--format", "json"]), 0);
        let text = &ran.stdout;
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        ran.json()
    };
    let (none, one, five) = (report("0"), report("1"), report("5"));
    assert_eq!(none["generated_ids"], serde_json::json!([]));
    assert_eq!(none["steps"][0]["id"], serde_json::Value::Null);
    assert_eq!(one["generated_ids"].as_array().unwrap().len(), 1);
    assert_eq!(one["generated_ids"][0], five["generated_ids"][0]);
    let margins = five["steps"].as_array().unwrap().iter();
    assert!(margins.map(|step| step["margin"].as_f64().unwrap()).all(|m| m >= 0.0));
    assert_eq!(expect_of(generate(&["--gen", "0"]), 0).stdout, "\n");
}

/// Stop ids: the one that stops is kept, the first of several wins, and one that never comes
/// changes nothing.
#[test]
fn h02_a_stop_id_is_kept() {
    let greedy = ids("greedy_ids");
    let run = |stops: &[&str]| {
        let mut command = generate(&["--gen", "20"]);
        for stop in stops {
            command.args(["--stop-id", stop]);
        }
        expect_of(&mut command, 0).stdout
    };
    let third = greedy[2].to_string();
    assert_eq!(run(&[&third]), line(&greedy[..3]));
    assert_eq!(run(&[&third, &third, &greedy[7].to_string()]), line(&greedy[..3]));
    let never = (0..256).find(|id| !greedy.contains(id)).unwrap();
    assert_eq!(run(&[&never.to_string()]), line(&greedy));
    for stop in ["abc", "-1", "256", "4294967296"] {
        expect_of(generate(&["--stop-id", stop]), 2);
    }
}

/// H01, H04: text that is no number of the right kind is refused before any work.
#[test]
fn h01_h04_arguments_mean_what_they_say() {
    for ids in [
        "abc",
        "1,x",
        "1,,2",
        "1,2,",
        "1 2",
        "",
        "-1",
        "256",
        "4294967296",
        "9999999999999999999",
        "0x10",
        "+1",
        "1.0",
    ] {
        let mut command = command_on("generate", &tiny());
        expect_of(command.arg(format!("--ids={ids}")), 2);
    }
    for arguments in [
        &["--gen", "-1"][..],
        &["--gen", "4294967297"],
        &["--gen", "18446744073709551615"],
        &["--threads", "0"],
        &["--cache-gb", "-1"],
        &["--cache-gb", "nan"],
        &["--cache-gb", "inf"],
        &["--cache-gb", "1e30"],
        &["--trunk-gb", "-0.5"],
        &["--ring", "0"],
        &["--expert-slots", "0"],
        &["--layers", "0"],
        &["--layers", "14"],
        &["--layers", "999"],
        &["--prefill-chunk", "0"],
        &["--policy", "best"],
        &["--preset", "huge"],
        &["--prompt", "text"],
        &["--chat"],
        &["--temperature", "1"],
        &["--spec", "4"],
        &["--tf-check", "--stop-id", "1"],
        &["--tf-check", "--dump-logits", "x"],
        &["--full-recompute", "--load-state", "x"],
    ] {
        expect_of(generate(arguments), 2);
    }
    expect_of(binary().args(["generate", "--ids", "1"]), 2);
    expect_of(command_on("generate", &tiny()), 2);
}

/// `--layers` says loudly that the ids are not the model's, and K3_MODEL names the model.
#[test]
fn a_prefix_of_the_layers_is_said_loudly() {
    let output = expect_of(generate(&["--layers", "3", "--gen", "2"]), 0);
    assert!(output.stderr.contains("NOTE: only the first 3 of 13 layers"));
    assert_ne!(output.stdout, line(&ids("greedy_ids")[..2]));
    let output = expect_of(generate(&["--layers", "1", "--gen", "1"]), 0);
    assert!(output.stderr.contains("first 1 of 13"));
    let mut command = binary();
    command.args(["generate", "--ids", &typed(&ids("prompt_ids")), "--gen", "3"]);
    let output = expect_of(command.env("K3_MODEL", tiny()), 0);
    assert_eq!(output.stdout, line(&ids("greedy_ids")[..3]));
}

/// Teacher forcing over ids: the count that the expected answers imply.
#[test]
fn tf_check_counts_agreement() {
    let (full, prompt) = (ids("full_ids"), ids("prompt_ids").len());
    let mut command = command_on("generate", &tiny());
    command.args(["--tf-check", "--ids", &typed(&full), "--format", "json"]);
    let output = expect_of(&mut command, 0);
    let report = output.json();
    let forced = &report["teacher_forcing"];
    let argmax = ids("argmax_per_position");
    let right = argmax.iter().zip(&full[1..]).filter(|(a, b)| a == b).count();
    assert_eq!(forced["tf_positions"], full.len() - 1);
    assert_eq!(forced["tf_matches"], right);
    assert!(right >= full.len() - prompt);
    // There are no steps; the time of the check was reported as that of none.
    assert!(report["totals"]["seconds"].as_f64().unwrap() > 0.0);
}

fn shell(script: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_k3-verify")]);
    command.args(arguments);
    command
}

/// A disk that is full in the middle: one line, exit 3, no signal, and no half file.
#[test]
fn a_full_disk_is_one_line_and_no_half_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    // A file may have 8 blocks of 512 bytes; the signal that goes with it is turned off.
    let full = "trap '' XFSZ; ulimit -f 8; exec \"$@\"";
    let (model, prompt) = (tiny().display().to_string(), typed(&ids("prompt_ids")));
    let run = ["generate", "--model", &model, "--ids", &prompt, "--gen", "20"];
    for option in ["--dump-logits", "--dump-trace", "--save-state"] {
        let target = file("out");
        let arguments = [&run[..], &[option, &target]].concat();
        let stderr = expect_of(shell(full, &arguments), 3).stderr;
        let line = stderr.lines().find(|line| line.starts_with("error: ")).unwrap();
        // The folder is a temporary one itself.
        assert!(line.contains(&target) && line.matches(".tmp").count() == 1, "{line}");
        assert!(fs::read_dir(folder.path()).unwrap().next().is_none(), "{option}");
    }
    let pack = file("pack");
    let output = expect_of(shell(full, &["pack", &model, &pack]), 3);
    assert!(output.stderr.contains("hint: "));
    assert!(!Path::new(&pack).join("trunk.json").exists());
    for option in ["--dump-logits", "--dump-trace", "--save-state"] {
        for (target, code) in [("/nonexistent/x", 3), ("/dev/full", 2), ("/dev/null", 2)] {
            expect_of(generate(&[option, target]), code);
        }
    }
    expect_of(generate(&["--out", "/proc/nothing"]), 3);
    assert!(!fs::metadata("/dev/full").unwrap().is_file());
}

/// A shard cut short, a missing model, a missing trunk: named, exit 3.
#[test]
fn damaged_inputs_are_named() {
    let (folder, model) = scratch("model");
    copy_folder(&tiny(), &model);
    let shard = model.join("model-00002-of-000003.safetensors");
    let length = fs::metadata(&shard).unwrap().len();
    let file = fs::File::options().write(true).open(&shard).unwrap();
    file.set_len(length - 100).unwrap();
    let run = |model: &Path, more: &[&str]| {
        let mut command = command_on("generate", model);
        let output = expect_of(command.args(["--ids", "1,2", "--gen", "1"]).args(more), 3);
        output.stderr
    };
    assert!(run(&model, &[]).contains("model-00002"), "the shard is named");
    assert!(run(&folder.path().join("none"), &[]).contains("none"));
    assert!(run(&tiny(), &["--trunk", "/nonexistent"]).contains("/nonexistent"));
    assert!(run(&tiny(), &["--load-state", "/nonexistent"]).contains("/nonexistent"));
}

/// H05: closing the pipe early is not an error.
#[test]
fn h05_a_closed_pipe_is_quiet() {
    let output = read_and_close(&mut generate(&["--gen", "3", "--format", "json"]), 0);
    let stderr = Ran::of(&output, 0).stderr;
    assert!(!stderr.contains("error"), "{stderr}");
}

/// `plan` adds up without reading weights, and refuses what would not fit.
#[test]
fn plan_adds_up_and_refuses() {
    let plan = |more: &[&str], code: i32| {
        let mut command = command_on("plan", &tiny());
        expect_of(command.args(["--format", "json"]).args(more), code)
    };
    let report = plan(&["--positions", "1000"], 0).json();
    let lines = report["plan"]["components"].as_array().unwrap();
    let sum: u64 = lines.iter().map(|line| line["bytes"].as_u64().unwrap()).sum();
    assert_eq!(report["plan"]["total_bytes"], sum);
    let latent = lines.iter().find(|line| line["name"] == "latent cache").unwrap();
    assert_eq!(
        latent["bytes"].as_u64().unwrap(),
        1000 * report["latent_bytes_per_position"].as_u64().unwrap()
    );
    plan(&["--memory", "2MB"], 5);
    plan(&["--preset", "desktop"], 0);
}

/// Text is refused in one line that says what to give instead.
#[test]
fn h01_text_is_refused_with_what_to_give_instead() {
    for (option, arguments) in [
        ("--prompt", &["--prompt", "hello"][..]),
        ("--prompt-file", &["--prompt-file", "/nonexistent"]),
        ("--chat", &["--chat"]),
    ] {
        let mut command = command_on("generate", &tiny());
        let stderr = expect_of(command.args(arguments), 2).stderr;
        assert!(stderr.starts_with(&format!("error: {option}: ")), "{stderr}");
        assert!(stderr.contains("\nhint: ") && stderr.contains("--ids"), "{stderr}");
        assert_eq!(stderr.lines().count(), 2, "{stderr}");
    }
}

/// The page is self-contained and shows the whole report: every step with its id, every component,
/// the peak next to the plan.
#[test]
fn the_page_of_a_run_shows_steps_and_memory() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = generate(&["--gen", "5", "--expert-slots", "9"]);
    expect_of(command.arg("--out").arg(folder.path()), 0);
    let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
    let report = read_json(&folder.path().join("report.json"));
    for (index, step) in report["steps"].as_array().unwrap().iter().enumerate() {
        let id = step["id"].as_u64().unwrap();
        let phase = step["phase"].as_str().unwrap();
        let fed = step["positions"].as_u64().unwrap();
        let cells =
            format!("<td>{index}</td><td class=\"text\">{phase}</td><td>{fed}</td><td>{id}</td>");
        assert!(page.contains(&cells), "{cells}");
    }
    for line in report["plan"]["components"].as_array().unwrap() {
        assert!(page.contains(line["what"].as_str().unwrap()), "{line}");
    }
    assert!(page.contains("COMPLETE: 5 ids") && page.contains("allowed"));
    assert_eq!(page.matches("<svg").count(), 3);
    for outside in ["http://", "https://", "<script", "<img", "<link"] {
        let page = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!page.contains(outside), "{outside}");
    }
}

/// The ladder: same ids on every rung, slots that grow with the limit, a table that the laboratory
/// takes and finds exact.
#[test]
fn the_ladder_is_read_by_the_laboratory() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = command_on("bench", &tiny());
    command.args(["--ladder", "20.3MB,20.7MB,48MB", "--repeats", "2", "--gen", "4"]);
    command.args(["--ids", &typed(&ids("prompt_ids")), "--format", "json"]);
    let output = expect_of(command.arg("--out").arg(folder.path()), 0);
    let ladder = output.json();
    let greedy: Vec<u64> = ids("greedy_ids")[..4].iter().map(|&id| id.into()).collect();
    assert_eq!(ladder["generated_ids"], serde_json::json!(greedy));
    let rows = ladder["rows"].as_array().unwrap();
    let slots: Vec<u64> = rows.iter().map(|row| row["expert_slots"].as_u64().unwrap()).collect();
    assert!(slots[0] < slots[2] && slots[2] == 96, "{slots:?}");
    let svg = fs::read_to_string(folder.path().join("ladder.svg")).unwrap();
    assert!(svg.starts_with("<svg"));
    let mut study = binary();
    study.arg("simcache").arg(folder.path().join("ladder.trace"));
    study.arg("--measured").arg(folder.path().join("ladder.tsv"));
    let study = expect_of(study.args(["--format", "json"]), 0);
    let study = study.json();
    let late = study["measured"]["models"].as_array().unwrap().iter();
    let late = late.clone().find(|model| model["name"] == "late").unwrap();
    assert_eq!(late["exact_rungs"], 3, "{late}");
    let mut refused = command_on("bench", &tiny());
    expect_of(refused.args(["--ladder", "1MB", "--ids", "1"]), 5);
    expect_of(binary().args(["bench", "--ladder", "3gb", "--ids", "1"]), 2);
}
