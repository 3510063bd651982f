//! A copy of a model with a larger vocabulary.

use std::path::Path;

/// A copy of a model whose vocabulary is larger; the further rows are zeros that take no room on
/// the disk.
pub fn widen_vocabulary(from: &Path, to: &Path, vocabulary: usize) {
    use std::os::unix::fs::FileExt as _;
    std::fs::create_dir_all(to).unwrap();
    let config = std::fs::read_to_string(from.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["text_config"]["vocab_size"] = vocabulary.into();
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    let checkpoint = k3_checkpoint::Checkpoint::open(from).unwrap();
    let mut header = serde_json::Map::new();
    let (mut at, mut places) = (0, Vec::new());
    for info in checkpoint.tensors() {
        let mut shape = info.shape.to_vec();
        let table =
            info.name.ends_with("embed_tokens.weight") || info.name.ends_with("lm_head.weight");
        let length = if table {
            shape[0] = vocabulary;
            2 * (shape[0] * shape[1]) as u64
        } else {
            info.byte_len
        };
        let entry = serde_json::json!({"dtype": info.dtype.name(), "shape": shape,
            "data_offsets": [at, at + length]});
        header.insert(info.name.to_owned(), entry);
        places.push((info.name.to_owned(), at));
        at += length;
    }
    let mut header = serde_json::Value::Object(header).to_string();
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let file = std::fs::File::create(to.join("model.safetensors")).unwrap();
    let start = 8 + header.len() as u64;
    file.set_len(start + at).unwrap();
    file.write_all_at(&(header.len() as u64).to_le_bytes(), 0).unwrap();
    file.write_all_at(header.as_bytes(), 8).unwrap();
    for (name, at) in places {
        let bytes = checkpoint.read(&name).unwrap();
        file.write_all_at(&bytes, start + at).unwrap();
    }
}
