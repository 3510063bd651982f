//! Packs: alignment, resuming, and every way a manifest can be wrong.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use super::make::{engine, feed, generate, open, resident, streamed};
use crate::support::{binary, copy_folder, expect_of, ids, read_json, scratch, tiny};
use k3_core::seal::seal;
use k3_engine::stream::pack::{MANIFEST, Pack, PackError, pack};

fn packed(model: &Path) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let files = open(model, None);
    pack(&files.checkpoint, &files.binding, folder.path(), &mut |_| ControlFlow::Continue(()))
        .unwrap();
    folder
}

fn manifest(folder: &Path) -> serde_json::Value {
    read_json(&folder.join(MANIFEST))
}

/// A manifest whose own digest is right, whatever it says.
fn put(folder: &Path, manifest: &serde_json::Value) {
    fs::write(folder.join(MANIFEST), seal(manifest).unwrap().to_string()).unwrap();
}

/// E02: sizes of the tiny oracle are odd; runs in the pack are not. The bits are those of the
/// shards, with rings of 1, 2 and 3.
#[test]
fn e02_a_pack_is_aligned_and_gives_the_bits_of_the_shards() {
    let folder = packed(&tiny());
    let manifest = manifest(folder.path());
    assert_eq!(manifest["align"], 4096);
    let layers = manifest["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 13);
    let mut odd = 0;
    for layer in layers {
        let number = |field: &str| layer[field].as_u64().unwrap();
        assert_eq!(number("offset") % 4096, 0);
        assert_eq!(number("length") % 4096, 0);
        let tensors = layer["tensors"].as_object().unwrap();
        let bytes: u64 = tensors.values().map(|t| t["length"].as_u64().unwrap()).sum();
        odd += u64::from(!bytes.is_multiple_of(4096));
    }
    assert!(odd > 0, "the sizes were whole blocks to begin with");
    let ids = ids("full_ids");
    let expected = feed(&engine(&open(&tiny(), None), &resident()), &ids);
    let files = open(&tiny(), Some(folder.path()));
    for ring in [1, 2, 3] {
        let mut stream = streamed(ring, 2);
        stream.direct = true;
        assert!(feed(&engine(&files, &stream), &ids) == expected, "ring {ring}");
    }
}

type Change = fn(&mut serde_json::Value);

/// What is wrong, how it is made, and what the message says.
#[allow(clippy::too_many_lines, reason = "a table")]
fn lies() -> Vec<(&'static str, Change, &'static str)> {
    vec![
        ("no layers", |m| m["layers"] = serde_json::json!([]), "no layers"),
        (
            "12 layers",
            |m| {
                m["layers"].as_array_mut().unwrap().pop();
            },
            "12 layers",
        ),
        ("negative size", |m| m["layers"][3]["length"] = (-4096).into(), "invalid value"),
        ("no length", |m| m["layers"][3]["length"] = 0.into(), "multiples of 4096"),
        ("alignment 512", |m| m["align"] = 512.into(), "align 512"),
        ("odd offset", |m| m["layers"][3]["offset"] = 512.into(), "multiples of 4096"),
        ("beyond the data", |m| m["layers"][12]["offset"] = (1_u64 << 40).into(), "the data has"),
        ("wraps", |m| m["layers"][12]["offset"] = (u64::MAX - 4095).into(), "the data has"),
        (
            "leaves its run",
            |m| {
                let tensors = m["layers"][2]["tensors"].as_object_mut().unwrap();
                tensors.values_mut().next().unwrap()["offset"] = (1_u64 << 30).into();
            },
            "leaves its run",
        ),
        ("other order", |m| m["layers"][4]["layer"] = 5.into(), "in place 4"),
        ("another file", |m| m["data"] = "../trunk.bin".into(), "no file name"),
    ]
}

/// E08: a manifest is not trusted.
#[test]
fn e08_every_lie_of_a_manifest_is_refused() {
    let folder = packed(&tiny());
    let good = manifest(folder.path());
    for (name, change, part) in lies() {
        let mut lie = good.clone();
        change(&mut lie);
        put(folder.path(), &lie);
        let refused = Pack::open(folder.path())
            .and_then(|pack| pack.runs_for(&open(&tiny(), None).checkpoint, 13).map(|_| ()));
        let text = refused.unwrap_err().to_string();
        assert!(text.contains(part) && !text.contains('\n'), "{name}: {text}");
    }
}

/// E08: a pack of another checkpoint, and data that was cut after packing.
#[test]
fn e08_a_stale_pack_and_cut_data_are_refused() {
    let folder = packed(&tiny());
    let good = manifest(folder.path());
    let mut stale = good.clone();
    stale["identity"] = "0".repeat(64).into();
    put(folder.path(), &stale);
    let pack = Pack::open(folder.path()).unwrap();
    let refused = pack.runs_for(&open(&tiny(), None).checkpoint, 13);
    assert!(matches!(refused, Err(PackError::OtherCheckpoint(_))));
    put(folder.path(), &good);
    fs::File::options()
        .write(true)
        .open(Pack::open(folder.path()).unwrap().data_path())
        .unwrap()
        .set_len(5 * 4096)
        .unwrap();
    let text = Pack::open(folder.path()).unwrap_err().to_string();
    assert!(text.contains("the data has 20480"), "{text}");
}

/// An interrupted pack resumes where it stopped, whatever it left; what it left is not believed
/// when it does not fit its hash.
#[test]
fn an_interrupted_pack_is_taken_up_and_checked() {
    let whole = packed(&tiny());
    let good = manifest(whole.path());
    let data = good["data"].as_str().unwrap();
    let bytes = fs::read(whole.path().join(data)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut part = good.clone();
    part["layers"].as_array_mut().unwrap().truncate(6);
    let end = part["layers"][5]["offset"].as_u64().unwrap()
        + part["layers"][5]["length"].as_u64().unwrap();
    let leave = |bytes: &[u8]| {
        let part = seal(&part).unwrap();
        fs::write(folder.path().join("trunk.json.part"), part.to_string()).unwrap();
        fs::write(folder.path().join(format!("{data}.part")), bytes).unwrap();
    };
    leave(&bytes[..end as usize + 100]);
    let files = open(&tiny(), None);
    let again = || {
        pack(&files.checkpoint, &files.binding, folder.path(), &mut |_| ControlFlow::Continue(()))
    };
    let packed = again().unwrap();
    assert_eq!((packed.layers, packed.resumed_layers), (13, 6));
    assert!(fs::read(folder.path().join(data)).unwrap() == bytes);
    assert_eq!(manifest(folder.path()), good);
    let mut damaged = bytes[..end as usize].to_vec();
    damaged[7] ^= 1;
    leave(&damaged);
    let text = again().unwrap_err().to_string();
    assert!(text.contains("layer 0") && text.contains("digest"), "{text}");
    let packed = again().unwrap();
    assert_eq!(packed.resumed_layers, 0, "the damaged part was believed again");
    assert!(fs::read(folder.path().join(data)).unwrap() == bytes);
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

/// Item 6: no byte of a pack can change unseen, padding included: the layer it is in is named when
/// it is first read, by `generate` streamed or pinned, and by `check`, which reads all.
#[test]
fn item_6_a_flipped_byte_of_a_pack_is_refused() {
    let folder = packed(&tiny());
    let path = Pack::open(folder.path()).unwrap().data_path();
    let whole = fs::read(&path).unwrap();
    let run = |trunk_gb: &str| {
        let mut command = generate(&["--gen", "1", "--trunk-gb", trunk_gb]);
        command.arg("--trunk").arg(folder.path());
        command
    };
    let check = || {
        let mut command = binary();
        command.arg("check").arg(folder.path());
        command
    };
    let clean = [run("0.0012"), run("1")].map(|mut command| expect_of(&mut command, 0).stdout);
    assert!(expect_of(&mut check(), 0).stdout.contains("NO DAMAGE FOUND"));
    let layers = manifest(folder.path())["layers"].as_array().unwrap().clone();
    for (layer, share) in [(0, 0.0), (3, 0.4), (12, 0.999_999)] {
        let number = |field: &str| layers[layer][field].as_u64().unwrap();
        let at = number("offset") + (share * number("length") as f64) as u64;
        let mut bytes = whole.clone();
        bytes[at as usize] ^= 1;
        fs::write(&path, bytes).unwrap();
        let named = format!("layer {layer}: altered since it was packed");
        for trunk_gb in ["0.0012", "1"] {
            let refused = expect_of(&mut run(trunk_gb), 3).stderr;
            assert!(refused.contains(&named) && refused.contains("trunk-"), "{refused}");
        }
        let damaged = expect_of(&mut check(), 1).stdout;
        assert!(damaged.contains(&named) && damaged.contains("1 wrong"), "{damaged}");
    }
    fs::write(&path, whole).unwrap();
    assert_eq!([run("0.0012"), run("1")].map(|mut c| expect_of(&mut c, 0).stdout), clean);
    // An offset that stays within bounds: nothing in the manifest is believed unsealed.
    let text = fs::read_to_string(folder.path().join(MANIFEST)).unwrap();
    let lie = text.replacen("\"offset\": 0,", "\"offset\": 8,", 1);
    assert_ne!(lie, text);
    fs::write(folder.path().join(MANIFEST), lie).unwrap();
    for command in [&mut run("1"), &mut check()] {
        let refused = expect_of(command, 3).stderr;
        assert!(refused.contains("trunk.json: altered: its digest is"), "{refused}");
    }
    expect_of(check().arg("--cross-read"), 2);
}

/// A kill at any moment leaves no pack, a part to resume from, or a whole pack.
#[test]
fn a_killed_pack_leaves_nothing_half_made() {
    let folder = tempfile::tempdir().unwrap();
    for delay in [0, 2, 4, 6, 8, 10, 14, 20] {
        let mut child = binary()
            .arg("pack")
            .arg(tiny())
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        let _ = child.kill();
        child.wait().unwrap();
        if folder.path().join(MANIFEST).exists() {
            let pack = Pack::open(folder.path()).unwrap();
            pack.runs_for(&open(&tiny(), None).checkpoint, 13).unwrap();
        }
    }
    expect_of(binary().arg("pack").arg(tiny()).arg(folder.path()), 0);
    let ids = &ids("full_ids")[..4];
    let files = open(&tiny(), Some(folder.path()));
    let expected = feed(&engine(&open(&tiny(), None), &resident()), ids);
    assert!(feed(&engine(&files, &streamed(2, 2)), ids) == expected);
}

/// Replacing the pack of one checkpoint by another's removes the old data and nothing before.
#[test]
fn a_pack_is_replaced_as_a_whole() {
    let folder = packed(&tiny());
    let other = tempfile::tempdir().unwrap();
    copy_folder(&tiny(), other.path());
    let config = other.path().join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}\n")).unwrap();
    let files = open(other.path(), None);
    pack(&files.checkpoint, &files.binding, folder.path(), &mut |_| ControlFlow::Continue(()))
        .unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    open(other.path(), Some(folder.path()));
    let mut command = generate(&["--gen", "1"]);
    let output = expect_of(command.arg("--trunk").arg(folder.path()), 3);
    let stderr = output.stderr;
    assert!(stderr.contains("made from checkpoint") && stderr.contains("hint: "), "{stderr}");
}

fn scattered() -> (tempfile::TempDir, PathBuf) {
    let (folder, model) = scratch("model");
    fs::create_dir_all(&model).unwrap();
    let checkpoint = k3_checkpoint::Checkpoint::open(&tiny()).unwrap();
    fs::copy(tiny().join("config.json"), model.join("config.json")).unwrap();
    let mut tensors: Vec<_> = checkpoint.tensors().collect();
    // One tensor of layer 3 goes to the front of the file.
    let moved = tensors
        .iter()
        .position(|info| info.name.ends_with("layers.3.input_layernorm.weight"))
        .unwrap();
    let one = tensors.remove(moved);
    tensors.insert(0, one);
    let data: Vec<Vec<u8>> =
        tensors.iter().map(|info| checkpoint.read(info.name).unwrap()).collect();
    let specs = tensors.iter().map(|info| k3_checkpoint::write::TensorSpec {
        name: info.name,
        dtype: info.dtype,
        shape: info.shape,
    });
    let head = k3_checkpoint::write::FileLayout::new(specs, &[]).unwrap().head;
    fs::write(model.join("model.safetensors"), [head, data.concat()].concat()).unwrap();
    (folder, model)
}

/// Scattered layers cannot be packed, and are read all the same.
#[test]
fn a_scattered_layer_is_refused_by_pack_and_read_from_its_shards() {
    let (_folder, model) = scattered();
    let out = tempfile::tempdir().unwrap();
    let output = expect_of(binary().arg("pack").arg(&model).arg(out.path().join("p")), 3);
    let stderr = output.stderr;
    assert!(stderr.contains("layer 3") && stderr.contains("2 pieces"), "{stderr}");
    assert!(!out.path().join("p").exists());
    let ids = &ids("full_ids")[..6];
    let expected = feed(&engine(&open(&tiny(), None), &resident()), ids);
    assert!(feed(&engine(&open(&model, None), &streamed(2, 3)), ids) == expected);
}
