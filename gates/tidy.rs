//! Hygiene as a test: the numbered invariants of `src/README.md`, the house rules on files, and
//! that every document cited exists.

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
        if folder.is_file() {
            let name = folder.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
            found.push(Source { path: name, text: fs::read_to_string(&folder).unwrap() });
            continue;
        }
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

/// The same, but for files whose path begins with one of `allowed`.
fn mentions_elsewhere(folder: &str, words: &[&str], allowed: &[&str]) -> Vec<String> {
    let mut places = mentions(folder, words);
    places.retain(|place| !allowed.iter().any(|start| place.starts_with(start)));
    places
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

/// The manifests of the root package and of every crate, by folder.
fn manifests() -> Vec<(String, toml::Table)> {
    let read = |path: &Path| fs::read_to_string(path).unwrap().parse::<toml::Table>().unwrap();
    let mut found = vec![(".".to_owned(), read(&root().join("Cargo.toml")))];
    let workspace = found[0].1["workspace"].clone();
    for member in workspace["members"].as_array().unwrap() {
        let folder = member.as_str().unwrap();
        found.push((folder.to_owned(), read(&root().join(folder).join("Cargo.toml"))));
    }
    found
}

/// Names of the dependencies in one section of a manifest.
fn dependencies(manifest: &toml::Table, section: &str) -> Vec<String> {
    let table = manifest.get(section).and_then(toml::Value::as_table);
    table.into_iter().flat_map(|table| table.keys().cloned()).collect()
}

fn dependencies_of(folder: &str) -> Vec<String> {
    let manifests = manifests();
    let (_, manifest) = manifests.iter().find(|(name, _)| name == folder).unwrap();
    dependencies(manifest, "dependencies")
}

/// Documents that a text cites: `NAME.md`, and NAME in "NAME section 2".
fn cited_documents(text: &str) -> Vec<String> {
    let of_a_path = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let words: Vec<&str> = text
        .split(|c| !of_a_path(c))
        .map(|word| word.trim_end_matches('.').trim_start_matches('/'))
        .filter(|word| !word.is_empty() && *word != ".md")
        .collect();
    let is_source = |word: &str| word.starts_with("src/") && word.ends_with(".rs");
    let named = words
        .iter()
        .filter(|word| word.ends_with(".md") || is_source(word))
        .map(|word| (*word).to_owned());
    let capital = |word: &str| word.len() > 2 && word.chars().all(|c| c.is_ascii_uppercase());
    let sections =
        words.windows(2).filter(|pair| capital(pair[0]) && pair[1].starts_with("section"));
    named.chain(sections.map(|pair| format!("{}.md", pair[0]))).collect()
}

/// A reader who follows the citation finds it: from the root, or from the folder of the file or one
/// above.
#[test]
fn every_document_that_is_cited_exists() {
    let mut all = Vec::new();
    for ending in [".rs", ".py", ".md", ".json", ".toml"] {
        all.extend(sources(&["src", "gates", "oracle", "tools", "fixtures", "reports"], ending));
    }
    for name in ["README.md", "CONTRIBUTING.md", "NOTICE", "Cargo.toml", ".ci/run"] {
        let text = fs::read_to_string(root().join(name)).unwrap();
        all.push(Source { path: name.to_owned(), text });
    }
    let (mut problems, mut citations) = (Vec::new(), 0);
    for source in all.iter().filter(|source| source.path != "gates/tidy.rs") {
        for name in cited_documents(&source.text) {
            citations += 1;
            let mut folders = Path::new(&source.path).ancestors().skip(1);
            if !folders.any(|folder| root().join(folder).join(&name).is_file()) {
                problems.push(format!("{} cites {name}, which is not there", source.path));
            }
        }
    }
    assert_none(&problems);
    assert!(citations > 20, "only {citations} citations were recognised");
}

/// Every clause has its heading in the description, and every heading its clause.
#[test]
fn clauses_are_the_headings_of_the_description() {
    let one = |ending: &str, mark: &str| -> String {
        let mut found = sources(&["src"], ending);
        found.retain(|source| source.text.contains(mark));
        let paths: Vec<&str> = found.iter().map(|source| source.path.as_str()).collect();
        assert_eq!(paths.len(), 1, "{ending} with {mark:?}: {paths:?}");
        found.remove(0).text
    };
    let code = one("clauses.rs", "pub const MODEL: [Clause");
    let quoted = code.split("clause(\"").skip(1).filter_map(|rest| rest.split('"').next());
    let clauses: Vec<&str> = quoted.collect();
    let description = one("MODEL.md", "# What Kimi K3 computes");
    let is_id = |title: &&str| {
        let number = title.strip_prefix(|c: char| c.is_ascii_uppercase());
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let headings: Vec<&str> =
        description.lines().filter_map(|line| line.strip_prefix("### ")).filter(is_id).collect();
    assert!(!clauses.is_empty());
    let mut problems = Vec::new();
    for id in clauses.iter().chain(&headings) {
        let count = |ids: &[&str]| ids.iter().filter(|other| *other == id).count();
        let (stated, described) = (count(&clauses), count(&headings));
        if (stated, described) != (1, 1) {
            problems.push(format!("{id}: {stated} in clauses.rs, {described} headings"));
        }
    }
    assert_none(&problems);
}

/// The manifest is the proof of independence: what it does not name cannot be called.
#[test]
fn invariant_1_the_reference_stands_alone() {
    let ours = |name: &String| name.starts_with("k3-");
    let own: Vec<String> = dependencies_of("src/reference").into_iter().filter(ours).collect();
    assert_eq!(own, ["k3-core"]);
    assert_none(&mentions("src/reference", &[".dot(", "general_mat_mul"]));
}

#[test]
fn invariant_2_the_engine_never_calls_the_reference() {
    for folder in ["src/core", "src/checkpoint", "src/cache", "src/engine"] {
        let own = dependencies_of(folder);
        let wrong = ["k3-reference", "k3-gates"].map(str::to_owned);
        assert!(wrong.iter().all(|name| !own.contains(name)), "{folder}: {own:?}");
    }
}

/// A member list that names every crate, since `cargo test` runs those it names.
#[test]
fn every_crate_is_a_member_and_is_tested_by_default() {
    let mut crates: Vec<String> = sources(&["src"], "Cargo.toml")
        .iter()
        .map(|source| source.path.trim_end_matches("/Cargo.toml").to_owned())
        .collect();
    crates.sort();
    let manifest = manifests().swap_remove(0).1;
    let list = |key: &str| {
        let listed = manifest["workspace"][key].as_array().unwrap().iter();
        let mut names: Vec<String> = listed
            .map(|name| name.as_str().unwrap().to_owned())
            .filter(|name| name != ".")
            .collect();
        names.sort();
        names
    };
    assert_eq!(list("members"), crates);
    assert_eq!(list("default-members"), crates);
}

/// A dependency that is declared is used, in the place that it is declared for.
#[test]
fn every_dependency_is_imported() {
    let manifests = manifests();
    let mut named = std::collections::BTreeSet::new();
    let mut problems = Vec::new();
    for (folder, manifest) in &manifests {
        for section in ["dependencies", "dev-dependencies"] {
            let own =
                if folder == "." { vec!["src/main.rs", "src/cli"] } else { vec![&folder[..]] };
            let places = if folder == "." && section == "dev-dependencies" {
                vec!["gates", "tools"]
            } else {
                own
            };
            let texts = sources(&places, ".rs");
            for name in dependencies(manifest, section) {
                let path = format!("{}::", name.replace('-', "_"));
                let used =
                    texts.iter().any(|s| s.code_lines().any(|(_, line)| line.contains(&path)));
                if !used {
                    problems
                        .push(format!("{folder}/Cargo.toml: {section}: {name} is not imported"));
                }
                named.insert(name);
            }
        }
    }
    for name in dependencies(manifests[0].1["workspace"].as_table().unwrap(), "dependencies") {
        if !named.contains(&name) {
            problems.push(format!("Cargo.toml: workspace.dependencies: no crate uses {name}"));
        }
    }
    assert_none(&problems);
}

/// Targets, and the modules of those that have some.
#[test]
fn every_test_target_is_described() {
    let readme = fs::read_to_string(root().join("gates/README.md")).unwrap();
    let manifest = manifests().swap_remove(0).1;
    let mut names: Vec<String> = Vec::new();
    for test in manifest["test"].as_array().unwrap() {
        names.push(test["name"].as_str().unwrap().to_owned());
        let text = fs::read_to_string(root().join(test["path"].as_str().unwrap())).unwrap();
        let module = |line: &str| Some(line.strip_prefix("mod ")?.strip_suffix(';')?.to_owned());
        names.extend(text.lines().filter_map(module).filter(|name| name != "support"));
    }
    assert!(names.len() > 20, "only {names:?}");
    names.retain(|name| !readme.contains(&format!("`{name}`")));
    assert_none(&names);
}

/// What needs more than ships is ignored by name and with the reason, which one target does.
#[test]
fn outside_data_is_looked_for_in_one_place() {
    let allowed = ["gates/outside.rs", "gates/oracle.rs", "gates/tidy.rs"];
    assert_none(&mentions_elsewhere("gates", &["K3_EXTERNAL", "NOT RUN:"], &allowed));
}

#[test]
fn invariant_3_no_environment_variable_changes_a_result() {
    assert_none(&mentions_elsewhere("src", &["env::var", "env::vars"], &["src/cli/"]));
}

#[test]
fn invariant_4_sums_of_floats_are_never_split_over_threads() {
    let words = [".par_iter().sum", ".par_iter().reduce", ".reduce_with(", "par_bridge"];
    assert_none(&mentions("src", &words));
}

#[test]
fn invariant_5_errors_of_any_kind_only_on_the_command_line() {
    assert_none(&mentions_elsewhere("src", &["anyhow"], &["src/cli/"]));
}

#[test]
fn invariant_6_one_file_touches_the_plotting_crate() {
    assert_none(&mentions_elsewhere("src", &["plotters"], &["src/render/svg.rs"]));
}

#[test]
fn invariant_7_the_oracle_imports_numpy_and_the_standard_library_only() {
    let allowed_for_crosschecks = ["mlx", "mlx_lm", "mlx.core"];
    let standard: Vec<&str> =
        "__future__ argparse collections contextlib copy dataclasses decimal \
        fractions functools hashlib itertools json math numpy os pathlib shutil struct sys \
        tempfile time types typing"
            .split_whitespace()
            .collect();
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
