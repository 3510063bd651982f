//! Flipped bytes: every command that reads a file refuses one in which a byte was altered, fails on
//! it, or says exactly what it said before; what else exits 0 has to be explained.
//!
//! One harness and a table of kinds of files. `cargo test` flips a few bytes of each kind; the run
//! of 2,000 (`long.rs`) writes `reports/byte-flips/report.txt`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use k3_core::random::SplitMix64;
use serde_json::Value;

use super::support::{binary, copy_folder};

/// How long a command may take; the slowest takes a second.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest line of an error.
const LINE: usize = 400;

/// How the files come about, in an empty folder. The sizes are small so that a flip costs little.
const MADE: [&str; 10] = [
    "synth m --shape tiny --layers 4 --experts 8 --vocab 64",
    "generate m --ids 1,2,3 --gen 3 --dump-logits before.bin --dump-trace trace.bin \
     --save-state state.bin",
    "pack m pack",
    "evidence m --ids 1,2,3 --gen 3 set",
    "dump m --ids 1,2,3 engine.dump",
    "dump m --ids 1,2,3 --by reference reference.dump",
    "layers all --model m --part 1/2 --out part1",
    "layers all --model m --part 2/2 --out part2",
    "layers 2..3 --model m --out run --singles 0 --prefill 2",
    "export shipped",
];

/// Which bytes of a file are flipped.
#[derive(Clone, Copy, PartialEq)]
enum Bytes {
    All,
    /// Of a safetensors file, its length and header.
    Header,
    /// Of a safetensors file, what is after them.
    Payload,
}

/// A kind of file and the command by which a flip in it is to be seen.
struct Kind {
    name: &'static str,
    /// The file, or the folder whose files are taken.
    file: &'static str,
    bytes: Bytes,
    command: &'static str,
    /// What else the command writes that is a result.
    result: Option<&'static str>,
    /// Why a command that exits 0 may say something else; `None` where it must not.
    explain: fn(&Flip, &Value, &Value) -> Option<&'static str>,
}

const fn kind(name: &'static str, file: &'static str, command: &'static str) -> Kind {
    Kind { name, file, bytes: Bytes::All, command, result: None, explain: |_, _, _| None }
}

const GENERATE: &str = "generate m --ids 1,2,3 --gen 2 --dump-logits logits.bin";
const JUDGE_SET: &str = "gates --evidence set --only */teacher-forcing@engine --format json";
const JUDGE_STAGES: &str = "gates --evidence set --only */stages@engine --format json";

/// Every kind.
fn kinds() -> Vec<Kind> {
    let numbers = |kind: Kind| Kind { result: Some("logits.bin"), ..kind };
    let part = |bytes, kind: Kind| Kind { bytes, ..kind };
    let within = |kind: Kind| Kind { explain: within_tolerance, ..kind };
    vec![
        part(
            Bytes::Payload,
            kind("shard payload", "m/model-00002-of-000005.safetensors", "check m --sha256 sums"),
        ),
        part(
            Bytes::Payload,
            kind("payload of a set", "set/model/model-00002-of-000005.safetensors", JUDGE_SET),
        ),
        part(
            Bytes::Header,
            numbers(kind("shard header", "m/model-00002-of-000005.safetensors", GENERATE)),
        ),
        numbers(kind("index", "m/model.safetensors.index.json", GENERATE)),
        kind("config", "set/model/config.json", JUDGE_SET),
        within(kind("expected.json", "set/expected.json", JUDGE_SET)),
        within(kind("expected.safetensors", "set/expected.safetensors", JUDGE_SET)),
        within(kind("stages of a set", "set/expected.safetensors", JUDGE_STAGES)),
        kind("fixtures", "shipped", "gates --fixtures shipped --only fixtures"),
        numbers(kind(
            "pack",
            "pack",
            "generate m --trunk pack --ids 1,2,3 --gen 2 --dump-logits logits.bin",
        )),
        numbers(kind(
            "state",
            "state.bin",
            "generate m --load-state state.bin --ids 5 --gen 2 --dump-logits logits.bin",
        )),
        kind("trace", "trace.bin", "simcache trace.bin --slots 8 --policy lru --format json"),
        kind("part report", "part1/report.json", "merge part1 part2 --format json"),
        kind(
            "journal",
            "run/journal.jsonl",
            "layers 2..3 --model m --out run --singles 0 --prefill 2 --resume --format json",
        ),
        within(kind("dump", "engine.dump", "compare engine.dump reference.dump --format json")),
        within(kind(
            "dump of the exact side",
            "reference.dump",
            "compare engine.dump reference.dump --format json",
        )),
        within(kind(
            "dump by layers",
            "engine.dump",
            "layers all --model m --engine-dump engine.dump --format json",
        )),
    ]
}

