//! One shard's header: every refusal by its variant, and the legal oddities that must be read.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

use k3_checkpoint::header::{MAX_HEADER_BYTES, MAX_NAME_BYTES, NameResolver, parse_header};
use k3_checkpoint::name_table::NameTable;
use k3_checkpoint::{Checkpoint, CheckpointError};

use super::make::{Folder, assert_names, raw_file};

/// Opens a file of these bytes by itself.
pub fn open(bytes: &[u8]) -> Result<Checkpoint, CheckpointError> {
    let folder = Folder::new();
    Checkpoint::open_file(&folder.put("model.safetensors", bytes))
}

/// The file of these bytes is refused by a message that names it and has `parts`.
#[track_caller]
fn refused(bytes: &[u8], parts: &[&str]) {
    let error = open(bytes).expect_err("refused");
    assert!(matches!(error, CheckpointError::File(_)), "{error:?}");
    assert_names(&error, &["model.safetensors: "]);
    assert_names(&error, parts);
}

/// A file with one tensor `w` of this shape text, dtype and offsets, and `data_bytes` of data.
fn one(dtype: &str, shape: &str, offsets: &str, data_bytes: usize) -> Vec<u8> {
    let header = format!("{{{}}}", entry("w", dtype, shape, offsets));
    raw_file(header.as_bytes(), &vec![0; data_bytes])
}

/// One entry of a header.
pub fn entry(name: &str, dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
}

/// A file with two tensors of eight bytes with these offsets.
fn two(first: &str, second: &str, data_bytes: usize) -> Vec<u8> {
    let (a, b) = (entry("a", "F32", "[2]", first), entry("b", "F32", "[2]", second));
    let header = format!("{{{a},{b}}}");
    raw_file(header.as_bytes(), &vec![0; data_bytes])
}

const GOOD_ENTRY: &str = r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;

