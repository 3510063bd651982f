"""One layer of a checkpoint by mlx-lm's `kimi_k3`, every stage written down for `layers`.

    python tools/mlx_layer_dump.py MODEL LAYER OUT.safetensors [--precision bf16]
    k3-verify layers LAYER --model MODEL --engine-dump OUT.safetensors

mlx-lm's own decoder layer runs on drawn input (a running sum and banks), as one prefill and then
token by token with its cache. What passes between its parts is caught on the way; only what it
keeps to itself is computed here by mlx's operations from what it was given: the logistic of beta
and of the router, the log decay. Only the shards that hold the layer are read. `--fault` plants a
mistake, to see it found. Needs the packages of oracle/requirements-mlx.txt.
"""

import argparse
import json
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.models import kimi_k3
from mlx_lm.models.base import create_attention_mask
from mlx_lm.utils import load_model

DTYPES = {"f32": mx.float32, "bf16": mx.bfloat16}
FAULTS = ("mla-eps", "router-bias", "residual-eps", "swap-experts")


class Record:
    """Stages of the layer: rows of later calls are appended, states replaced."""

    def __init__(self, layer):
        self.prefix, self.tensors, self.rows = f"layers.{layer}.", {}, 0

    def put(self, name, value, width=()):
        """A value [1, T, ...] or [T, ...] as [T, *width]; `rows` is T."""
        value = value.reshape(self.rows, *(width or (-1,)))
        name = self.prefix + name
        before = self.tensors.get(name)
        value = value if before is None else mx.concatenate([before, value])
        mx.eval(value)
        self.tensors[name] = value

    def state(self, name, value):
        self.tensors[self.prefix + name] = value


class Tap:
    """A part of the layer that is watched: its first input and its output."""

    def __init__(self, part, seen):
        self.part, self.seen = part, seen

    def __call__(self, x, *rest, **named):
        out = self.part(x, *rest, **named)
        self.seen(x, out)
        return out

    def __getattr__(self, name):
        return getattr(self.part, name)


