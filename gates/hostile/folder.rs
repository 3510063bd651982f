//! Checkpoint folders: missing, cut, contradictory, linked and stray files.

use std::fs::{self, File};
use std::os::unix::fs::symlink;

use k3_checkpoint::identity::identity;
use k3_checkpoint::index::MAX_SHARDS;
use k3_checkpoint::store::Note;
use k3_checkpoint::{Binding, Checkpoint, CheckpointError, Dtype, ReadError};
use serde_json::{Value, json};

use super::make::{
    Folder, Model, assert_names, read_config, shard_name, small_config, with, write_zeros, zeros,
};

const HEAD: &str = "language_model.lm_head.weight";

#[track_caller]
fn refused(folder: &Folder) -> CheckpointError {
    let error = Checkpoint::open(folder.path()).expect_err("refused");
    assert_names(&error, &[folder.path().to_str().expect("utf-8")]);
    error
}

#[test]
fn the_checkpoint_that_the_tests_damage_is_good() {
    let folder = Model::small().write();
    let checkpoint = Checkpoint::open(folder.path()).expect("good");
    assert_eq!(checkpoint.shards().len(), 3);
    assert_eq!(checkpoint.notes(), []);
    assert!(checkpoint.has_index());
    // Without its index the same tensors are found, the shards in the order of their names.
    fs::remove_file(folder.file("model.safetensors.index.json")).expect("removed");
    let plain = Checkpoint::open(folder.path()).expect("good");
    assert!(!plain.has_index());
    let all = |checkpoint: &Checkpoint| -> Vec<_> {
        let rows = checkpoint.tensors();
        rows.map(|info| (info.name.to_owned(), info.dtype, info.shard, info.offset)).collect()
    };
    assert_eq!(all(&checkpoint), all(&plain));
}

#[test]
fn folder() {
    let folder = Folder::new();
    for path in [folder.file("none"), folder.put("file", "")] {
        let error = Checkpoint::open(&path).expect_err("refused");
        assert_names(&error, &[path.to_str().expect("utf-8"), "not a readable folder"]);
    }
}

#[test]
fn no_shards() {
    let folder = Folder::new();
    folder.put("config.json", small_config().to_string());
    let none = "no model.safetensors.index.json and no .safetensors file";
    assert_names(&refused(&folder), &[none]);
    folder.put("model.safetensors.incomplete", "");
    assert_names(&refused(&folder), &[none, "unfinished", "model.safetensors.incomplete"]);
}

#[test]
fn too_many_shards() {
    let folder = Folder::new();
    for number in 0..=MAX_SHARDS {
        folder.put(&format!("{number}.safetensors"), "");
    }
    let (count, limit) = (format!("{}", MAX_SHARDS + 1), format!("limit of {MAX_SHARDS}"));
    assert_names(&refused(&folder), &[&count, &limit]);
}

#[test]
fn index() {
    let folder = Model::small().write();
    folder.put("model.safetensors.index.json", "{}");
    assert_names(&refused(&folder), &["index.json: weight_map: missing or empty"]);
}

#[test]
fn c09_a_cut_shard_is_refused_with_its_missing_bytes() {
    let folder = Model::small().write();
    let path = folder.file(&shard_name(2));
    let whole = fs::read(&path).expect("shard");
    let head = 8 + u64::from_le_bytes(whole[..8].try_into().expect("eight")) as usize;
    for length in [whole.len() - 1, (head + whole.len()) / 2, head] {
        fs::write(&path, &whole[..length]).expect("cut");
        let error = refused(&folder);
        let missing = format!("{} bytes are missing", whole.len() - length);
        assert_names(&error, &[&shard_name(2), "truncated", &missing]);
        // Damage is no absence: a partial opening refuses it as well.
        assert!(Checkpoint::open_partial(folder.path()).is_err());
    }
    fs::write(&path, &whole[..head - 1]).expect("cut");
    let error = refused(&folder);
    assert_names(&error, &["reaches past the end"]);
}

