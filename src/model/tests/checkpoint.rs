//! A checkpoint for tests: read with the `safetensors` crate, or a random one made in memory.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::config::RawConfig;
use crate::kernels::matrix::SharedBytes;
use crate::model::{Dtype, EngineError, TensorSpec, WeightSource};

/// Dtype, shape, bytes.
type StoredTensor = (Dtype, Vec<usize>, Arc<Vec<u8>>);

/// Tensors by name.
pub struct TestCheckpoint {
    pub raw: RawConfig,
    pub tensors: HashMap<String, StoredTensor>,
}

impl WeightSource for TestCheckpoint {
    fn tensor(&self, spec: &TensorSpec) -> Result<SharedBytes, EngineError> {
        let Some((dtype, shape, bytes)) = self.tensors.get(&spec.name) else {
            return Err(EngineError::source(spec.name.clone(), "missing"));
        };
        if (*dtype, shape) != (spec.dtype, &spec.shape) {
            let text = format!("expected {:?} {:?}", spec.dtype, spec.shape);
            return Err(EngineError::source(spec.name.clone(), text));
        }
        Ok(SharedBytes::new(bytes.clone(), 0..bytes.len()))
    }
}

impl TestCheckpoint {
    /// Every shard of a folder.
    pub fn open(folder: &Path) -> Self {
        let config = std::fs::read(folder.join("config.json")).unwrap();
        let raw = raw_config(&serde_json::from_slice(&config).unwrap());
        let mut tensors = HashMap::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "safetensors") {
                let data = std::fs::read(path).unwrap();
                for (name, view) in safetensors::SafeTensors::deserialize(&data).unwrap().iter() {
                    let dtype = match view.dtype() {
                        safetensors::Dtype::F32 => Dtype::F32,
                        safetensors::Dtype::BF16 => Dtype::Bf16,
                        safetensors::Dtype::U8 => Dtype::U8,
                        other => panic!("{name}: {other:?}"),
                    };
                    let bytes = Arc::new(view.data().to_vec());
                    tensors.insert(name.to_owned(), (dtype, view.shape().to_vec(), bytes));
                }
            }
        }
        Self { raw, tensors }
    }

    /// Changes the F32 or BF16 bytes of a tensor.
    pub fn edit(&mut self, name: &str, change: impl FnOnce(&mut [u8])) {
        let (_, _, bytes) = self.tensors.get_mut(name).unwrap();
        change(Arc::<Vec<u8>>::make_mut(bytes));
    }
}

/// The fields of `text_config`, for tests only (the product's reader refuses; this one panics).
pub fn raw_config(json: &serde_json::Value) -> RawConfig {
    let text = &json["text_config"];
    let linear = &text["linear_attn_config"];
    let size = |v: &serde_json::Value| usize::try_from(v.as_u64().unwrap()).unwrap();
    let list = |v: &serde_json::Value| v.as_array().unwrap().iter().map(size).collect();
    RawConfig {
        hidden_size: size(&text["hidden_size"]),
        vocab_size: size(&text["vocab_size"]),
        num_hidden_layers: size(&text["num_hidden_layers"]),
        rms_norm_eps: text["rms_norm_eps"].as_f64().unwrap(),
        kda_num_heads: size(&linear["num_heads"]),
        kda_head_dim: size(&linear["head_dim"]),
        short_conv_kernel_size: size(&linear["short_conv_kernel_size"]),
        gate_lower_bound: linear["gate_lower_bound"].as_f64().unwrap(),
        full_attn_layers: list(&linear["full_attn_layers"]),
        kda_layers: list(&linear["kda_layers"]),
        num_attention_heads: size(&text["num_attention_heads"]),
        q_lora_rank: size(&text["q_lora_rank"]),
        kv_lora_rank: size(&text["kv_lora_rank"]),
        qk_nope_head_dim: size(&text["qk_nope_head_dim"]),
        qk_rope_head_dim: size(&text["qk_rope_head_dim"]),
        v_head_dim: size(&text["v_head_dim"]),
        attn_res_block_size: size(&text["attn_res_block_size"]),
        first_k_dense_replace: size(&text["first_k_dense_replace"]),
        intermediate_size: size(&text["intermediate_size"]),
        num_experts: size(&text["num_experts"]),
        num_experts_per_token: size(&text["num_experts_per_token"]),
        routed_expert_hidden_size: size(&text["routed_expert_hidden_size"]),
        moe_intermediate_size: size(&text["moe_intermediate_size"]),
        num_shared_experts: size(&text["num_shared_experts"]),
        moe_renormalize: text["moe_renormalize"].as_bool().unwrap(),
        routed_scaling_factor: text["routed_scaling_factor"].as_f64().unwrap(),
        activation_situ_beta: text["activation_situ_beta"].as_f64().unwrap(),
        activation_situ_linear_beta: text["activation_situ_linear_beta"].as_f64().unwrap(),
    }
}
