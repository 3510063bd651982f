//! The reader on the released config, index and bytes. Times and memory are printed, never
//! asserted.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::time::Instant;

use k3_checkpoint::UnusedClass;
use k3_checkpoint::binding::bind_names;
use k3_checkpoint::index::ShardIndex;
use k3_checkpoint::mxfp4::{ExpertMatrix, MatrixPlace, decode_matrix};
use k3_checkpoint::names::{Role, VISION};
use k3_checkpoint::plan::{ExpectedTensor, tensor_count, visit_layer, visit_model};
use k3_checkpoint::{LayerKind, ModelShape};
use k3_core::config::RawConfig;

use super::external;
use crate::support::process::{cpu_seconds, status_bytes};
use crate::support::{bits_f64, read_json};

/// The released config.
pub fn released_config() -> RawConfig {
    k3_checkpoint::config::read(&external("kimi-k3-released/config.json")).unwrap()
}

/// The released index, unpacked.
fn released_index_bytes() -> Vec<u8> {
    let path = external("kimi-k3-released/model.safetensors.index.json.gz");
    let mut bytes = Vec::new();
    let mut decoder = flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap());
    decoder.read_to_end(&mut bytes).unwrap();
    bytes
}

/// The released index.
pub fn released_index() -> ShardIndex {
    ShardIndex::parse(released_index_bytes().as_slice(), Path::new("index")).unwrap()
}

/// A wrong field or a slip in the one-based lists shows here.
pub fn released_config_gives_the_published_shape() {
    let config = released_config();
    let by_the_reference = k3_reference::read_config(&external("kimi-k3-released"));
    assert_eq!(by_the_reference.unwrap(), config);
    assert_eq!(config.hidden_size, 7168);
    assert_eq!(config.vocab_size, 163_840);
    assert_eq!(config.token_ids.root.eos, [163_586]);
    assert_eq!(config.token_ids.text.pad, Some(163_839));
    let shape = ModelShape::derive(&config).unwrap();
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
pub fn released_index_binds_name_for_name() {
    let config = released_config();
    let bytes = released_index_bytes();
    let memory_before = status_bytes("VmRSS:");
    let cpu_before = cpu_seconds();
    let start = Instant::now();
    let index = ShardIndex::parse(bytes.as_slice(), Path::new("index")).unwrap();
    let parsed = start.elapsed();
    let names = bind_names(&index, &config).unwrap();
    let bound = start.elapsed();
    let growth = status_bytes("VmRSS:").saturating_sub(memory_before);
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
    let shape = ModelShape::derive(config).unwrap();
    visit_model(&shape, &mut visit);
    for layer in 0..shape.layers.len() {
        visit_layer(&shape, layer, &mut visit);
    }
}

/// Dtype, shape and count of all 60 templates, as others have read them from the shards.
pub fn tables_of_names_equal_the_released_tensor_table() {
    let config = released_config();
    let table = read_json(&external("kimi-k3-released/tensor_table.json"));
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
    let rows = table["templates"].as_array().unwrap();
    assert_eq!(rows.len(), ours.len());
    for row in rows {
        let name = row["name"].as_str().unwrap();
        let shape: Vec<usize> = serde_json::from_value(row["shape"].clone()).unwrap();
        let dtype = row["dtype"].as_str().unwrap().to_owned();
        let count = row["count"].as_u64().unwrap();
        assert_eq!(ours.get(name), Some(&(dtype, shape, count)), "{name}");
    }
    let shape = ModelShape::derive(&config).unwrap();
    assert_eq!(tensor_count(&shape), 497_052);
}

/// Real released bytes decode bit for bit; with the nibbles swapped they must not.
pub fn released_mxfp4_bytes_decode_bit_for_bit() {
    let file = read_json(&external("kimi-k3-mxfp4/mxfp4.json"));
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
    assert_eq!(expected.len(), rows * columns);
    assert_eq!(bits_f64(&decode(&codes)), bits_f64(&expected));
    let swapped: Vec<u8> = codes.iter().map(|byte| byte.rotate_left(4)).collect();
    assert_ne!(bits_f64(&decode(&swapped)), bits_f64(&expected));
}