#[test]
fn c09_a_shard_cut_after_opening_is_an_error_not_a_signal() {
    let folder = Model::small().write();
    let checkpoint = Checkpoint::open(folder.path()).expect("good");
    let info = checkpoint.tensor(HEAD).expect("head");
    let path = checkpoint.shard_path(info.shard).to_owned();
    let file = fs::OpenOptions::new().write(true).open(&path).expect("shard");
    file.set_len(info.offset + 10).expect("cut");
    let error = checkpoint.read(HEAD).expect_err("refused");
    assert!(matches!(error, ReadError::EarlyEnd { got_bytes: 10, .. }));
    let parts = [path.to_str().expect("utf-8"), &info.offset.to_string(), "got 10"];
    assert_names(&error, &parts);
}

#[test]
fn reads_outside_a_tensor_are_refused() {
    let folder = Model::small().write();
    let checkpoint = Checkpoint::open(folder.path()).expect("good");
    let info = checkpoint.tensor(HEAD).expect("head");
    let end = info.byte_len;
    let mut buffer = [0; 8];
    checkpoint.read_into(&info, end - 8..end, &mut buffer).expect("the last bytes");
    #[expect(clippy::reversed_empty_ranges, reason = "that is the damage")]
    for range in [end - 7..end + 1, 8..0, u64::MAX - 8..u64::MAX] {
        let error = checkpoint.read_into(&info, range, &mut buffer).expect_err("refused");
        assert_names(&error, &["asked for"]);
        assert_names(&error, &[HEAD]);
    }
    let error = checkpoint.read_into(&info, 0..7, &mut buffer).expect_err("refused");
    assert_names(&error, &["a buffer of 8 bytes for 7 bytes"]);
    let error = checkpoint.read("no.such.tensor").expect_err("refused");
    assert_names(&error, &["not there"]);
    assert_names(&error, &["no.such.tensor"]);
}

#[test]
fn c10_a_missing_shard_is_refused_by_name_and_count() {
    let folder = Model::small().write();
    fs::remove_file(folder.file(&shard_name(2))).expect("removed");
    folder.put(&format!("{}.incomplete", shard_name(2)), "");
    let error = refused(&folder);
    assert!(matches!(&error, CheckpointError::ShardsMissing { total: 3, missing, .. }
        if *missing == [shard_name(2)]));
    assert_names(&error, &["1 of 3 missing", &shard_name(2), "unfinished"]);
    // The partial opening lists it.
    let partial = Checkpoint::open_partial(folder.path()).expect("two of three");
    assert_eq!(partial.missing_shards(), [shard_name(2)]);
    assert!(partial.is_in_missing_shard("language_model.model.layers.2.input_layernorm.weight"));
    assert!(!partial.is_in_missing_shard(HEAD));
    assert!(partial.tensor(HEAD).is_some());
    assert_names(&identity(&partial).expect_err("refused"), &["1 shards are missing"]);
    // Without an index the numbering of the files says the same.
    fs::remove_file(folder.file("model.safetensors.index.json")).expect("removed");
    let error = refused(&folder);
    assert!(matches!(error, CheckpointError::ShardsMissing { total: 3, .. }));
    assert_names(&error, &["1 of 3 missing", "00002"]);
}

#[test]
fn c10_all_shards_missing_is_refused_even_partially() {
    let folder = Model::small().write();
    for number in 1..=3 {
        fs::remove_file(folder.file(&shard_name(number))).expect("removed");
    }
    let error = Checkpoint::open_partial(folder.path()).expect_err("refused");
    assert!(matches!(error, CheckpointError::ShardsMissing { total: 3, .. }));
    assert_names(&error, &["3 of 3 missing"]);
}

/// A folder whose index says something else about one tensor.
fn with_index(change: impl FnOnce(&mut serde_json::Map<String, Value>)) -> Folder {
    let model = Model::small();
    let folder = model.write();
    let mut index = model.index();
    change(index["weight_map"].as_object_mut().expect("a map"));
    folder.put("model.safetensors.index.json", index.to_string());
    folder
}

