//! The reference's own reading of `config.json`: keys looked up in `serde_json`'s values.
//!
//! The engine has a parser and a table of key paths of its own, so that a key misread by one of
//! the two is seen by the other (`check --cross-read`). Every field is required, none has a
//! default, and values that the formulas are not written for are refused. Of two equal keys
//! `serde_json` keeps the last; the engine's parser refuses them.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use super::error::ReferenceError;
use super::released::GROUP_COLUMNS;
use k3_core::config::{RawConfig, SpecialIds, TokenIds};

/// Largest size read: a product of three stays far below 2^63.
const LARGEST_SIZE: usize = 1 << 20;

/// Fields of `text_config` whose released value is built into the formulas.
fn built_in() -> [(&'static str, Value); 13] {
    [
        ("/hidden_act", json!("situ")),
        ("/moe_router_activation_func", json!("sigmoid")),
        ("/mla_use_nope", json!(true)),
        ("/mla_use_output_gate", json!(true)),
        ("/linear_attn_config/use_full_rank_gate", json!(true)),
        ("/latent_moe_use_norm", json!(true)),
        ("/num_expert_group", json!(1)),
        ("/topk_group", json!(1)),
        ("/moe_layer_freq", json!(1)),
        ("/tie_word_embeddings", json!(false)),
        ("/num_nextn_predict_layers", json!(0)),
        ("/quantization_config/format", json!("mxfp4-pack-quantized")),
        ("/quantization_config/config_groups/group_0/weights/group_size", json!(GROUP_COLUMNS)),
    ]
}

/// Reads `config.json` of a checkpoint folder.
///
/// # Errors
/// The file cannot be read, or a field of it is missing, ill-typed, or not what the formulas are
/// written for.
pub fn read_config(folder: &Path) -> Result<RawConfig, ReferenceError> {
    let path = folder.join("config.json");
    let bytes = k3_core::host::files::read(&path)
        .map_err(|source| ReferenceError::Io { path: path.clone(), source })?;
    parse_config(&bytes, path)
}

/// [`read_config`] of bytes at hand; `path` is named in errors.
///
/// # Errors
/// As there.
pub fn parse_config(bytes: &[u8], path: PathBuf) -> Result<RawConfig, ReferenceError> {
    let root: Value = serde_json::from_slice(bytes)
        .map_err(|error| malformed(&path, "not JSON", error.to_string()))?;
    let text = Object { value: &root["text_config"], path: &path };
    for (at, released) in built_in() {
        let got: Value = text.get(at)?;
        if got != released {
            return Err(malformed(&path, at, format!("expected {released}, got {got}")));
        }
    }
    let config = fields(&Object { value: &root, path: &path }, &text)?;
    check_together(&text, &config)?;
    Ok(config)
}

fn malformed(path: &Path, at: &str, what: String) -> ReferenceError {
    ReferenceError::Malformed { path: path.to_owned(), at: at.to_owned(), what }
}

/// An object of the file, whose fields are found by JSON pointer.
struct Object<'a> {
    value: &'a Value,
    path: &'a Path,
}

impl Object<'_> {
    fn get<'a, T: Deserialize<'a>>(&'a self, at: &str) -> Result<T, ReferenceError> {
        let refuse = |what| malformed(self.path, at, what);
        let value = self.value.pointer(at).ok_or_else(|| refuse("missing".to_owned()))?;
        T::deserialize(value).map_err(|error| refuse(error.to_string()))
    }

    fn size(&self, at: &str) -> Result<usize, ReferenceError> {
        let value = self.get(at)?;
        self.hold((1..=LARGEST_SIZE).contains(&value), at, || {
            format!("expected 1 to {LARGEST_SIZE}, got {value}")
        })?;
        Ok(value)
    }

    fn positive(&self, at: &str) -> Result<f64, ReferenceError> {
        let value = self.get(at)?;
        self.hold(value > 0.0, at, || format!("expected above 0, got {value}"))?;
        Ok(value)
    }

    /// An id, several, null, or nothing: no formula reads it.
    fn ids(&self, at: &str) -> Result<Vec<u32>, ReferenceError> {
        match self.value.pointer(at) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(_)) => self.get(at),
            Some(_) => Ok(vec![self.get(at)?]),
        }
    }

    fn special_ids(&self) -> Result<SpecialIds, ReferenceError> {
        Ok(SpecialIds {
            bos: self.ids("/bos_token_id")?.first().copied(),
            eos: self.ids("/eos_token_id")?,
            pad: self.ids("/pad_token_id")?.first().copied(),
        })
    }

    fn hold(
        &self,
        holds: bool,
        at: &str,
        what: impl FnOnce() -> String,
    ) -> Result<(), ReferenceError> {
        if holds { Ok(()) } else { Err(malformed(self.path, at, what())) }
    }
}

