"""The shape, the names and the weights of the tiny model and of its twins.

A tensor is drawn from the stream named after it (see `integer_generator.py`) and scaled by the
rule of its class. A twin uses the same draws under other rules, so only the classes whose rule
differs change; everything harsh therefore lives in small tensors (see TINY and TWINS below).
"""

from dataclasses import dataclass, field, replace

import numpy as np

from integer_generator import BELL_DEVIATION, bell, below, draws
from k3 import Config
from tensor_files import bfloat16_from_float64

WEIGHT_SEED = 1
LAYERS = 13
MLA_LAYERS_ONE_BASED = [4, 8, 12, 13]
HIDDEN, VOCABULARY = 128, 256
LAYER_SHARDS = (range(0, 5), range(5, 9), range(9, 13))
FIRST_ORDINARY_ID = 4
# In the last channel of every KDA layer: the decay is exactly 1, which is legal.
FROZEN_DT_BIAS = -48.0
MODEL = "language_model.model."


def text_config():
    """`text_config` in the released layout; every numeric constant differs from the release."""
    kda = [n for n in range(1, LAYERS + 1) if n not in MLA_LAYERS_ONE_BASED]
    return {
        "model_type": "kimi_linear",
        "architectures": ["KimiLinearForCausalLM"],
        "activation_situ_beta": 3.0,
        "activation_situ_linear_beta": 11.0,
        "attn_res_block_size": 3,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 1,
        "dtype": "bfloat16",
        "first_k_dense_replace": 1,
        "hidden_act": "situ",
        "hidden_size": HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": 160,
        "kv_lora_rank": 40,
        "latent_moe_use_norm": True,
        "linear_attn_config": {
            "full_attn_layers": MLA_LAYERS_ONE_BASED,
            "gate_lower_bound": -4.25,
            "head_dim": 16,
            "kda_layers": kda,
            "num_heads": 5,
            "short_conv_kernel_size": 4,
            "use_full_rank_gate": True,
        },
        "max_position_embeddings": 4096,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "moe_intermediate_size": 96,
        "moe_layer_freq": 1,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "num_attention_heads": 3,
        "num_expert_group": 1,
        "num_experts": 8,
        "num_experts_per_token": 2,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": 3,
        "num_nextn_predict_layers": 0,
        "num_shared_experts": 2,
        "q_lora_rank": 56,
        "qk_nope_head_dim": 20,
        "qk_rope_head_dim": 8,
        "quantization_config": quantization_config(),
        "rms_norm_eps": 3e-05,
        "routed_expert_hidden_size": 64,
        "routed_scaling_factor": 1.375,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "use_cache": True,
        "use_grouped_topk": True,
        "v_head_dim": 12,
        "vocab_size": VOCABULARY,
    }


def quantization_config():
    weights = {
        "actorder": None, "block_structure": None, "dynamic": False, "group_size": 32,
        "num_bits": 4, "observer": "minmax", "observer_kwargs": {}, "scale_dtype": "torch.uint8",
        "strategy": "group", "symmetric": True, "type": "float", "zp_dtype": None,
    }
    group = {
        "format": "mxfp4-pack-quantized", "input_activations": None, "output_activations": None,
        "targets": ["Linear"], "weights": weights,
    }
    return {
        "config_groups": {"group_0": group},
        "format": "mxfp4-pack-quantized",
        "global_compression_ratio": None,
        "ignore": [
            "re:.*self_attn.*", "re:.*shared_experts.*",
            "re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*",
            "re:.*vision_tower.*", "re:.*mm_projector.*",
        ],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


def root_config():
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "bos_token_id": 0,
        "dtype": "bfloat16",
        "eos_token_id": 2,
        "ignore_index": -100,
        "media_placeholder_token_id": 3,
        "model_type": "kimi_k3",
        "pad_token_id": 1,
        "text_config": text_config(),
        "tie_word_embeddings": False,
    }


@dataclass(frozen=True)
class Rules:
    """The scale of every class of tensors. A pair is (centre, deviation)."""

    embedding: float
    head: float
    norm: tuple
    post_attention_norm: tuple
    query_norm: tuple
    latent_norm: tuple
    kda_output_norm: tuple
    routed_norm: tuple
    mix_projection: float
    kda_projection: float
    tap: float
    qk_head_scale: tuple
    v_head_scale: tuple
    rate_log: tuple
    dt_bias: tuple
    f_b: float
    output_kda: float
    q_a: float
    q_b: float
    kv_a_latent: float
    kv_a_rope: float
    kv_b: float
    output_mla: float
    gate: float
    router: float
    bias: float
    # Where the bias lifts two experts out of the others' reach, and by how much.
    lifted_layers: tuple
    lift: float
    dense_gate: float
    dense_up: float
    dense_down: float
    shared_gate: float
    shared_up: float
    shared_down: float
    latent_down: float
    latent_up: float
    scale_bytes: dict = field(default_factory=dict)