/// One altered byte.
#[derive(Clone)]
struct Flip {
    file: PathBuf,
    at: usize,
    mask: u8,
}

/// What a command did.
struct Ran {
    code: Option<i32>,
    said: Value,
    result: Vec<u8>,
    stderr: String,
}

/// What came of a flip.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Refused,
    Red,
    NotRun,
    Same,
    Explained(&'static str),
    Survived(String),
}

/// A folder with all files in it.
struct Workshop {
    folder: tempfile::TempDir,
}

impl Workshop {
    /// Two of them, for two threads.
    fn pair() -> [Self; 2] {
        let first = Self::made();
        let second = Self { folder: tempfile::tempdir().unwrap() };
        copy_folder(first.folder.path(), second.folder.path());
        [first, second]
    }

    fn made() -> Self {
        let workshop = Self { folder: tempfile::tempdir().unwrap() };
        for line in MADE {
            let ran = workshop.run(line, None);
            assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
        }
        let model = workshop.folder.path().join("m");
        let mut sums = String::new();
        for entry in fs::read_dir(&model).unwrap() {
            let path = entry.unwrap().path();
            let digest = k3_gates::fixtures::hex_sha256(&fs::read(&path).unwrap());
            let _ = writeln!(sums, "{digest}  {}", path.file_name().unwrap().to_string_lossy());
        }
        fs::write(workshop.folder.path().join("sums"), sums).unwrap();
        workshop
    }

    fn run(&self, line: &str, result: Option<&str>) -> Ran {
        let here = self.folder.path();
        let result = result.map(|name| here.join(name));
        result.iter().for_each(|file| drop(fs::remove_file(file)));
        let mut command = binary();
        command.args(line.split_whitespace()).args(["--threads", "1"]).current_dir(here);
        if THREADLESS.iter().any(|name| line.starts_with(name)) {
            command = binary();
            command.args(line.split_whitespace()).current_dir(here);
        }
        let files = ["stdout", "stderr"].map(|name| here.join(name));
        let [stdout, stderr] = files.each_ref().map(|path| fs::File::create(path).unwrap());
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        let output = finish(command.spawn().unwrap());
        let [stdout, stderr] =
            files.map(|path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned());
        let said = serde_json::from_str(&stdout).map_or(Value::String(stdout), without_provenance);
        let result = result.and_then(|file| fs::read(file).ok()).unwrap_or_default();
        Ran { code: output.and_then(|output| output.status.code()), said, result, stderr }
    }
}

/// Commands without `--threads`.
const THREADLESS: [&str; 5] = ["pack", "evidence", "export", "merge", "compare"];

/// Waits; `None` when the command had to be killed.
fn finish(mut child: Child) -> Option<Output> {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().ok()
}

/// A report without what differs from run to run.
fn without_provenance(mut report: Value) -> Value {
    if let Some(fields) = report.as_object_mut() {
        fields.remove("provenance");
    }
    report
}

