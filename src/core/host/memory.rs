//! Memory of this machine and of this process: total, allowed by the control group, and in use.
//!
//! Available memory is the smaller of the kernel's `MemAvailable` and what the memory control
//! group, and every group above it, still allows. Both counts leave out the page cache that the
//! kernel would give up: a full cache is no reason to refuse. "Unlimited" has several spellings.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};

use super::interrupt::end_now;

/// Limits from here on mean that there is none: version 1 writes the largest signed number
/// rounded down to a page (0x7FFFFFFFFFFFF000 with pages of 4 KiB, less with larger ones).
const UNLIMITED_FROM_BYTES: u64 = 1 << 60;

/// Where control groups are mounted.
const GROUP_ROOT: &str = "/sys/fs/cgroup";

/// What can be had, in bytes, and who says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Available {
    /// `MemAvailable`; `None` where the system does not say.
    pub machine_bytes: Option<u64>,
    /// What the tightest control group still allows; `None` without a limit.
    pub group_bytes: Option<u64>,
    /// Limit of that group.
    pub group_limit_bytes: Option<u64>,
    /// What the limits on the address space of this process (`ulimit -v`, `ulimit -d`) still allow;
    /// `None` without one.
    pub address_bytes: Option<u64>,
}

impl Available {
    /// The smallest of them; `None` where none is known.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        let known = [self.machine_bytes, self.group_bytes, self.address_bytes];
        known.into_iter().flatten().min()
    }

    /// The same where so many threads are yet to be started.
    #[must_use]
    pub fn beside_threads(mut self, count: usize) -> Self {
        let taken = THREAD_ADDRESS_BYTES.saturating_mul(count as u64);
        self.address_bytes = self.address_bytes.map(|bytes| bytes.saturating_sub(taken));
        self
    }

    /// What a process that holds `held_bytes` may have in all. Never more than its group's limit:
    /// pages of files that it holds may be charged to another group, or be cache of its own.
    #[must_use]
    pub fn in_all(&self, held_bytes: u64) -> Option<u64> {
        let whole = self.bytes()?.saturating_add(held_bytes);
        Some(whole.min(self.group_limit_bytes.unwrap_or(u64::MAX)))
    }
}

/// Address space of a thread: its stack of 2 MiB, and some pages for signals and for what is local
/// to it.
const THREAD_ADDRESS_BYTES: u64 = (2 << 20) + (64 << 10);

/// The limit that a file of a control group states: `Some(None)` without a limit, `None` for text
/// that is no limit.
#[must_use]
pub fn parse_limit(text: &str) -> Option<Option<u64>> {
    let text = text.trim();
    if text == "max" || text == "-1" {
        return Some(None);
    }
    let bytes: u64 = text.parse().ok()?;
    Some((bytes < UNLIMITED_FROM_BYTES).then_some(bytes))
}

/// Bytes of a field of `/proc/meminfo` or `/proc/self/status`, which count in units of 1024.
#[must_use]
pub fn field_bytes(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    let number = line.strip_prefix(':')?.trim().strip_suffix("kB")?.trim();
    number.parse::<u64>().ok()?.checked_mul(1024)
}

/// What can be had now.
#[must_use]
pub fn available() -> Available {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Available {
        address_bytes: address_bytes(),
        ..available_in(&meminfo, &groups, Path::new(GROUP_ROOT))
    }
}

/// What the limits on the address space of this process still allow; `None` without one.
fn address_bytes() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let left = |(resource, used)| {
        Some(getrlimit(resource).current?.saturating_sub(field_bytes(&own, used)?))
    };
    [(Resource::As, "VmSize"), (Resource::Data, "VmData")].into_iter().filter_map(left).min()
}

/// [`available`] from the texts of `/proc/meminfo` and `/proc/self/cgroup`.
#[must_use]
pub fn available_in(meminfo: &str, groups: &str, root: &Path) -> Available {
    let tightest = group_folders(groups, root).iter().filter_map(|folder| room(folder)).min();
    Available {
        machine_bytes: field_bytes(meminfo, "MemAvailable"),
        group_bytes: tightest.map(|(room, _)| room),
        group_limit_bytes: tightest.map(|(_, limit)| limit),
        address_bytes: None,
    }
}

/// Folders of the process's memory groups and of all above them. In a container the path may be
/// the host's and not exist: its ancestors are tried as well, down to the mount itself.
fn group_folders(groups: &str, root: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let mounts = if controllers.is_empty() {
            vec![root.to_owned(), root.join("unified")]
        } else if controllers.split(',').any(|name| name == "memory") {
            vec![root.join("memory")]
        } else {
            continue;
        };
        for mount in mounts {
            let path = Path::new(path.trim_start_matches('/'));
            folders.extend(path.ancestors().map(|part| mount.join(part)));
        }
    }
    folders
}

/// What a group still allows, and its limit; `None` without a limit.
fn room(folder: &Path) -> Option<(u64, u64)> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let (limit, used, cached) = match read("memory.max") {
        Some(limit) => (limit, read("memory.current"), ["inactive_file", "active_file"]),
        None => (
            read("memory.limit_in_bytes")?,
            read("memory.usage_in_bytes"),
            ["total_inactive_file", "total_active_file"],
        ),
    };
    let limit = parse_limit(&limit)??;
    let used: u64 = used?.trim().parse().ok()?;
    let statistics = read("memory.stat").unwrap_or_default();
    let cache: u64 = cached.iter().filter_map(|name| counter(&statistics, name)).sum();
    Some((limit.saturating_sub(used.saturating_sub(cache)), limit))
}

