//! config.json: what is refused, and that the message names the field, expected and got.

use std::path::Path;

use k3_checkpoint::config::{ConfigError, ConfigProblem, MAX_CONFIG_BYTES};
use k3_checkpoint::foreign::Foreign;
use k3_checkpoint::json::JsonError;
use k3_checkpoint::link::LinkTrouble;
use k3_core::config::{MAX_LAYERS, MAX_SIZE, RawConfig};
use serde_json::{Value, json};

use super::make::{Folder, assert_names, read_config, small_config, with, without};

pub const LINEAR: &str = "text_config.linear_attn_config";
const GROUP: &str = "text_config.quantization_config.config_groups.group_0";

fn parse(bytes: &[u8]) -> Result<RawConfig, ConfigError> {
    k3_checkpoint::config::parse(bytes, Path::new("folder/config.json"))
}

#[track_caller]
fn problems(config: &Value) -> Vec<ConfigProblem> {
    match parse(config.to_string().as_bytes()) {
        Err(error @ ConfigError::Refused { .. }) => {
            assert_names(&error, &["folder/config.json"]);
            let ConfigError::Refused { problems, .. } = error else { unreachable!() };
            problems
        }
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// The one problem of a config whose value at `path` is replaced; its text names `parts`.
#[track_caller]
pub fn problem(path: &str, value: Value, parts: &[&str]) -> ConfigProblem {
    let found = problems(&with(small_config(), path, value));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_names(&found[0], parts);
    found[0].clone()
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
    assert!(matches!(error, ConfigError::NotFound { .. }));
    assert_names(&error, &[folder.file("config.json").to_str().expect("utf-8")]);
}

#[test]
fn c13_links_that_lead_nowhere_are_named() {
    let folder = Folder::new();
    let link = folder.file("config.json");
    std::os::unix::fs::symlink("../blobs/0", &link).expect("linked");
    let error = k3_checkpoint::config::read(&link).expect_err("refused");
    assert!(matches!(error, ConfigError::Link { trouble: LinkTrouble::Dangling { .. }, .. }));
    assert_names(&error, &["config.json", "dangling", "../blobs/0"]);
}

#[test]
fn io() {
    let folder = Folder::new();
    let error = k3_checkpoint::config::read(folder.path()).expect_err("a folder is no file");
    assert!(matches!(error, ConfigError::Io { .. }));
}

#[test]
fn too_large() {
    let mut bytes = small_config().to_string().into_bytes();
    bytes.resize(MAX_CONFIG_BYTES as usize + 1, b' ');
    assert!(matches!(parse(&bytes), Err(ConfigError::TooLarge { .. })));
    bytes.pop();
    assert!(parse(&bytes).is_ok());
}

#[test]
fn foreign() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7006\n";
    let error = parse(pointer).expect_err("refused");
    assert!(matches!(error, ConfigError::Foreign { what: Foreign::LfsPointer, .. }));
    assert_names(&error, &["LFS"]);
    let page = parse(b"\n<!DOCTYPE html><html>").expect_err("refused");
    assert!(matches!(page, ConfigError::Foreign { what: Foreign::HtmlPage, .. }));
}

#[test]
fn c15_a_config_cut_at_every_byte_is_refused() {
    for text in [small_config().to_string(), format!("{:#}", small_config())] {
        assert!(parse(text.as_bytes()).is_ok());
        for length in 0..text.len() {
            assert!(
                matches!(parse(&text.as_bytes()[..length]), Err(ConfigError::Json { .. })),
                "cut at {length}"
            );
        }
    }
}

#[test]
fn c15_lenient_json_is_refused() {
    let good = small_config().to_string();
    let after = |text: &str| good.replacen("{", &format!("{{{text},"), 1);
    let json_error = |text: String| match parse(text.as_bytes()) {
        Err(ConfigError::Json { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    let nested = format!("\"x\":{}{}", "[".repeat(1000), "]".repeat(1000));
    assert!(matches!(json_error(after(r#""x":"\ud800""#)), JsonError::LoneSurrogate { .. }));
    assert!(matches!(json_error(after(r#""x":012"#)), JsonError::LeadingZero { .. }));
    assert!(matches!(json_error(after(r#""x":NaN"#)), JsonError::Unexpected { .. }));
    assert!(matches!(json_error(after(r#""x":[1,]"#)), JsonError::TrailingComma { .. }));
    assert!(matches!(json_error(format!("{good}{good}")), JsonError::TrailingData { .. }));
    assert!(matches!(json_error(after(&nested)), JsonError::TooDeep { .. }));
}

#[test]
fn c15_duplicate_keys_are_refused() {
    let good = small_config().to_string();
    let twice = good.replacen("\"hidden_size\":32", "\"hidden_size\":32,\"hidden_size\":64", 1);
    assert_ne!(good, twice);
    let error = parse(twice.as_bytes()).expect_err("refused");
    assert!(matches!(error, ConfigError::Json { reason: JsonError::DuplicateKey { .. }, .. }));
    assert_names(&error, &["duplicate", "hidden_size"]);
    let escaped = good.replacen("\"hidden_size\"", "\"hidden_siz\\u0065\":64,\"hidden_size\"", 1);
    assert!(matches!(
        parse(escaped.as_bytes()),
        Err(ConfigError::Json { reason: JsonError::DuplicateKey { .. }, .. })
    ));
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
            "text_config.num_key_value_heads is missing",
            "text_config.q_lora_rank is missing",
            "gate_lower_bound is missing",
        ],
    );
}

#[test]
fn missing() {
    for path in required_paths() {
        let found = problems(&without(small_config(), &path));
        assert!(
            matches!(&found[..], [ConfigProblem::Missing { key, .. }] if *key == path),
            "{path}: {found:?}"
        );
    }
    // A whole object that is missing is told once, not field by field.
    let found = problems(&without(small_config(), LINEAR));
    assert!(matches!(&found[..], [ConfigProblem::Missing { key, .. }] if key == LINEAR));
    // The flat form is another file.
    let flat = small_config()["text_config"].clone();
    assert!(matches!(&problems(&flat)[..], [ConfigProblem::Missing { key, .. }]
        if key == "text_config"));
}

#[test]
fn wrong_type() {
    for path in required_paths() {
        for value in [json!(null), json!({"a": 1})] {
            let found = problems(&with(small_config(), &path, value));
            assert!(
                matches!(&found[..], [ConfigProblem::WrongType { key, .. }] if *key == path),
                "{path}: {found:?}"
            );
        }
    }
    let key = "text_config.hidden_size";
    for value in [json!("32"), json!(true), json!([32]), json!(32.0), json!(3.2e1)] {
        let found = problem(key, value, &[key, "expected an integer", "got"]);
        assert!(matches!(found, ConfigProblem::WrongType { .. }));
    }
    for value in [json!(1), json!("true"), json!(0)] {
        let key = "text_config.moe_renormalize";
        let found = problem(key, value, &[key, "expected true or false"]);
        assert!(matches!(found, ConfigProblem::WrongType { .. }));
    }
    let found = problem(&format!("{LINEAR}.kda_layers"), json!([1, 2.0, 3]), &["kda_layers[1]"]);
    assert!(matches!(found, ConfigProblem::WrongType { .. }));
    // An id is optional, a wrong one is not accepted for that.
    let found = problem("eos_token_id", json!("2"), &["eos_token_id", "\"2\""]);
    assert!(matches!(found, ConfigProblem::WrongType { .. }));
    assert!(matches!(&problems(&json!([]))[0], ConfigProblem::WrongType { .. }));
    // Real numbers may be written as integers.
    assert!(
        parse(
            with(small_config(), "text_config.routed_scaling_factor", json!(2))
                .to_string()
                .as_bytes()
        )
        .is_ok()
    );
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
        let found = problem(path, value, &[path, "released value"]);
        assert!(matches!(found, ConfigProblem::NotReleased { .. }), "{path}");
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
        let found = problem(&path, value, &[&path, "released value"]);
        assert!(matches!(found, ConfigProblem::NotReleased { .. }), "{path}");
    }
}

#[test]
fn other_group() {
    let key = "text_config.quantization_config.config_groups.group_1";
    let found = problem(key, json!({}), &[key, "group_0"]);
    assert!(matches!(found, ConfigProblem::OtherGroup { .. }));
}

#[test]
fn not_positive() {
    for path in ["hidden_size", "num_hidden_layers", "num_experts", "attn_res_block_size"] {
        for value in [json!(0), json!(-1)] {
            let found = problem_first(&format!("text_config.{path}"), value);
            assert!(matches!(found, ConfigProblem::NotPositive { .. }), "{found:?}");
        }
    }
    for path in ["rms_norm_eps", "activation_situ_beta", "activation_situ_linear_beta"] {
        for value in [json!(0.0), json!(-0.0), json!(-1e-5)] {
            let found = problem(&format!("text_config.{path}"), value, &[path, "above zero"]);
            assert!(matches!(found, ConfigProblem::NotPositive { .. }));
        }
    }
}

fn problem_first(path: &str, value: Value) -> ConfigProblem {
    problems(&with(small_config(), path, value))[0].clone()
}

#[test]
fn negative() {
    let key = "text_config.first_k_dense_replace";
    let found = problem(key, json!(-1), &[key, "-1"]);
    assert!(matches!(found, ConfigProblem::Negative { .. }));
}

#[test]
fn not_negative() {
    for value in [json!(0), json!(0.0), json!(5.0)] {
        let found = problem(&format!("{LINEAR}.gate_lower_bound"), value, &["below zero"]);
        assert!(matches!(found, ConfigProblem::NotNegative { .. }));
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
        assert!(matches!(&problems[..], [ConfigProblem::NotFinite { .. }]), "{problems:?}");
        assert_names(&problems[0], &["text_config.rms_norm_eps", number]);
    }
}

#[test]
fn too_large_a_size() {
    let found = problem("text_config.vocab_size", json!(MAX_SIZE + 1), &["vocab_size", "limit"]);
    assert!(matches!(found, ConfigProblem::TooLarge { limit: MAX_SIZE, .. }));
    let found = problem_first("text_config.num_hidden_layers", json!(MAX_LAYERS + 1));
    assert!(matches!(found, ConfigProblem::TooLarge { limit: MAX_LAYERS, .. }));
    let huge = small_config().to_string().replace("\"vocab_size\":40", "\"vocab_size\":1e40");
    assert!(matches!(parse(huge.as_bytes()), Err(ConfigError::Refused { .. })));
    let digits = format!("\"vocab_size\":{}", "9".repeat(40));
    let huge = small_config().to_string().replace("\"vocab_size\":40", &digits);
    let Err(ConfigError::Refused { problems, .. }) = parse(huge.as_bytes()) else {
        panic!("refused");
    };
    assert!(matches!(problems[0], ConfigProblem::TooLarge { .. }));
    let found = problem("eos_token_id", json!([2, 1_u64 << 32]), &["eos_token_id"]);
    assert!(matches!(found, ConfigProblem::TooLarge { .. }));
}

#[test]
fn kv_heads_differ() {
    let key = "text_config.num_key_value_heads";
    let found = problem(key, json!(1), &[key, "1", "num_attention_heads 2"]);
    assert_eq!(found, ConfigProblem::KvHeadsDiffer { heads: 2, kv_heads: 1 });
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
    assert_eq!(found, [ConfigProblem::TopKAboveExperts { top_k: 897, experts: 896 }]);
    assert_names(&found[0], &["num_experts_per_token", "897", "896"]);
}

#[test]
fn dense_above_layers() {
    let key = "text_config.first_k_dense_replace";
    let found = problem(key, json!(5), &[key, "5", "num_hidden_layers 4"]);
    assert_eq!(found, ConfigProblem::DenseAboveLayers { dense: 5, layers: 4 });
    for dense in [0, 4] {
        assert_eq!(
            read_config(&with(small_config(), key, json!(dense))).first_k_dense_replace,
            dense
        );
    }
}

#[test]
fn heads_above_a_log() {
    let found = problem(&format!("{LINEAR}.num_heads"), json!(5), &["5", "head_dim 4", "A_log"]);
    assert_eq!(found, ConfigProblem::HeadsAboveALog { heads: 5, head_dim: 4 });
}

#[test]
fn part_group() {
    for key in ["text_config.routed_expert_hidden_size", "text_config.moe_intermediate_size"] {
        let found = problem(key, json!(48), &[key, "48", "32"]);
        assert!(matches!(found, ConfigProblem::PartGroup { got: 48, .. }));
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
