//! config.json: what is refused, and that the message names the field, expected and got.

use std::path::Path;

use k3_checkpoint::Problem;
use k3_checkpoint::config::{ConfigError, MAX_CONFIG_BYTES};
use k3_core::config::{MAX_LAYERS, MAX_SIZE, RawConfig};
use serde_json::{Value, json};

use super::make::{Folder, assert_names, read_config, small_config, with, without};

pub const LINEAR: &str = "text_config.linear_attn_config";
const GROUP: &str = "text_config.quantization_config.config_groups.group_0";

fn parse(bytes: &[u8]) -> Result<RawConfig, ConfigError> {
    k3_checkpoint::config::parse(bytes, Path::new("folder/config.json"))
}

#[track_caller]
fn problems(config: &Value) -> Vec<Problem> {
    match parse(config.to_string().as_bytes()) {
        Err(error @ ConfigError::Refused { .. }) => {
            assert_names(&error, &["folder/config.json"]);
            let ConfigError::Refused { problems, .. } = error else { unreachable!() };
            problems
        }
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// A config whose value at `path` is replaced has one problem; its text names `parts`.
#[track_caller]
pub fn refused(path: &str, value: Value, parts: &[&str]) {
    let found = problems(&with(small_config(), path, value));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_names(&found[0], parts);
}

/// The first problem of such a config is at `path`; its text names `parts`.
#[track_caller]
fn refused_first(path: &str, value: Value, parts: &[&str]) {
    let found = &problems(&with(small_config(), path, value))[0];
    assert_eq!(found.at, path);
    assert_names(found, parts);
}

/// The bytes are no config at all, by a message that names the file and has `parts`.
#[track_caller]
fn not_a_config(bytes: &[u8], parts: &[&str]) {
    let error = parse(bytes).expect_err("refused");
    assert!(matches!(error, ConfigError::File(_)), "{error}");
    assert_names(&error, &["folder/config.json: "]);
    assert_names(&error, parts);
}

/// Every field that the release has and this program reads.
fn required_paths() -> Vec<String> {
    fn walk(value: &Value, prefix: &str, paths: &mut Vec<String>) {
        for (key, value) in value.as_object().expect("an object") {
            let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            match value {
                Value::Object(_) => walk(value, &path, paths),
                _ if key == "eos_token_id" => {}
                _ => paths.push(path),
            }
        }
    }
    let mut paths = Vec::new();
    walk(&small_config(), "", &mut paths);
    paths
}

#[test]
fn the_config_that_the_tests_damage_is_good() {
    let config = read_config(&small_config());
    assert_eq!(config.kda_layers, [1, 2, 3]);
    assert_eq!(config.token_ids.root.eos, [2]);
    assert_eq!(required_paths().len(), 50);
}

#[test]
fn h06_no_config_is_an_error_that_names_the_path() {
    let folder = Folder::new();
    let error = k3_checkpoint::config::read(&folder.file("config.json")).expect_err("refused");
    assert_names(&error, &[folder.file("config.json").to_str().expect("utf-8"), "no such file"]);
}

#[test]
fn c13_links_that_lead_nowhere_are_named() {
    let folder = Folder::new();
    let link = folder.file("config.json");
    std::os::unix::fs::symlink("../blobs/0", &link).expect("linked");
    let error = k3_checkpoint::config::read(&link).expect_err("refused");
    assert_names(&error, &["config.json", "dangling", "../blobs/0"]);
}

#[test]
fn io() {
    let folder = Folder::new();
    let error = k3_checkpoint::config::read(folder.path()).expect_err("a folder is no file");
    assert_names(&error, &["cannot be read"]);
}

#[test]
fn too_large() {
    let mut bytes = small_config().to_string().into_bytes();
    bytes.resize(MAX_CONFIG_BYTES as usize + 1, b' ');
    not_a_config(&bytes, &[&format!("larger than the limit of {MAX_CONFIG_BYTES} bytes")]);
    bytes.pop();
    assert!(parse(&bytes).is_ok());
}

#[test]
fn foreign() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7006\n";
    not_a_config(pointer, &["LFS pointer"]);
    not_a_config(b"\n<!DOCTYPE html><html>", &["a web page"]);
}

#[test]
fn c15_a_config_cut_at_every_byte_is_refused() {
    for text in [small_config().to_string(), format!("{:#}", small_config())] {
        assert!(parse(text.as_bytes()).is_ok());
        for length in 0..text.len() {
            not_a_config(&text.as_bytes()[..length], &["not valid JSON"]);
        }
    }
}

#[test]
fn c15_lenient_json_is_refused() {
    let good = small_config().to_string();
    let after = |text: &str| good.replacen("{", &format!("{{{text},"), 1);
    let nested = format!("\"x\":{}{}", "[".repeat(1000), "]".repeat(1000));
    for (text, what) in [
        (after(r#""x":"\ud800""#), "hex escape"),
        (after(r#""x":012"#), "invalid number"),
        (after(r#""x":NaN"#), "expected value"),
        (after(r#""x":[1,]"#), "expected value"),
        (format!("{good}{good}"), "trailing characters"),
        (after(&nested), "nested deeper"),
    ] {
        not_a_config(text.as_bytes(), &["byte ", "not valid JSON", what]);
    }
}

#[test]
fn c15_duplicate_keys_are_refused() {
    let good = small_config().to_string();
    let twice = good.replacen("\"hidden_size\":32", "\"hidden_size\":32,\"hidden_size\":64", 1);
    assert_ne!(good, twice);
    not_a_config(twice.as_bytes(), &["duplicate key \"hidden_size\""]);
    let escaped = good.replacen("\"hidden_size\"", "\"hidden_siz\\u0065\":64,\"hidden_size\"", 1);
    not_a_config(escaped.as_bytes(), &["duplicate key \"hidden_size\""]);
}

#[test]
fn h06_all_missing_fields_are_told_in_one_message() {
    let config = without(small_config(), "text_config.q_lora_rank");
    let config = without(config, &format!("{LINEAR}.gate_lower_bound"));
    let config = without(config, "text_config.num_key_value_heads");
    let error = parse(config.to_string().as_bytes()).expect_err("refused");
    assert_names(
        &error,
        &[
            "3 problems",
            "text_config.num_key_value_heads: missing",
            "text_config.q_lora_rank: missing",
            "gate_lower_bound: missing",
        ],
    );
}

/// The one problem that is found is at `path` and says `what`.
#[track_caller]
fn only(found: &[Problem], path: &str, what: &str) {
    assert!(matches!(found, [one] if one.at == path && one.what.contains(what)), "{found:?}");
}

#[test]
fn missing() {
    for path in required_paths() {
        only(&problems(&without(small_config(), &path)), &path, "missing (expected ");
    }
    // A whole object that is missing is told once, not field by field.
    only(&problems(&without(small_config(), LINEAR)), LINEAR, "missing (expected an object)");
    // The flat form is another file.
    let flat = small_config()["text_config"].clone();
    only(&problems(&flat), "text_config", "missing (expected an object)");
}

#[test]
fn wrong_type() {
    for path in required_paths() {
        for (value, got) in [(json!(null), "got null"), (json!({"a": 1}), "got an object of 1")] {
            let found = problems(&with(small_config(), &path, value));
            only(&found, &path, "expected ");
            only(&found, &path, got);
        }
    }
    let key = "text_config.hidden_size";
    for value in [json!("32"), json!(true), json!([32]), json!(32.0), json!(3.2e1)] {
        refused(key, value, &[key, "expected an integer, got"]);
    }
    for value in [json!(1), json!("true"), json!(0)] {
        let key = "text_config.moe_renormalize";
        refused(key, value, &[key, "expected true or false, got"]);
    }
    let integer = "kda_layers[1]: expected an integer, got a number, 2.0";
    refused(&format!("{LINEAR}.kda_layers"), json!([1, 2.0, 3]), &[integer]);
    // An id is optional, a wrong one is not accepted for that.
    refused("eos_token_id", json!("2"), &["eos_token_id", "got a string, \"2\""]);
    only(&problems(&json!([]))[..1], "the document", "expected an object");
    // Real numbers may be written as integers.
    let config = with(small_config(), "text_config.routed_scaling_factor", json!(2));
    assert!(parse(config.to_string().as_bytes()).is_ok());
}

#[test]
fn not_released() {
    for (path, value) in [
        ("tie_word_embeddings", json!(true)),
        ("text_config.tie_word_embeddings", json!(true)),
        ("text_config.hidden_act", json!("silu")),
        ("text_config.moe_router_activation_func", json!("softmax")),
        ("text_config.mla_use_nope", json!(false)),
        ("text_config.mla_use_output_gate", json!(false)),
        ("text_config.linear_attn_config.use_full_rank_gate", json!(false)),
        ("text_config.latent_moe_use_norm", json!(false)),
        ("text_config.num_expert_group", json!(8)),
        ("text_config.topk_group", json!(4)),
        ("text_config.moe_layer_freq", json!(2)),
        ("text_config.num_nextn_predict_layers", json!(1)),
        ("text_config.topk_method", json!("greedy")),
        ("text_config.quantization_config.format", json!("nvfp4-pack-quantized")),
        ("text_config.quantization_config.quant_method", json!("fp8")),
        ("text_config.quantization_config.kv_cache_scheme", json!({"num_bits": 8})),
    ] {
        refused(path, value, &[path, "only the released value"]);
    }
    for (field, value) in [
        ("format", json!("int-quantized")),
        ("input_activations", json!({"num_bits": 8})),
        ("output_activations", json!({})),
        ("weights.group_size", json!(16)),
        ("weights.num_bits", json!(8)),
        ("weights.type", json!("int")),
        ("weights.scale_dtype", json!("torch.float8_e4m3fn")),
        ("weights.strategy", json!("channel")),
        ("weights.symmetric", json!(false)),
        ("weights.actorder", json!("group")),
        ("weights.zp_dtype", json!("torch.uint8")),
    ] {
        let path = format!("{GROUP}.{field}");
        refused(&path, value, &[&path, "only the released value"]);
    }
}

#[test]
fn other_group() {
    let key = "text_config.quantization_config.config_groups.group_1";
    refused(key, json!({}), &[key, "only group_0 is supported"]);
}

#[test]
fn not_positive() {
    for path in ["hidden_size", "num_hidden_layers", "num_experts", "attn_res_block_size"] {
        for value in [json!(0), json!(-1)] {
            let got = format!("must be above zero, got {value}");
            refused_first(&format!("text_config.{path}"), value, &[&got]);
        }
    }
    for path in ["rms_norm_eps", "activation_situ_beta", "activation_situ_linear_beta"] {
        for value in [json!(0.0), json!(-0.0), json!(-1e-5)] {
            refused(&format!("text_config.{path}"), value, &[path, "must be above zero"]);
        }
    }
}

#[test]
fn negative() {
    let key = "text_config.first_k_dense_replace";
    refused(key, json!(-1), &[key, "must not be negative, got -1"]);
}

#[test]
fn not_negative() {
    for value in [json!(0), json!(0.0), json!(5.0)] {
        refused(&format!("{LINEAR}.gate_lower_bound"), value, &["must be below zero"]);
    }
}

#[test]
fn not_finite() {
    let text = small_config().to_string();
    for number in ["1e999", "-1e999"] {
        let bytes = text.replace("\"rms_norm_eps\":0.00001", &format!("\"rms_norm_eps\":{number}"));
        assert_ne!(bytes, text);
        let Err(ConfigError::Refused { problems, .. }) = parse(bytes.as_bytes()) else {
            panic!("refused");
        };
        let finite = format!("must be a finite number, got {number}");
        only(&problems, "text_config.rms_norm_eps", &finite);
    }
}

#[test]
fn too_large_a_size() {
    let limit = |limit: usize| format!("is above the limit of {limit}");
    refused("text_config.vocab_size", json!(MAX_SIZE + 1), &["vocab_size", &limit(MAX_SIZE)]);
    let layers = "text_config.num_hidden_layers";
    refused_first(layers, json!(MAX_LAYERS + 1), &[&limit(MAX_LAYERS)]);
    let huge = small_config().to_string().replace("\"vocab_size\":40", "\"vocab_size\":1e40");
    assert!(matches!(parse(huge.as_bytes()), Err(ConfigError::Refused { .. })));
    let digits = format!("\"vocab_size\":{}", "9".repeat(40));
    let huge = small_config().to_string().replace("\"vocab_size\":40", &digits);
    let Err(ConfigError::Refused { problems, .. }) = parse(huge.as_bytes()) else {
        panic!("refused");
    };
    assert_names(&problems[0], &["text_config.vocab_size", &limit(MAX_SIZE)]);
    refused("eos_token_id", json!([2, 1_u64 << 32]), &["eos_token_id", &limit(u32::MAX as usize)]);
}

#[test]
fn kv_heads_differ() {
    let key = "text_config.num_key_value_heads";
    refused(key, json!(1), &[key, "1 differs from num_attention_heads 2"]);
}

#[test]
fn a14_many_experts_are_read_and_a_larger_top_k_is_refused() {
    for experts in [896, 1024, 100_000] {
        let config = with(small_config(), "text_config.num_experts", json!(experts));
        for top_k in [16, 64] {
            let config = with(config.clone(), "text_config.num_experts_per_token", json!(top_k));
            let config = read_config(&config);
            assert_eq!((config.num_experts, config.num_experts_per_token), (experts, top_k));
        }
    }
    let config = with(small_config(), "text_config.num_experts", json!(896));
    let found = problems(&with(config, "text_config.num_experts_per_token", json!(897)));
    only(&found, "text_config.num_experts_per_token", "897 is above num_experts 896");
}

#[test]
fn dense_above_layers() {
    let key = "text_config.first_k_dense_replace";
    refused(key, json!(5), &[key, "5 is above num_hidden_layers 4"]);
    for dense in [0, 4] {
        assert_eq!(
            read_config(&with(small_config(), key, json!(dense))).first_k_dense_replace,
            dense
        );
    }
}

#[test]
fn heads_above_a_log() {
    let parts = ["5 is above head_dim 4", "A_log"];
    refused(&format!("{LINEAR}.num_heads"), json!(5), &parts);
}

#[test]
fn part_group() {
    for key in ["text_config.routed_expert_hidden_size", "text_config.moe_intermediate_size"] {
        refused(key, json!(48), &[key, "48 is not a multiple of the 32 columns"]);
    }
}

#[test]
fn h06_unknown_extra_fields_are_accepted() {
    let config = with(small_config(), "text_config.some_new_field", json!({"a": [1, null]}));
    assert_eq!(read_config(&config), read_config(&small_config()));
    // A key of the inner object at the outer place is such a field, not a second source.
    let config = with(small_config(), "text_config.head_dim", json!(64));
    assert_eq!(read_config(&config).kda_head_dim, 4);
}

/// Items 8 and 21: what a config says twice must agree; both places are named.
#[test]
fn item_8_what_is_said_twice_must_agree() {
    let nested = small_config()["text_config"]["quantization_config"].clone();
    let place = "quantization_config";
    let grouped = |format: &str, size: u32| {
        let weights = json!({"group_size": size, "num_bits": 4, "type": "float"});
        json!({"quant_method": "compressed-tensors", "format": format,
            "config_groups": {"group_0": {"format": format, "weights": weights}}})
    };
    for (path, value, parts) in [
        (
            place,
            grouped("nvfp4-pack-quantized", 16),
            ["format", "\"nvfp4-pack-quantized\" contradicts"],
        ),
        (place, grouped("mxfp4-pack-quantized", 16), ["group_size", "16 contradicts"]),
        (place, json!({"quant_method": "fp8"}), ["quant_method", "\"fp8\" contradicts"]),
        (place, json!({"quant_algo": "NVFP4"}), ["quant_algo", "which has no such key"]),
        ("compression_config", json!({"format": "dense"}), ["format", "\"dense\""]),
        (
            "text_config.num_experts_per_tok",
            json!(1),
            ["1 contradicts", "num_experts_per_token, 2"],
        ),
        ("text_config.moe_top_k", json!(8), ["8 contradicts", "num_experts_per_token, 2"]),
        ("text_config.n_routed_experts", json!(8), ["8 contradicts", "text_config.num_experts, 3"]),
        ("text_config.norm_topk_prob", json!(false), ["moe_renormalize, true", "contradicts"]),
        ("text_config.scoring_func", json!("softmax"), ["sigmoid", "contradicts"]),
        ("rms_norm_eps", json!(1e-6), ["contradicts", "text_config.rms_norm_eps"]),
        ("text_config.final_logit_softcapping", json!(30.0), ["30.0", "would change the numbers"]),
        ("text_config.sliding_window", json!(4096), ["4096", "would change the numbers"]),
        ("text_config.rope_scaling", json!({"type": "yarn"}), ["object", "would change"]),
        ("text_config.linear_attn_config.qkv_bias", json!(true), ["true", "would change"]),
        ("text_config.attention_bias", json!(true), ["true", "would change the numbers"]),
        ("text_config.embedding_multiplier", json!(12), ["12", "would change the numbers"]),
        ("model_type", json!("llama"), ["\"kimi_k3\"", "\"llama\""]),
        ("text_config.model_type", json!("deepseek_v3"), ["\"kimi_linear\"", "\"deepseek_v3\""]),
        ("pad_token_id", json!(40), ["40 is not below vocab_size 40", "pad_token_id"]),
        ("text_config.eos_token_id", json!([1, 163_586]), ["163586", "text_config.eos_token_id"]),
    ] {
        let found = problems(&with(small_config(), path, value));
        assert!(found[0].at.starts_with(path), "{found:?}");
        assert_names(&found[0], &parts);
    }
    for (path, value) in [
        (place, nested.clone()),
        (place, json!({"version": "0.9", "quant_method": "compressed-tensors"})),
        ("text_config.num_experts_per_tok", json!(2)),
        ("text_config.n_group", Value::Null),
        ("rms_norm_eps", json!(0.00001)),
        ("text_config.attention_bias", json!(false)),
        ("text_config.rope_scaling", json!({"rope_type": "default"})),
        ("text_config.logit_scale", json!(1.0)),
        ("vision_config", json!({"attn_bias": true, "hidden_size": 9})),
        ("top_k", json!(50)),
        ("model_type", json!("kimi_k3")),
        ("text_config.pad_token_id", json!(39)),
    ] {
        read_config(&with(small_config(), path, value));
    }
    // The switch of a window that is off.
    let off = with(small_config(), "text_config.use_sliding_window", json!(false));
    read_config(&with(off, "text_config.sliding_window", json!(4096)));
    // Only in the other place.
    let moved = with(small_config(), place, nested);
    let found = problems(&without(moved, "text_config.quantization_config"));
    let here = "quantization_config: is here, expected as text_config.quantization_config";
    assert_eq!(found[1].to_string(), here, "{found:?}");
}

#[test]
fn item_8_a_quantisation_beside_the_config_must_agree() {
    let folder = Folder::new();
    let path = folder.put("config.json", small_config().to_string());
    let read = |text: &str| {
        folder.put("hf_quant_config.json", text);
        k3_checkpoint::config::read(&path)
    };
    for (text, parts) in [
        (r#"{"quantization": {"quant_algo": "NVFP4", "group_size": 16}}"#, "\"NVFP4\""),
        (r#"{"quantization": {"quant_algo": "FP8"}}"#, "\"FP8\""),
        (r#"{"quantization": {"quant_algo": null}}"#, "null"),
        (r#"{"quantization": {"group_size": 16}}"#, "group_size: 16"),
        (r#"{"quantization": {"kv_cache_quant_algo": "FP8"}}"#, "kv_cache_quant_algo"),
        ("[]", "expected an object"),
        ("{", "hf_quant_config.json"),
    ] {
        assert_names(&read(text).expect_err(text), &["hf_quant_config.json", parts]);
    }
    let contradicts = read(r#"{"quantization": {"quant_algo": "FP8"}}"#).expect_err("refused");
    assert_names(&contradicts, &["config.json", "text_config.quantization_config.format"]);
    let agrees = r#"{"producer": {"name": "x"}, "quantization": {"quant_algo": "MXFP4",
        "group_size": 32, "kv_cache_quant_algo": null, "exclude_modules": ["lm_head"]}}"#;
    read(agrees).expect("agrees");
}

#[test]
fn item_8_fields_that_agree_are_listed() {
    let folder = Folder::new();
    let config = with(small_config(), "text_config.sliding_window", Value::Null);
    let config = with(config, "text_config.moe_top_k", json!(2));
    let path = folder.put("config.json", config.to_string());
    let unread = k3_checkpoint::config::unread(&path).expect("read");
    assert_eq!(
        unread,
        [
            "text_config.moe_top_k 2: not read, another value would be refused",
            "text_config.sliding_window null: not read, another value would be refused",
        ]
    );
    let released =
        k3_checkpoint::config::unread(&folder.put("config.json", small_config().to_string()));
    assert_eq!(released.expect("read"), [""; 0]);
}
