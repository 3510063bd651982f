//! What `config.json` must say: which fields there are, which values are built in, and what the
//! fields must be to each other.

use super::fields::{Fields, not_released};
use crate::Problem;
use crate::json::Value;
use k3_core::config::{MAX_LAYERS, MXFP4_GROUP_COLUMNS, RawConfig, TokenIds};

/// Reads every field; a problem is noted and leaves an empty value behind, never a guess that is
/// used: the caller returns no config once a problem is noted.
pub(super) fn read_fields(fields: &mut Fields<'_>) -> RawConfig {
    let layers = fields.size("text_config.num_hidden_layers", MAX_LAYERS);
    RawConfig {
        hidden_size: fields.width("text_config.hidden_size"),
        vocab_size: fields.width("text_config.vocab_size"),
        num_hidden_layers: layers,
        rms_norm_eps: fields.positive("text_config.rms_norm_eps"),
        kda_num_heads: fields.width("text_config.linear_attn_config.num_heads"),
        kda_head_dim: fields.width("text_config.linear_attn_config.head_dim"),
        short_conv_kernel_size: fields
            .width("text_config.linear_attn_config.short_conv_kernel_size"),
        gate_lower_bound: fields.negative("text_config.linear_attn_config.gate_lower_bound"),
        full_attn_layers: fields.layer_list(FULL_ATTN_LAYERS, layers),
        kda_layers: fields.layer_list(KDA_LAYERS, layers),
        num_attention_heads: fields.width("text_config.num_attention_heads"),
        q_lora_rank: fields.width("text_config.q_lora_rank"),
        kv_lora_rank: fields.width("text_config.kv_lora_rank"),
        qk_nope_head_dim: fields.width("text_config.qk_nope_head_dim"),
        qk_rope_head_dim: fields.width("text_config.qk_rope_head_dim"),
        v_head_dim: fields.width("text_config.v_head_dim"),
        attn_res_block_size: fields.width("text_config.attn_res_block_size"),
        first_k_dense_replace: fields.count("text_config.first_k_dense_replace", MAX_LAYERS),
        intermediate_size: fields.width("text_config.intermediate_size"),
        num_experts: fields.width("text_config.num_experts"),
        num_experts_per_token: fields.width("text_config.num_experts_per_token"),
        routed_expert_hidden_size: fields.width("text_config.routed_expert_hidden_size"),
        moe_intermediate_size: fields.width("text_config.moe_intermediate_size"),
        num_shared_experts: fields.width("text_config.num_shared_experts"),
        moe_renormalize: fields.boolean("text_config.moe_renormalize"),
        routed_scaling_factor: fields.positive("text_config.routed_scaling_factor"),
        activation_situ_beta: fields.positive("text_config.activation_situ_beta"),
        activation_situ_linear_beta: fields.positive("text_config.activation_situ_linear_beta"),
        token_ids: TokenIds {
            root: fields.special_ids(""),
            text: fields.special_ids("text_config."),
        },
    }
}

/// The path of a field of the one group of quantised weights.
macro_rules! group_weights {
    ($field:literal) => {
        concat!("text_config.quantization_config.config_groups.group_0.weights.", $field)
    };
}

const CONFIG_GROUPS: &str = "text_config.quantization_config.config_groups";
const GROUP_FORMAT: &str = "text_config.quantization_config.config_groups.group_0.format";
const FULL_ATTN_LAYERS: &str = "text_config.linear_attn_config.full_attn_layers";
const KDA_LAYERS: &str = "text_config.linear_attn_config.kda_layers";

