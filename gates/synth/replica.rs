//! `--sparse`: the release as holes.

use std::os::unix::fs::MetadataExt as _;

use k3_checkpoint::{Binding, Checkpoint, UnusedClass};

use super::expect;
use crate::support::{files_in, scratch};

/// Bytes that the replica may take on the disk.
const DISK_LIMIT_BYTES: u64 = 120_000_000;

/// A header that is not the release's own would miss the published sizes; a replica that is no
/// hole would fill the disk.
#[test]
fn the_replica_has_the_published_sizes_and_takes_no_space() {
    let (_folder, out) = scratch("out");
    expect(&out, "--sparse", 0);
    let entries = std::fs::read_dir(&out).unwrap().map(Result::unwrap);
    let disk = entries.map(|entry| entry.metadata().unwrap().blocks() * 512);
    let disk: u64 = disk.sum();
    assert!(disk < DISK_LIMIT_BYTES, "{disk} bytes on disk");
    // The published totals.
    let checkpoint = Checkpoint::open(&out).unwrap();
    let size = |shard: usize| checkpoint.shard_path(shard).metadata().unwrap().len();
    let total: u64 = (0..96).map(size).sum();
    assert_eq!((checkpoint.shards().len(), checkpoint.len()), (96, 497_220));
    assert_eq!((total, checkpoint.tensor_bytes()), (1_560_936_091_448, 1_560_860_324_864));
    let config = k3_checkpoint::config::read(&out.join("config.json")).unwrap();
    let binding = Binding::bind(&checkpoint, &config).unwrap();
    let unused = binding.unused_counts();
    let vision = [UnusedClass::VisionTower, UnusedClass::MmProjector].map(|class| unused[&class]);
    assert_eq!((binding.bound_count(), vision), (497_050, [165, 3]));
    // The same command again keeps all of it.
    let text = expect(&out, "--sparse", 0).stdout;
    assert!(text.contains("96 shards were there"), "{text}");
}

/// With an index the replica opens through it; of a small shape it has that shape's sizes.
#[test]
fn an_index_can_be_had_and_other_shapes_too() {
    let folder = tempfile::tempdir().unwrap();
    let (weights, holes) = (folder.path().join("weights"), folder.path().join("holes"));
    expect(&weights, "--layers 4 --probe 0", 0);
    expect(&holes, "--layers 4 --shape tiny --sparse --index", 0);
    let (weights, holes) = (files_in(&weights), files_in(&holes));
    assert_eq!(weights.len(), holes.len());
    for (name, bytes) in &weights {
        let other = &holes[name];
        assert_eq!(bytes.len(), other.len(), "{name}");
        if name.ends_with(".json") {
            assert!(bytes == other, "{name}");
        } else {
            let (head, _) = bytes.split_first_chunk::<8>().unwrap();
            let data = 8 + u64::from_le_bytes(*head) as usize;
            assert!(bytes[..data] == other[..data], "{name}");
            assert!(other[data..].iter().all(|byte| *byte == 0), "{name}");
        }
    }
}
