//! E05 inside a real memory control group, as a container has one: the limit is found, the plan
//! keeps it, and a run that would not fit is refused before the kernel kills it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::widen::widen_vocabulary;
use crate::support::{binary, expect_of, ids, scratch, tiny, typed};

/// Where control groups are mounted.
const ROOT: &str = "/sys/fs/cgroup";

/// A group of this test's own, under the group of this process or under the root; gone at the end.
struct Group {
    folder: PathBuf,
    /// Files of the limit and of the most that was used.
    limit: &'static str,
    most: &'static str,
}

impl Group {
    /// None where this user may not make one, or where groups do not limit memory.
    fn create() -> Option<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = |wanted: &str| {
            let path = groups.lines().find_map(|line| {
                let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
                (controllers == wanted).then_some(path)
            });
            path.map(|path| path.trim_start_matches('/').to_owned())
        };
        let (first, second) = (Path::new(ROOT).join("memory"), PathBuf::from(ROOT));
        let places =
            [path("memory").map(|path| (first, path, V1)), path("").map(|path| (second, path, V2))];
        for (mount, path, (limit, most)) in places.into_iter().flatten() {
            for above in [mount.join(path), mount.clone()] {
                let folder = above.join(format!("k3-verify-e05-{}", std::process::id()));
                if fs::create_dir(&folder).is_err() {
                    continue;
                }
                let group = Self { folder, limit, most };
                if group.folder.join(limit).exists() {
                    return Some(group);
                }
            }
        }
        None
    }

    /// Limits the group to `bytes`.
    fn allow(&self, bytes: u64) {
        fs::write(self.folder.join(self.limit), bytes.to_string()).unwrap();
    }

    /// `command` inside the group.
    fn enter(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        inside.env_remove("K3_MODEL");
        inside.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        inside.arg(self.folder.join("cgroup.procs"));
        inside.arg(command.get_program()).args(command.get_args());
        inside
    }

    /// Most bytes that the group has used at once; `None` where the kernel does not count them.
    fn most_bytes(&self) -> Option<u64> {
        let text = fs::read_to_string(self.folder.join(self.most)).ok()?;
        Some(text.trim().parse().unwrap())
    }
}

/// Whether this user may make such a group.
pub fn is_possible() -> bool {
    Group::create().is_some()
}

/// File names of both versions.
const V1: (&str, &str) = ("memory.limit_in_bytes", "memory.max_usage_in_bytes");
const V2: (&str, &str) = ("memory.max", "memory.peak");

impl Drop for Group {
    fn drop(&mut self) {
        // What cannot be removed is empty and harmless.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// A model with 80 MB of embedding and head in a group of 64 MB: refused with the group's number
/// while its plan is the larger one, run within the group by the preset that streams both, with
/// the ids of a run without a limit.
pub fn e05_the_limit_of_a_container_is_kept() {
    let group = Group::create().expect("a memory control group");
    let limit = 64 << 20;
    group.allow(limit);
    let (_folder, model) = scratch("model");
    widen_vocabulary(&tiny(), &model, 320_000);
    let command = |what: &str, more: &[&str]| {
        let mut command = binary();
        command.arg(what).arg("--model").arg(&model).args(more);
        command
    };
    let plan = command("plan", &["--preset", "ultra", "--positions", "64", "--format", "json"]);
    let output = expect_of(group.enter(&plan), 0);
    let report = output.json();
    assert_eq!(report["provenance"]["group_limit_bytes"], limit);
    let allowed = report["plan"]["limit_bytes"].as_u64().unwrap();
    let machine = report["provenance"]["machine_bytes"].as_u64().unwrap();
    assert!(allowed < machine.min(limit + (32 << 20)), "{report}");
    assert!(report["plan"]["total_bytes"].as_u64().unwrap() <= allowed);

    let prompt = typed(&ids("prompt_ids"));
    let run =
        |more: &[&str]| command("generate", &[&["--ids", &prompt, "--gen", "4"], more].concat());
    let output = expect_of(group.enter(&run(&[])), 5);
    let stderr = output.stderr;
    assert!(stderr.contains("refused: the plan needs "), "{stderr}");
    assert!(stderr.contains("its control group"), "{stderr}");
    let small = expect_of(group.enter(&run(&["--preset", "ultra"])), 0);
    assert!(group.most_bytes().is_none_or(|most| most <= limit));
    let large = expect_of(run(&[]), 0);
    assert_eq!(small.stdout, large.stdout);
}
