//! Two equal-shaped tensors swapped by name in the copy that only the reference reads: caught and
//! located, for each class of tensor. This is the mistake the tiny oracle cannot see on a real
//! checkpoint: a right formula on the wrong bytes.

use std::path::Path;

use k3_gates::outcome::Verdict;

use crate::support::proof::report;
use crate::support::{arg, copy_folder, expect, overwrite, scratch, tiny};

/// Layer, two names below `layers.N.`, and the first stage that must differ.
const SWAPS: &[(usize, &str, &str, &str)] = &[
    (1, "self_attn.q_proj.weight", "self_attn.k_proj.weight", "kda.q"),
    (1, "self_attn.q_conv1d.weight", "self_attn.v_conv1d.weight", "kda.q"),
    (1, "self_attn.k_proj.weight", "self_attn.g_proj.weight", "kda.k"),
    (1, "input_layernorm.weight", "post_attention_layernorm.weight", "attn_norm"),
    (1, "self_attention_res_norm.weight", "mlp_res_norm.weight", "attn_mix"),
    (1, "self_attention_res_proj.weight", "mlp_res_proj.weight", "attn_mix"),
    (
        1,
        "block_sparse_moe.experts.0.w1.weight_packed",
        "block_sparse_moe.experts.0.w3.weight_packed",
        "moe.sum",
    ),
    (
        1,
        "block_sparse_moe.shared_experts.gate_proj.weight",
        "block_sparse_moe.shared_experts.up_proj.weight",
        "moe.shared",
    ),
    (0, "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp_out"),
];

/// Pairs across layers: (layer a, layer b, name, first stage in layer a).
const ACROSS: &[(usize, usize, &str, &str)] = &[
    (3, 7, "self_attn.q_a_proj.weight", "mla.q"),
    (3, 7, "self_attn.q_b_proj.weight", "mla.q"),
    (3, 7, "self_attn.q_a_layernorm.weight", "mla.q"),
    (3, 7, "self_attn.kv_a_proj_with_mqa.weight", "mla.latent"),
    (3, 7, "self_attn.kv_a_layernorm.weight", "mla.latent"),
    (3, 7, "self_attn.kv_b_proj.weight", "mla.o"),
    (3, 7, "self_attn.o_proj.weight", "attn_out"),
    (1, 2, "self_attn.A_log", "kda.g"),
    (1, 2, "self_attn.dt_bias", "kda.g"),
    (1, 2, "self_attn.f_a_proj.weight", "kda.z"),
    (1, 2, "self_attn.f_b_proj.weight", "kda.z"),
    (1, 2, "self_attn.b_proj.weight", "kda.beta"),
    (1, 2, "self_attn.o_norm.weight", "attn_out"),
    (1, 2, "block_sparse_moe.gate.weight", "router_scores"),
    (1, 2, "block_sparse_moe.gate.e_score_correction_bias", "router_ids"),
    (1, 2, "block_sparse_moe.routed_expert_down_proj.weight", "moe.latent"),
    (1, 2, "block_sparse_moe.routed_expert_norm.weight", "mlp_out"),
    (1, 2, "block_sparse_moe.routed_expert_up_proj.weight", "mlp_out"),
];

/// Exchanges the bytes of two tensors in a folder.
fn swap(folder: &Path, one: &str, other: &str) {
    use k3_checkpoint::Checkpoint;
    let checkpoint = Checkpoint::open(folder).unwrap();
    let (a, b) = (checkpoint.tensor(one).unwrap(), checkpoint.tensor(other).unwrap());
    assert_eq!((a.dtype, a.shape), (b.dtype, b.shape), "{one} {other}");
    let bytes = [checkpoint.read(one).unwrap(), checkpoint.read(other).unwrap()];
    assert_ne!(bytes[0], bytes[1], "{one} and {other} are alike");
    overwrite(folder, one, 0, &bytes[1]);
    overwrite(folder, other, 0, &bytes[0]);
}

#[test]
fn swapped_tensors_are_caught_and_located_for_each_class() {
    let model = tiny();
    let (_folder, other) = scratch("copy");
    copy_folder(&model, &other);
    let full = |layer: usize, name: &str| format!("language_model.model.layers.{layer}.{name}");
    let mut pairs = Vec::new();
    for (layer, one, two, stage) in SWAPS {
        pairs.push((*layer, full(*layer, one), full(*layer, two), *stage));
    }
    for (layer, second, name, stage) in ACROSS {
        pairs.push((*layer, full(*layer, name), full(*second, name), *stage));
    }
    for (layer, one, two, stage) in pairs {
        swap(&other, &one, &two);
        let range = layer.to_string();
        let base = ["layers", &range, "--model", arg(&model)];
        // So many tokens that every expert is chosen and every bias decides somewhere.
        let more = ["--reference-model", arg(&other), "--prefill", "64"];
        let arguments = [&base[..], &more].concat();
        println!("{one} for {two}");
        let run = report(&arguments, 1);
        let row = &run.rows[0];
        assert_eq!(row.verdict, Verdict::Fail);
        assert_eq!(row.first_divergence().unwrap().stage, stage, "{one} for {two}");
        let at = &run.first_divergence.as_ref().unwrap().at;
        assert_eq!(*at, format!("layers.{layer}.{stage}"));
        swap(&other, &one, &two);
    }
    // The copy is whole again, or the next pair would be caught by the last one.
    let base = ["layers", "0..3", "--model", arg(&model), "--reference-model", arg(&other)];
    expect(&base, 0);
}

/// Tensors outside the layers: the output mix and the last norm, the head and the embedding.
#[test]
fn swapped_tensors_outside_the_layers_are_caught_and_located() {
    let model = tiny();
    let (_folder, other) = scratch("copy");
    copy_folder(&model, &other);
    let (embed, head) =
        ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight");
    let (norm, mix) =
        ("language_model.model.norm.weight", "language_model.model.output_attn_res_norm.weight");
    for (one, two, places) in
        [(embed, head, &["embed", "logits"][..]), (norm, mix, &["final_mix", "final_norm"])]
    {
        swap(&other, one, two);
        let base = ["layers", "all", "--model", arg(&model)];
        let arguments = [&base[..], &["--reference-model", arg(&other)]].concat();
        let run = report(&arguments, 1);
        let failing = run.rows.iter().flat_map(|row| &row.stages);
        let failing = failing.filter(|stage| stage.verdict == Verdict::Fail);
        let failing: Vec<&str> = failing.map(|stage| stage.stage.as_str()).collect();
        assert_eq!(failing, places, "{one} for {two}");
        swap(&other, one, two);
    }
}