fn good_header() -> String {
    format!(r#"{{"w":{GOOD_ENTRY}}}"#)
}

#[test]
fn the_file_that_the_tests_damage_is_good() {
    assert_eq!(open(&one("F32", "[2]", "[0,8]", 8)).expect("good").len(), 1);
    assert_eq!(open(&two("[0,8]", "[8,16]", 16)).expect("good").len(), 2);
    assert_eq!(open(&two("[8,16]", "[0,8]", 16)).expect("any order").len(), 2);
    assert_eq!(open(&raw_file(b"{}", &[])).expect("no tensor").len(), 0);
}

#[test]
fn c01_lengths_that_lie_are_refused() {
    let good = raw_file(good_header().as_bytes(), &[0; 8]);
    let with_length = |length: u64| {
        let mut bytes = good.clone();
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        bytes
    };
    for length in [u64::MAX, 1 << 63, good.len() as u64 - 7] {
        let (length_text, file_bytes) = (length.to_string(), good.len().to_string());
        refused(&with_length(length), &["reaches past the end", &length_text, &file_bytes]);
    }
    refused(&with_length(0), &["header length is 0"]);
}

#[test]
fn c01_files_too_short_for_a_length_are_refused() {
    refused(b"", &["file of 0 bytes is too short"]);
    refused(&[2, 0, 0, 0], &["file of 4 bytes is too short"]);
    refused(&[2, 0, 0, 0, 0, 0, 0, 0], &["header length 2 reaches past the end", "8 bytes"]);
    refused(&[0; 8], &["header length is 0"]);
}

#[test]
fn c01_a_big_endian_length_is_refused_and_named() {
    let mut bytes = raw_file(good_header().as_bytes(), &[0; 8]);
    bytes[..8].reverse();
    refused(&bytes, &["big-endian", "little-endian"]);
}

#[test]
fn c01_a_header_above_the_limit_is_refused_by_the_limit() {
    let folder = Folder::new();
    let path = folder.file("model.safetensors");
    let file = File::create(&path).expect("file");
    file.set_len(3 << 30).expect("sparse file");
    file.write_all_at(&(MAX_HEADER_BYTES + 1).to_le_bytes(), 0).expect("length");
    file.write_all_at(b"{", 8).expect("brace");
    let error = Checkpoint::open_file(&path).expect_err("refused");
    let limit = format!("above the limit of {MAX_HEADER_BYTES}");
    assert_names(&error, &["model.safetensors", &limit]);
}

#[test]
fn c01_a_true_header_above_100_million_bytes_is_read() {
    let folder = Folder::new();
    let path = folder.file("model.safetensors");
    let mut file = File::create(&path).expect("file");
    let front = br#"{"__metadata__":{"big":""#;
    let back = format!(r#""}},"w":{GOOD_ENTRY}}}"#);
    let filling = vec![b'a'; 100_000_001];
    let length = (front.len() + filling.len() + back.len()) as u64;
    for part in [&length.to_le_bytes()[..], front, &filling, back.as_bytes(), &[7; 8]] {
        file.write_all(part).expect("written");
    }
    drop((file, filling));
    let checkpoint = Checkpoint::open_file(&path).expect("legal");
    assert_eq!(checkpoint.read("w").expect("data"), [7; 8]);
}

#[test]
fn c02_an_lfs_pointer_is_recognised() {
    let digest = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393";
    let pointer = format!(
        "version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize 234567890\n"
    );
    assert_eq!(pointer.len(), 134);
    let first = u64::from_le_bytes(pointer.as_bytes()[..8].try_into().expect("eight bytes"));
    assert_eq!(first, 2_336_927_755_350_992_246);
    refused(pointer.as_bytes(), &["LFS pointer"]);
}

#[test]
fn c02_a_web_page_is_recognised() {
    for page in ["<!DOCTYPE html>\n<html>404", "  <HTML><body>", "<?xml version=\"1.0\"?>"] {
        refused(page.as_bytes(), &["a web page"]);
    }
}

#[test]
fn c02_an_unfinished_download_is_recognised_by_name() {
    let folder = Folder::new();
    let good = one("F32", "[2]", "[0,8]", 8);
    let path = folder.put("model.safetensors.incomplete", good);
    let error = Checkpoint::open_file(&path).expect_err("refused");
    assert_names(&error, &["model.safetensors.incomplete", "unfinished"]);
}

#[test]
fn c03_equal_names_are_refused() {
    let second = r#"{"dtype":"F32","shape":[2],"data_offsets":[8,16]}"#;
    for name in ["w", "\\u0077"] {
        let header = format!(r#"{{"w":{GOOD_ENTRY},"{name}":{second}}}"#);
        refused(&raw_file(header.as_bytes(), &[0; 16]), &["duplicate tensor name \"w\""]);
    }
    let header = format!(r#"{{"__metadata__":{{}},"w":{GOOD_ENTRY},"__metadata__":{{}}}}"#);
    refused(&raw_file(header.as_bytes(), &[0; 8]), &["duplicate tensor name \"__metadata__\""]);
}

#[test]
fn c03_an_equal_key_inside_an_entry_is_refused() {
    for field in [r#""dtype":"F32""#, r#""shape":[2]"#, r#""data_offsets":[0,8]"#] {
        let header = good_header().replacen(field, &format!("{field},{field}"), 1);
        refused(&raw_file(header.as_bytes(), &[0; 8]), &["tensor \"w\": duplicate key"]);
    }
    let header = format!(r#"{{"__metadata__":{{"a":"1","a":"1"}},"w":{GOOD_ENTRY}}}"#);
    refused(&raw_file(header.as_bytes(), &[0; 8]), &["__metadata__", "duplicate key \"a\""]);
}

#[test]
fn c04_shapes_that_wrap_or_are_no_integers_are_refused() {
    let wraps = one("F32", "[4294967296,4294967296]", "[0,0]", 0);
    refused(&wraps, &["\"w\"", "4294967296", "overflows 64 bits"]);
    refused(&one("F32", "[9223372036854775810,2]", "[0,16]", 16), &["overflows 64 bits"]);
    // The product fits, its bytes do not.
    refused(&one("F64", "[2305843009213693952]", "[0,0]", 0), &["overflows 64 bits"]);
    for number in ["-1", "3.0", "1e3", "-0", "18446744073709551616"] {
        let holds = format!("tensor \"w\": shape holds {number}, expected an integer");
        refused(&one("F32", &format!("[{number},4]"), "[0,8]", 8), &[&holds]);
    }
    for (shape, got, expected) in [
        ("[\"4\"]", "a string", "integers"),
        ("\"4\"", "a string", "an array"),
        ("null", "null", "an array"),
        ("[[2]]", "an array", "integers"),
        ("{}", "an object", "an array"),
    ] {
        let is = format!("tensor \"w\": shape is {got}, expected {expected}");
        refused(&one("F32", shape, "[0,8]", 8), &[&is]);
    }
}

#[test]
fn c05_tensors_must_cover_the_data_exactly() {
    let overlap = "tensors \"a\" and \"b\" overlap";
    refused(&two("[0,8]", "[0,8]", 8), &["data byte 0", overlap]);
    refused(&two("[0,8]", "[4,12]", 12), &["data byte 4", overlap]);
    let hole = |tensor: &str| format!("hole of 4 bytes before tensor {tensor:?}");
    refused(&two("[4,12]", "[12,20]", 20), &["data byte 4", &hole("a")]);
    refused(&two("[0,8]", "[12,20]", 20), &["data byte 12", &hole("b")]);
    refused(&two("[0,8]", "[8,16]", 20), &["data byte 16", "4 spare bytes"]);
    refused(&raw_file(b"{}", &[0]), &["data byte 0", "1 spare bytes"]);
    refused(&two("[0,8]", "[16,8]", 16), &["\"b\"", "data_offsets end 8 is before start 16"]);
    // An empty tensor inside another one points into foreign bytes.
    let (a, e) = (entry("a", "U8", "[8]", "[0,8]"), entry("e", "U8", "[0]", "[4,4]"));
    let header = format!("{{{a},{e}}}");
    refused(&raw_file(header.as_bytes(), &[0; 8]), &["data byte 4", "overlap"]);
}

#[test]
fn c06_part_elements_are_refused() {
    for (dtype, shape, bytes) in [("F32", "[3]", 15), ("BF16", "[2]", 5), ("F32", "[4]", 15)] {
        let give = format!("its data_offsets give {bytes}");
        refused(&one(dtype, shape, &format!("[0,{bytes}]"), bytes), &["\"w\"", dtype, &give]);
    }
    refused(&one("F4", "[3]", "[0,1]", 1), &["\"w\"", "does not fill whole bytes"]);
}

#[test]
fn c07_metadata_is_no_tensor() {
    let entry = format!(r#""w":{GOOD_ENTRY}"#);
    for header in [
        format!(r#"{{"__metadata__":{{}},{entry}}}"#),
        format!(r#"{{"__metadata__":{{"a":"}}\"{{","b":"}}"}},{entry}}}"#),
        format!(r#"{{{entry},"__metadata__":{{"format":"pt"}}}}"#),
        format!("{{{entry}}}"),
    ] {
        let checkpoint = open(&raw_file(header.as_bytes(), &[0; 8])).expect("legal");
        assert_eq!(checkpoint.len(), 1, "{header}");
    }
    // Null is none, as the crate has it.
    let header = format!(r#"{{"__metadata__":null,{entry}}}"#);
    assert!(open(&raw_file(header.as_bytes(), &[0; 8])).is_ok());
    for value in ["{\"a\":1}", "{\"a\":null}", "{\"a\":{}}", "[]", "\"x\""] {
        let header = format!(r#"{{"__metadata__":{value},{entry}}}"#);
        let file = raw_file(header.as_bytes(), &[0; 8]);
        refused(&file, &["__metadata__", " is ", "expected a"]);
    }
}

/// As the `safetensors` crate has it: white space of JSON around the object, and nothing else.
#[test]
fn c08_item_12_only_white_space_may_stand_around_a_header() {
    let header = good_header();
    let open_text = |text: &[u8]| open(&raw_file(text, &[0; 8]));
    for around in ["      ", "\t", "\n", "\r\n", " \n"] {
        assert!(open_text(format!("{header}{around}").as_bytes()).is_ok());
        assert!(open_text(format!("{around}{header}").as_bytes()).is_ok());
    }
    for padding in ["\0", "  \0", "{}", ",", "\u{c}"] {
        let file = raw_file(format!("{header}{padding}").as_bytes(), &[0; 8]);
        refused(&file, &["trailing characters"]);
    }
    for front in ["\u{FEFF}", "[", "\0", "\u{c}"] {
        let file = raw_file(format!("{front}{header}").as_bytes(), &[0; 8]);
        refused(&file, &["header starts with", "expected '{'"]);
    }
    // Inside the object, white space is JSON's.
    assert!(open_text(header.replace(':', " :\n\t").as_bytes()).is_ok());
}

#[test]
fn c08_bytes_that_are_not_utf8_are_refused() {
    let header = [b"{\"\xFF\xFE\":", GOOD_ENTRY.as_bytes(), b"}"].concat();
    refused(&raw_file(&header, &[0; 8]), &["byte 2", "not UTF-8"]);
}

#[test]
fn json() {
    for header in ["{", "{\"w\"}", "{\"w\":}", "{\"w\":{},}", "{]"] {
        let what = if header.contains("{}") { "dtype is missing" } else { "not valid JSON" };
        refused(&raw_file(header.as_bytes(), &[]), &[what]);
    }
}

#[test]
fn c14_empty_tensors_and_scalars_are_read() {
    let entries = [
        entry("e", "F32", "[0,4]", "[0,0]"),
        entry("s", "F32", "[]", "[0,4]"),
        entry("z", "U8", "[0]", "[4,4]"),
    ];
    let header = format!("{{{}}}", entries.join(","));
    let folder = Folder::new();
    let path = folder.put("a.safetensors", raw_file(header.as_bytes(), &1.5_f32.to_le_bytes()));
    let checkpoint = Checkpoint::open_file(&path).expect("legal");
    let (empty, scalar) = (checkpoint.tensor("e"), checkpoint.tensor("s"));
    assert_eq!(empty.map(|info| (info.shape, info.byte_len)), Some((&[0, 4][..], 0)));
    assert_eq!(scalar.map(|info| (info.shape, info.byte_len)), Some((&[][..], 4)));
    assert!(checkpoint.read("e").expect("nothing").is_empty());
    assert_eq!(checkpoint.read("s").expect("scalar"), 1.5_f32.to_le_bytes());
}

#[test]
fn c14_no_tensor_can_have_the_reserved_name() {
    let header = format!(r#"{{"__metadata__":{GOOD_ENTRY}}}"#);
    let is = "\"shape\" is an array, expected a string";
    refused(&raw_file(header.as_bytes(), &[0; 8]), &["__metadata__", is]);
}

#[test]
fn c15_escaped_names_are_found_by_their_utf8() {
    let header = format!(r#"{{"caf\u00e9":{GOOD_ENTRY}}}"#);
    let checkpoint = open(&raw_file(header.as_bytes(), &[0; 8])).expect("legal");
    assert!(checkpoint.tensor("café").is_some());
}

#[test]
fn c16_offsets_above_2_to_the_53_are_exact() {
    const ODD: u64 = 9_007_199_254_740_993;
    let header_of = |offsets: &str| {
        let a = entry("a", "U8", &format!("[{ODD}]"), &format!("[0,{ODD}]"));
        format!("{{{a},{}}}", entry("b", "U8", "[3]", offsets))
    };
    let header = header_of(&format!("[{ODD},{}]", ODD + 3));
    let mut names = NameTable::new();
    let parsed = parse_header(header.as_bytes(), ODD + 3, &mut names).expect("legal");
    assert_eq!(parsed.entries[1].start, ODD);
    let float = header_of(&format!("[9.007199254740993e15,{}]", ODD + 3));
    let error = parse_header(float.as_bytes(), ODD + 3, &mut NameTable::new());
    assert_names(&error.expect_err("refused"), &["\"b\"", "data_offsets holds 9.00719925"]);
}

/// A key that the format does not have is noted, and nobody reads it.
#[test]
fn item_12_an_unknown_field_is_noted() {
    let header = good_header().replace("\"shape\"", "\"strides\":[1],\"shape\"");
    let checkpoint = open(&raw_file(header.as_bytes(), &[0; 8])).expect("legal");
    assert_eq!(checkpoint.len(), 1);
    assert_names(&checkpoint.notes()[0], &["model.safetensors", "not read: strides"]);
}

#[test]
fn missing_field() {
    for (text, field) in [
        (r#""dtype":"F32","#, "dtype"),
        (r#""shape":[2],"#, "shape"),
        (r#","data_offsets":[0,8]"#, "data_offsets"),
    ] {
        let file = raw_file(good_header().replace(text, "").as_bytes(), &[0; 8]);
        refused(&file, &[&format!("tensor \"w\": {field} is missing")]);
    }
}

#[test]
fn wrong_type() {
    for (dtype, got) in [("7", "a number"), ("null", "null"), ("[\"F32\"]", "an array")] {
        let header = good_header().replace("\"F32\"", dtype);
        let is = format!("tensor \"w\": dtype is {got}, expected a string");
        refused(&raw_file(header.as_bytes(), &[0; 8]), &[&is]);
    }
    let entry = br#"{"w":"F32"}"#;
    refused(&raw_file(entry, &[0; 8]), &["the entry is a string, expected an object"]);
}

#[test]
fn offset_count() {
    for (offsets, got) in [("[]", "0"), ("[0]", "1"), ("[0,8,8]", "3")] {
        let has = format!("tensor \"w\": data_offsets has {got} numbers");
        refused(&one("F32", "[2]", offsets, 8), &[&has]);
    }
}

#[test]
fn name_too_long() {
    let name = "n".repeat(MAX_NAME_BYTES);
    let header = format!(r#"{{"{name}":{GOOD_ENTRY}}}"#);
    assert!(open(&raw_file(header.as_bytes(), &[0; 8])).is_ok());
    let header = format!(r#"{{"{name}n":{GOOD_ENTRY}}}"#);
    // Item 21: a name of 5 MB.
    let huge = format!(r#"{{"{}":{GOOD_ENTRY}}}"#, "n".repeat(5_000_000));
    refused(&raw_file(huge.as_bytes(), &[0; 8]), &["name or key longer than"]);
    let longer = format!("longer than {MAX_NAME_BYTES} bytes");
    refused(&raw_file(header.as_bytes(), &[0; 8]), &[&longer]);
}

#[test]
fn too_many_names() {
    struct Full;
    impl NameResolver for Full {
        fn resolve(&mut self, _: &str) -> Option<u32> {
            None
        }
        fn name(&self, _: u32) -> &str {
            ""
        }
    }
    let error = parse_header(good_header().as_bytes(), 8, &mut Full);
    assert_names(&error.expect_err("refused"), &["bytes of tensor names"]);
}

#[test]
fn unknown_dtype() {
    for dtype in ["F31", "f32", "", "MXFP4"] {
        refused(&one(dtype, "[2]", "[0,8]", 8), &[&format!("unknown dtype {dtype:?}")]);
    }
}

#[test]
fn item_12_any_number_of_dimensions() {
    let ones = |rank: usize| format!("[{}]", vec!["1"; rank].join(","));
    for rank in [0, 9, 64, 5000] {
        assert!(open(&one("F32", &ones(rank), "[0,4]", 4)).is_ok());
    }
    // A message does not show them all.
    refused(&one("F32", &ones(5000), "[0,8]", 8), &["1, 1]… (5000 dimensions) of F32"]);
}

#[test]
fn a_message_stays_one_line_whatever_the_name() {
    let header = r#"{"a\nb\u0007":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#;
    let error = open(&raw_file(header.as_bytes(), &[0; 4])).expect_err("refused");
    assert_names(&error, &[r"a\nb"]);
}