def open_layer(folder, number, precision):
    """The layer with its weights, out of the shards that hold it."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    prefix = f"language_model.model.layers.{number}."
    shards = {shard for name, shard in index.items() if name.startswith(prefix)}
    if not shards:
        raise SystemExit(f"error: {folder} has no layer {number}")
    with tempfile.TemporaryDirectory() as part:
        (Path(part) / "config.json").write_bytes((folder / "config.json").read_bytes())
        for shard in shards:
            (Path(part) / shard).symlink_to((folder / shard).resolve())
        model, config = load_model(Path(part), lazy=True, strict=False)
        layer = model.layers[number]
        if precision == "f32":
            layer.set_dtype(mx.float32)
        else:  # the F32 taps and norms would turn every activation behind them into F32
            for name, module in layer.named_modules():
                if name.endswith(("conv", "conv1d", "norm")):
                    module.set_dtype(mx.bfloat16)
        mx.eval(layer.parameters())
    return layer, config["text_config"]


def plant(fault, layer):
    """A mistake of the kind that engines make."""
    attention, mlp = layer.self_attn, layer.mlp
    if fault == "mla-eps":
        attention.q_a_layernorm.eps = attention.kv_a_layernorm.eps = 1e-5
    elif fault == "router-bias":
        mlp.e_score_correction_bias = mx.zeros_like(mlp.e_score_correction_bias)
    elif fault == "residual-eps":
        layer.eps = 1e-2
    elif fault == "swap-experts":
        experts = mlp.switch_mlp
        experts.gate_proj, experts.up_proj = experts.up_proj, experts.gate_proj


def watch_kda(layer, record, text):
    attention, linear = layer.self_attn, text["linear_attn_config"]
    heads = (attention.num_heads, attention.head_dim)
    update = kimi_k3.gated_delta_update

    def watched(q, k, v, a, b, a_log, dt_bias, lower_bound=None, **rest):
        out, state = update(q, k, v, a, b, a_log, dt_bias, lower_bound=lower_bound, **rest)
        rate = mx.exp(a_log.astype(mx.float32))
        log_decay = lower_bound * mx.sigmoid(rate * (a.astype(mx.float32) + dt_bias))
        named = {"q": q, "k": k, "v": v, "z": a, "g": log_decay, "o": out}
        for name, value in named.items():
            record.put(f"kda.{name}", value, heads)
        record.put("kda.beta", mx.sigmoid(b))
        record.state("kda.state", state[0].swapaxes(-1, -2))  # ours has key rows
        return out, state

    kimi_k3.gated_delta_update = watched

    def after(cache):
        inputs = cache[0][0].reshape(linear["short_conv_kernel_size"] - 1, 3, -1)
        record.state("kda.conv", inputs.swapaxes(0, 1))

    return after


def watch_mla(layer, record, text):
    attention = layer.self_attn
    latent = text["kv_lora_rank"]
    query = (attention.num_heads, attention.q_head_dim)
    value = (attention.num_heads, attention.v_head_dim)

    def keys(_, out):
        record.put("mla.k_rope", out[..., latent:])

    def attended(out):
        record.put("mla.o", out.transpose(0, 2, 1, 3), value)

    def expanded(*arguments, **named):
        out = attend(*arguments, **named)
        if record.rows > 1:
            attended(out)
        return out

    def absorbed(_, out):
        if record.rows == 1:
            attended(out)

    attend, kimi_k3.scaled_dot_product_attention = (
        kimi_k3.scaled_dot_product_attention,
        expanded,
    )
    attention.q_b_proj = Tap(attention.q_b_proj, lambda _, out: record.put("mla.q", out, query))
    attention.kv_a_proj_with_mqa = Tap(attention.kv_a_proj_with_mqa, keys)
    normed = lambda _, out: record.put("mla.latent", out)  # noqa: E731
    attention.kv_a_layernorm = Tap(attention.kv_a_layernorm, normed)
    attention.unembed_out = Tap(attention.unembed_out, absorbed)
    return lambda cache: None


def watch_moe(mlp, record):
    select = kimi_k3._group_expert_select

    def watched(gates, *rest):
        ids, weights = select(gates, *rest)
        order = mx.argsort(ids, axis=-1)
        ordered = mx.take_along_axis(ids, order, axis=-1)
        record.put("router_scores", mx.sigmoid(gates.astype(mx.float32)))
        record.put("router_ids", ordered.astype(mx.int32))
        record.put("router_weights", mx.take_along_axis(weights, order, axis=-1))
        return ids, weights

    kimi_k3._group_expert_select = watched
    put = record.put
    mlp.routed_expert_down_proj = Tap(
        mlp.routed_expert_down_proj, lambda _, out: put("moe.latent", out)
    )
    mlp.routed_expert_norm = Tap(mlp.routed_expert_norm, lambda x, _: put("moe.sum", x))
    mlp.shared_experts = Tap(mlp.shared_experts, lambda _, out: put("moe.shared", out))


def watch(layer, record, text):
    """Puts taps on the layer; gives what is to be read of the cache at the end."""

    def around(name):
        def seen(x, out):
            record.put(f"{name}_mix", x)
            record.put(f"{name}_norm", out)

        return seen

    if layer.is_linear:
        after = watch_kda(layer, record, text)
    else:
        after = watch_mla(layer, record, text)
    if isinstance(layer.mlp, kimi_k3.KimiK3SparseMoE):
        watch_moe(layer.mlp, record)
    layer.input_layernorm = Tap(layer.input_layernorm, around("attn"))
    layer.post_attention_layernorm = Tap(layer.post_attention_layernorm, around("mlp"))
    layer.self_attn = Tap(layer.self_attn, lambda _, out: record.put("attn_out", out))
    layer.mlp = Tap(layer.mlp, lambda _, out: record.put("mlp_out", out))
    return after


def sum_name(layer):
    """The stage that is the running sum before a layer."""
    return f"layers.{layer - 1}.out" if layer else "embed"


def draw_input(arguments, text, dtype):
    """The running sum before the layer and before every layer that opened a block [T, E]."""
    draws = np.random.default_rng(arguments.seed)
    layers, rows = text["num_hidden_layers"], arguments.prefill + arguments.singles
    opened = list(range(0, arguments.layer, text["attn_res_block_size"]))
    drawn = {}
    for layer in [*opened, arguments.layer]:
        size = 0.05 * 2000 ** (layer / max(layers - 1, 1))  # |h| from 0.1 to above 100
        values = draws.standard_normal((rows, text["hidden_size"])) * size
        drawn[layer] = mx.array(values.astype(np.float32)).astype(dtype)
    return drawn, opened


def run(arguments):
    mx.set_default_device(mx.cpu)
    layer, text = open_layer(arguments.model, arguments.layer, arguments.precision)
    plant(arguments.fault, layer)
    record = Record(arguments.layer)
    drawn, opened = draw_input(arguments, text, DTYPES[arguments.precision])
    is_linear = layer.is_linear
    after = watch(layer, record, text)
    cache = kimi_k3.ArraysCache(size=2) if is_linear else kimi_k3.KVCache()
    first = 0
    for record.rows in [arguments.prefill] + [1] * arguments.singles:
        call = slice(first, first + record.rows)
        blocks = kimi_k3.ResidualBlocks(layer.eps)
        for bank in opened:
            blocks.append(drawn[bank][None, call])
        x = drawn[arguments.layer][None, call]
        mask = None if is_linear else create_attention_mask(x, cache, return_array=True)
        out, _ = layer(x, mask, cache, blocks)
        record.put("out", out)
        first = call.stop
    after(cache)
    tensors = {sum_name(at): rows for at, rows in drawn.items()}
    partial = arguments.out.with_name(arguments.out.name + ".partial.safetensors")
    mx.save_safetensors(str(partial), {**tensors, **record.tensors})
    partial.rename(arguments.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("layer", type=int)
    parser.add_argument("out", type=Path)
    parser.add_argument("--precision", choices=DTYPES, default="f32")
    parser.add_argument("--prefill", type=int, default=8)
    parser.add_argument("--singles", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", choices=FAULTS)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
