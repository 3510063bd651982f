//! Hygiene as a test: the numbered invariants of `src/README.md` and the house rules on files.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// Longest file of code in lines.
const MAX_FILE_LINES: usize = 600;
/// Longest line in columns.
const MAX_LINE_COLUMNS: usize = 100;

struct Source {
    path: String,
    text: String,
}

impl Source {
    fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate().map(|(index, line)| (index + 1, line));
        lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folders: &[&str], ending: &str) -> Vec<Source> {
    let mut open: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    let mut found = Vec::new();
    while let Some(folder) = open.pop() {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
                found.push(Source { path: name, text: fs::read_to_string(&path).unwrap() });
            }
        }
    }
    assert!(!found.is_empty(), "no {ending} files under {folders:?}");
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn assert_none(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

/// Files in `folder` whose code mentions one of `words`.
fn mentions(folder: &str, words: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources(&[folder], ".rs") {
        for (number, line) in source.code_lines() {
            if let Some(word) = words.iter().find(|word| line.contains(**word)) {
                found.push(format!("{}:{number}: {word}", source.path));
            }
        }
    }
    found
}

#[test]
fn every_file_says_in_its_first_lines_what_it_is() {
    let mut problems = Vec::new();
    for source in sources(&["src", "gates", "tools"], ".rs") {
        if !source.text.starts_with("//! ") {
            problems.push(format!("{}: expected to begin with //!", source.path));
        }
    }
    for source in sources(&["oracle"], ".py") {
        if !source.text.trim_start_matches("#!/usr/bin/env python3\n").starts_with("\"\"\"") {
            problems.push(format!("{}: expected to begin with a doc string", source.path));
        }
    }
    assert_none(&problems);
}

#[test]
fn files_and_lines_are_of_readable_size() {
    let mut all = sources(&["src", "gates", "tools"], ".rs");
    all.extend(sources(&["oracle"], ".py"));
    let mut problems = Vec::new();
    for source in all {
        let lines = source.text.lines().count();
        if lines > MAX_FILE_LINES {
            problems.push(format!("{}: {lines} lines", source.path));
        }
        for (index, line) in source.text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > MAX_LINE_COLUMNS {
                problems.push(format!("{}:{}: {columns} columns", source.path, index + 1));
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn nothing_is_left_unfinished() {
    let marks = ["TODO", "FIXME", "XXX", "unimplemented!", "todo!(", "dbg!(", "#[ignore"];
    let mut problems = mentions("src", &marks);
    for source in sources(&["gates"], ".rs").iter().filter(|s| !s.path.ends_with("tidy.rs")) {
        for (number, line) in source.code_lines() {
            if marks.iter().any(|mark| line.contains(mark)) {
                problems.push(format!("{}:{number}: {}", source.path, line.trim()));
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn invariant_1_the_reference_stands_alone() {
    let engine = ["crate::checkpoint", "crate::kernels", "crate::model", "crate::stream"];
    assert_none(&mentions("src/reference", &engine));
    assert_none(&mentions("src/reference", &[".dot(", "general_mat_mul"]));
}

#[test]
fn invariant_2_the_engine_never_calls_the_reference() {
    let engine =
        ["src/checkpoint", "src/generate", "src/kernels", "src/memory", "src/model", "src/stream"];
    for folder in engine {
        assert_none(&mentions(folder, &["crate::reference"]));
    }
}

#[test]
fn invariant_3_no_environment_variable_changes_a_result() {
    let reads = mentions("src", &["env::var", "env::vars"]);
    let elsewhere: Vec<String> =
        reads.into_iter().filter(|place| !place.starts_with("src/cli/")).collect();
    assert_none(&elsewhere);
}

#[test]
fn invariant_4_sums_of_floats_are_never_split_over_threads() {
    let words = [".par_iter().sum", ".par_iter().reduce", ".reduce_with(", "par_bridge"];
    assert_none(&mentions("src", &words));
}

#[test]
fn invariant_5_errors_of_any_kind_only_on_the_command_line() {
    let places = mentions("src", &["anyhow"]);
    let elsewhere: Vec<String> =
        places.into_iter().filter(|place| !place.starts_with("src/cli/")).collect();
    assert_none(&elsewhere);
}

#[test]
fn invariant_6_one_file_touches_the_plotting_crate() {
    let places = mentions("src", &["plotters"]);
    let elsewhere: Vec<String> =
        places.into_iter().filter(|place| !place.starts_with("src/report/svg.rs")).collect();
    assert_none(&elsewhere);
}

#[test]
fn invariant_7_the_oracle_imports_numpy_and_the_standard_library_only() {
    let allowed_for_crosschecks = ["mlx", "mlx_lm", "mlx.core"];
    let standard = [
        "__future__",
        "argparse",
        "collections",
        "contextlib",
        "copy",
        "dataclasses",
        "decimal",
        "fractions",
        "functools",
        "hashlib",
        "itertools",
        "json",
        "math",
        "numpy",
        "os",
        "pathlib",
        "shutil",
        "struct",
        "sys",
        "tempfile",
        "time",
        "types",
        "typing",
    ];
    let own: Vec<String> = sources(&["oracle"], ".py")
        .iter()
        .filter_map(|s| Some(Path::new(&s.path).file_stem()?.to_string_lossy().into_owned()))
        .collect();
    let mut problems = Vec::new();
    for source in sources(&["oracle"], ".py") {
        for line in source.text.lines() {
            let module = line
                .strip_prefix("import ")
                .or_else(|| line.strip_prefix("from "))
                .and_then(|rest| rest.split([' ', '.', ',']).next());
            let Some(module) = module else { continue };
            let crosscheck = source.path.contains("crosscheck_mlx");
            let known = standard.contains(&module)
                || own.iter().any(|name| name == module)
                || (crosscheck && allowed_for_crosschecks.contains(&module));
            if !known {
                problems.push(format!("{}: {line}", source.path));
            }
        }
    }
    assert_none(&problems);
}
