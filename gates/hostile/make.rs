//! What the tests damage: small files, a small model's config and its checkpoint.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use k3_checkpoint::plan::{ExpectedTensor, visit_layer, visit_model};
use k3_checkpoint::write::{FileLayout, TensorSpec};
use k3_checkpoint::{Dtype, ModelShape};
use k3_core::config::RawConfig;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Makes sure that a message is one line and holds every one of `parts`.
#[track_caller]
pub fn assert_names(error: &impl Display, parts: &[&str]) {
    let text = error.to_string();
    assert!(!text.contains('\n'), "more than one line: {text:?}");
    for part in parts {
        assert!(text.contains(part), "{text:?} does not name {part:?}");
    }
}

/// A safetensors file from a header's text and data.
pub fn raw_file(header: &[u8], data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.extend_from_slice(data);
    bytes
}

/// A temporary folder.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("temporary folder"))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub fn put(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.file(name);
        std::fs::write(&path, bytes).expect("written");
        path
    }
}

/// A four-layer model: KDA and dense, KDA and MoE, KDA and MoE, MLA and MoE.
pub fn small_config() -> Value {
    serde_json::from_str(SMALL_CONFIG).expect("json")
}

const SMALL_CONFIG: &str = r#"{
    "tie_word_embeddings": false,
    "eos_token_id": 2,
    "text_config": {
        "hidden_act": "situ",
        "moe_router_activation_func": "sigmoid",
        "mla_use_nope": true,
        "mla_use_output_gate": true,
        "latent_moe_use_norm": true,
        "num_expert_group": 1,
        "topk_group": 1,
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": 0,
        "tie_word_embeddings": false,
        "hidden_size": 32,
        "vocab_size": 40,
        "num_hidden_layers": 4,
        "rms_norm_eps": 1e-5,
        "linear_attn_config": {
            "use_full_rank_gate": true,
            "num_heads": 2,
            "head_dim": 4,
            "short_conv_kernel_size": 4,
            "gate_lower_bound": -5.0,
            "kda_layers": [1, 2, 3],
            "full_attn_layers": [4]
        },
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "q_lora_rank": 6,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 2,
        "v_head_dim": 4,
        "attn_res_block_size": 2,
        "first_k_dense_replace": 1,
        "intermediate_size": 24,
        "num_experts": 3,
        "num_experts_per_token": 2,
        "routed_expert_hidden_size": 64,
        "moe_intermediate_size": 32,
        "num_shared_experts": 2,
        "moe_renormalize": true,
        "routed_scaling_factor": 1.0,
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "quantization_config": {
            "format": "mxfp4-pack-quantized",
            "quant_method": "compressed-tensors",
            "config_groups": {
                "group_0": {
                    "format": "mxfp4-pack-quantized",
                    "weights": {
                        "group_size": 32,
                        "num_bits": 4,
                        "type": "float",
                        "scale_dtype": "torch.uint8",
                        "strategy": "group",
                        "symmetric": true
                    }
                }
            }
        }
    }
}"#;

/// The config with the value at a dotted path replaced.
pub fn with(mut config: Value, path: &str, value: Value) -> Value {
    *at(&mut config, path) = value;
    config
}

/// The config without the key at a dotted path.
pub fn without(mut config: Value, path: &str) -> Value {
    let (parent, key) = path.rsplit_once('.').unwrap_or(("", path));
    let parent = at(&mut config, parent).as_object_mut().expect("an object");
    assert!(parent.remove(key).is_some(), "{path} was not there");
    config
}

/// The place of a dotted path; its last key may be new.
fn at<'a>(config: &'a mut Value, path: &str) -> &'a mut Value {
    let keys = path.split('.').filter(|key| !key.is_empty());
    keys.fold(config, |value, key| {
        value.as_object_mut().expect("an object").entry(key).or_insert(Value::Null)
    })
}

/// The config as its reader gives it.
pub fn read_config(config: &Value) -> RawConfig {
    k3_checkpoint::config::parse(config.to_string().as_bytes(), Path::new("config.json"))
        .expect("good config")
}

/// A tensor to be written, all zeros.
#[derive(Clone, Debug)]
pub struct Zeros {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
}

/// Zeros of one tensor.
pub fn zeros(name: &str, dtype: Dtype, shape: &[usize]) -> Zeros {
    Zeros { name: name.to_owned(), dtype, shape: shape.to_vec() }
}

/// A checkpoint by shards: file name to tensors.
#[derive(Clone)]
pub struct Model {
    pub config: Value,
    pub shards: BTreeMap<String, Vec<Zeros>>,
}

/// The name of shard `number` (from 1) of the small model.
pub fn shard_name(number: usize) -> String {
    format!("model-{number:05}-of-000003.safetensors")
}

impl Model {
    /// The small model in three shards: layers 0 and 1, layers 2 and 3, the rest.
    pub fn small() -> Self {
        let config = small_config();
        let shape = ModelShape::derive(&read_config(&config)).expect("shape");
        let mut shards: BTreeMap<String, Vec<Zeros>> = BTreeMap::new();
        let mut put = |number: usize, expected: ExpectedTensor<'_>| {
            let tensor = zeros(expected.name, expected.dtype, expected.shape);
            shards.entry(shard_name(number)).or_default().push(tensor);
        };
        for layer in 0..4 {
            visit_layer(&shape, layer, |expected| put(layer / 2 + 1, expected));
        }
        visit_model(&shape, |expected| put(3, expected));
        Self { config, shards }
    }

    /// The tensor of that name.
    pub fn tensor(&mut self, name: &str) -> &mut Zeros {
        let mut all = self.shards.values_mut().flatten();
        all.find(|tensor| tensor.name == name).expect("a tensor of that name")
    }

    /// Takes tensors out; gives their number.
    pub fn remove(&mut self, unwanted: impl Fn(&str) -> bool) -> usize {
        let mut removed = 0;
        for tensors in self.shards.values_mut() {
            let before = tensors.len();
            tensors.retain(|tensor| !unwanted(&tensor.name));
            removed += before - tensors.len();
        }
        removed
    }

    /// Adds a tensor to shard `number`.
    pub fn add(&mut self, number: usize, tensor: Zeros) {
        self.shards.get_mut(&shard_name(number)).expect("a shard").push(tensor);
    }

    /// The index that goes with the shards.
    pub fn index(&self) -> Value {
        let mut weight_map = serde_json::Map::new();
        let mut total = 0;
        for (file, tensors) in &self.shards {
            for tensor in tensors {
                weight_map.insert(tensor.name.clone(), json!(file));
                let elements = tensor.shape.iter().product::<usize>() as u64;
                total += tensor.dtype.byte_len(elements).expect("bytes");
            }
        }
        json!({"metadata": {"total_size": total}, "weight_map": weight_map})
    }

    /// Writes shards, index and config.
    pub fn write(&self) -> Folder {
        let folder = Folder::new();
        folder.put("config.json", self.config.to_string());
        folder.put("model.safetensors.index.json", self.index().to_string());
        for (file, tensors) in &self.shards {
            write_zeros(&folder.file(file), tensors);
        }
        folder
    }
}

/// Writes one file of zeros.
pub fn write_zeros(path: &Path, tensors: &[Zeros]) {
    let specs = tensors.iter().map(|tensor| TensorSpec {
        name: &tensor.name,
        dtype: tensor.dtype,
        shape: &tensor.shape,
    });
    let layout = FileLayout::new(specs, &[]).expect("layout");
    let mut bytes = layout.head;
    bytes.resize(layout.file_bytes as usize, 0);
    std::fs::write(path, bytes).expect("written");
}