#[test]
fn c11_three_ways_an_index_can_be_wrong_have_three_messages() {
    // Mapped to a shard that does not declare it; another does.
    let folder = with_index(|map| map[HEAD] = json!(shard_name(1)));
    let error = refused(&folder);
    let mapped = format!("is mapped to {}, but {} declares it", shard_name(1), shard_name(3));
    assert_names(&error, &["index.json", HEAD, &mapped]);
    // A name that no shard declares.
    let folder = with_index(|map| {
        map.insert("ghost".to_owned(), json!(shard_name(1)));
    });
    let error = refused(&folder);
    assert_names(&error, &["ghost", &shard_name(1), "does not declare", "1 such in all"]);
    // Mapped to a shard that is not there.
    let folder = with_index(|map| map[HEAD] = json!("absent.safetensors"));
    let error = refused(&folder);
    assert!(matches!(error, CheckpointError::ShardsMissing { total: 4, .. }));
    assert_names(&error, &["absent.safetensors", "1 of 4 missing"]);
}

#[test]
fn c11_a_tensor_that_the_index_omits_is_refused() {
    let folder = with_index(|map| {
        map.remove(HEAD);
    });
    let error = refused(&folder);
    assert_names(&error, &[HEAD, &shard_name(3), "1 tensor(s) that the index omits"]);
}

#[test]
fn c12_with_an_index_an_extra_file_is_noted_and_left_alone() {
    let folder = Model::small().write();
    write_zeros(&folder.file("0-extra.safetensors"), &[zeros(HEAD, Dtype::F32, &[1])]);
    folder.put("zz-not-even-one.safetensors", "garbage");
    let checkpoint = Checkpoint::open(folder.path()).expect("the index decides");
    assert_eq!(checkpoint.tensor(HEAD).map(|info| info.dtype), Some(Dtype::Bf16));
    let stray = |file: &str| Note::StrayShard { file: file.to_owned() };
    assert_eq!(
        checkpoint.notes(),
        [stray("0-extra.safetensors"), stray("zz-not-even-one.safetensors")]
    );
}

#[test]
fn c12_a_tensor_in_two_shards_is_refused() {
    // Both shards in the index: whatever it says, one file has a copy it should not have.
    let mut model = Model::small();
    model.add(1, zeros(HEAD, Dtype::Bf16, &[40, 32]));
    let error = refused(&model.write());
    let both = "is declared by both ";
    assert_names(&error, &[HEAD, both, &shard_name(1), &shard_name(3)]);
    // No index: the order of the folder must not decide.
    let folder = Folder::new();
    write_zeros(&folder.file("b.safetensors"), &[zeros("w", Dtype::F32, &[1])]);
    write_zeros(&folder.file("a.safetensors"), &[zeros("w", Dtype::F32, &[1])]);
    let error = refused(&folder);
    assert_names(&error, &[both, "a.safetensors and b.safetensors"]);
}

/// The small model as a hub cache keeps it: links to files named by hash.
fn linked() -> Folder {
    let plain = Model::small().write();
    let cache = Folder::new();
    fs::create_dir_all(cache.file("blobs")).expect("blobs");
    fs::create_dir_all(cache.file("snapshots/abc")).expect("snapshot");
    let entries = fs::read_dir(plain.path()).expect("folder");
    for (number, entry) in entries.enumerate() {
        let entry = entry.expect("entry");
        let blob = format!("blobs/{number:064x}");
        fs::copy(entry.path(), cache.file(&blob)).expect("copied");
        let link = cache.file("snapshots/abc").join(entry.file_name());
        symlink(format!("../../{blob}"), link).expect("linked");
    }
    cache
}

