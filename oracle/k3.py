"""Kimi K3's forward pass in float64: one teacher-forced pass over T tokens.

Shapes: T tokens, E hidden width; in KDA H heads of width D, P = H*D; L latent width, I expert
inner width. Matrices are kept transposed, [in, out]. Every sum runs over a rising index with one
accumulator per output, so results depend on the CPU only through `exp` and `tanh`.

Each step is a method of its own: `sensitivity.py` overrides them one at a time to build the wrong
implementations that the answers have to expose. Ids such as K7 name the clause of
`src/MODEL.md` that a step implements.
"""

import numpy as np

from tensor_files import (
    float64_from_bfloat16, float64_from_mxfp4, read_checkpoint,
)

MLA_LOW_RANK_EPSILON = 1e-6
L2_NORM_EPSILON = 1e-6
RENORMALISATION_EPSILON = 1e-20
PREFIX = "language_model."
LAYER_PREFIX = PREFIX + "model.layers."


def product(x, w):
    """x [..., n] with w [..., n, m] -> [..., m], summed over n in rising order.

    The leading axes broadcast: [n, m] serves every row, [heads, 1, n, m] every row of a head.
    """
    total = x[..., 0, None] * w[..., 0, :]
    for i in range(1, x.shape[-1]):
        total += x[..., i, None] * w[..., i, :]
    return total


def sum_in_order(x, axis=-1):
    """Sum over one axis in rising order (an accumulation, never pairwise)."""
    return np.add.accumulate(x, axis=axis).take(-1, axis=axis)