fn fields(root: &Object<'_>, text: &Object<'_>) -> Result<RawConfig, ReferenceError> {
    let lower_bound: f64 = text.get("/linear_attn_config/gate_lower_bound")?;
    text.hold(lower_bound < 0.0, "/linear_attn_config/gate_lower_bound", || {
        format!("expected below 0, got {lower_bound}")
    })?;
    Ok(RawConfig {
        hidden_size: text.size("/hidden_size")?,
        vocab_size: text.size("/vocab_size")?,
        num_hidden_layers: text.size("/num_hidden_layers")?,
        rms_norm_eps: text.positive("/rms_norm_eps")?,
        kda_num_heads: text.size("/linear_attn_config/num_heads")?,
        kda_head_dim: text.size("/linear_attn_config/head_dim")?,
        short_conv_kernel_size: text.size("/linear_attn_config/short_conv_kernel_size")?,
        gate_lower_bound: lower_bound,
        full_attn_layers: text.get("/linear_attn_config/full_attn_layers")?,
        kda_layers: text.get("/linear_attn_config/kda_layers")?,
        num_attention_heads: text.size("/num_attention_heads")?,
        q_lora_rank: text.size("/q_lora_rank")?,
        kv_lora_rank: text.size("/kv_lora_rank")?,
        qk_nope_head_dim: text.size("/qk_nope_head_dim")?,
        qk_rope_head_dim: text.size("/qk_rope_head_dim")?,
        v_head_dim: text.size("/v_head_dim")?,
        attn_res_block_size: text.size("/attn_res_block_size")?,
        first_k_dense_replace: text.get("/first_k_dense_replace")?,
        intermediate_size: text.size("/intermediate_size")?,
        num_experts: text.size("/num_experts")?,
        num_experts_per_token: text.size("/num_experts_per_token")?,
        routed_expert_hidden_size: text.size("/routed_expert_hidden_size")?,
        moe_intermediate_size: text.size("/moe_intermediate_size")?,
        num_shared_experts: text.size("/num_shared_experts")?,
        moe_renormalize: text.get("/moe_renormalize")?,
        routed_scaling_factor: text.positive("/routed_scaling_factor")?,
        activation_situ_beta: text.positive("/activation_situ_beta")?,
        activation_situ_linear_beta: text.positive("/activation_situ_linear_beta")?,
        token_ids: TokenIds { root: root.special_ids()?, text: text.special_ids()? },
    })
}

