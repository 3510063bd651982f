//! The reader against data it did not make: the released config and index, and a tiny checkpoint
//! in the released layout. All of it is reached through `K3_EXTERNAL`; without it each test says
//! NOT RUN. Times and memory are printed, never asserted.

#![allow(clippy::print_stdout, reason = "a test that did not run says so")]

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use k3_checkpoint::UnusedClass;
use k3_checkpoint::binding::{Binding, bind_names};
use k3_checkpoint::index::ShardIndex;
use k3_checkpoint::mxfp4::{ExpertMatrix, MatrixPlace, decode_matrix};
use k3_checkpoint::names::{Role, VISION};
use k3_checkpoint::plan::{ExpectedTensor, tensor_count, visit_layer, visit_model};
use k3_checkpoint::store::Checkpoint;
use k3_checkpoint::{LayerKind, ModelShape};
use k3_core::config::RawConfig;

/// The folder of outside data, or a line that says that the test did not run.
fn external(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("K3_EXTERNAL").map(PathBuf::from);
    if folder.is_none() {
        println!("NOT RUN {test}: K3_EXTERNAL is not set");
    }
    folder
}

fn released_config(external: &Path) -> RawConfig {
    k3_checkpoint::config::read(&external.join("kimi-k3-released/config.json"))
        .expect("released config")
}

fn released_index(external: &Path) -> Vec<u8> {
    let path = external.join("kimi-k3-released/model.safetensors.index.json.gz");
    let file = std::fs::File::open(path).expect("released index");
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).expect("gzip");
    bytes
}

/// A wrong field or a slip in the one-based lists shows here.
#[test]
fn released_config_gives_the_published_shape() {
    let Some(external) = external("released_config_gives_the_published_shape") else {
        return;
    };
    let config = released_config(&external);
    let by_the_reference = k3_reference::read_config(&external.join("kimi-k3-released"));
    assert_eq!(by_the_reference.expect("the reference's reading"), config);
    assert_eq!(config.hidden_size, 7168);
    assert_eq!(config.vocab_size, 163_840);
    assert_eq!(config.token_ids.root.eos, [163_586]);
    assert_eq!(config.token_ids.text.pad, Some(163_839));
    let shape = ModelShape::derive(&config).expect("shape");
    let mla: Vec<_> = shape.layers_of(LayerKind::Mla).collect();
    assert_eq!(mla.len(), 24);
    assert_eq!((mla[0], mla[22], mla[23]), (3, 91, 92));
    assert_eq!(shape.layers_of(LayerKind::Kda).count(), 69);
    assert_eq!(shape.moe_layers().collect::<Vec<_>>(), (1..93).collect::<Vec<_>>());
    assert_eq!(shape.kda.width, 12_288);
    assert_eq!(shape.mla.cache_width, 576);
    assert_eq!(shape.moe.expert_bytes(), 17_547_264);
    assert_eq!(shape.banks, 8);
    let banks: Vec<_> = [0, 1, 12, 13, 84, 92]
        .map(|n| (shape.layers[n].attention_banks, shape.layers[n].mlp_banks))
        .into();
    assert_eq!(banks, [(0, 1), (1, 1), (1, 2), (2, 2), (7, 8), (8, 8)]);
}

/// The plan of names must be the released index, name for name, and add up to its bytes.
#[test]
fn released_index_binds_name_for_name() {
    let Some(external) = external("released_index_binds_name_for_name") else {
        return;
    };
    let config = released_config(&external);
    let bytes = released_index(&external);
    let memory_before = resident_bytes();
    let cpu_before = cpu_seconds();
    let start = Instant::now();
    let index = ShardIndex::parse(bytes.as_slice(), Path::new("index")).expect("index");
    let parsed = start.elapsed();
    let names = bind_names(&index, &config).expect("names");
    let bound = start.elapsed();
    let growth = resident_bytes().saturating_sub(memory_before);
    println!(
        "index of {} names: parsed {parsed:?}, bound {bound:?} ({:.2} s of processor time), \
         table {} bytes, resident +{growth}",
        index.names.len(),
        cpu_seconds() - cpu_before,
        index.names.held_bytes(),
    );
    assert_eq!(index.names.len(), 497_220);
    assert_eq!(index.shards.len(), 96);
    assert_eq!(names.missing, Vec::<String>::new());
    assert_eq!(names.unknown, Vec::<String>::new());
    assert_eq!((names.expected, names.bound), (497_052, 497_050));
    let unused: Vec<_> = names.unused.into_iter().collect();
    assert_eq!(
        unused,
        [
            (UnusedClass::VisionTower, 165),
            (UnusedClass::MmProjector, 3),
            (UnusedClass::ResidualBeforeFirstBank, 2)
        ]
    );
    let vision = VISION.iter().map(|template| {
        template.blocks as u64 * template.shape.iter().product::<usize>() as u64 * 2
    });
    let mut total: u64 = vision.sum();
    visit_all(&config, |expected| total += expected.byte_len());
    assert_eq!(Some(total), index.total_size);
    for name in VISION.iter().flat_map(|template| template.names()) {
        assert!(index.names.find(&name).is_some(), "{name}");
    }
}