TINY = Rules(
    embedding=0.02, head=0.27, norm=(1.0, 0.25),
    post_attention_norm=(1.0, 0.25), query_norm=(1.0, 0.25),
    latent_norm=(1.0, 0.25), kda_output_norm=(1.0, 0.25), routed_norm=(1.0, 0.25),
    mix_projection=0.13,
    kda_projection=0.09, tap=0.45,
    qk_head_scale=(1.0, 2**-9, 1.0, 2**-8, 2**-10), v_head_scale=(0.5, 0.25, 0.06, 0.12, 0.25),
    rate_log=(-0.9, -0.4, 0.1, 0.5, 0.9), dt_bias=(-7.0, 3.0), f_b=0.25, output_kda=0.005,
    q_a=0.00053, q_b=0.17, kv_a_latent=0.00053, kv_a_rope=0.13, kv_b=0.16, output_mla=0.012,
    gate=0.09, router=0.12, bias=0.15, lifted_layers=(), lift=0.0,
    dense_gate=0.2, dense_up=0.4, dense_down=0.0006,
    shared_gate=0.15, shared_up=0.3, shared_down=0.0006,
    latent_down=0.09, latent_up=0.0035,
    scale_bytes={"w1": (122, 3), "w2": (111, 4), "w3": (123, 3)},
)
MILD = replace(
    TINY,
    post_attention_norm=(0.5, 0.05), query_norm=(0.5, 0.05),
    latent_norm=(0.35, 0.03), kda_output_norm=(0.22, 0.02), routed_norm=(0.22, 0.02),
    mix_projection=0.05, qk_head_scale=(1.0, 1.0, 1.0, 1.0, 1.0), q_a=0.09, kv_a_latent=0.09,
    bias=0.4, lifted_layers=(1, 2, 4, 5, 6, 7, 9, 10, 11, 12), lift=0.45,
    scale_bytes={**TINY.scale_bytes, "w2": (119, 2)},
)
# The mild twin with MLA's low ranks of mean square 1e-6 and KDA's queries and keys of squared norm
# 1e-6 or less: their epsilons, and nothing else, are as large as what they are added to.
FAINT = replace(MILD, q_a=1e-4, kv_a_latent=1e-4, qk_head_scale=(2**-9,) * 5)


def layout():
    """One list per shard of (name, dtype, shape), in file order."""
    shards = []
    for layers in LAYER_SHARDS:
        entries = []
        for n in layers:
            entries += layer_layout(n)
        shards.append(entries)
    shards[-1] += [
        (MODEL + "embed_tokens.weight", "BF16", (VOCABULARY, HIDDEN)),
        (MODEL + "norm.weight", "BF16", (HIDDEN,)),
        (MODEL + "output_attn_res_norm.weight", "BF16", (HIDDEN,)),
        (MODEL + "output_attn_res_proj.weight", "BF16", (1, HIDDEN)),
        ("language_model.lm_head.weight", "BF16", (VOCABULARY, HIDDEN)),
        ("vision_tower.patch_embed.proj.weight", "BF16", (16, 3, 2, 2)),
        ("vision_tower.encoder.final_layernorm.weight", "BF16", (16,)),
        ("mm_projector.proj.0.weight", "BF16", (16, 16)),
    ]
    return shards


def layer_layout(n):
    """The trunk tensors of layer n, then its experts."""
    text = text_config()
    c = Config({"text_config": text})
    prefix = f"{MODEL}layers.{n}."
    entries = [(name + ".weight", "BF16", (HIDDEN,)) for name in (
        "input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm")]
    entries += [(name + "_res_proj.weight", "BF16", (1, HIDDEN))
                for name in ("self_attention", "mlp")]
    entries += kda_layout(c) if n in c.kda_layers else mla_layout(c, text["q_lora_rank"])
    if n < c.dense_layers:
        entries += mlp_layout("mlp.", text["intermediate_size"])
    else:
        entries += moe_layout(text)
    return [(prefix + name, dtype, shape) for name, dtype, shape in entries]


