//! The commands on outside data.

use std::fs;

use k3_checkpoint::plan::visit_layer;
use k3_checkpoint::{Checkpoint, ModelShape};
use k3_engine::memory::trunk;
use k3_engine::model::Shape;

use super::external;
use super::released::{released_config, released_index};
use crate::support::proof::all_layers_pass;
use crate::support::{Oracle, arg, command_on, expect, expect_of, scratch, typed};

/// The numbers published for the full model's logits, by an engine and by a reference of others.
pub fn the_golden_pair_gives_its_published_numbers() {
    let golden = external("kimi-k3-golden");
    let (engine, reference) = (golden.join("c_logits.bin"), golden.join("ref_logits.json"));
    let report = expect(&["logits", arg(&engine), arg(&reference), "--precision", "f32"], 0).stdout;
    for number in [
        "2494 both (15.021946 / 15.021948)",
        "10/10",
        "7.867813e-06",
        "5.237545e-07",
        "1.231738e-06",
        "ASSUMED",
    ] {
        assert!(report.contains(number), "{number} is not in\n{report}");
    }
    // The run's own JSON has ids and no logits; and the reference of other ids is refused.
    let error = expect(&["logits", arg(&golden.join("c_run.json")), arg(&reference)], 3).stderr;
    assert!(error.contains("logits_bits"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let other = fs::read_to_string(&reference).unwrap().replacen("[3, 4, 5", "[3, 4, 6", 1);
    let other = other.replacen("[3,4,5", "[3,4,6", 1);
    let changed = folder.path().join("other.json");
    fs::write(&changed, other).unwrap();
    let error = expect(&["logits", arg(&changed), arg(&reference), "--precision", "f32"], 1).stderr;
    assert!(error.contains("different ids"), "{error}");
}

/// The published greedy ids, from memory and streamed.
pub fn outside_ids_come_out() {
    let oracle = Oracle::open(&external("tiny-k3-a"));
    for way in [&[][..], &["--ring", "2", "--trunk-gb", "0.001", "--expert-slots", "2"]] {
        let mut command = command_on("generate", &oracle.model);
        command.args(["--gen", "20", "--ids", &typed(&oracle.ids("prompt_ids"))]);
        let line = typed(&oracle.ids("greedy_ids")) + "\n";
        assert_eq!(expect_of(command.args(way), 0).stdout, line);
    }
}

pub fn all_layers_of_an_outside_model_pass() {
    all_layers_pass(&external("tiny-k3-a/model"));
}

/// At the released sizes: 576 floats, and largest-first holds at least as much as a prefix at
/// every budget, in fact up to a layer-0 more.
pub fn released_sizes_pin_more_largest_first() {
    let raw = released_config();
    let shape = Shape::derive(&raw).unwrap();
    assert_eq!(shape.mla.cache_width, 576);
    let model = ModelShape::derive(&raw).unwrap();
    let size = |layer| {
        let mut bytes = 0;
        visit_layer(&model, layer, |tensor| {
            if tensor.expert.is_none() {
                bytes += tensor.byte_len();
            }
        });
        bytes
    };
    let sizes: Vec<u64> = (0..93).map(size).collect();
    let total: u64 = sizes.iter().sum();
    // What the published pack holds, but for its padding.
    assert!((108_500_000_000..109_000_000_000).contains(&total), "{total}");
    for gb in [5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 110] {
        let budget = gb * 1_000_000_000;
        let ours = trunk::choose(&sizes, 2, budget).unwrap();
        let prefix = trunk::prefix(&sizes, 2, budget).unwrap();
        println!(
            "{gb:>4} GB: largest first pins {:.2} GB ({} layers), a prefix {:.2} GB ({})",
            ours.pinned_bytes as f64 / 1e9,
            ours.layers.len(),
            prefix.pinned_bytes as f64 / 1e9,
            prefix.layers.len()
        );
        assert!(ours.pinned_bytes >= prefix.pinned_bytes);
    }
}

/// The sizes of all shards, every field of the config that this program reads, and every name in
/// the shard where the release has it.
pub fn the_replica_is_the_release_file_by_file() {
    let (_folder, out) = scratch("out");
    expect(&["synth", arg(&out), "--sparse"], 0);
    let checkpoint = Checkpoint::open(&out).unwrap();
    let size = |shard: usize| checkpoint.shard_path(shard).metadata().unwrap().len();
    let sizes = fs::read_to_string(external("kimi-k3-released/shard_sizes.txt")).unwrap();
    let mut compared = 0;
    for (shard, line) in sizes.lines().enumerate() {
        let (name, bytes) = line.split_once(' ').unwrap();
        assert!(checkpoint.shard_path(shard).ends_with(name), "{name}");
        assert_eq!(size(shard).to_string(), bytes, "{name}");
        compared += 1;
    }
    assert_eq!(compared, 96);
    assert_eq!(
        released_config(),
        k3_checkpoint::config::read(&out.join("config.json")).unwrap(),
        "every field that this program reads"
    );
    compare_index(&checkpoint);
}

/// Every name in the shard where the release has it.
fn compare_index(checkpoint: &Checkpoint) {
    let index = released_index();
    assert_eq!(index.names.len(), checkpoint.len());
    for tensor in checkpoint.tensors() {
        let id = index.names.find(tensor.name).expect(tensor.name);
        let shard = &index.shards[usize::from(index.shard_of_name[id as usize])];
        let path = checkpoint.shard_path(tensor.shard);
        assert!(path.ends_with(shard), "{} in {shard}", tensor.name);
    }
}