/// Files of a kind, with the range of bytes that is flipped in each.
fn targets(folder: &Path, kind: &Kind) -> Vec<(PathBuf, std::ops::Range<usize>)> {
    let mut files = vec![PathBuf::from(kind.file)];
    let mut all = Vec::new();
    while let Some(file) = files.pop() {
        let path = folder.join(&file);
        if path.is_dir() {
            let entries = fs::read_dir(path).unwrap();
            files.extend(entries.map(|entry| file.join(entry.unwrap().file_name())));
            continue;
        }
        let bytes = fs::read(path).unwrap();
        let header = match bytes.first_chunk() {
            Some(length) if kind.bytes != Bytes::All => 8 + u64::from_le_bytes(*length) as usize,
            _ => 0,
        };
        all.push(match kind.bytes {
            Bytes::All => (file, 0..bytes.len()),
            Bytes::Header => (file, 0..header),
            Bytes::Payload => (file, header..bytes.len()),
        });
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// Flips one byte, runs the command, puts every file of the kind back.
fn fate(workshop: &Workshop, kind: &Kind, flip: &Flip, right: &Ran) -> Fate {
    let path = workshop.folder.path().join(&flip.file);
    let before = fs::read(&path).unwrap();
    let mut flipped = before.clone();
    flipped[flip.at] ^= flip.mask;
    fs::write(&path, &flipped).unwrap();
    let ran = workshop.run(kind.command, kind.result);
    fs::write(&path, before).unwrap();
    let longest = ran.stderr.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    let errors = ran.stderr.lines().filter(|line| line.starts_with("error: ")).count();
    match ran.code {
        None => Fate::Survived("a hang or a signal".to_owned()),
        _ if ran.stderr.contains("panicked") => Fate::Survived("a panic".to_owned()),
        Some(2 | 3 | 5) if errors != 1 || longest > LINE => {
            Fate::Survived(format!("{errors} error lines, the longest line has {longest}"))
        }
        Some(2 | 3 | 5) => Fate::Refused,
        Some(1) => Fate::Red,
        Some(4) => Fate::NotRun,
        Some(0) if ran.result == right.result && ran.said == right.said => Fate::Same,
        Some(0) => match (kind.explain)(flip, &right.said, &ran.said) {
            Some(why) => Fate::Explained(why),
            None => Fate::Survived(difference(right, &ran)),
        },
        Some(other) => Fate::Survived(format!("exit code {other}")),
    }
}

/// Where two results differ, in a few words.
fn difference(right: &Ran, ran: &Ran) -> String {
    if ran.result != right.result {
        return "exit 0 with other numbers".to_owned();
    }
    let pair = first_difference("", &right.said, &ran.said).unwrap_or_default();
    format!("exit 0, {}", pair.chars().take(160).collect::<String>())
}

fn first_difference(at: &str, a: &Value, b: &Value) -> Option<String> {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
            let null = &Value::Null;
            keys.into_iter().find_map(|key| {
                let pair = (a.get(key).unwrap_or(null), b.get(key).unwrap_or(null));
                first_difference(&format!("{at}.{key}"), pair.0, pair.1)
            })
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let mut pairs = a.iter().zip(b).enumerate();
            pairs.find_map(|(i, (a, b))| first_difference(&format!("{at}[{i}]"), a, b))
        }
        _ => (a != b).then(|| format!("{at}: {a} became {b}")),
    }
}

/// A value that moved by less than its tolerance is no wrong value: the verdict of every comparison
/// stands on the same tolerances as before, and nothing was left out.
fn within_tolerance(_flip: &Flip, right: &Value, said: &Value) -> Option<&'static str> {
    let same = budgets(right) == budgets(said);
    same.then_some("values moved within unchanged tolerances")
}

/// Every name, count, tolerance and verdict of a report, in order.
fn budgets(report: &Value) -> Vec<String> {
    const KEPT: [&str; 9] =
        ["name", "count", "budget", "passed", "verdict", "id", "stage", "basis", "shape"];
    match report {
        Value::Object(fields) => {
            let kept = |(key, value): (&String, &Value)| match KEPT.contains(&key.as_str()) {
                true => vec![format!("{key} {value}")],
                false => budgets(value),
            };
            fields.iter().flat_map(kept).collect()
        }
        Value::Array(items) => items.iter().flat_map(budgets).collect(),
        _ => Vec::new(),
    }
}

/// What is at a place of a file: the tensor of a safetensors file, or the text around it.
fn field(bytes: &[u8], at: usize) -> String {
    let around = &bytes[at.saturating_sub(24)..(at + 16).min(bytes.len())];
    if around.iter().all(|byte| (32..127).contains(byte) || *byte == b'\n') {
        return String::from_utf8_lossy(around).replace('\n', " ");
    }
    let place = || {
        let start = 8 + u64::from_le_bytes(*bytes.first_chunk()?) as usize;
        let header: BTreeMap<String, Value> = serde_json::from_slice(bytes.get(8..start)?).ok()?;
        let (name, _) = header.iter().find(|(_, tensor)| {
            let ends = tensor["data_offsets"]
                .as_array()
                .map(|ends| [0, 1].map(|i| start + ends[i].as_u64().unwrap_or(0) as usize));
            ends.is_some_and(|[from, to]| (from..to).contains(&at))
        })?;
        Some(name.clone())
    };
    place().unwrap_or_else(|| "binary".to_owned())
}