/// What fields must be to one another.
fn check_together(text: &Object<'_>, config: &RawConfig) -> Result<(), ReferenceError> {
    let layers = config.num_hidden_layers;
    let key_heads: usize = text.get("/num_key_value_heads")?;
    for (at, value, limit) in [
        // A_log holds head_dim values (clause K8).
        ("/linear_attn_config/num_heads", config.kda_num_heads, config.kda_head_dim),
        ("/num_experts_per_token", config.num_experts_per_token, config.num_experts),
        ("/first_k_dense_replace", config.first_k_dense_replace, layers),
    ] {
        text.hold(value <= limit, at, || format!("expected at most {limit}, got {value}"))?;
    }
    text.hold(key_heads == config.num_attention_heads, "/num_key_value_heads", || {
        format!("expected num_attention_heads, got {key_heads}")
    })?;
    for (at, width) in [
        ("/routed_expert_hidden_size", config.routed_expert_hidden_size),
        ("/moe_intermediate_size", config.moe_intermediate_size),
    ] {
        text.hold(width.is_multiple_of(GROUP_COLUMNS), at, || {
            format!("expected a multiple of {GROUP_COLUMNS}, got {width}")
        })?;
    }
    // Clause L1: every layer from 1 on is in exactly one list, once.
    let mut listed = [config.full_attn_layers.as_slice(), &config.kda_layers].concat();
    listed.sort_unstable();
    let at = "/linear_attn_config/{full_attn_layers, kda_layers}";
    text.hold(listed.iter().copied().eq(1..=layers), at, || {
        format!("expected 1 to {layers}, each once, got {listed:?}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: &str = include_str!("../../fixtures/tiny/model/config.json");

    fn tiny() -> Value {
        serde_json::from_str(TINY).unwrap()
    }

    /// The message that refuses the tiny config with a field set to a value, or left out.
    fn refused(at: &str, value: Option<Value>) -> String {
        let mut file = tiny();
        let (object, key) = at.rsplit_once('/').unwrap();
        let pointer = format!("/text_config{object}");
        let object = file.pointer_mut(&pointer).unwrap().as_object_mut().unwrap();
        match value {
            Some(value) => object.insert(key.to_owned(), value),
            None => object.remove(key),
        };
        let parsed = parse_config(file.to_string().as_bytes(), PathBuf::from("config.json"));
        parsed.unwrap_err().to_string()
    }

    /// No default hides a field that is missing: every field of the tiny config that is read, left
    /// out, is named.
    #[test]
    fn every_field_is_required() {
        parse_config(TINY.as_bytes(), PathBuf::new()).unwrap();
        let sizes = "hidden_size vocab_size num_hidden_layers rms_norm_eps num_attention_heads \
             num_key_value_heads q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim \
             v_head_dim attn_res_block_size first_k_dense_replace intermediate_size num_experts \
             num_experts_per_token routed_expert_hidden_size moe_intermediate_size \
             num_shared_experts moe_renormalize routed_scaling_factor activation_situ_beta \
             activation_situ_linear_beta";
        let linear = "num_heads head_dim short_conv_kernel_size gate_lower_bound full_attn_layers \
             kda_layers";
        let direct = sizes.split_whitespace().map(|key| format!("/{key}"));
        let nested = linear.split_whitespace().map(|key| format!("/linear_attn_config/{key}"));
        let built_in = built_in().map(|(at, _)| at.to_owned());
        for at in direct.chain(nested).chain(built_in) {
            assert_eq!(refused(&at, None), format!("config.json: {at}: missing"));
        }
    }

    #[test]
    fn other_types_and_other_models_are_refused() {
        for (at, value, says) in [
            ("/hidden_size", json!(0), "expected 1 to 1048576, got 0"),
            ("/hidden_size", json!(128.0), "expected usize"),
            ("/hidden_size", json!("128"), "expected usize"),
            ("/hidden_size", json!(-128), "expected usize"),
            ("/q_lora_rank", json!(1 << 21), "got 2097152"),
            ("/rms_norm_eps", json!(0), "expected above 0, got 0"),
            ("/moe_renormalize", json!(1), "expected a boolean"),
            ("/linear_attn_config/gate_lower_bound", json!(5.0), "expected below 0, got 5"),
            ("/linear_attn_config/kda_layers", json!([1, 2, 3]), "expected 1 to 13, each once"),
            ("/linear_attn_config/full_attn_layers", json!([4, 4, 8, 12, 13]), "each once"),
            ("/linear_attn_config/num_heads", json!(17), "expected at most 16, got 17"),
            ("/num_experts_per_token", json!(9), "expected at most 8, got 9"),
            ("/first_k_dense_replace", json!(14), "expected at most 13, got 14"),
            ("/num_key_value_heads", json!(1), "expected num_attention_heads, got 1"),
            ("/moe_intermediate_size", json!(48), "expected a multiple of 32, got 48"),
            ("/hidden_act", json!("silu"), "expected \"situ\", got \"silu\""),
            ("/num_nextn_predict_layers", json!(1), "expected 0, got 1"),
        ] {
            let message = refused(at, Some(value));
            let key = at.rsplit('/').next().unwrap();
            assert!(message.contains(key) && message.contains(says), "{message}");
        }
        let not_json = parse_config(b"{", PathBuf::new()).unwrap_err().to_string();
        assert!(not_json.contains("not JSON"), "{not_json}");
    }
}
