//! Binding: what a checkpoint must have, in which dtype and shape, and what is left over.

use k3_checkpoint::UnusedClass;
use k3_checkpoint::shape::ShapeError;
use k3_checkpoint::{BindError, Binding, Checkpoint, Dtype, ModelShape, Role};
use serde_json::json;

use super::make::{Model, assert_names, read_config, with, zeros};

const LAYERS: &str = "language_model.model.layers";

fn bind(model: &Model) -> Result<Binding, BindError> {
    let folder = model.write();
    let checkpoint = Checkpoint::open(folder.path()).expect("opens");
    Binding::bind(&checkpoint, &read_config(&model.config))
}

#[track_caller]
fn wrong_shape(name: &str, shape: &[usize], parts: &[&str]) {
    let mut model = Model::small();
    model.tensor(name).shape = shape.to_vec();
    let error = bind(&model).expect_err("refused");
    assert!(matches!(error, BindError::File(_)), "{error}");
    assert_names(&error, &[name, ".safetensors"]);
    assert_names(&error, parts);
}

#[test]
fn the_model_that_the_tests_damage_is_good() {
    let binding = bind(&Model::small()).expect("binds");
    let unused: Vec<_> = binding.unused_counts().into_iter().collect();
    assert_eq!(unused, [(UnusedClass::ResidualBeforeFirstBank, 2)]);
    assert!(binding.model_tensor(Role::LmHead).is_some());
    assert!(binding.layer_tensor(3, Role::MlaKvBProj).is_some());
    assert_eq!(binding.shape().banks, 2);
    // Layer 0 is KDA and dense; its two residual weights without use are not handed out.
    let roles: Vec<_> = binding.layer_tensors(0).map(|(role, _)| role).collect();
    assert_eq!(roles.len(), 8 - 2 + 12 + 3);
    assert!(!roles.contains(&Role::AttentionResNorm) && roles.contains(&Role::MlpResNorm));
    assert_eq!(binding.model_tensors().count(), 5);
}

/// An expert is read in one piece if it is stored in one piece, and only then.
#[test]
fn contiguous_tensors_are_recognised() {
    let model = Model::small();
    let folder = model.write();
    let checkpoint = Checkpoint::open(folder.path()).expect("opens");
    let binding = Binding::bind(&checkpoint, &read_config(&model.config)).expect("binds");
    let expert = |expert| binding.expert(2, expert).expect("an expert").in_order();
    let (shard, range) = checkpoint.contiguous(&expert(1)).expect("in one piece");
    assert_eq!(shard, 1);
    assert_eq!(range.end - range.start, binding.shape().moe.expert_bytes());
    let (first, second) = (expert(0), expert(1));
    assert!(checkpoint.contiguous(&[first, second].concat()).is_some());
    assert_eq!(checkpoint.contiguous(&[first[0], first[2]]), None);
    assert_eq!(checkpoint.contiguous(&[first[1], first[0]]), None);
    assert_eq!(checkpoint.contiguous(&[]), None);
}

#[test]
fn a02_one_bias_per_head_is_refused() {
    let name = format!("{LAYERS}.1.self_attn.dt_bias");
    wrong_shape(&name, &[2], &["expected shape [8]", "got [2]"]);
}

#[test]
fn b08_expert_shapes_that_do_not_fit_are_refused() {
    let expert = format!("{LAYERS}.2.block_sparse_moe.experts.1");
    wrong_shape(&format!("{expert}.w1.weight_scale"), &[32, 1], &["[32, 2]", "[32, 1]"]);
    wrong_shape(&format!("{expert}.w2.weight_packed"), &[64, 15], &["[64, 16]", "[64, 15]"]);
    wrong_shape(&format!("{expert}.w3.weight_packed"), &[64, 16], &["[32, 32]", "[64, 16]"]);
}

#[test]
fn conv_weights_keep_their_middle_dimension() {
    let name = format!("{LAYERS}.0.self_attn.q_conv1d.weight");
    wrong_shape(&name, &[8, 4], &["[8, 1, 4]", "[8, 4]"]);
}

