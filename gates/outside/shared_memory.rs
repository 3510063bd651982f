//! Files in memory: far larger than any disk, and without direct reads.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use k3_checkpoint::Checkpoint;

use crate::support::{command_on, copy_folder, expect_of, ids, tiny, typed};

const FOLDER: &str = "/dev/shm";

/// Whether this system has such a folder, and it may be written.
pub fn is_there() -> bool {
    tempfile::tempdir_in(FOLDER).is_ok()
}

/// C16: offsets above 2^53, where a double is not exact any more, in a file of nine petabytes.
pub fn c16_a_file_beyond_2_to_the_53_bytes() {
    const ODD: u64 = (1 << 53) + 1;
    let entry = |name: &str, from: u64, to: u64| {
        let shape = to - from;
        format!(r#""{name}":{{"dtype":"U8","shape":[{shape}],"data_offsets":[{from},{to}]}}"#)
    };
    let header = format!("{{{},{}}}", entry("a", 0, ODD), entry("b", ODD, ODD + 3));
    let folder = tempfile::tempdir_in(FOLDER).unwrap();
    let path = folder.path().join("huge.safetensors");
    let head = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    let file = File::create(&path).unwrap();
    let start = head.len() as u64 + ODD;
    file.set_len(start + 3).unwrap();
    file.write_all_at(&head, 0).unwrap();
    file.write_all_at(&[1, 2, 3], start).unwrap();
    let checkpoint = Checkpoint::open_file(&path).unwrap();
    assert_eq!(checkpoint.tensor("b").map(|info| info.offset), Some(start));
    assert_eq!(checkpoint.read("b").unwrap(), [1, 2, 3]);
    // Nine petabytes are not to be had; asking for them must not end the process.
    let error = checkpoint.read("a").unwrap_err();
    let says = format!("no memory for its {ODD} bytes");
    assert!(error.to_string().contains(&says), "{error}");
}

/// E04: the same bits from a file system in memory and from a disk; at most a note.
pub fn e04_the_same_bits_with_and_without_direct_reads() {
    let folder = tempfile::tempdir().unwrap();
    let run = |model: &Path, name: &str| {
        let dump = folder.path().join(name);
        let mut command = command_on("generate", model);
        command.args(["--ids", &typed(&ids("prompt_ids")), "--gen", "5"]);
        command.args(["--trunk-gb", "0.001", "--expert-slots", "3", "--dump-logits"]).arg(&dump);
        let notes = expect_of(&mut command, 0).stderr;
        assert!(notes.matches("does not support direct reads").count() <= 1);
        std::fs::read(dump).unwrap()
    };
    let on_disk = run(&tiny(), "disk");
    assert_eq!(on_disk.len(), 5 * 256 * 4);
    let copy = tempfile::tempdir_in(FOLDER).unwrap();
    copy_folder(&tiny(), copy.path());
    assert!(run(copy.path(), "memory") == on_disk);
}