#[test]
fn c13_links_as_in_hub_caches_open_as_if_plain() {
    let cache = linked();
    let snapshot = cache.file("snapshots/abc");
    let checkpoint = Checkpoint::open(&snapshot).expect("opens");
    let config = read_config(&small_config());
    assert!(Binding::bind(&checkpoint, &config).is_ok());
    let plain = Model::small().write();
    let plain = Checkpoint::open(plain.path()).expect("opens");
    assert_eq!(identity(&checkpoint).expect("identity"), identity(&plain).expect("identity"));
}

#[test]
fn c13_dangling_links_and_loops_are_refused() {
    let cache = linked();
    let link = cache.file("snapshots/abc").join(shard_name(2));
    let target = fs::read_link(&link).expect("a link");
    fs::remove_file(link.parent().expect("folder").join(&target)).expect("removed");
    let error = Checkpoint::open(&cache.file("snapshots/abc")).expect_err("refused");
    assert_names(&error, &[&shard_name(2), "dangling", target.to_str().expect("utf-8")]);
    fs::remove_file(&link).expect("removed");
    symlink(shard_name(2), &link).expect("a link to itself");
    let error = Checkpoint::open(&cache.file("snapshots/abc")).expect_err("refused");
    assert_names(&error, &[&shard_name(2), "loop"]);
}

#[test]
fn not_a_file() {
    let folder = Folder::new();
    fs::create_dir(folder.file("model.safetensors")).expect("a folder");
    assert_names(&refused(&folder), &["not a regular file"]);
}

#[test]
fn io() {
    let folder = Folder::new();
    let path = folder.file(&format!("{}.safetensors", "n".repeat(300)));
    let error = Checkpoint::open_file(&path).expect_err("no file system has such a name");
    assert_names(&error, &["cannot be read"]);
}

#[test]
fn not_found() {
    let folder = Folder::new();
    let error = Checkpoint::open_file(&folder.file("none.safetensors")).expect_err("refused");
    assert_names(&error, &["none.safetensors: no such file"]);
}

#[test]
fn a_total_size_that_differs_is_noted() {
    let model = Model::small();
    let folder = model.write();
    let index = with(model.index(), "metadata.total_size", json!(1));
    folder.put("model.safetensors.index.json", index.to_string());
    let checkpoint = Checkpoint::open(folder.path()).expect("opens");
    assert!(matches!(checkpoint.notes(), [Note::TotalSizeDiffers { index_bytes: 1, .. }]));
}

/// The identity must change with every part it is made of, and with nothing else.
#[test]
fn identity_sees_config_header_size_and_samples() {
    let identity_of = |folder: &Folder| {
        identity(&Checkpoint::open(folder.path()).expect("opens")).expect("identity").to_string()
    };
    let model = Model::small();
    let plain = identity_of(&model.write());
    assert_eq!(plain.len(), 64);
    assert_eq!(plain, identity_of(&model.write()));
    let folder = model.write();
    folder.put("config.json", format!("{} ", model.config));
    assert_ne!(plain, identity_of(&folder));
    let mut renamed = model.clone();
    renamed.tensor(HEAD).name.push('2');
    assert_ne!(plain, identity_of(&renamed.write()));
    let folder = model.write();
    let path = folder.file(&shard_name(3));
    let mut bytes = fs::read(&path).expect("shard");
    *bytes.last_mut().expect("a byte") ^= 1;
    fs::write(&path, bytes).expect("written");
    assert_ne!(plain, identity_of(&folder));
}

#[test]
fn identity_needs_a_config_and_whole_shards() {
    let folder = Model::small().write();
    let checkpoint = Checkpoint::open(folder.path()).expect("opens");
    File::create(folder.file(&shard_name(3))).expect("emptied");
    let error = identity(&checkpoint).expect_err("refused");
    assert!(matches!(error, ReadError::EarlyEnd { .. }));
    fs::remove_file(folder.file("config.json")).expect("removed");
    let error = identity(&checkpoint).expect_err("refused");
    assert_names(&error, &["config.json: no such file"]);
}