def kda_layout(c):
    p, d, h = c.kda_heads * c.kda_width, c.kda_width, c.kda_heads
    entries = [(f"{x}_proj.weight", "BF16", (p, HIDDEN)) for x in "qkv"]
    entries += [(f"{x}_conv1d.weight", "F32", (p, 1, c.kernel)) for x in "qkv"]
    entries += [
        ("A_log", "F32", (d,)),
        ("dt_bias", "F32", (p,)),
        ("f_a_proj.weight", "BF16", (d, HIDDEN)),
        ("f_b_proj.weight", "BF16", (p, d)),
        ("b_proj.weight", "BF16", (h, HIDDEN)),
        ("g_proj.weight", "BF16", (p, HIDDEN)),
        ("o_norm.weight", "F32", (d,)),
        ("o_proj.weight", "BF16", (HIDDEN, p)),
    ]
    return [("self_attn." + name, dtype, shape) for name, dtype, shape in entries]


def mla_layout(c, q_lora):
    heads, v = c.mla_heads, c.v_width
    entries = [
        ("q_a_proj.weight", (q_lora, HIDDEN)),
        ("q_a_layernorm.weight", (q_lora,)),
        ("q_b_proj.weight", (heads * (c.nope + c.rope), q_lora)),
        ("kv_a_proj_with_mqa.weight", (c.kv_lora + c.rope, HIDDEN)),
        ("kv_a_layernorm.weight", (c.kv_lora,)),
        ("kv_b_proj.weight", (heads * (c.nope + v), c.kv_lora)),
        ("g_proj.weight", (heads * v, HIDDEN)),
        ("o_proj.weight", (HIDDEN, heads * v)),
    ]
    return [("self_attn." + name, "BF16", shape) for name, shape in entries]


def mlp_layout(prefix, inner):
    return [
        (prefix + "gate_proj.weight", "BF16", (inner, HIDDEN)),
        (prefix + "up_proj.weight", "BF16", (inner, HIDDEN)),
        (prefix + "down_proj.weight", "BF16", (HIDDEN, inner)),
    ]