fn visit_all(config: &RawConfig, mut visit: impl FnMut(ExpectedTensor<'_>)) {
    let shape = ModelShape::derive(config).expect("shape");
    visit_model(&shape, &mut visit);
    for layer in 0..shape.layers.len() {
        visit_layer(&shape, layer, &mut visit);
    }
}

/// Dtype, shape and count of all 60 templates, as others have read them from the shards.
#[test]
fn tables_of_names_equal_the_released_tensor_table() {
    let Some(external) = external("tables_of_names_equal_the_released_tensor_table") else {
        return;
    };
    let config = released_config(&external);
    let text = std::fs::read_to_string(external.join("kimi-k3-released/tensor_table.json"));
    let table: serde_json::Value = serde_json::from_str(&text.expect("table")).expect("json");
    let mut ours: BTreeMap<String, (String, Vec<usize>, u64)> = BTreeMap::new();
    visit_all(&config, |expected| {
        let row = ours
            .entry(expected.role.template().to_owned())
            .or_insert_with(|| (expected.dtype.to_string(), expected.shape.to_vec(), 0));
        assert_eq!(row.1, expected.shape, "{}", expected.name);
        row.2 += 1;
    });
    assert_eq!(ours.len(), Role::COUNT);
    for template in VISION {
        let row = ("BF16".to_owned(), template.shape.to_vec(), template.blocks as u64);
        ours.insert(template.template.to_owned(), row);
    }
    let rows = table["templates"].as_array().expect("templates");
    assert_eq!(rows.len(), ours.len());
    for row in rows {
        let name = row["name"].as_str().expect("name");
        let shape: Vec<usize> = serde_json::from_value(row["shape"].clone()).expect("shape");
        let dtype = row["dtype"].as_str().expect("dtype").to_owned();
        let count = row["count"].as_u64().expect("count");
        assert_eq!(ours.get(name), Some(&(dtype, shape, count)), "{name}");
    }
    let shape = ModelShape::derive(&config).expect("shape");
    assert_eq!(tensor_count(&shape), 497_052);
}

/// A complete small checkpoint binds; the other reader sees the same bytes.
#[test]
fn tiny_checkpoint_binds_and_reads_as_the_safetensors_crate_does() {
    let Some(external) = external("tiny_checkpoint_binds") else {
        return;
    };
    let folder = external.join("tiny-k3-a/model");
    let checkpoint = Checkpoint::open(&folder).expect("tiny checkpoint");
    let config = k3_checkpoint::config::read(&checkpoint.config_path()).expect("tiny config");
    let binding = Binding::bind(&checkpoint, &config).expect("tiny binds");
    assert_eq!(checkpoint.notes(), []);
    assert_eq!(checkpoint.tensor_bytes(), 3_629_312);
    assert_eq!(binding.bound_count() + binding.unused().len(), checkpoint.len());
    let unused: Vec<_> = binding.unused_counts().into_iter().collect();
    assert_eq!(unused, [(UnusedClass::ResidualBeforeFirstBank, 2)]);
    assert_eq!(binding.layer_tensor(0, Role::AttentionResNorm), None);
    assert!(binding.layer_tensor(0, Role::KdaQProj).is_some());
    assert!(binding.layer_tensor(3, Role::KdaQProj).is_none());
    assert!(binding.expert(0, 0).is_none() && binding.expert(12, 7).is_some());
    let mut compared = 0;
    for shard in checkpoint.shards() {
        let bytes = std::fs::read(shard.path()).expect("shard");
        let other = safetensors::SafeTensors::deserialize(&bytes).expect("crate");
        for (name, view) in other.tensors() {
            let info = checkpoint.tensor(&name).expect("named by both");
            assert_eq!(info.shape, view.shape());
            assert_eq!(info.dtype.name(), view.dtype().to_string());
            assert_eq!(checkpoint.read(&name).expect("read"), view.data());
            compared += 1;
        }
    }
    assert_eq!(compared, checkpoint.len());
}

/// Real released bytes decode bit for bit; with the nibbles swapped they must not.
#[test]
fn released_mxfp4_bytes_decode_bit_for_bit() {
    let Some(external) = external("released_mxfp4_bytes_decode_bit_for_bit") else {
        return;
    };
    let text = std::fs::read_to_string(external.join("kimi-k3-mxfp4/mxfp4.json")).expect("file");
    let file: serde_json::Value = serde_json::from_str(&text).expect("json");
    let bytes = |key: &str| -> Vec<u8> {
        serde_json::from_value(file[key]["data"].clone()).expect("bytes")
    };
    let expected: Vec<f64> =
        serde_json::from_value(file["expected"]["data"].clone()).expect("values");
    let (codes, scales) = (bytes("packed"), bytes("scales"));
    let (rows, columns) = (64, 3584);
    let place = MatrixPlace { layer: 1, expert: 0, matrix: ExpertMatrix::Gate };
    let decode = |codes: &[u8]| {
        let mut values = vec![f64::NAN; rows * columns];
        decode_matrix(place, (rows, columns), codes, &scales, &mut values).expect("decodes");
        values
    };
    let bits = |values: &[f64]| -> Vec<u64> { values.iter().map(|v| v.to_bits()).collect() };
    assert_eq!(expected.len(), rows * columns);
    assert_eq!(bits(&decode(&codes)), bits(&expected));
    let swapped: Vec<u8> = codes.iter().map(|byte| byte.rotate_left(4)).collect();
    assert_ne!(bits(&decode(&swapped)), bits(&expected));
}

/// Resident memory of this process.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Processor time of this process in seconds: on a busy machine it says more than a clock.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |place: usize| fields.get(place).and_then(|text| text.parse::<f64>().ok());
    // User and system time, in ticks of 10 ms.
    (ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0)) / 100.0
}