#[test]
fn wrong_dtype() {
    for (name, dtype) in [
        (format!("{LAYERS}.1.self_attn.q_proj.weight"), Dtype::F32),
        (format!("{LAYERS}.1.self_attn.A_log"), Dtype::Bf16),
        (format!("{LAYERS}.1.block_sparse_moe.experts.0.w1.weight_scale"), Dtype::F8E8M0),
        (format!("{LAYERS}.1.block_sparse_moe.gate.weight"), Dtype::F16),
    ] {
        let mut model = Model::small();
        let expected = std::mem::replace(&mut model.tensor(&name).dtype, dtype);
        let error = bind(&model).expect_err("refused");
        assert!(matches!(error, BindError::File(_)));
        let parts = [&format!("expected dtype {expected}"), &format!("got {dtype}"), &name];
        assert_names(&error, &parts.map(String::as_str));
    }
}

#[test]
fn a08_a_missing_latent_norm_is_named() {
    let name = format!("{LAYERS}.3.block_sparse_moe.routed_expert_norm.weight");
    let mut model = Model::small();
    assert_eq!(model.remove(|other| other == name), 1);
    let error = bind(&model).expect_err("refused");
    assert!(matches!(&error, BindError::Missing { count: 1, names, .. } if *names == [&*name]));
    assert_names(&error, &[&name, "1 tensor(s) missing"]);
}

#[test]
fn a08_unknown_tensors_are_listed_by_class() {
    let mut model = Model::small();
    for (name, _) in unknown_names() {
        model.add(3, zeros(name, Dtype::F32, &[1]));
    }
    let folder = model.write();
    let checkpoint = Checkpoint::open(folder.path()).expect("opens");
    let binding = Binding::bind(&checkpoint, &read_config(&model.config)).expect("binds");
    for (name, class) in unknown_names() {
        let unused = binding.unused();
        let found = unused.iter().find(|unused| checkpoint.info(unused.id).name == name);
        assert_eq!(found.map(|unused| unused.class), Some(class), "{name}");
    }
}