def moe_layout(text):
    experts, inner = text["num_experts"], text["moe_intermediate_size"]
    latent = text["routed_expert_hidden_size"]
    entries = [
        ("gate.weight", "BF16", (experts, HIDDEN)),
        ("gate.e_score_correction_bias", "F32", (experts,)),
        ("routed_expert_down_proj.weight", "BF16", (latent, HIDDEN)),
        ("routed_expert_up_proj.weight", "BF16", (HIDDEN, latent)),
        ("routed_expert_norm.weight", "BF16", (latent,)),
    ] + mlp_layout("shared_experts.", inner * text["num_shared_experts"])
    for e in range(experts):
        for matrix, rows, columns in (
                ("w1", inner, latent), ("w2", latent, inner), ("w3", inner, latent)):
            stem = f"experts.{e}.{matrix}.weight"
            entries.append((stem + "_packed", "U8", (rows, columns // 2)))
            entries.append((stem + "_scale", "U8", (rows, columns // 32)))
    return [("block_sparse_moe." + name, dtype, shape) for name, dtype, shape in entries]


def tensor(rules, name, dtype, shape, seed=WEIGHT_SEED):
    """The stored array of one tensor."""
    count = int(np.prod(shape))
    if name.endswith("weight_packed"):
        return (draws(seed, name, count) >> np.uint64(56)).astype(np.uint8).reshape(shape)
    if name.endswith("weight_scale"):
        return scale_bytes(rules, seed, name, count).reshape(shape)
    values = float_values(rules, seed, name, shape)
    return values.astype("<f4") if dtype == "F32" else bfloat16_from_float64(values)


def scale_bytes(rules, seed, name, count):
    """Bytes first .. first + spread - 1; one draw in 256 is byte 0, the subnormal 2^-127."""
    first, spread = rules.scale_bytes[name.split(".")[-2]]
    value = first + below(seed, name, count, spread)
    zero = (draws(seed, name, count) & np.uint64(0xFF)) == 0
    return np.where(zero, 0, value).astype(np.uint8)


def float_values(rules, seed, name, shape):
    """float64 values before the rounding to BF16 or F32."""
    count = int(np.prod(shape))
    unit = bell(seed, name, count).reshape(shape) / BELL_DEVIATION
    key = name.removesuffix(".weight").split(".")[-1]
    parent = name.removesuffix(".weight").split(".")[-2] if "." in name else ""
    if key.endswith("norm"):
        special = {"post_attention_layernorm": rules.post_attention_norm,
                   "q_a_layernorm": rules.query_norm, "kv_a_layernorm": rules.latent_norm,
                   "o_norm": rules.kda_output_norm, "routed_expert_norm": rules.routed_norm}
        centre, deviation = special.get(key, rules.norm)
        return centre + deviation * unit
    if key in ("q_conv1d", "k_conv1d", "v_conv1d"):
        heads = rules.v_head_scale if key[0] == "v" else rules.qk_head_scale
        per_channel = np.repeat(np.array(heads), shape[0] // len(heads))
        return rules.tap * unit * per_channel[:, None, None]
    if key == "A_log":
        heads = np.array(rules.rate_log)
        values = np.zeros(shape)
        values[:len(heads)] = heads + 0.1 * unit[:len(heads)]
        return values
    if key == "dt_bias":
        low, high = rules.dt_bias
        values = low + (high - low) * below(seed, name, count, 65536) / 65536.0
        values[-1] = FROZEN_DT_BIAS
        return values
    if layer_of(name) in rules.lifted_layers and key == "e_score_correction_bias":
        first, second = two_experts(seed, name, count)
        values = -rules.lift + 0.02 * unit
        values[[first, second]] += 2.0 * rules.lift
        return values
    if key == "kv_a_proj_with_mqa":
        latent = text_config()["kv_lora_rank"]
        rows = np.where(np.arange(shape[0]) < latent, rules.kv_a_latent, rules.kv_a_rope)
        return unit * rows[:, None]
    return unit * plain_scale(rules, name, parent, key)


def layer_of(name):
    """The layer index in a tensor's name, or None."""
    return int(name.split(".layers.")[1].split(".")[0]) if ".layers." in name else None


def two_experts(seed, name, experts):
    """Two different experts, drawn."""
    first, step = below(seed, name + "/lifted", 2, experts)
    return first, (first + 1 + step % (experts - 1)) % experts


def plain_scale(rules, name, parent, key):
    """The deviation of a tensor whose entries are all alike."""
    if parent in ("mlp", "shared_experts"):
        kind = "dense" if parent == "mlp" else "shared"
        return getattr(rules, f"{kind}_{key.removesuffix('_proj')}")
    kda = ".self_attn." in name and layer_of(name) + 1 not in MLA_LAYERS_ONE_BASED
    scales = {
        "embed_tokens": rules.embedding, "lm_head": rules.head,
        "self_attention_res_proj": rules.mix_projection, "mlp_res_proj": rules.mix_projection,
        "output_attn_res_proj": rules.mix_projection,
        "q_proj": rules.kda_projection, "k_proj": rules.kda_projection,
        "v_proj": rules.kda_projection, "f_a_proj": rules.kda_projection,
        "b_proj": rules.kda_projection, "f_b_proj": rules.f_b, "g_proj": rules.gate,
        "o_proj": rules.output_kda if kda else rules.output_mla,
        "q_a_proj": rules.q_a, "q_b_proj": rules.q_b, "kv_b_proj": rules.kv_b,
        "gate": rules.router, "e_score_correction_bias": rules.bias,
        "routed_expert_down_proj": rules.latent_down, "routed_expert_up_proj": rules.latent_up,
    }
    vision = name.startswith(("vision_tower.", "mm_projector."))
    return 0.1 if vision else scales[key]


def prompt(seed, name, count):
    """Ordinary ids: never one of the special ids 0..3."""
    return [FIRST_ORDINARY_ID + int(x)
            for x in below(seed, name, count, VOCABULARY - FIRST_ORDINARY_ID)]


# Chosen by `search.py`: seeds and draws whose margins pass the limits in `generate.py`.
TINY_PROMPT_SEED = 104
PROMPT_IDS, GREEDY_IDS, LONG_IDS = 12, 20, 200
# Twin -> its rules and, for each position of its prompt, how many draws were passed over.
TWINS = {
    "mild": (MILD, {2: 1, 6: 2, 8: 1, 10: 10, 11: 40}),
    "faint": (FAINT, {0: 1, 1: 2, 2: 1, 6: 1, 7: 1, 10: 30, 11: 412}),
}
LONG_PASSED_OVER = {
    2: 2, 25: 1, 36: 1, 39: 1, 50: 2, 52: 1, 53: 1, 74: 2, 102: 1, 134: 1, 144: 1, 145: 1, 147: 1,
    148: 1, 152: 1, 153: 1, 155: 1, 165: 1, 176: 1, 179: 1,
}


def drawn_id(name, position, passed_over):
    """The id at one position: each position has a stream, and takes its first draw not passed."""
    return prompt(WEIGHT_SEED, f"{name}/{position}", passed_over + 1)[-1]


def long_ids(passed_over=None):
    skipped = LONG_PASSED_OVER if passed_over is None else passed_over
    return [drawn_id("long", p, skipped.get(p, 0)) for p in range(LONG_IDS)]


def tiny_prompt():
    return prompt(TINY_PROMPT_SEED, "tiny prompt", PROMPT_IDS)


def twin_prompt(name, passed_over=None):
    skipped = TWINS[name][1] if passed_over is None else passed_over
    return [drawn_id(name, p, skipped.get(p, 0)) for p in range(PROMPT_IDS)]
