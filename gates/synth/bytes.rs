//! The bytes of a synthetic checkpoint: by seed and name alone, in the released layout.

use std::os::unix::fs::MetadataExt as _;

use k3_checkpoint::names::EXPERT_ROLES;
use k3_checkpoint::{Binding, Checkpoint, Dtype, Role, TensorId};

use super::expect;
use crate::support::files_in;

/// Order of writing or number of threads in the bytes would make two people's files differ.
#[test]
fn threads_change_no_byte() {
    let folder = tempfile::tempdir().unwrap();
    let made = [1, 2, 5].map(|threads| {
        let out = folder.path().join(format!("{threads}"));
        expect(&out, &format!("--probe 0 --threads {threads}"), 0);
        files_in(&out)
    });
    // 13 layers, embedding and head, index, config.
    assert_eq!(made[0].len(), 16);
    assert!(made[0] == made[1] && made[1] == made[2]);
}

/// A run that resumes after an interruption must end with the same bytes, leave whole shards alone,
/// and take nothing of a part for done.
#[test]
fn an_interrupted_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, out) = (folder.path().join("whole"), folder.path().join("out"));
    expect(&whole, "--probe 0", 0);
    expect(&out, "--probe 0", 0);
    let shard = |n: usize| out.join(format!("model-{n:05}-of-000014.safetensors"));
    for n in [2, 5, 14] {
        std::fs::remove_file(shard(n)).unwrap();
    }
    for name in ["config.json", "model.safetensors.index.json"] {
        std::fs::remove_file(out.join(name)).unwrap();
    }
    // What a killed run leaves: the head of a shard, followed by zeros.
    let name = out.join(".writing-0123456789ab");
    std::fs::rename(shard(7), &name).unwrap();
    let part = std::fs::OpenOptions::new().write(true).open(name).unwrap();
    part.set_len(20_000).unwrap();
    part.set_len(2_000_000).unwrap();
    let before: Vec<_> = [1, 3, 4, 6].map(|n| shard(n).metadata().unwrap()).into();
    let text = expect(&out, "--probe 0 --threads 3", 0).stdout;
    assert!(text.contains("10 shards were there"), "{text}");
    for (n, before) in [1, 3, 4, 6].into_iter().zip(before) {
        let after = shard(n).metadata().unwrap();
        assert_eq!((after.ino(), after.mtime_nsec()), (before.ino(), before.mtime_nsec()));
    }
    assert!(files_in(&whole) == files_in(&out));
}

/// A shard of the right size with other bytes, as after a power cut, must not be kept.
#[test]
fn a_damaged_shard_is_not_taken_for_whole() {
    let folder = tempfile::tempdir().unwrap();
    expect(folder.path(), "--probe 0 --layers 2", 0);
    let path = folder.path().join("model-00002-of-000003.safetensors");
    let whole = std::fs::read(&path).unwrap();
    for (start, end) in [(0, 100), (whole.len() - 50_000, whole.len())] {
        let mut damaged = whole.clone();
        damaged[start..end].fill(0);
        std::fs::write(&path, &damaged).unwrap();
        let error = expect(folder.path(), "--probe 0 --layers 2", 2).stderr;
        assert!(error.contains("model-00002-of-000003.safetensors"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), damaged);
    }
}

/// Fewer layers are the first ones of the shape; another vocabulary leaves the layers alone;
/// another seed changes every shard.
#[test]
fn sizes_change_only_what_they_must() {
    let folder = tempfile::tempdir().unwrap();
    let make = |name: &str, arguments: &str| {
        let out = folder.path().join(name);
        expect(&out, &format!("--probe 0 {arguments}"), 0);
        files_in(&out)
    };
    let shard = |n: usize, count: usize| format!("model-{n:05}-of-{count:06}.safetensors");
    let whole = make("whole", "");
    let five = make("five", "--layers 5 --vocab 320");
    for n in 1..=5 {
        assert!(whole[&shard(n, 14)] == five[&shard(n, 6)], "layer {}", n - 1);
    }
    assert!(whole[&shard(14, 14)] != five[&shard(6, 6)]);
    let other = make("other", "--seed 2");
    for n in 1..=14 {
        let (a, b) = (&whole[&shard(n, 14)], &other[&shard(n, 14)]);
        assert_eq!(a.len(), b.len());
        assert!(a != b, "shard {n}");
    }
}

/// The layout that readers of the release count on: a layer in its shard, its trunk one run of
/// bytes, each expert one run in the order w1, w2, w3, packed before scale.
#[test]
fn the_layout_is_that_of_the_release() {
    let folder = tempfile::tempdir().unwrap();
    expect(folder.path(), "--probe 0 --shape kernel", 0);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let config = k3_checkpoint::config::read(&folder.path().join("config.json")).unwrap();
    let binding = Binding::bind(&checkpoint, &config).unwrap();
    assert!(checkpoint.has_index() && checkpoint.notes().is_empty());
    assert_eq!(binding.bound_count(), checkpoint.len() - 2, "layer 0 has two unused weights");
    for layer in 0..config.num_hidden_layers {
        let is_trunk = |(role, _): &(Role, TensorId)| role.dtype() != Dtype::U8;
        let mut trunk: Vec<_> = binding.layer_tensors(layer).filter(is_trunk).collect();
        let mut ids: Vec<TensorId> = trunk.iter().map(|(_, id)| *id).collect();
        ids.sort_unstable();
        if layer == 0 {
            // Its unused weights are in between and are not bound.
            trunk.clear();
        } else {
            let (shard, range) = checkpoint.contiguous(&ids).expect("one run");
            assert_eq!(shard, layer);
            assert_eq!(range.start, checkpoint.shards()[shard].data_start());
            for expert in 0..config.num_experts {
                let ids = binding.expert(layer, expert).unwrap().in_order();
                let (shard, _) = checkpoint.contiguous(&ids).expect("one run");
                assert_eq!(shard, layer);
                assert!(ids.is_sorted());
                let names = ids.map(|id| checkpoint.info(id).name.to_owned());
                for (name, role) in names.iter().zip(EXPERT_ROLES) {
                    assert!(name.ends_with(role.expert_suffix()), "{name}");
                }
            }
        }
    }
    for role in [Role::EmbedTokens, Role::LmHead, Role::FinalNorm, Role::OutputResProj] {
        let id = binding.model_tensor(role).unwrap();
        assert_eq!(checkpoint.info(id).shard, config.num_hidden_layers);
    }
    // What kernels for the release accept.
    assert_eq!((config.kda_head_dim, config.kv_lora_rank, config.v_head_dim), (128, 512, 128));
    assert_eq!((config.qk_nope_head_dim, config.qk_rope_head_dim), (128, 64));
}