/// A line `name value` of `memory.stat`.
fn counter(statistics: &str, name: &str) -> Option<u64> {
    let mut lines = statistics.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    value.trim().parse().ok()
}

/// Resident bytes of this process now.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    field_bytes(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS")
}

/// Most bytes this process has had resident.
#[must_use]
pub fn peak_resident_bytes() -> Option<u64> {
    field_bytes(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM")
}

/// The system's allocator. Where there is no more memory the process ends with one line and exit
/// code 5, which an abort would not give.
#[derive(Debug)]
pub struct Allocator;

// SAFETY: the system's allocator answers every call, and what it does not answer never returns.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps what `alloc` asks for.
        had(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps what `alloc_zeroed` asks for.
        had(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller keeps what `realloc` asks for.
        had(unsafe { System.realloc(old, layout, bytes) }, bytes)
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps what `dealloc` asks for.
        unsafe { System.dealloc(old, layout) }
    }
}

fn had(pointer: *mut u8, bytes: usize) -> *mut u8 {
    if pointer.is_null() {
        refuse(format_args!("cannot allocate {bytes} bytes"));
    }
    pointer
}

/// What removing temporary folders needs where there is no more memory.
static RESERVE: Mutex<Vec<u8>> = Mutex::new(Vec::new());
const RESERVE_BYTES: usize = 1 << 20;

/// Ends the process, which has met a limit.
fn refuse(what: std::fmt::Arguments<'_>) -> ! {
    static IS_ENDING: AtomicBool = AtomicBool::new(false);
    if IS_ENDING.swap(true, Ordering::Relaxed) {
        // Another thread is ending the process, or this one while it does; so it need not go on.
        std::thread::sleep(Duration::from_secs(2));
        signal_hook::low_level::exit(5);
    }
    if let Ok(mut reserve) = RESERVE.try_lock() {
        *reserve = Vec::new();
    }
    end_now(format_args!("{what}: the memory or a limit (ulimit -a) is used up"), 5)
}

/// Prepares the process for limits, before it has threads. Panics of the standard library that say
/// that no thread could be started become a line and exit code 5.
pub fn expect_limits() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if address_bytes().is_some() {
        *RESERVE.lock().unwrap_or_else(PoisonError::into_inner) = vec![0; RESERVE_BYTES];
        // The C library would set 64 MiB of addresses aside for every thread that allocates.
        // SAFETY: a setting of the allocator, whose other threads do not exist yet.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload_as_str().unwrap_or_default();
        let known = ["failed to allocate an alternative stack", "failed to spawn thread"];
        if known.iter().any(|start| text.starts_with(start)) {
            refuse(format_args!("cannot start a thread"));
        }
        usual(panic);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// E05: all spellings of "no limit", and limits that look large and are real.
    #[test]
    fn e05_every_spelling_of_unlimited() {
        let unlimited = ["max\n", "9223372036854771712\n", "9223372036854710272", "-1"];
        for text in unlimited {
            assert_eq!(parse_limit(text), Some(None), "{text}");
        }
        assert_eq!(parse_limit("18446744073709551615"), Some(None));
        assert_eq!(parse_limit("1073741824\n"), Some(Some(1 << 30)));
        assert_eq!(parse_limit("2199023255552"), Some(Some(2 << 40)));
        assert_eq!(parse_limit("a lot"), None);
    }

    fn write(folder: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(folder).unwrap();
        for (name, text) in files {
            fs::write(folder.join(name), text).unwrap();
        }
    }

    /// E05: a limit anywhere above counts, page cache does not, in both versions.
    #[test]
    fn e05_the_tightest_group_without_its_page_cache() {
        let meminfo = "MemTotal: 9 kB\nMemAvailable:   4194304 kB\n";
        let root = tempfile::tempdir().unwrap();
        let v2 = root.path().join("v2");
        write(&v2.join("a/b"), &[("memory.max", "max"), ("memory.current", "5")]);
        let stat = "anon 1\ninactive_file 600000000\nactive_file 100000000\n";
        let limited = [
            ("memory.max", "1000000000\n"),
            ("memory.current", "900000000\n"),
            ("memory.stat", stat),
        ];
        write(&v2.join("a"), &limited);
        let found = available_in(meminfo, "0::/a/b\n", &v2);
        assert_eq!(found.machine_bytes, Some(4 << 30));
        assert_eq!(found.group_limit_bytes, Some(1_000_000_000));
        assert_eq!(found.bytes(), Some(800_000_000));

        let v1 = root.path().join("v1");
        let stat = "total_inactive_file 50\ntotal_active_file 50\ninactive_file 1\n";
        let limited = [
            ("memory.limit_in_bytes", "1000"),
            ("memory.usage_in_bytes", "300"),
            ("memory.stat", stat),
        ];
        write(&v1.join("memory"), &limited);
        let groups = "4:memory:/of/the/host/only\n3:cpuset:/\n0::/\n";
        let found = available_in(meminfo, groups, &v1);
        assert_eq!(found.bytes(), Some(800));
        // What the process holds is added, and what is charged elsewhere does not lift the limit.
        assert_eq!((found.in_all(100), found.in_all(500)), (Some(900), Some(1000)));
        let free = available_in(meminfo, "3:cpuset:/\n", &v1);
        assert_eq!((free.group_bytes, free.bytes()), (None, Some(4 << 30)));
    }

    /// This process has memory, and its peak is no less than its present.
    #[test]
    fn this_process_is_measured() {
        let (now, peak) = (resident_bytes().unwrap(), peak_resident_bytes().unwrap());
        assert!(now > 1 << 20 && peak >= now);
    }
}
