//! The shapes a synthetic checkpoint can have, and the `config.json` that says so.
//!
//! `tiny` is for every test that wants a model: no two of its widths are equal, so a transposed
//! matrix or a width taken for another cannot fit, and its constants are not the released ones, so
//! a literal in an engine shows. `kernel` has few heads, but the released head widths, for kernels
//! that accept nothing smaller, and the released constants. `k3` has the released widths.
//!
//! Layer kinds go by the released rule: MLA at every fourth layer and at the shape's own last one.
//! A smaller `--layers` therefore gives the first layers of the shape, bit for bit.

use std::path::Path;

use serde_json::{Value, json};

use super::SynthError;
use k3_checkpoint::ModelShape;
use k3_checkpoint::plan::tensor_count;
use k3_core::choice::Choice;
use k3_core::config::{MAX_LAYERS, MAX_SIZE, RawConfig};

/// Every how many layers one is MLA.
const MLA_PERIOD: usize = 4;
/// Smallest vocabulary: three control ids and one more.
const MIN_VOCAB: usize = 4;
/// Most experts of a layer: 18 times the released number. A shard's header is then 15 MB.
const MAX_EXPERTS: usize = 1 << 14;
/// Most tensors: 8 times the released number, 500 MB of headers.
const MAX_TENSORS: u64 = 4 << 20;
/// Ids after the ordinary ones that the release reserves for control tokens.
const CONTROL_IDS: usize = 256;
/// A vocabulary of single bytes.
const BYTE_IDS: usize = 256;

/// A shape by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// 13 layers, hidden width 136, no two widths equal; 16 MB
    Tiny,
    /// 5 layers, few heads, but head width 128, kv_lora 512, nope 128, rope 64, v 128; 53 MB
    Kernel,
    /// The released widths: 93 layers of 896 experts, unless told otherwise
    K3,
}

impl Choice for Preset {
    const ALL: &'static [Self] = &[Self::Tiny, Self::Kernel, Self::K3];

    fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::Kernel => "kernel",
            Self::K3 => "k3",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Tiny => "13 layers, hidden width 136, no two widths equal; 16 MB",
            Self::Kernel => {
                "5 layers, few heads, but head width 128, kv_lora 512, nope 128, rope 64, v 128; \
                 53 MB"
            }
            Self::K3 => "The released widths: 93 layers of 896 experts, unless told otherwise",
        }
    }
}

/// What may differ from the preset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Overrides {
    /// Decoder layers.
    pub layers: Option<usize>,
    /// Routed experts of a layer.
    pub experts: Option<usize>,
    /// Vocabulary.
    pub vocab: Option<usize>,
}

/// A shape, complete: what is written into `config.json`, and what follows from it.
#[derive(Debug, Clone)]
pub struct SynthModel {
    /// Which shape it started from.
    pub preset: Preset,
    /// The text of `config.json`.
    pub config_text: String,
    /// The same, read back by the reader that refuses.
    pub config: RawConfig,
    /// Layers and widths.
    pub shape: ModelShape,
    /// What the weights are drawn from.
    pub seed: u64,
}

/// The numbers of a preset; names as in `config.json`.
struct Numbers {
    layers: usize,
    vocab: usize,
    hidden: usize,
    kda_heads: usize,
    kda_head_dim: usize,
    taps: usize,
    gate_lower_bound: f64,
    heads: usize,
    q_lora: usize,
    kv_lora: usize,
    nope: usize,
    rope: usize,
    v: usize,
    block: usize,
    dense_inner: usize,
    experts: usize,
    top_k: usize,
    latent: usize,
    inner: usize,
    shared: usize,
    scaling: f64,
    beta: f64,
    linear_beta: f64,
    rms_norm_eps: f64,
}

const TINY: Numbers = Numbers {
    layers: 13,
    vocab: 384,
    hidden: 136,
    kda_heads: 9,
    kda_head_dim: 16,
    taps: 4,
    gate_lower_bound: -4.25,
    heads: 8,
    q_lora: 56,
    kv_lora: 40,
    nope: 20,
    rope: 12,
    v: 24,
    block: 6,
    dense_inner: 272,
    experts: 11,
    top_k: 3,
    latent: 160,
    inner: 224,
    shared: 2,
    scaling: 1.375,
    beta: 3.0,
    linear_beta: 11.0,
    rms_norm_eps: 3e-5,
};

