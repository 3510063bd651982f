//! What a command reads and writes, checked against each other before any work: an output must not
//! replace an input, another output, a part of a model, or anything that is not a file.

use std::collections::HashMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::files::{followed, id};

/// Something that a command writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output<'a> {
    /// One file.
    File(&'a Path),
    /// A folder that holds nothing else.
    Folder(&'a Path),
    /// A folder of reports: these files, figures, and whatever else there is.
    Reports(&'a Path, &'a [&'a str]),
}

/// Folders below a folder that is read are read too, to this depth: an evidence set has its model
/// in one.
const DEPTH: usize = 2;

/// What is read: whole folders, and files by what tells them from others.
#[derive(Default)]
struct Inputs {
    folders: Vec<(PathBuf, PathBuf)>,
    files: HashMap<(u64, u64), PathBuf>,
}

impl Inputs {
    /// Adds a file, or a folder with what is in it; links are followed. What is not there is left
    /// to its reader.
    fn add(&mut self, path: &Path, depth: usize) {
        let Ok(found) = fs::metadata(path) else { return };
        if !found.is_dir() {
            self.files.insert(id(&found), path.to_owned());
            return;
        }
        self.folders.extend(path.canonicalize().map(|whole| (whole, path.to_owned())));
        if depth > 0 {
            for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                self.add(&entry.path(), depth - 1);
            }
        }
    }

    /// Refuses a path that is read, or is in a folder that is.
    fn refuse(&self, path: &Path, place: &Path) -> Result<(), String> {
        let shown = path.display();
        if let Some((_, folder)) = self.folders.iter().find(|(whole, _)| place.starts_with(whole)) {
            let folder = folder.display();
            return Err(format!("{shown}: expected an output outside of {folder}, which is read"));
        }
        let same = fs::metadata(place).ok().and_then(|found| self.files.get(&id(&found)));
        same.map_or(Ok(()), |input| {
            let input = input.display();
            Err(format!("{shown}: expected an output, got the file of the input {input}"))
        })
    }
}

/// Checks the outputs of a command.
///
/// # Errors
/// What is wrong with the first of them that cannot be.
pub fn check(inputs: &[&Path], outputs: &[Output<'_>]) -> Result<(), String> {
    let mut read = Inputs::default();
    inputs.iter().for_each(|input| read.add(input, DEPTH));
    let mut files: Vec<(PathBuf, PathBuf)> = Vec::new();
    let mut folders = Vec::new();
    let mut figures = Vec::new();
    for output in outputs {
        match *output {
            Output::File(path) => files.push((path.to_owned(), place(path)?)),
            Output::Folder(path) => folders.push((path, place(path)?)),
            Output::Reports(path, names) => {
                let named = names.iter().map(|name| path.join(name));
                for path in named {
                    files.push((path.clone(), place(&path)?));
                }
                figures.push((path, place(path)?));
            }
        }
    }
    for (index, (path, at)) in files.iter().enumerate() {
        if fs::metadata(at).is_ok_and(|found| !found.is_file()) {
            return Err(format!("{}: is there and is not a regular file", path.display()));
        }
        read.refuse(path, at)?;
        let one = |other: &(PathBuf, PathBuf)| other.1 == *at || is_same(&other.1, at);
        let figure = |(_, folder): &(&Path, PathBuf)| {
            at.parent() == Some(folder) && at.extension().is_some_and(|end| end == "svg")
        };
        if files[..index].iter().any(one) || figures.iter().any(figure) {
            return Err(format!("{}: expected one path per output, got it twice", path.display()));
        }
    }
    for (path, at) in &folders {
        read.refuse(path, at)?;
        let others = files.iter().chain(&[]).map(|(other, place)| (&**other, place));
        let others = others.chain(figures.iter().map(|(other, place)| (*other, place)));
        if let Some((other, _)) = others.into_iter().find(|(_, other)| other.starts_with(at)) {
            let (other, path) = (other.display(), path.display());
            return Err(format!("{other}: expected a path outside of {path}, another output"));
        }
    }
    Ok(())
}

/// Whether both are there and are one file.
fn is_same(a: &Path, b: &Path) -> bool {
    let id = |path| fs::metadata(path).ok().map(|found| id(&found));
    id(a).is_some() && id(a) == id(b)
}

/// Where a path leads: links are followed, and what is not there yet counts as the folders that
/// will be made.
fn place(path: &Path) -> Result<PathBuf, String> {
    let path = followed(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut place = std::env::current_dir().unwrap_or_default();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                place.pop();
            }
            part => place.push(part),
        }
        place = place.canonicalize().unwrap_or(place);
    }
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const REPORTS: &[&str] = &["report.json"];

    /// Every spelling of a path that is taken, and some of paths that are not.
    #[test]
    fn an_output_that_is_taken_is_refused_however_it_is_spelled() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        for made in ["set/model", "blobs", "out"] {
            fs::create_dir_all(at(made)).expect("a folder");
        }
        fs::write(at("blobs/1"), "shard").expect("a shard");
        symlink("../../blobs/1", at("set/model/shard")).expect("a link to it");
        fs::hard_link(at("blobs/1"), at("hard")).expect("another");
        symlink("set", at("link")).expect("a link to the set");
        symlink("nowhere", at("dangling")).expect("a link to nothing");
        fs::write(at("list"), "input").expect("an input");
        let inputs = [&*at("set"), &*at("list")];
        for taken in [
            "set/new",
            "set/model/new",
            "set/model/shard",
            "blobs/1",
            "hard",
            "list",
            "./list",
            "link/model/new",
            "out/../set/x",
            "not/yet/../../set/x",
            "dangling",
            "out",
            "blobs/../link/new",
        ] {
            assert!(check(&inputs, &[Output::File(&at(taken))]).is_err(), "{taken}");
        }
        for free in ["new", "out/new", "not/yet/there", "sets", "set/../new", "blobs/2"] {
            assert_eq!(check(&inputs, &[Output::File(&at(free))]), Ok(()), "{free}");
        }
        for (one, other) in [
            ("new", "new"),
            ("new", "./new"),
            ("new", "out/../new"),
            ("hard", "blobs/1"),
            ("new", "link/../new"),
            ("out/report.json", "x"),
            ("x", "out/plot.svg"),
            ("not/yet/../x", "not/x"),
            ("x", "pack/y"),
            ("x", "pack"),
        ] {
            let (one, other) = (at(one), at(other));
            let (out, pack) = (at("out"), at("pack"));
            let outputs = [
                Output::File(&one),
                Output::File(&other),
                Output::Reports(&out, REPORTS),
                Output::Folder(&pack),
            ];
            assert!(check(&[], &outputs).is_err(), "{one:?} {other:?}");
        }
        let (one, other, out, pack) = (at("x"), at("out/logits"), at("out"), at("out/pack"));
        let outputs = [
            Output::File(&one),
            Output::File(&other),
            Output::Reports(&out, REPORTS),
            Output::Folder(&pack),
        ];
        assert_eq!(check(&inputs, &outputs), Ok(()));
        for taken in ["set", "set/pack", "link", "."] {
            let result = check(&inputs, &[Output::Folder(&at(taken))]);
            assert_eq!(result.is_err(), taken != ".", "{taken}");
        }
        let taken = check(&inputs, &[Output::Reports(&at("set"), REPORTS)]);
        assert!(taken.is_err_and(|error| error.contains("which is read")));
    }
}