/// The released value of a field that this program computes with no other.
pub(super) enum Released {
    Text(&'static str),
    Truth(bool),
    Integer(usize),
}

/// Fields whose meaning is built in.
const RELEASED: &[(&str, Released)] = {
    use Released::{Integer, Text, Truth};
    &[
        ("tie_word_embeddings", Truth(false)),
        ("text_config.tie_word_embeddings", Truth(false)),
        ("text_config.hidden_act", Text("situ")),
        ("text_config.moe_router_activation_func", Text("sigmoid")),
        ("text_config.mla_use_nope", Truth(true)),
        ("text_config.mla_use_output_gate", Truth(true)),
        ("text_config.linear_attn_config.use_full_rank_gate", Truth(true)),
        ("text_config.latent_moe_use_norm", Truth(true)),
        ("text_config.num_expert_group", Integer(1)),
        ("text_config.topk_group", Integer(1)),
        ("text_config.moe_layer_freq", Integer(1)),
        ("text_config.num_nextn_predict_layers", Integer(0)),
        ("text_config.quantization_config.format", Text("mxfp4-pack-quantized")),
        ("text_config.quantization_config.quant_method", Text("compressed-tensors")),
        (GROUP_FORMAT, Text("mxfp4-pack-quantized")),
        (group_weights!("group_size"), Integer(MXFP4_GROUP_COLUMNS)),
        (group_weights!("num_bits"), Integer(4)),
        (group_weights!("type"), Text("float")),
        (group_weights!("scale_dtype"), Text("torch.uint8")),
        (group_weights!("strategy"), Text("group")),
        (group_weights!("symmetric"), Truth(true)),
    ]
};

/// Fields that may be absent; where they say something else, it is another model.
const RELEASED_WHERE_PRESENT: &[(&str, Option<Released>)] = &[
    ("model_type", Some(Released::Text("kimi_k3"))),
    ("text_config.model_type", Some(Released::Text("kimi_linear"))),
    ("text_config.topk_method", Some(Released::Text("noaux_tc"))),
    ("text_config.quantization_config.kv_cache_scheme", None),
    ("text_config.quantization_config.config_groups.group_0.input_activations", None),
    ("text_config.quantization_config.config_groups.group_0.output_activations", None),
    (group_weights!("actorder"), None),
    (group_weights!("zp_dtype"), None),
];

pub(super) fn check_released_values(fields: &mut Fields<'_>) {
    for (key, released) in RELEASED {
        fields.released(key, released);
    }
    for (key, released) in RELEASED_WHERE_PRESENT {
        match (fields.lookup(key), released) {
            (None | Some(Value::Null), _) => {}
            (Some(_), Some(released)) => fields.released(key, released),
            (Some(value), None) => fields.note(key, not_released("null", value)),
        }
    }
    if let Some(Value::Object(groups)) = fields.lookup(CONFIG_GROUPS) {
        for name in groups.keys().filter(|name| *name != "group_0") {
            let key = format!("{CONFIG_GROUPS}.{}", name.escape_debug());
            fields.note(&key, "only group_0 is supported".to_owned());
        }
    }
}

/// What single fields cannot show: contradictions between them.
pub(super) fn check_consistency(config: &RawConfig, kv_heads: usize, problems: &mut Vec<Problem>) {
    let mut refuse = |field: &str, wrong: bool, what: String| {
        if wrong {
            problems.push(Problem::new(format!("text_config.{field}"), what));
        }
    };
    let (heads, layers) = (config.num_attention_heads, config.num_hidden_layers);
    let what = format!("{kv_heads} differs from num_attention_heads {heads}");
    refuse("num_key_value_heads", kv_heads != heads, what);
    let (top_k, experts) = (config.num_experts_per_token, config.num_experts);
    let what = format!("{top_k} is above num_experts {experts}");
    refuse("num_experts_per_token", top_k > experts, what);
    let dense = config.first_k_dense_replace;
    let what = format!("{dense} is above num_hidden_layers {layers}");
    refuse("first_k_dense_replace", dense > layers, what);
    let (heads, head_dim) = (config.kda_num_heads, config.kda_head_dim);
    let what = format!("{heads} is above head_dim {head_dim}, the length A_log is stored with");
    refuse("linear_attn_config.num_heads", heads > head_dim, what);
    for (key, got) in [
        ("routed_expert_hidden_size", config.routed_expert_hidden_size),
        ("moe_intermediate_size", config.moe_intermediate_size),
    ] {
        let columns = MXFP4_GROUP_COLUMNS;
        let what = format!("{got} is not a multiple of the {columns} columns of a scale group");
        refuse(key, !got.is_multiple_of(columns), what);
    }
    check_partition(config, problems);
    for (place, ids) in [("", &config.token_ids.root), ("text_config.", &config.token_ids.text)] {
        let eos = ids.eos.iter().map(|id| ("eos", *id));
        let others = [("bos", ids.bos), ("pad", ids.pad)].into_iter();
        for (key, id) in eos.chain(others.filter_map(|(key, id)| Some((key, id?)))) {
            if id as usize >= config.vocab_size {
                let what = format!("{id} is not below vocab_size {}", config.vocab_size);
                problems.push(Problem::new(format!("{place}{key}_token_id"), what));
            }
        }
    }
}

/// The two lists, each rising and in range by now, must hold every layer once.
fn check_partition(config: &RawConfig, problems: &mut Vec<Problem>) {
    let mut holders = vec![0_u8; config.num_hidden_layers];
    for layer in config.full_attn_layers.iter().chain(&config.kda_layers) {
        holders[layer - 1] += 1;
    }
    for (index, count) in holders.into_iter().enumerate().filter(|(_, count)| *count != 1) {
        let lists = if count == 0 { "neither" } else { "both" };
        let lists = format!("stands in {lists} of kda_layers and full_attn_layers");
        problems.push(Problem::new(format!("layer {} (ONE-based)", index + 1), lists));
    }
}
