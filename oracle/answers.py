"""The answers of one evidence set, from a checkpoint folder: ids, logits, margins, stages."""

import hashlib

import numpy as np

from k3 import Model, load_model
from rounded import Rounded, to_bfloat16, to_float32

STAGES_OF_A_LAYER = (
    "attn_mix", "attn_norm", "kda.q", "kda.k", "kda.v", "kda.z", "kda.g", "kda.beta", "kda.o",
    "kda.state", "kda.conv", "mla.q", "mla.latent", "mla.k_rope", "mla.o", "attn_out", "mlp_mix",
    "mlp_norm", "router_scores", "router_ids", "router_weights", "moe.latent", "moe.sum",
    "moe.shared", "mlp_out", "out",
)


class Counting(Model):
    """Counts how often SiTU works beyond its caps."""

    def situ(self, gate, up):
        c = self.config
        beyond = (np.abs(gate) > c.beta).sum(), (np.abs(up) > c.linear_beta).sum()
        self.counts += [gate.size, *beyond]
        return super().situ(gate, up)


def greedy(model, prompt_ids, count, refuse=None):
    """`count` ids by full recomputation; None as soon as `refuse(logits row)` holds."""
    ids = list(prompt_ids)
    for _ in range(count):
        last = model.forward(ids)[-1]
        if refuse and refuse(last):
            return None
        ids.append(int(last.argmax()))
    return ids[len(prompt_ids):]


def moe_stack(model, name):
    layers = range(model.config.dense_layers, model.config.layers)
    return np.stack([model.stages[f"layers.{n}.{name}"] for n in layers])


def router_gaps(model):
    """[MoE layers, T]: the k-th minus the (k+1)-th largest score + bias."""
    k = model.config.top_k
    biases = [model.weights[f"model.layers.{n}.block_sparse_moe.gate.e_score_correction_bias"]
              for n in range(model.config.dense_layers, model.config.layers)]
    ranked = np.sort(moe_stack(model, "router_scores") + np.stack(biases)[:, None], axis=-1)
    return ranked[..., -k] - ranked[..., -k - 1]


def bias_decides(model):
    """[MoE layers, T]: whether the bias changes the chosen set."""
    scores, ids = moe_stack(model, "router_scores"), moe_stack(model, "router_ids")
    flat = scores.reshape(-1, scores.shape[-1])
    plain = model.select(flat, 0.0).reshape(ids.shape)
    return (plain != ids).any(axis=-1)


def top_gaps(logits):
    """[T]: the largest minus the second largest logit."""
    ranked = np.sort(logits, axis=1)
    return ranked[:, -1] - ranked[:, -2]


def margins(model, sequences):
    """Over all rows of all sequences; what a decision between two implementations hangs on."""
    counting = Counting(model.config, model.weights)
    counting.counts = np.zeros(3)
    routers, tops, decided, logits = [], [], [], []
    for ids in sequences:
        logits.append(counting.forward(ids))
        routers.append(router_gaps(counting).min())
        tops.append(top_gaps(logits[-1]).min())
        decided.append(bias_decides(counting))
    every = np.concatenate(logits)
    total, gates, ups = counting.counts
    return {
        "min_router_gap": float(min(routers)),
        "min_top1_top2_gap": float(min(tops)),
        "logit_std": float(every.std()),
        "logit_absmax": float(np.abs(every).max()),
        "rows_where_the_bias_changes_the_selection": float(
            np.concatenate(decided, axis=1).mean()),
        "situ_inputs_with_gate_beyond_beta": float(gates / total),
        "situ_inputs_with_up_beyond_linear_beta": float(ups / total),
    }


def noise(model, ids):
    """What rounding every stored activation does to the logits."""
    logits = model.forward(ids)
    result = {}
    for name, rounding in (("f32", to_float32), ("bf16", to_bfloat16)):
        other = Rounded(model.config, model.weights, rounding)
        rounded = other.forward(ids)
        same = (moe_stack(other, "router_ids") == moe_stack(model, "router_ids")).all(axis=-1)
        result[name] = {
            "max_abs_vs_f64": float(np.abs(rounded - logits).max()),
            "argmax_agree": float((rounded.argmax(1) == logits.argmax(1)).mean()),
            "router_rows_agree": float(same.mean()),
        }
    return result


def stage_tensors(model, ids):
    """{name: (dtype, array)} of the pass over `ids`, in the order of execution."""
    model.forward(ids)
    names = ["embed"]
    for n in range(model.config.layers):
        names += [f"layers.{n}.{stage}" for stage in STAGES_OF_A_LAYER]
    names += ["final_mix", "final_norm"]
    missing = set(model.stages) - set(names)
    if missing:
        raise ValueError(f"stage without a place in the order: {sorted(missing)[0]}")
    return {name: ("I32" if name.endswith("router_ids") else "F64", model.stages[name])
            for name in names if name in model.stages}


def teacher_forcing(model, ids, prefix=""):
    """Logits and router choices over the whole sequence; the model keeps its stages."""
    logits = model.forward(ids)
    tensors = {
        prefix + "logits.f64": ("F64", logits),
        prefix + "router_ids.f64": ("I32", moe_stack(model, "router_ids")),
        prefix + "router_weights.f64": ("F64", moe_stack(model, "router_weights")),
    }
    return logits, tensors


def wrong_mla_epsilon(folder, ids, epsilon):
    return load_model(folder, epsilon).forward(ids)


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()