/// Flips `count` bytes of a kind on as many threads as there are workshops.
fn flips(workshops: &[Workshop], kind: &Kind, count: usize, seed: u64) -> Vec<(Flip, Fate)> {
    let folder = workshops[0].folder.path();
    let targets = targets(folder, kind);
    let total: usize = targets.iter().map(|(_, range)| range.len()).sum();
    let mut random = SplitMix64::new(seed);
    let draw = |_| {
        // Half the flips in a file chosen evenly, so that small files have their share.
        let even = random.below(2) == 0;
        let mut place = random.below(total as u64) as usize;
        let mut chosen = &targets[random.below(targets.len() as u64) as usize];
        if even {
            place = random.below(chosen.1.len() as u64) as usize;
        } else {
            for target in &targets {
                chosen = target;
                if place < target.1.len() {
                    break;
                }
                place -= target.1.len();
            }
        }
        let mask = match random.below(2) {
            0 => 1 << random.below(8),
            _ => 1 + random.below(255) as u8,
        };
        Flip { file: chosen.0.clone(), at: chosen.1.start + place, mask }
    };
    let flips: Vec<Flip> = (0..count).map(draw).collect();
    let done = Mutex::new(Vec::new());
    let work = &|(place, workshop): (usize, &Workshop)| {
        let right = workshop.run(kind.command, kind.result);
        assert_eq!(right.code, Some(0), "{}: {}", kind.name, right.stderr);
        for (index, flip) in flips.iter().enumerate().skip(place).step_by(workshops.len()) {
            let fate = fate(workshop, kind, flip, &right);
            done.lock().unwrap().push((index, flip.clone(), fate));
        }
    };
    std::thread::scope(|scope| {
        for share in workshops.iter().enumerate() {
            scope.spawn(move || work(share));
        }
    });
    let mut done = done.into_inner().unwrap();
    done.sort_by_key(|(index, ..)| *index);
    done.into_iter().map(|(_, flip, fate)| (flip, fate)).collect()
}

/// The line of a kind, then its survivors.
fn described(folder: &Path, kind: &Kind, flips: &[(Flip, Fate)]) -> String {
    let count = |fate: &dyn Fn(&Fate) -> bool| flips.iter().filter(|(_, f)| fate(f)).count();
    let mut text = format!(
        "{}: {} flips, {} refused, {} red, {} not run, {} the same result, ",
        kind.name,
        flips.len(),
        count(&|f| *f == Fate::Refused),
        count(&|f| *f == Fate::Red),
        count(&|f| *f == Fate::NotRun),
        count(&|f| *f == Fate::Same),
    );
    let explained = count(&|f| matches!(f, Fate::Explained(_)));
    let survived = count(&|f| matches!(f, Fate::Survived(_)));
    let _ = writeln!(text, "{explained} explained, {survived} SURVIVED\n  by: {}", kind.command);
    for (flip, fate) in flips {
        if let Fate::Survived(how) = fate {
            let bytes = fs::read(folder.join(&flip.file)).unwrap();
            let (file, at, mask) = (flip.file.display(), flip.at, flip.mask);
            let field = field(&bytes, at);
            let _ = writeln!(text, "  {file} byte {at} ^ {mask:#04x} in [{field}]: {how}");
        }
    }
    text
}

/// A sample, a few of every kind: none survives.
#[test]
fn a_flipped_byte_is_refused_red_or_without_effect() {
    let workshops = Workshop::pair();
    let mut survivors = String::new();
    for (seed, kind) in kinds().iter().enumerate() {
        let flips = flips(&workshops, kind, 4, seed as u64);
        if flips.iter().any(|(_, fate)| matches!(fate, Fate::Survived(_))) {
            survivors += &described(workshops[0].folder.path(), kind, &flips);
        }
    }
    assert_eq!(survivors, "");
}

/// The long run: flips `count` bytes of each kind and writes the report anew.
#[allow(dead_code, reason = "called by `long`")]
pub fn report(count: usize) {
    let workshops = Workshop::pair();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("reports/byte-flips/report.txt");
    let mut text = format!("The files, made by\n  {}\n\n", MADE.join("\n  "));
    for (seed, kind) in kinds().iter().enumerate() {
        let flips = flips(&workshops, kind, count, 1000 + seed as u64);
        text += &described(workshops[0].folder.path(), kind, &flips);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &text).unwrap();
    }
}