const K3: Numbers = Numbers {
    layers: 93,
    vocab: 163_840,
    hidden: 7168,
    kda_heads: 96,
    kda_head_dim: 128,
    taps: 4,
    gate_lower_bound: -5.0,
    heads: 96,
    q_lora: 1536,
    kv_lora: 512,
    nope: 128,
    rope: 64,
    v: 128,
    block: 12,
    dense_inner: 33_792,
    experts: 896,
    top_k: 16,
    latent: 3584,
    inner: 3072,
    shared: 2,
    scaling: 1.0,
    beta: 4.0,
    linear_beta: 25.0,
    rms_norm_eps: 1e-5,
};

const KERNEL: Numbers = Numbers {
    layers: 5,
    vocab: 1024,
    hidden: 768,
    kda_heads: 4,
    heads: 2,
    q_lora: 192,
    block: 2,
    dense_inner: 1536,
    experts: 16,
    top_k: 4,
    latent: 384,
    inner: 256,
    ..K3
};

impl Preset {
    fn numbers(self) -> Numbers {
        match self {
            Self::Tiny => TINY,
            Self::Kernel => KERNEL,
            Self::K3 => K3,
        }
    }
}

impl SynthModel {
    /// Puts the overrides into the preset and reads the config that follows.
    ///
    /// # Errors
    /// A size out of range. [`SynthError::Config`] would be a preset that the reader refuses.
    pub fn new(preset: Preset, overrides: Overrides, seed: u64) -> Result<Self, SynthError> {
        let mut numbers = preset.numbers();
        let kinds_end = numbers.layers;
        for (option, given, least, most, number) in [
            ("layers", overrides.layers, 1, MAX_LAYERS, &mut numbers.layers),
            ("experts", overrides.experts, numbers.top_k, MAX_EXPERTS, &mut numbers.experts),
            ("vocab", overrides.vocab, MIN_VOCAB, MAX_SIZE, &mut numbers.vocab),
        ] {
            let Some(given) = given else { continue };
            if !(least..=most).contains(&given) {
                let why =
                    if option == "experts" { " (the experts of a token at least)" } else { "" };
                let what = format!("--{option} {given}: expected {least} to {most}{why}");
                return Err(SynthError::Size(what));
            }
            *number = given;
        }
        // What serde_json makes of a value always becomes text.
        let mut config_text = format!("{:#}", config(&numbers, kinds_end));
        config_text.push('\n');
        let config =
            k3_checkpoint::config::parse(config_text.as_bytes(), Path::new("config.json"))?;
        let shape = ModelShape::derive(&config).map_err(|error| {
            SynthError::Size(format!("--layers {}: expected {error}", numbers.layers))
        })?;
        let (tensors, limit) = (tensor_count(&shape), MAX_TENSORS);
        if tensors > limit {
            return Err(SynthError::Size(format!("{tensors} tensors: expected {limit} at most")));
        }
        Ok(Self { preset, config_text, config, shape, seed })
    }
}

/// Where the control ids begin: the release keeps the last 256 ids for them; a vocabulary that
/// would then lack single bytes has its control ids right after those, and a still smaller one
/// begins with them.
fn first_control_id(vocab: usize) -> usize {
    match vocab.checked_sub(CONTROL_IDS) {
        Some(first) if first >= BYTE_IDS => first,
        Some(room) if room >= MIN_VOCAB => BYTE_IDS,
        _ => 0,
    }
}

fn config(n: &Numbers, kinds_end: usize) -> Value {
    let first = first_control_id(n.vocab);
    let (bos, eos, pad) = (first, first + 2, n.vocab - 1);
    let mut text = text_config(n, kinds_end);
    text["bos_token_id"] = json!(bos);
    text["eos_token_id"] = json!(eos);
    text["pad_token_id"] = json!(pad);
    json!({
        "architectures": ["KimiK3ForConditionalGeneration"],
        "bos_token_id": bos,
        "dtype": "bfloat16",
        "eos_token_id": eos,
        "model_type": "kimi_k3",
        "pad_token_id": pad,
        "text_config": text,
        "tie_word_embeddings": false,
    })
}