def sigmoid(x):
    """The logistic function, without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


def silu(x):
    return x * sigmoid(x)


def softmax(scores):
    """Over the last axis; minus infinity marks what is masked."""
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / sum_in_order(e)[..., None]


class Config:
    """The values of `text_config` under the names that the forward pass uses."""

    def __init__(self, root):
        text = root["text_config"]
        linear = text["linear_attn_config"]
        self.layers = text["num_hidden_layers"]
        self.kda_heads, self.kda_width = linear["num_heads"], linear["head_dim"]
        self.kernel = linear["short_conv_kernel_size"]
        self.lower_bound = linear["gate_lower_bound"]
        self.kda_layers = {one_based - 1 for one_based in linear["kda_layers"]}
        self.mla_layers = {one_based - 1 for one_based in linear["full_attn_layers"]}
        self.mla_heads = text["num_attention_heads"]
        self.kv_lora = text["kv_lora_rank"]
        self.nope, self.rope = text["qk_nope_head_dim"], text["qk_rope_head_dim"]
        self.v_width = text["v_head_dim"]
        self.block = text["attn_res_block_size"]
        self.dense_layers = text["first_k_dense_replace"]
        self.experts, self.top_k = text["num_experts"], text["num_experts_per_token"]
        self.renormalise = text["moe_renormalize"]
        self.scaling = text["routed_scaling_factor"]
        self.rms_epsilon = text["rms_norm_eps"]
        self.beta = text["activation_situ_beta"]
        self.linear_beta = text["activation_situ_linear_beta"]
        if self.kda_layers & self.mla_layers or (
                self.kda_layers | self.mla_layers != set(range(self.layers))):
            raise ValueError("kda_layers and full_attn_layers are not a partition of the layers")


class Weights:
    """Every tensor in float64: matrices transposed, expert matrices stacked over the experts."""

    def __init__(self, tensors, config, decode_mxfp4=float64_from_mxfp4):
        self.by_name = {}
        self.experts = {}
        packed = {}
        for name, (dtype, array) in tensors.items():
            if not name.startswith(PREFIX):
                continue
            if dtype == "U8":
                packed[name] = array
                continue
            value = float64_from_bfloat16(array) if dtype == "BF16" else array.astype(np.float64)
            if value.ndim == 2:
                value = np.ascontiguousarray(value.T)
            self.by_name[name.removeprefix(PREFIX)] = value
        for n in range(config.dense_layers, config.layers):
            stem = f"{LAYER_PREFIX}{n}.block_sparse_moe.experts"
            for matrix in ("w1", "w2", "w3"):
                names = [f"{stem}.{e}.{matrix}.weight" for e in range(config.experts)]
                decoded = [decode_mxfp4(packed[name + "_packed"], packed[name + "_scale"])
                           for name in names]
                self.experts[n, matrix] = np.ascontiguousarray(np.stack(decoded).swapaxes(1, 2))

    def __getitem__(self, name):
        return self.by_name[name]


class Model:
    """One checkpoint and its forward pass. `epsilon` names every norm by its place."""

    def __init__(self, config, weights, mla_norm_epsilon=MLA_LOW_RANK_EPSILON):
        self.config, self.weights = config, weights
        sites = ("input", "post_attention", "final", "attention_mix", "mlp_mix", "output_mix",
                 "o_norm", "latent_norm")
        self.epsilon = {site: config.rms_epsilon for site in sites}                        # N2
        self.epsilon.update(q_a=mla_norm_epsilon, kv_a=mla_norm_epsilon)                   # N3
        self.epsilon.update(l2_q=L2_NORM_EPSILON, l2_k=L2_NORM_EPSILON)                    # K3
        self.stages = {}

    def keep(self, name, value):
        """Records a stage tensor."""
        self.stages[name] = value

    def forward(self, ids):
        """ids [T] -> logits [T, vocabulary]; the stage tensors are left in `self.stages`."""
        self.stages = {}
        s = self.weights["model.embed_tokens.weight"][:, np.asarray(ids)].T.copy()         # L3
        self.keep("embed", s)
        banks = []
        for n in range(self.config.layers):
            s = self.decoder_layer(n, s, banks)
            self.keep(f"layers.{n}.out", s)
        h = self.mix(banks, s, "model.output_attn_res", "output_mix")                      # R7
        self.keep("final_mix", h)
        h = self.rms_norm(h, self.weights["model.norm.weight"], "final")
        self.keep("final_norm", h)
        return self.linear("lm_head", h)

    def decoder_layer(self, n, s, banks):
        """The running sum after layer n; pushes onto `banks` where a block begins."""
        layer, stage = f"model.layers.{n}.", f"layers.{n}."
        h = self.attention_mix(n, banks, s)                                                # R4
        self.keep(stage + "attn_mix", h)
        cleared = n % self.config.block == 0
        if cleared:
            banks.append(s)                                                                # R5
        x = self.rms_norm(h, self.weights[layer + "input_layernorm.weight"], "input")
        self.keep(stage + "attn_norm", x)
        a = self.kda(n, x) if self.is_kda(n) else self.mla(n, x)                           # L1
        self.keep(stage + "attn_out", a)
        s = a if cleared else s + a                                                        # R6
        h = self.mix(banks, s, layer + "mlp_res", "mlp_mix")                               # R7
        self.keep(stage + "mlp_mix", h)
        x = self.rms_norm(
            h, self.weights[layer + "post_attention_layernorm.weight"], "post_attention")
        self.keep(stage + "mlp_norm", x)
        m = self.dense_mlp(layer + "mlp", x) if self.is_dense(n) else self.latent_moe(n, x, h)
        self.keep(stage + "mlp_out", m)
        return s + m

    def is_kda(self, n):
        return n in self.config.kda_layers

    def is_dense(self, n):
        return n < self.config.dense_layers                                                # L2

    # Norms, projections, residual mixes

    def linear(self, name, x):
        return product(x, self.weights[name + ".weight"])

    def rms_norm(self, x, w, site):
        mean_square = sum_in_order(x * x) / x.shape[-1]
        return x / np.sqrt(mean_square + self.epsilon[site])[..., None] * w                # N1

    def attention_mix(self, n, banks, s):
        if not banks:
            return s
        return self.mix(banks, s, f"model.layers.{n}.self_attention_res", "attention_mix")

    def mix(self, banks, s, name, site):
        """Softmax over the banks and the running sum; keys normed, values raw."""
        folded = self.weights[name + "_norm.weight"] * self.weights[name + "_proj.weight"][:, 0]
        sources = np.stack(banks + [s])                                                    # R1
        keys = self.mix_keys(sources, site)
        p = softmax(sum_in_order(keys * folded).T)                                         # R3
        total = p[:, 0, None] * sources[0]                                                 # R2
        for m in range(1, len(sources)):
            total += p[:, m, None] * sources[m]
        return total

    def mix_keys(self, sources, site):
        return self.rms_norm(sources, 1.0, site)

    # KDA

    def kda(self, n, x):
        attention, stage = f"model.layers.{n}.self_attn.", f"layers.{n}.kda."
        q, k, v = (self.heads(y) for y in self.kda_projections(n, x))
        q, k, v = self.kda_normed(q, k, v)
        beta = sigmoid(self.linear(attention + "b_proj", x))                               # K5
        z = self.linear(attention + "f_b_proj", self.linear(attention + "f_a_proj", x))    # K6
        g = self.kda_log_decay(attention, z)
        o = self.kda_recurrence(n, q, k, v, np.exp(g), beta)
        for name, value in (("q", q), ("k", k), ("v", v), ("z", self.heads(z)), ("g", g),
                            ("beta", beta), ("o", o)):
            self.keep(stage + name, value)
        return self.linear(attention + "o_proj", self.kda_gated(attention, o, x))

    def heads(self, y):
        return y.reshape(len(y), self.config.kda_heads, self.config.kda_width)

    def kda_projections(self, n, x):
        """q, k, v [T, P] after convolution and SiLU."""
        attention = f"model.layers.{n}.self_attn."
        inputs = [self.linear(f"{attention}{name}_proj", x) for name in "qkv"]
        history = np.zeros((self.config.kernel - 1, inputs[0].shape[1]))
        last = [np.concatenate([history, y])[-len(history):] for y in inputs]
        self.keep(f"layers.{n}.kda.conv", np.stack(last))                                  # K13
        taps = [self.weights[f"{attention}{name}_conv1d.weight"][:, 0] for name in "qkv"]
        return [self.kda_activation(self.convolve(y, w)) for y, w in zip(inputs, taps)]    # K2

    def kda_activation(self, y):
        return silu(y)

    def convolve(self, y, taps):
        """Causal and depthwise: y [T, P], taps [P, kernel] from the oldest to the newest."""
        kernel = taps.shape[1]
        padded = np.concatenate([np.zeros((kernel - 1, y.shape[1])), y])
        total = padded[:len(y)] * taps[:, 0]
        for j in range(1, kernel):
            total += padded[j:j + len(y)] * taps[:, j]                                     # K1
        return total

    def kda_normed(self, q, k, v):
        q = self.l2_norm(q, "l2_q") / np.sqrt(self.config.kda_width)                       # K4
        return q, self.l2_norm(k, "l2_k"), v                                               # K3

    def l2_norm(self, t, site):
        return t / np.sqrt(sum_in_order(t * t) + self.epsilon[site])[..., None]

    def kda_log_decay(self, attention, z):
        """g [T, H, D] between the lower bound and 0."""
        c = self.config
        stored = self.weights[attention + "A_log"]
        if np.any(stored[c.kda_heads:] != 0):
            raise ValueError(f"{attention}A_log: the padding is not zero")                 # K8
        rate = np.exp(stored[:c.kda_heads])[:, None]
        return c.lower_bound * sigmoid(                                                    # K7
            rate * self.heads(z + self.weights[attention + "dt_bias"]))

    def kda_recurrence(self, n, q, k, v, alpha, beta):
        c = self.config
        state = np.zeros((c.kda_heads, c.kda_width, c.kda_width))
        o = np.empty_like(v)
        for t in range(len(v)):
            o[t] = self.kda_step(state, q[t], k[t], v[t], alpha[t], beta[t][:, None])
        self.keep(f"layers.{n}.kda.state", state)
        return o

    def kda_step(self, state, q, k, v, alpha, beta):
        """Changes state [H, D_k, D_v] in place and returns o [H, D_v]."""
        state *= alpha[..., None]                                                          # K9
        u = product(k, state)
        state += k[..., None] * (beta * (v - u))[..., None, :]                             # K10
        return product(q, state)                                                           # K11

    def kda_gated(self, attention, o, x):
        gate = sigmoid(self.linear(attention + "g_proj", x))                               # K12
        return self.rms_norm(o, self.weights[attention + "o_norm.weight"], "o_norm").reshape(
            len(x), -1) * gate

    # Gated MLA without positions

    def mla(self, n, x):
        attention, stage = f"model.layers.{n}.self_attn.", f"layers.{n}.mla."
        q = self.mla_queries(attention, x)
        latent, k_rope = self.mla_cached(attention, x)
        k_nope, v = self.mla_expanded(attention, latent)
        o = self.mla_attention(q, k_nope, k_rope, v)
        for name, value in (("q", q), ("latent", latent), ("k_rope", k_rope), ("o", o)):
            self.keep(stage + name, value)
        return self.linear(attention + "o_proj", self.mla_gated(attention, o, x))

    def mla_queries(self, attention, x):
        """[T, heads, nope + rope]."""
        low_rank = self.rms_norm(self.linear(attention + "q_a_proj", x),
                                 self.weights[attention + "q_a_layernorm.weight"], "q_a")
        q = self.linear(attention + "q_b_proj", low_rank)                                  # M1
        return q.reshape(len(x), self.config.mla_heads, -1)

    def mla_cached(self, attention, x):
        """What a cache holds: the normed latent [T, kv_lora] and the raw rope part [T, rope]."""
        c = self.linear(attention + "kv_a_proj_with_mqa", x)
        w = self.weights[attention + "kv_a_layernorm.weight"]
        split = self.config.kv_lora
        return self.rms_norm(c[:, :split], w, "kv_a"), c[:, split:].copy()                 # M2 M3

    def mla_expanded(self, attention, latent):
        """Keys [T, heads, nope] and values [T, heads, v] from the latent."""
        kv = self.linear(attention + "kv_b_proj", latent).reshape(
            len(latent), self.config.mla_heads, -1)                                        # M6
        return kv[..., :self.config.nope], kv[..., self.config.nope:]

    def mla_attention(self, q, k_nope, k_rope, v):
        shared = np.broadcast_to(k_rope[:, None], k_nope.shape[:2] + k_rope.shape[1:])
        k = np.concatenate([k_nope, shared], axis=-1)
        per_head = k.transpose(1, 2, 0)[:, None]
        scores = product(q.swapaxes(0, 1), per_head) * self.mla_scale()
        p = softmax(self.mask(scores))                                                     # M5
        return product(p, v.swapaxes(0, 1)[:, None]).swapaxes(0, 1)

    def mla_scale(self):
        return 1.0 / np.sqrt(self.config.nope + self.config.rope)                          # M4

    def mask(self, scores):
        """scores [heads, T, T]: a position sees itself and what came before."""
        rows = np.arange(scores.shape[1])
        return np.where(rows[:, None] >= rows, scores, -np.inf)

    def mla_gated(self, attention, o, x):
        return o.reshape(len(x), -1) * sigmoid(self.linear(attention + "g_proj", x))       # M7

    # MLP

    def dense_mlp(self, name, x):
        gate, up = self.linear(name + ".gate_proj", x), self.linear(name + ".up_proj", x)
        return self.linear(name + ".down_proj", self.situ(gate, up))

    def situ(self, gate, up):
        c = self.config
        capped_gate = c.beta * np.tanh(gate / c.beta)                                      # S2
        capped_up = c.linear_beta * np.tanh(up / c.linear_beta)
        return capped_gate * sigmoid(gate) * capped_up                                     # S1

    def latent_moe(self, n, x, h):
        """x is the normed input; h, the mix before the norm, is there for wrong variants only."""
        moe, stage = f"model.layers.{n}.block_sparse_moe.", f"layers.{n}."
        ids, weights = self.router(n, self.router_input(x, h))
        z = self.linear(moe + "routed_expert_down_proj", x)                                # E6
        self.keep(stage + "moe.latent", z)
        y = self.weighted_sum(self.expert_outputs(n, z, ids), weights)
        self.keep(stage + "moe.sum", y)
        routed = self.routed_output(moe, y)
        shared = self.dense_mlp(moe + "shared_experts", x)                                 # E10
        self.keep(stage + "moe.shared", shared)
        return routed + shared

    def router_input(self, x, h):
        return x                                                                           # E1

    def router(self, n, x):
        """Chosen experts [T, k], ascending, and their final weights in the same order."""
        gate, stage = f"model.layers.{n}.block_sparse_moe.gate", f"layers.{n}."
        scores = sigmoid(self.linear(gate, x))
        bias = self.weights[gate + ".e_score_correction_bias"]
        ids = self.select(scores, bias)
        weights = self.router_weights(scores, bias, ids)
        self.keep(stage + "router_scores", scores)
        self.keep(stage + "router_ids", ids)
        self.keep(stage + "router_weights", weights)
        return ids, weights

    def select(self, scores, bias):
        order = np.argsort(-(scores + bias), axis=1, kind="stable")                        # E2
        return np.sort(order[:, :self.config.top_k], axis=1)

    def router_weights(self, scores, bias, ids):
        chosen = np.take_along_axis(scores, ids, axis=1)                                   # E3
        if self.config.top_k > 1 and self.config.renormalise:
            chosen = chosen / (sum_in_order(chosen) + RENORMALISATION_EPSILON)[:, None]    # E4
        return chosen * self.config.scaling                                                # E5

    def expert_outputs(self, n, z, ids):
        """[T, k, L]: every chosen expert on the latent vector, unweighted."""
        w1, w2, w3 = (self.weights.experts[n, matrix][ids] for matrix in ("w1", "w2", "w3"))
        each = z[:, None, :]
        return product(self.situ(product(each, w1), product(each, w3)), w2)                # E7

    def weighted_sum(self, outputs, weights):
        total = weights[:, 0, None] * outputs[:, 0]
        for j in range(1, outputs.shape[1]):
            total += weights[:, j, None] * outputs[:, j]
        return total

    def routed_output(self, moe, y):
        y = self.rms_norm(y, self.weights[moe + "routed_expert_norm.weight"], "latent_norm")
        return self.linear(moe + "routed_expert_up_proj", y)                               # E8 E9


def load_model(folder, mla_norm_epsilon=MLA_LOW_RANK_EPSILON):
    """The model of a checkpoint folder, from its files alone."""
    root, tensors = read_checkpoint(folder)
    config = Config(root)
    return Model(config, Weights(tensors, config), mla_norm_epsilon)
