//! Trial E: large reads, alignment, and file systems without direct reads.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use super::make::open;
use crate::support::{scratch, tiny};
use k3_checkpoint::shard::READ_CALL_BYTES;
use k3_engine::stream::blocks::BLOCK_BYTES;
use k3_engine::stream::read::BlockFile;
use k3_engine::stream::runs::{Run, Stretch};

/// E01: systems cut a read at 0x7ffff000 bytes or refuse it. Requests stay far below, they cover
/// the tensor without a gap, and its last bytes arrive. (The memory is not touched between.)
#[test]
fn e01_a_tensor_above_two_gib_arrives_in_pieces() {
    const LENGTH: usize = 2_348_810_240;
    const START: u64 = 5000;
    let (_folder, path) = scratch("sparse");
    let file = File::create(&path).unwrap();
    file.set_len(START + LENGTH as u64).unwrap();
    let mark = *b"the end!";
    file.write_all_at(&mark, START + LENGTH as u64 - 8).unwrap();
    let run = Run {
        stretches: vec![Stretch { file: 0, offset: START, length: LENGTH, base: 0 }],
        ..Run::default()
    };
    let files = [BlockFile::open(&path, false).unwrap()];
    let mut buffer = vec![0_u8; run.buffer_bytes()];
    let jobs = run.jobs(&files, &mut buffer);
    let (count, mut next, mut wanted) = (jobs.len(), 4096, 0);
    for (index, job) in jobs.into_iter().enumerate() {
        assert_eq!(job.offset, next);
        assert!(job.buffer.len() <= READ_CALL_BYTES && job.buffer.len() % BLOCK_BYTES == 0);
        next += job.buffer.len() as u64;
        wanted += job.wanted;
        if index + 1 == count {
            job.file.read_blocks(job.offset, job.wanted, job.buffer).unwrap();
            assert_eq!(job.buffer[job.wanted - 8..job.wanted], mark);
        }
    }
    assert_eq!(wanted, LENGTH + START as usize - 4096);
}

/// E02: runs of a checkpoint begin anywhere; every request is aligned all the same.
#[test]
fn e02_requests_are_aligned_wherever_tensors_begin() {
    let files = open(&tiny(), None);
    let shards = k3_engine::stream::runs::open_shards(&files.checkpoint, true).unwrap();
    let mut crooked = 0;
    for layer in 0..files.shape.layers.len() {
        let ids: Vec<_> = files.binding.layer_tensors(layer).map(|(_, id)| id).collect();
        let run = Run::of(&files.checkpoint, &ids);
        crooked += usize::from(!run.stretches[0].offset.is_multiple_of(4096));
        let mut buffer = k3_engine::stream::blocks::Buffer::zeroed(run.buffer_bytes());
        for job in run.jobs(&shards, buffer.bytes_mut()) {
            assert_eq!(job.offset % 4096, 0);
            assert_eq!(job.buffer.len() % 4096, 0);
            assert_eq!(job.buffer.as_ptr().align_offset(4096), 0);
            job.file.read_blocks(job.offset, job.wanted, job.buffer).unwrap();
        }
        for tensor in &run.tensors {
            let bytes = files.checkpoint.read(&tensor.name).unwrap();
            assert_eq!(buffer.bytes()[tensor.range.clone()], bytes, "{}", tensor.name);
        }
    }
    assert!(crooked > 0, "every run is aligned by luck: nothing was tried");
}
