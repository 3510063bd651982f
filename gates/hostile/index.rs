//! The index by itself: each of its refusals.

use std::path::Path;

use k3_checkpoint::foreign::Foreign;
use k3_checkpoint::index::{IndexError, MAX_INDEX_BYTES, MAX_SHARDS, ShardIndex};
use k3_checkpoint::link::LinkTrouble;

use super::make::{Folder, assert_names};

fn parse(text: impl AsRef<[u8]>) -> Result<ShardIndex, IndexError> {
    ShardIndex::parse(text.as_ref(), Path::new("folder/model.safetensors.index.json"))
}

#[track_caller]
fn refused(text: impl AsRef<[u8]>) -> IndexError {
    let error = parse(text).expect_err("refused");
    assert_names(&error, &["folder/model.safetensors.index.json"]);
    error
}

#[test]
fn a_good_index_is_read() {
    let index = parse(
        r#"{"metadata":{"total_size":12,"note":[1]},"extra":{},
           "weight_map":{"b":"2.safetensors","a":"1.safetensors","c\u00e9":"2.safetensors"}}"#,
    )
    .expect("good");
    assert_eq!(index.shards, ["1.safetensors", "2.safetensors"]);
    assert_eq!(index.total_size, Some(12));
    assert_eq!(index.shard_of("a"), Some("1.safetensors"));
    assert_eq!(index.shard_of("cé"), Some("2.safetensors"));
    assert_eq!(index.shard_of("d"), None);
}

#[test]
fn io() {
    let folder = Folder::new();
    assert!(matches!(ShardIndex::read(&folder.file("none")), Err(IndexError::Io { .. })));
}

#[test]
fn c13_links_that_lead_nowhere_are_named() {
    let folder = Folder::new();
    let link = folder.file("model.safetensors.index.json");
    std::os::unix::fs::symlink("model.safetensors.index.json", &link).expect("linked");
    let error = ShardIndex::read(&link).expect_err("refused");
    assert!(matches!(error, IndexError::Link { trouble: LinkTrouble::Loop { .. }, .. }));
    assert_names(&error, &["loop"]);
}

#[test]
fn too_large() {
    let folder = Folder::new();
    let path = folder.file("index.json");
    let file = std::fs::File::create(&path).expect("file");
    file.set_len(MAX_INDEX_BYTES + 1).expect("sparse");
    assert!(matches!(ShardIndex::read(&path), Err(IndexError::TooLarge { .. })));
}

#[test]
fn foreign() {
    let error = refused("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
    assert!(matches!(error, IndexError::Foreign { what: Foreign::LfsPointer, .. }));
}

#[test]
fn c15_a_cut_index_is_refused() {
    let text = r#"{"metadata":{"total_size":12},"weight_map":{"a":"1.safetensors"}}"#;
    assert!(parse(text).is_ok());
    for length in 0..text.len() {
        let error = refused(&text[..length]);
        assert!(matches!(error, IndexError::Json { .. }), "cut at {length}: {error}");
    }
    let twice = format!("{text}{text}");
    assert!(matches!(refused(twice), IndexError::Json { .. }));
}

#[test]
fn duplicate_key() {
    let map = r#""weight_map":{"a":"1.safetensors"}"#;
    let error = refused(format!("{{{map},{map}}}"));
    assert!(matches!(&error, IndexError::DuplicateKey { key, .. } if key == "weight_map"));
    let error = refused(format!(r#"{{"metadata":{{"total_size":1,"total_size":1}},{map}}}"#));
    assert!(matches!(&error, IndexError::DuplicateKey { key, .. } if key == "metadata.total_size"));
}

#[test]
fn c03_duplicate_tensor() {
    for name in ["a", "\\u0061"] {
        let text = format!(r#"{{"weight_map":{{"a":"1.safetensors","{name}":"2.safetensors"}}}}"#);
        let error = refused(text);
        assert!(matches!(&error, IndexError::DuplicateTensor { tensor, .. } if tensor == "a"));
        assert_names(&error, &["duplicate", "\"a\""]);
    }
}

#[test]
fn no_weight_map() {
    for text in ["{}", r#"{"metadata":{}}"#, r#"{"weight_map":{}}"#] {
        assert!(matches!(refused(text), IndexError::NoWeightMap { .. }), "{text}");
    }
}

#[test]
fn wrong_type() {
    for (text, field) in [
        ("[]", "the document"),
        (r#"{"weight_map":[]}"#, "weight_map"),
        (r#"{"weight_map":{"a":1}}"#, "a"),
        (r#"{"metadata":null}"#, "metadata"),
        (r#"{"metadata":{"total_size":"12"}}"#, "metadata.total_size"),
    ] {
        let error = refused(text);
        assert!(matches!(&error, IndexError::WrongType { field: found, .. } if found == field));
    }
}

#[test]
fn bad_total_size() {
    for size in ["1.5", "-1", "1e12", "18446744073709551616"] {
        let text = format!(r#"{{"metadata":{{"total_size":{size}}}}}"#);
        assert!(matches!(refused(text), IndexError::BadTotalSize { .. }), "{size}");
    }
}

#[test]
fn bad_shard_name() {
    for shard in [
        "../1.safetensors",
        "/etc/1.safetensors",
        "a/1.safetensors",
        "a\\\\1.safetensors",
        ".safetensors",
        "1.safetensors.incomplete",
        "1.bin",
        "",
        "1\\u0000.safetensors",
    ] {
        let error = refused(format!(r#"{{"weight_map":{{"w":"{shard}"}}}}"#));
        assert!(matches!(error, IndexError::BadShardName { .. }), "{shard}");
        assert_names(&error, &["\"w\""]);
    }
}

#[test]
fn too_many_shards() {
    let map = |count: usize| {
        let rows: Vec<_> = (0..count).map(|n| format!(r#""{n}":"{n}.safetensors""#)).collect();
        format!(r#"{{"weight_map":{{{}}}}}"#, rows.join(","))
    };
    assert_eq!(parse(map(MAX_SHARDS)).expect("at the limit").shards.len(), MAX_SHARDS);
    assert!(matches!(refused(map(MAX_SHARDS + 1)), IndexError::TooManyShards { .. }));
}