fn text_config(n: &Numbers, kinds_end: usize) -> Value {
    let mut text = built_in();
    for (key, value) in [
        ("activation_situ_beta", json!(n.beta)),
        ("activation_situ_linear_beta", json!(n.linear_beta)),
        ("attn_res_block_size", json!(n.block)),
        ("hidden_size", json!(n.hidden)),
        ("intermediate_size", json!(n.dense_inner)),
        ("kv_lora_rank", json!(n.kv_lora)),
        ("linear_attn_config", linear_attn_config(n, kinds_end)),
        ("moe_intermediate_size", json!(n.inner)),
        ("num_attention_heads", json!(n.heads)),
        ("num_experts", json!(n.experts)),
        ("num_experts_per_token", json!(n.top_k)),
        ("num_hidden_layers", json!(n.layers)),
        ("num_key_value_heads", json!(n.heads)),
        ("num_shared_experts", json!(n.shared)),
        ("q_lora_rank", json!(n.q_lora)),
        ("qk_nope_head_dim", json!(n.nope)),
        ("qk_rope_head_dim", json!(n.rope)),
        ("quantization_config", quantization_config()),
        ("rms_norm_eps", json!(n.rms_norm_eps)),
        ("routed_expert_hidden_size", json!(n.latent)),
        ("routed_scaling_factor", json!(n.scaling)),
        ("v_head_dim", json!(n.v)),
        ("vocab_size", json!(n.vocab)),
    ] {
        text[key] = value;
    }
    text
}

/// Fields of which only the released value is computed, and some that no computation reads.
fn built_in() -> Value {
    json!({
        "architectures": ["KimiLinearForCausalLM"],
        "dtype": "bfloat16",
        "first_k_dense_replace": 1,
        "hidden_act": "situ",
        "initializer_range": 0.02,
        "latent_moe_use_norm": true,
        "max_position_embeddings": 1_048_576,
        "mla_use_nope": true,
        "mla_use_output_gate": true,
        "model_type": "kimi_linear",
        "moe_layer_freq": 1,
        "moe_renormalize": true,
        "moe_router_activation_func": "sigmoid",
        "num_expert_group": 1,
        "num_nextn_predict_layers": 0,
        "tie_word_embeddings": false,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "use_cache": true,
        "use_grouped_topk": true,
    })
}

fn linear_attn_config(n: &Numbers, kinds_end: usize) -> Value {
    let is_mla = |layer: &usize| layer.is_multiple_of(MLA_PERIOD) || *layer == kinds_end;
    // ONE-based, as the release counts here.
    let (mla, kda): (Vec<usize>, Vec<usize>) = (1..=n.layers).partition(is_mla);
    json!({
        "full_attn_layers": mla,
        "gate_lower_bound": n.gate_lower_bound,
        "head_dim": n.kda_head_dim,
        "kda_layers": kda,
        "num_heads": n.kda_heads,
        "short_conv_kernel_size": n.taps,
        "use_full_rank_gate": true,
    })
}

