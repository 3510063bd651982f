//! The ring: counters, failing reads, delays, requests out of order.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::make::{EXPERTS, LAYERS, Unreadable, engine, feed, open, resident, streamed};
use crate::support::{bits, ids, tiny};
use k3_core::host::interrupt::Interrupt;
use k3_engine::kernels::threads::Threads;
use k3_engine::model::{EngineSequence, LayerSource};
use k3_engine::stream::fault_hooks::NoFaults;
use k3_engine::stream::layers::{StreamedLayers, Trunk};
use k3_engine::stream::read::{BlockFile, ReadAt};
use k3_engine::stream::runs::{Run, open_shards};

fn runs() -> (Vec<Run>, k3_engine::stream::ModelFiles) {
    let files = open(&tiny(), None);
    let run = |layer| {
        let prefix = format!("language_model.model.layers.{layer}.");
        let trunk = files
            .checkpoint
            .tensors()
            .filter(|info| info.name.starts_with(&prefix) && !info.name.contains(".experts."));
        let ids: Vec<_> = trunk.map(|info| info.id).collect();
        Run::of(&files.checkpoint, &ids)
    };
    ((0..LAYERS).map(run).collect(), files)
}

fn source(ring_slots: usize, files: Vec<BlockFile>) -> StreamedLayers {
    let (runs, model) = runs();
    let trunk = Trunk {
        runs,
        files,
        pinned: Vec::new(),
        ring_slots,
        io_threads: 1,
        stop: Interrupt::default(),
    };
    StreamedLayers::open(model.shape.clone(), trunk, Arc::new(NoFaults)).unwrap()
}

/// E09: every use is counted once, used bytes are exact, and what is read ahead of the end is at
/// most the ring.
#[test]
fn e09_uses_and_bytes_add_up_at_every_ring() {
    let (runs, files) = runs();
    let sizes: Vec<u64> = runs.iter().map(Run::tensor_bytes).collect();
    let ids = &ids("full_ids")[..6];
    let expected = feed(&engine(&files, &resident()), ids);
    for ring in [1, 2, 3, 4, LAYERS] {
        for pinned in [vec![], vec![0, 4, 12], (0..LAYERS).collect::<Vec<_>>()] {
            let mut stream = streamed(ring, EXPERTS);
            stream.pinned.clone_from(&pinned);
            let streamed = engine(&files, &stream);
            let mut sequence = EngineSequence::new(Arc::clone(&streamed.engine));
            let mut got = Vec::new();
            for id in ids {
                got.extend(bits(&sequence.feed(&[*id]).unwrap()));
            }
            assert!(got == expected, "ring {ring}");
            let counters = streamed.layers.counters();
            let passes = ids.len() as u64;
            let held: u64 = pinned.iter().map(|&layer| sizes[layer]).sum();
            let all: u64 = sizes.iter().sum();
            assert_eq!(counters.uses, passes * LAYERS as u64);
            assert_eq!(counters.pinned_uses, passes * pinned.len() as u64);
            assert_eq!(counters.used_bytes, passes * (all - held));
            assert_eq!(counters.pinned_bytes, held);
            assert!(counters.ready_uses <= counters.uses - counters.pinned_uses);
            let ahead = counters.read_bytes - counters.used_bytes;
            let largest = sizes.iter().max().unwrap();
            assert!(ahead <= ring as u64 * largest, "ring {ring}: {ahead} bytes");
            if ring == 1 {
                assert_eq!(ahead, 0);
            }
        }
    }
}

/// Requests out of order, as two sequences or a failed run make them: the right layer every time.
#[test]
fn the_reader_is_sent_back_when_layers_are_asked_out_of_order() {
    let (_, model) = runs();
    let shards = || open_shards(&model.checkpoint, false).unwrap();
    let (one, three) = (source(1, shards()), source(3, shards()));
    for layer in [0, 1, 2, 7, 7, 3, 4, 5, 12, 0, 1, 11, 12, 0, 6] {
        let (a, b) = (one.layer(layer).unwrap(), three.layer(layer).unwrap());
        assert_eq!(a.input_norm, b.input_norm, "layer {layer}");
        assert_eq!(a.attention_mixer, b.attention_mixer, "layer {layer}");
    }
}

