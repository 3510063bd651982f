//! The script that `plan` emits for a cluster.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::support::proof::report;
use crate::support::{arg, copy_folder, expect, tiny};

/// The script that `plan` emits, as a plain script of each part: without a scheduler it runs one
/// part, with files that are there it downloads nothing.
#[test]
fn the_job_script_runs_a_part_on_files_that_are_there() {
    let (model, folder) = (tiny(), tempfile::tempdir().unwrap());
    let plan = ["plan", "all", "--parts", "4", "--emit", "script", "--model", arg(&model)];
    let script = expect(&plan, 0).stdout;
    let path = folder.path().join("job.sh");
    std::fs::write(&path, script).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_k3-verify"));
    let search = std::env::join_paths(
        [program.parent().unwrap().to_owned()]
            .into_iter()
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let search = search.unwrap();
    for part in 1..=4 {
        let output = Command::new("bash")
            .arg(&path)
            .env("PART", part.to_string())
            .env("MODEL", &model)
            .env("PATH", &search)
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{:?}", output.stderr);
    }
    let parts = ["1", "2", "3", "4"].map(|part| folder.path().join("parts").join(part));
    let names: Vec<&str> = parts.iter().map(|part| arg(part)).collect();
    let merged = report(&[&["merge"][..], &names].concat(), 0);
    assert_eq!(merged.rows.len(), 15);
}

/// The script is read by any shell, and what it was given arrives as it was typed.
#[test]
fn the_job_script_quotes_what_it_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("a model's");
    copy_folder(&tiny(), &model);
    // Shards whose names a shell would take apart.
    let index = model.join("model.safetensors.index.json");
    let names =
        ["a b.safetensors", "it's \"$(touch ran)\".safetensors", "`touch ran`;*.safetensors"];
    let mut text = std::fs::read_to_string(&index).unwrap();
    for (number, name) in names.iter().enumerate() {
        let old = format!("model-{:05}-of-000003.safetensors", number + 1);
        std::fs::rename(model.join(&old), model.join(name)).unwrap();
        text = text.replace(&old, &name.replace('"', "\\\""));
    }
    std::fs::write(&index, text).unwrap();
    // Instead of the downloader and of the program: one that notes its words.
    let noted = folder.path().join("noted");
    let note = "#!/bin/sh\nfor word; do printf '%s\\0' \"$word\" >> \"$NOTED\"; done\n\
        while [ $# -gt 1 ]; do if [ \"$1\" = --output ]; then : > \"$2\"; fi; shift; done\n";
    for program in ["curl", "k3-verify"] {
        let path = folder.path().join(program);
        std::fs::write(&path, note).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let search = format!("{}:{}", arg(folder.path()), std::env::var("PATH").unwrap());
    for base in ["http://h/a b", "it's", "\"$(touch ran)\"", "`touch ran`", "a\n--b;c", "-x"] {
        let base_url = format!("--base-url={base}");
        let plan = ["plan", arg(&model), "all", "--emit", "script", "--tokens", "5", &base_url];
        let script = expect(&plan, 0).stdout;
        let path = folder.path().join("job.sh");
        std::fs::write(&path, script).unwrap();
        assert!(Command::new("sh").arg("-n").arg(&path).status().unwrap().success(), "{base}");
        let run = Command::new("sh")
            .arg(&path)
            .envs([("PART", "1"), ("PATH", &search), ("NOTED", arg(&noted)), ("MODEL", "to here")])
            .current_dir(folder.path())
            .status();
        assert!(run.unwrap().success(), "{base}");
        let words = std::fs::read_to_string(&noted).unwrap();
        let words: Vec<&str> = words.split('\0').collect();
        for name in names {
            assert!(words.contains(&&*format!("{base}/{name}")), "{base}: {words:?}");
        }
        assert!(words.windows(4).any(|w| w == ["--prefill", "3", "--singles", "2"]), "{words:?}");
        assert!(!folder.path().join("ran").exists(), "{base} was run");
        std::fs::remove_file(&noted).unwrap();
        std::fs::remove_dir_all(folder.path().join("to here")).unwrap();
    }
}