fn quantization_config() -> Value {
    json!({
        "config_groups": {"group_0": {
            "format": "mxfp4-pack-quantized",
            "input_activations": null,
            "output_activations": null,
            "targets": ["Linear"],
            "weights": {
                "actorder": null,
                "block_structure": null,
                "dynamic": false,
                "group_size": 32,
                "num_bits": 4,
                "observer": "minmax",
                "observer_kwargs": {},
                "scale_dtype": "torch.uint8",
                "strategy": "group",
                "symmetric": true,
                "type": "float",
                "zp_dtype": null,
            },
        }},
        "format": "mxfp4-pack-quantized",
        "global_compression_ratio": null,
        "ignore": [
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
            "re:.*lm_head.*",
            "re:.*vision_tower.*",
            "re:.*mm_projector.*",
        ],
        "kv_cache_scheme": null,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use k3_checkpoint::names::Dim;
    use k3_checkpoint::{LayerKind, Role};

    fn model(preset: Preset, layers: Option<usize>, vocab: Option<usize>) -> SynthModel {
        let overrides = Overrides { layers, vocab, experts: None };
        SynthModel::new(preset, overrides, 0).expect("a model")
    }

    /// Two equal widths would hide a transposed matrix or one width taken for another.
    #[test]
    fn no_two_widths_of_tiny_are_equal() {
        for vocab in [None, Some(320)] {
            let model = model(Preset::Tiny, None, vocab);
            let (shape, config) = (&model.shape, &model.config);
            let mut meanings: BTreeMap<usize, Vec<String>> = BTreeMap::new();
            let mut note = |size: usize, meaning: String| {
                let meanings = meanings.entry(size).or_default();
                if !meanings.contains(&meaning) {
                    meanings.push(meaning);
                }
            };
            for role in Role::ALL {
                for &dim in role.dims().iter().filter(|dim| **dim != Dim::One) {
                    for kind in [LayerKind::Kda, LayerKind::Mla] {
                        let meaning = match (dim, kind) {
                            (Dim::AttentionWidth, LayerKind::Kda) => Dim::KdaWidth,
                            _ => dim,
                        };
                        note(dim.size(shape, kind), format!("{meaning:?}"));
                    }
                }
            }
            for (size, meaning) in [
                (config.num_attention_heads, "heads"),
                (config.qk_nope_head_dim, "nope"),
                (config.qk_rope_head_dim, "rope"),
                (config.v_head_dim, "v"),
                (config.qk_nope_head_dim + config.qk_rope_head_dim, "query"),
                (config.num_experts_per_token, "top-k"),
                (config.num_shared_experts, "shared experts"),
                (config.attn_res_block_size, "block"),
                (config.num_hidden_layers, "layers"),
            ] {
                note(size, meaning.to_owned());
            }
            meanings.retain(|_, meanings| meanings.len() > 1);
            assert_eq!(meanings, BTreeMap::new());
        }
    }

    /// Layer kinds of the release, and of its first layers.
    #[test]
    fn layer_kinds_are_those_of_the_release() {
        let mla = |preset, layers| model(preset, layers, None).config.full_attn_layers;
        let mut released: Vec<usize> = (1..=23).map(|block| 4 * block).collect();
        released.push(93);
        assert_eq!(mla(Preset::K3, None), released);
        assert_eq!(mla(Preset::K3, Some(5)), [4]);
        assert_eq!(mla(Preset::Kernel, None), [4, 5]);
        assert_eq!(mla(Preset::Tiny, None), [4, 8, 12, 13]);
        assert_eq!(mla(Preset::Tiny, Some(1)), [0; 0]);
    }

    /// Control ids are inside every vocabulary, and where the release has them in its own.
    #[test]
    fn control_ids_fit_the_vocabulary() {
        for vocab in [4, 5, 256, 259, 260, 320, 511, 512, 513, 4096, MAX_SIZE] {
            let ids = model(Preset::Tiny, None, Some(vocab)).config.token_ids;
            assert_eq!(ids.root, ids.text);
            let (bos, eos, pad) = (ids.text.bos, ids.text.eos, ids.text.pad);
            let all = [bos, eos.first().copied(), pad].map(|id| id.expect("an id"));
            assert!(all.iter().all(|id| (*id as usize) < vocab), "{vocab}");
            assert!(all[0] < all[1] && all[1] < all[2], "{vocab}: {all:?}");
        }
        let released = model(Preset::K3, None, None).config.token_ids.text;
        assert_eq!((released.bos, released.pad), (Some(163_584), Some(163_839)));
        assert_eq!(released.eos, [163_586]);
        let chat = model(Preset::Tiny, None, Some(320)).config.token_ids.text;
        assert_eq!((chat.bos, chat.eos.as_slice()), (Some(256), &[258][..]));
    }

    /// Sizes that no engine could hold, or that contradict each other.
    #[test]
    fn absurd_sizes_are_refused_by_option() {
        let huge = usize::MAX;
        for (option, layers, experts, vocab) in [
            ("layers", Some(0), None, None),
            ("layers", Some(huge), None, None),
            ("experts", None, Some(15), None),
            ("experts", None, Some(huge), None),
            ("vocab", None, None, Some(3)),
            ("vocab", None, None, Some(huge)),
        ] {
            let overrides = Overrides { layers, experts, vocab };
            let refused = SynthModel::new(Preset::K3, overrides, 0);
            let Err(SynthError::Size(what)) = refused else {
                panic!("{overrides:?} was not refused");
            };
            assert!(what.starts_with(&format!("--{option} ")), "{what}");
        }
    }
}