fn unknown_names() -> [(&'static str, UnusedClass); 7] {
    [
        ("language_model.model.layers.1.self_attn.sink", UnusedClass::UnknownInLayer),
        ("language_model.model.layers.3.self_attn.A_log", UnusedClass::UnknownInLayer),
        ("language_model.model.layers.4.input_layernorm.weight", UnusedClass::LayerPastEnd),
        ("language_model.model.rotary.inv_freq", UnusedClass::Unknown),
        ("model.layers.0.input_layernorm.weight", UnusedClass::Unknown),
        ("vision_tower.encoder.final_layernorm.weight", UnusedClass::VisionTower),
        ("mm_projector.proj.0.weight", UnusedClass::MmProjector),
    ]
}

#[test]
fn a17_missing_layers_are_named_in_full() {
    // One layer of each kind: dense KDA, MoE KDA, MoE MLA.
    for layer in [0, 2, 3] {
        let prefix = format!("{LAYERS}.{layer}.");
        let mut model = Model::small();
        let removed = model.remove(|name| name.starts_with(&prefix));
        let error = bind(&model).expect_err("refused");
        assert!(matches!(error, BindError::Missing { count, .. } if count == removed as u64));
        assert_names(&error, &[&format!("{prefix}input_layernorm.weight"), &removed.to_string()]);
    }
    // A whole binder without its prefix: every layer is named at least once, if not in the line.
    let mut model = Model::small();
    for tensors in model.shards.values_mut() {
        for tensor in tensors {
            tensor.name = tensor.name.replace("language_model.model.layers", "model.layers");
        }
    }
    let error = bind(&model).expect_err("refused");
    let BindError::Missing { names, .. } = &error else { panic!("{error}") };
    for layer in 0..4 {
        assert!(names.iter().any(|name| name.starts_with(&format!("{LAYERS}.{layer}."))));
    }
    // The wrong names that are there help to see why.
    assert_names(&error, &["not known: model.layers.0."]);
}

#[test]
fn a17_specific_tensors_of_each_kind_are_named() {
    for suffix in [
        "0.mlp.up_proj.weight",
        "1.self_attn.f_b_proj.weight",
        "2.block_sparse_moe.shared_experts.down_proj.weight",
        "3.self_attn.kv_a_proj_with_mqa.weight",
        "3.block_sparse_moe.experts.2.w2.weight_scale",
        "0.self_attention_res_proj.weight",
    ] {
        let name = format!("{LAYERS}.{suffix}");
        let mut model = Model::small();
        assert_eq!(model.remove(|other| other == name), 1, "{name}");
        let error = bind(&model).expect_err("refused");
        assert!(matches!(error, BindError::Missing { count: 1, .. }));
        assert_names(&error, &[&name]);
    }
}

#[test]
fn a22_an_older_spelling_is_refused_by_name() {
    for (released, older) in [
        ("self_attention_res_norm", "self_attn_res_norm"),
        ("self_attention_res_proj", "attn_res.proj"),
        ("mlp_res_norm", "mlp_residual_norm"),
    ] {
        let mut model = Model::small();
        for tensors in model.shards.values_mut() {
            for tensor in tensors {
                tensor.name = tensor.name.replace(released, older);
            }
        }
        let error = bind(&model).expect_err("refused");
        assert!(matches!(error, BindError::Missing { count: 4, .. }), "{error}");
        // Both the name that is missing and the one that is there are told.
        assert_names(&error, &[&format!("{LAYERS}.1.{released}.weight"), older]);
    }
}

#[test]
fn a22_both_spellings_at_once_are_refused() {
    for name in [
        "language_model.model.layers.2.self_attn_res_norm.weight",
        "language_model.model.layers.2.mlp_residual_proj.weight",
        "language_model.model.layers.0.attn_res.norm.weight",
        "language_model.model.output_attention_res_norm.weight",
    ] {
        let mut model = Model::small();
        model.add(3, zeros(name, Dtype::Bf16, &[32]));
        let error = bind(&model).expect_err("refused");
        assert_names(&error, &[name, "a second spelling"]);
    }
}

/// A readable config must not keep the binder busy for hours before it says no.
#[test]
fn a14_a_plan_far_above_the_checkpoint_is_refused_at_once() {
    let mut model = Model::small();
    model.config = with(model.config, "text_config.num_experts", json!(100_000));
    let error = bind(&model).expect_err("refused");
    assert_names(&error, &["num_experts imply 1800106 tensors"]);
}

#[test]
fn shape() {
    let model = Model::small();
    let folder = model.write();
    let checkpoint = Checkpoint::open(folder.path()).expect("opens");
    let mut config = read_config(&model.config);
    config.kda_layers.pop();
    let error = Binding::bind(&checkpoint, &config).expect_err("refused");
    assert!(matches!(error, BindError::Shape(_)));
    assert_names(&error, &["layer 3", "ONE-based"]);
    config = read_config(&model.config);
    config.attn_res_block_size = 0;
    assert_eq!(ModelShape::derive(&config), Err(ShapeError::EmptyBlock));
}

/// A config of another model of the same family must not bind by luck.
#[test]
fn a_config_with_other_widths_does_not_bind() {
    for (key, value) in [("num_experts", 4), ("v_head_dim", 2), ("kv_lora_rank", 4)] {
        let mut model = Model::small();
        model.config = with(model.config, &format!("text_config.{key}"), json!(value));
        assert!(bind(&model).is_err(), "{key}");
    }
}

/// A partial binding says what is there and what is not, layer by layer.
#[test]
fn a_partial_binding_lists_what_is_missing() {
    let model = Model::small();
    let folder = model.write();
    std::fs::remove_file(folder.file(&super::make::shard_name(2))).expect("removed");
    let checkpoint = Checkpoint::open_partial(folder.path()).expect("opens");
    let config = read_config(&model.config);
    let binding = Binding::bind_partial(&checkpoint, &config).expect("binds");
    assert_eq!((binding.missing_in_layer(0), binding.missing_in_layer(1)), (0, 0));
    assert!(binding.missing_in_layer(2) > 0 && binding.missing_in_layer(3) > 0);
    assert!(binding.missing_names(2)[0].starts_with("language_model.model.layers.2."));
    assert_eq!(binding.missing_in_model(), 0);
    assert!(binding.expert(2, 0).is_none());
    assert!(matches!(Binding::bind(&checkpoint, &config), Err(BindError::Missing { .. })));
}