/// A reader that can be switched between failing and reading.
#[derive(Debug)]
struct Switched(File, Arc<AtomicBool>);

impl ReadAt for Switched {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.1.load(Ordering::Relaxed) {
            return Err(io::Error::other("the cable is out"));
        }
        ReadAt::read_at(&self.0, buffer, offset)
    }
}

/// A layer whose read failed is never published; asked again, it is read again.
#[test]
fn e11_a_failed_layer_is_an_error_and_not_stale_bytes() {
    let (_, model) = runs();
    for ring in [1, 2, 3] {
        let broken = Arc::new(AtomicBool::new(false));
        let shards = model.checkpoint.shards().iter().map(|shard| {
            let file = File::open(shard.path()).unwrap();
            let reader = Box::new(Switched(file, Arc::clone(&broken)));
            BlockFile::of(shard.path(), reader, None)
        });
        let layers = source(ring, shards.collect());
        // Its handle is let go: with one slot the next layer needs that memory.
        let good = layers.layer(0).unwrap().input_norm.clone();
        broken.store(true, Ordering::Relaxed);
        // What was read before the cable came out may still be served, in order.
        let mut failed = false;
        for layer in 1..LAYERS {
            if let Err(error) = layers.layer(layer) {
                let text = error.to_string();
                assert!(text.contains("layer") && text.contains("cable"), "{text}");
                failed = true;
                break;
            }
        }
        assert!(failed, "ring {ring}");
        assert!(layers.layer(12).is_err(), "ring {ring}");
        broken.store(false, Ordering::Relaxed);
        let again = layers.layer(0).unwrap();
        assert_eq!(again.input_norm, good);
    }
}

/// A run over unreadable bytes ends with the layer's name; its state cannot be continued.
#[test]
fn e11_a_run_over_unreadable_bytes_names_file_and_layer() {
    let (runs, model) = runs();
    let (file, offset) = runs[5].place();
    let shards = model.checkpoint.shards().iter().enumerate();
    let shards = shards.map(|(index, shard)| {
        let (from, to) = if index == file { (offset, offset + 1) } else { (0, 0) };
        let file = File::open(shard.path()).unwrap();
        BlockFile::of(shard.path(), Box::new(Unreadable { file, from, to }), None)
    });
    let layers = source(2, shards.collect());
    for layer in 0..5 {
        if layers.layer(layer).is_err() {
            // Runs share blocks: a neighbour may be hit as well.
            return;
        }
    }
    let text = layers.layer(5).unwrap_err().to_string();
    assert!(text.contains("layer 5") && text.contains(".safetensors"), "{text}");
}

/// A reader that takes its time.
#[derive(Debug)]
struct Slow(File);

impl ReadAt for Slow {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        std::thread::sleep(Duration::from_millis(300));
        ReadAt::read_at(&self.0, buffer, offset)
    }
}

/// E10: waiting is measured with a clock that runs.
#[test]
fn e10_a_delay_of_the_disk_is_reported() {
    let (_, model) = runs();
    let shards = model.checkpoint.shards().iter();
    let shards = shards.map(|shard| {
        let file = File::open(shard.path()).unwrap();
        BlockFile::of(shard.path(), Box::new(Slow(file)), None)
    });
    let layers = source(1, shards.collect());
    layers.layer(3).unwrap();
    let counters = layers.counters();
    assert!(counters.wait_nanoseconds >= 300_000_000, "{counters:?}");
    assert_eq!(counters.ready_uses, 0);
}

/// A request of nothing does nothing; many readers on few jobs are fine.
#[test]
fn more_threads_than_requests() {
    let threads = Threads::new(8).unwrap();
    k3_engine::stream::read::read_all(&threads, Vec::new()).unwrap();
}
