//! The index by itself: each of its refusals.

use std::path::Path;

use k3_checkpoint::Malformed;
use k3_checkpoint::index::{MAX_INDEX_BYTES, MAX_SHARDS, ShardIndex};

use super::make::{Folder, assert_names};

fn parse(text: impl AsRef<[u8]>) -> Result<ShardIndex, Malformed> {
    ShardIndex::parse(text.as_ref(), Path::new("folder/model.safetensors.index.json"))
}

/// The text is refused by a message that names the index and has `parts`.
#[track_caller]
fn refused(text: impl AsRef<[u8]>, parts: &[&str]) {
    let error = parse(text).expect_err("refused");
    assert_names(&error, &["folder/model.safetensors.index.json: "]);
    assert_names(&error, parts);
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
    let error = ShardIndex::read(&folder.file("none")).expect_err("refused");
    assert_names(&error, &["none: no such file"]);
    // A map of no bytes is an error of the system's; an empty index is one of ours.
    let error = ShardIndex::read(&folder.put("empty", "")).expect_err("refused");
    assert_names(&error, &["empty: byte 0: not valid JSON"]);
}

#[test]
fn c13_links_that_lead_nowhere_are_named() {
    let folder = Folder::new();
    let link = folder.file("model.safetensors.index.json");
    std::os::unix::fs::symlink("model.safetensors.index.json", &link).expect("linked");
    let error = ShardIndex::read(&link).expect_err("refused");
    assert_names(&error, &["link loop"]);
}

#[test]
fn too_large() {
    let folder = Folder::new();
    let path = folder.file("index.json");
    let file = std::fs::File::create(&path).expect("file");
    file.set_len(MAX_INDEX_BYTES + 1).expect("sparse");
    let error = ShardIndex::read(&path).expect_err("refused");
    assert_names(&error, &[&format!("above the limit of {MAX_INDEX_BYTES}")]);
}

#[test]
fn foreign() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
    refused(pointer, &["LFS pointer"]);
}

#[test]
fn c15_a_cut_index_is_refused() {
    let text = r#"{"metadata":{"total_size":12},"weight_map":{"a":"1.safetensors"}}"#;
    assert!(parse(text).is_ok());
    for length in 0..text.len() {
        refused(&text[..length], &["not valid JSON"]);
    }
    refused(format!("{text}{text}"), &[&format!("byte {}: not valid JSON", text.len())]);
}

#[test]
fn duplicate_key() {
    let map = r#""weight_map":{"a":"1.safetensors"}"#;
    refused(format!("{{{map},{map}}}"), &["weight_map: duplicate key"]);
    let metadata = r#""metadata":{"total_size":1,"total_size":1}"#;
    refused(format!("{{{metadata},{map}}}"), &["metadata.total_size: duplicate key"]);
    // Inside of what is not read as well.
    refused(format!(r#"{{"other":{{"a":1,"a":1}},{map}}}"#), &["duplicate key \"a\""]);
}

#[test]
fn c03_duplicate_tensor() {
    for name in ["a", "\\u0061"] {
        let text = format!(r#"{{"weight_map":{{"a":"1.safetensors","{name}":"2.safetensors"}}}}"#);
        refused(text, &["tensor \"a\": duplicate"]);
    }
}

#[test]
fn no_weight_map() {
    for text in ["{}", r#"{"metadata":{}}"#, r#"{"weight_map":{}}"#] {
        refused(text, &["weight_map: missing or empty"]);
    }
}

#[test]
fn wrong_type() {
    for (text, what) in [
        ("[]", "expected an object"),
        (r#"{"weight_map":[]}"#, "weight_map: expected an object, got an array"),
        (r#"{"weight_map":{"a":1}}"#, "\"a\": expected the name of a shard, got a number"),
    ] {
        refused(text, &[what]);
    }
}

/// J08: `total_size` only informs; in another form it is noted, read where it is a number all the
/// same, and keeps nobody from the tensors.
#[test]
fn item_12_an_odd_total_size_is_noted() {
    for (size, read) in [
        ("null", None),
        ("1.5", None),
        ("-1", None),
        ("1e12", Some(1_000_000_000_000)),
        ("12.0", Some(12)),
        ("\"12\"", Some(12)),
        ("\"12 GB\"", None),
        ("1e17", None),
        ("true", None),
        ("[12]", None),
        ("18446744073709551616", None),
    ] {
        let map = r#""weight_map":{"a":"1.safetensors"}"#;
        let index = parse(format!(r#"{{"metadata":{{"total_size":{size}}},{map}}}"#));
        let index = index.expect("opens");
        assert_eq!(index.total_size, read, "{size}");
        let odd = index.odd_metadata.expect("noted");
        assert_names(&odd, &["metadata.total_size: expected an integer, got"]);
    }
    for (metadata, noted) in [
        (r#""metadata":null,"#, true),
        (r#""metadata":[],"#, true),
        (r#""metadata":"none","#, true),
        ("", false),
        (r#""metadata":{},"#, false),
    ] {
        let index = parse(format!(r#"{{{metadata}"weight_map":{{"a":"1.safetensors"}}}}"#));
        let index = index.expect("opens");
        assert_eq!((index.total_size, index.odd_metadata.is_some()), (None, noted), "{metadata}");
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
        let text = format!(r#"{{"weight_map":{{"w":"{shard}"}}}}"#);
        refused(text, &["\"w\"", "expected the plain name of a .safetensors file"]);
    }
}

#[test]
fn too_many_shards() {
    let map = |count: usize| {
        let rows: Vec<_> = (0..count).map(|n| format!(r#""{n}":"{n}.safetensors""#)).collect();
        format!(r#"{{"weight_map":{{{}}}}}"#, rows.join(","))
    };
    assert_eq!(parse(map(MAX_SHARDS)).expect("at the limit").shards.len(), MAX_SHARDS);
    refused(map(MAX_SHARDS + 1), &[&format!("more than {MAX_SHARDS} shards")]);
}
