"""Wrong implementations of single clauses: what the tiny model's answers have to expose.

A variant is either a subclass of Model that overrides one step, or a function that changes a
copied model (its own `config` and `epsilon`, shared weights). `sensitivity.py` runs them all.
"""

import numpy as np

from k3 import (
    Model, Weights, product, sigmoid, silu, softmax, sum_in_order,
)
from tensor_files import E2M1_VALUES, float64_from_mxfp4

PREFILL_ROWS = 12
VARIANTS = []


def wrong(clause, text):
    """Registers a variant under the clause it breaks."""
    def register(change):
        VARIANTS.append((clause, text, change))
        return change
    return register


def epsilon_variant(clause, text, value, *sites):
    """The epsilon of some norms replaced; `value` may be a function of the config."""
    def change(model):
        epsilon = value(model.config) if callable(value) else value
        model.epsilon.update(dict.fromkeys(sites, epsilon))
    VARIANTS.append((clause, text, change))


def config_variant(clause, text, **values):
    def change(model):
        for name, value in values.items():
            setattr(model.config, name, value)
    VARIANTS.append((clause, text, change))


for _site in ("input", "post_attention", "final", "attention_mix", "mlp_mix", "output_mix",
              "o_norm", "latent_norm"):
    for _value in (1e-5, 1e-6):
        epsilon_variant("N2", f"epsilon {_value:g} in {_site}", _value, _site)
for _site in ("q_a", "kv_a"):
    epsilon_variant("N3", f"epsilon 1e-5 in {_site}", 1e-5, _site)
    epsilon_variant("N3", f"epsilon rms_norm_eps in {_site}", lambda c: c.rms_epsilon, _site)
    epsilon_variant("N3", f"epsilon 0 in {_site}", 0.0, _site)
for _site in ("l2_q", "l2_k"):
    epsilon_variant("K3", f"epsilon 0 in {_site}", 0.0, _site)
    epsilon_variant("K3", f"epsilon rms_norm_eps in {_site}", lambda c: c.rms_epsilon, _site)
    epsilon_variant("K3", f"epsilon 1e-5 in {_site}", 1e-5, _site)

config_variant("R5", "block of 2", block=2)
config_variant("R5", "block of the release (12)", block=12)
config_variant("K7", "lower bound of the release (-5)", lower_bound=-5.0)
config_variant("S2", "beta of the release (4)", beta=4.0)
config_variant("S2", "linear beta of the release (25)", linear_beta=25.0)
config_variant("E5", "scaling factor of the release (1)", scaling=1.0)
config_variant("E5", "scaling factor of K2 (2.827)", scaling=2.827)
config_variant("E4", "weights not renormalised", renormalise=False)
config_variant("E2", "one expert fewer", top_k=1)
config_variant("E2", "one expert more", top_k=3)


# Layers, norms, residual mixes

@wrong("L1", "layer lists read as zero-based")
class ZeroBasedLists(Model):
    def is_kda(self, n):
        return n - 1 in self.config.kda_layers


@wrong("L1", "every fourth layer MLA, the last one not")
class PlainPeriod(Model):
    def is_kda(self, n):
        return n % 4 != 3


@wrong("L2", "one dense layer too many")
class MoreDense(Model):
    def is_dense(self, n):
        return n <= self.config.dense_layers


@wrong("L3", "no final norm")
class NoFinalNorm(Model):
    def rms_norm(self, x, w, site):
        return x if site == "final" else super().rms_norm(x, w, site)


@wrong("L3", "head tied to the embedding")
class TiedHead(Model):
    def linear(self, name, x):
        return super().linear("model.embed_tokens" if name == "lm_head" else name, x)


@wrong("N1", "epsilon outside the root, every norm")
class EpsilonOutside(Model):
    def rms_norm(self, x, w, site):
        mean_square = sum_in_order(x * x) / x.shape[-1]
        return x / (np.sqrt(mean_square) + self.epsilon[site])[..., None] * w


@wrong("N1", "weight before the norm")
class WeightFirst(Model):
    def rms_norm(self, x, w, site):
        return super().rms_norm(x * w, 1.0, site)


@wrong("N1", "weight plus one")
class WeightPlusOne(Model):
    def rms_norm(self, x, w, site):
        return super().rms_norm(x, w if np.ndim(w) == 0 else w + 1.0, site)


@wrong("R1", "running sum not among the sources")
class OnlyBanks(Model):
    def mix(self, banks, s, name, site):
        return super().mix(banks[:-1], banks[-1], name, site)


@wrong("R1", "only the newest bank")
class NewestBank(Model):
    def mix(self, banks, s, name, site):
        return super().mix(banks[-1:], s, name, site)


@wrong("R2", "keys raw")
class RawKeys(Model):
    def mix_keys(self, sources, site):
        return sources


@wrong("R2", "values normed")
class NormedValues(Model):
    def mix(self, banks, s, name, site):
        sources = [self.rms_norm(t, 1.0, site) for t in banks + [s]]
        return super().mix(sources[:-1], sources[-1], name, site)


class RenamedMix(Model):
    """Reads the mix weights of another mixer."""
    renamed = {}

    def mix(self, banks, s, name, site):
        stem, kind = name.rsplit(".", 1)
        return super().mix(banks, s, f"{stem}.{self.renamed.get(kind, kind)}", site)


@wrong("R3", "attention's mixer used for the MLP")
class AttentionMixerTwice(RenamedMix):
    renamed = {"mlp_res": "self_attention_res"}


@wrong("R3", "the MLP's mixer used for attention")
class MlpMixerTwice(RenamedMix):
    renamed = {"self_attention_res": "mlp_res"}


@wrong("R3", "output mix with the last layer's MLP mixer")
class OutputMixer(Model):
    def mix(self, banks, s, name, site):
        last = f"model.layers.{self.config.layers - 1}.mlp_res"
        return super().mix(banks, s, last if site == "output_mix" else name, site)


class FoldVariant(Model):
    """A mix whose folded vector is built differently."""

    def mix(self, banks, s, name, site):
        sources = np.stack(banks + [s])
        p = softmax(sum_in_order(self.mix_keys(sources, site) * self.fold(name)).T)
        return sum(p[:, m, None] * sources[m] for m in range(len(sources)))


@wrong("R3", "norm weight missing from the mix")
class MixWithoutNormWeight(FoldVariant):
    def fold(self, name):
        return self.weights[name + "_proj.weight"][:, 0]


@wrong("R3", "mix scores divided by the root of the width")
class ScaledMix(FoldVariant):
    def fold(self, name):
        folded = self.weights[name + "_norm.weight"] * self.weights[name + "_proj.weight"][:, 0]
        return folded / np.sqrt(len(folded))


@wrong("R4", "attention-side mix left out at the start of a block")
class NoMixAtBlock(Model):
    def attention_mix(self, n, banks, s):
        return s if n % self.config.block == 0 else super().attention_mix(n, banks, s)


@wrong("R4", "attention-side mix left out everywhere")
class NoAttentionMix(Model):
    def attention_mix(self, n, banks, s):
        return s


class BlockVariant(Model):
    """A decoder layer with its bookkeeping of banks and sum taken apart."""

    def decoder_layer(self, n, s, banks):
        layer = f"model.layers.{n}."
        h, banked, before = self.block_start(n, s, banks)
        if banked is not None:
            banks.append(banked)
        x = self.rms_norm(h, self.weights[layer + "input_layernorm.weight"], "input")
        a = self.kda(n, x) if self.is_kda(n) else self.mla(n, x)
        s = a if before is None else before + a
        h = self.mlp_mix(n, banks, s)
        x = self.rms_norm(
            h, self.weights[layer + "post_attention_layernorm.weight"], "post_attention")
        m = self.dense_mlp(layer + "mlp", x) if self.is_dense(n) else self.latent_moe(n, x, h)
        return s + m

    def begins(self, n):
        return n % self.config.block == 0

    def block_start(self, n, s, banks):
        """The attention-side mix, what to bank, and the sum to add attention's output to."""
        h = self.attention_mix(n, banks, s)
        return (h, s, None) if self.begins(n) else (h, None, s)

    def mlp_mix(self, n, banks, s):
        return self.mix(banks, s, f"model.layers.{n}.mlp_res", "mlp_mix")


@wrong("R5", "sum not cleared")
class NotCleared(BlockVariant):
    def block_start(self, n, s, banks):
        h = self.attention_mix(n, banks, s)
        return h, (s if self.begins(n) else None), s


@wrong("R5", "mixed sum banked")
class MixedBanked(BlockVariant):
    def block_start(self, n, s, banks):
        h = self.attention_mix(n, banks, s)
        return (h, h, None) if self.begins(n) else (h, None, s)


@wrong("R5", "banked before the attention-side mix")
class BankedEarly(BlockVariant):
    def block_start(self, n, s, banks):
        sources = banks + [s] if self.begins(n) else banks
        h = self.attention_mix(n, sources, s)
        return (h, s, None) if self.begins(n) else (h, None, s)


@wrong("R5", "blocks one layer late")
class LateBlocks(BlockVariant):
    def begins(self, n):
        return n == 0 or n % self.config.block == 1


@wrong("R5", "bank replaced instead of pushed")
class BankReplaced(BlockVariant):
    def block_start(self, n, s, banks):
        result = super().block_start(n, s, banks)
        if self.begins(n):
            banks.clear()
        return result


@wrong("R6", "sum restarts from the mix")
class RestartsFromMix(BlockVariant):
    def block_start(self, n, s, banks):
        h = self.attention_mix(n, banks, s)
        return (h, s, h) if self.begins(n) else (h, None, s)


@wrong("R7", "MLP-side mix left out")
class NoMlpMix(BlockVariant):
    def mlp_mix(self, n, banks, s):
        return s


@wrong("R7", "MLP-side mix without the new bank")
class MlpMixOldBanks(BlockVariant):
    def mlp_mix(self, n, banks, s):
        older = banks[:-1] if self.begins(n) else banks
        return super().mlp_mix(n, older, s)


@wrong("R7", "output mix left out")
class NoOutputMix(Model):
    def mix(self, banks, s, name, site):
        return s if site == "output_mix" else super().mix(banks, s, name, site)


# KDA

@wrong("K1", "taps reversed")
class TapsReversed(Model):
    def convolve(self, y, taps):
        return super().convolve(y, taps[:, ::-1])


@wrong("K1", "newest tap only")
class NewestTap(Model):
    def convolve(self, y, taps):
        return y * taps[:, -1]


@wrong("K1", "history repeats the first input instead of zeros")
class RepeatedHistory(Model):
    def convolve(self, y, taps):
        history = taps.shape[1] - 1
        padded = np.concatenate([np.repeat(y[:1], history, axis=0), y])
        return super().convolve(padded, taps)[history:]


@wrong("K2", "no SiLU")
class NoSilu(Model):
    def kda_activation(self, y):
        return y


class SiluOf(Model):
    """SiLU on some of q, k, v only."""
    active = ""

    def kda_projections(self, n, x):
        self.kda_activation = lambda y: y
        raw = super().kda_projections(n, x)
        return [silu(y) if name in self.active else y for name, y in zip("qkv", raw)]


@wrong("K2", "no SiLU on v")
class NoSiluOnV(SiluOf):
    active = "qk"


@wrong("K2", "no SiLU on q")
class NoSiluOnQ(SiluOf):
    active = "kv"


@wrong("K2", "no SiLU on k")
class NoSiluOnK(SiluOf):
    active = "qv"


@wrong("K3", "no l2norm on q")
class NoNormQ(Model):
    def l2_norm(self, t, site):
        return t if site == "l2_q" else super().l2_norm(t, site)


@wrong("K3", "no l2norm on k")
class NoNormK(Model):
    def l2_norm(self, t, site):
        return t if site == "l2_k" else super().l2_norm(t, site)


@wrong("K3", "l2norm on v too")
class NormV(Model):
    def kda_normed(self, q, k, v):
        q, k, v = super().kda_normed(q, k, v)
        return q, k, self.l2_norm(v, "l2_k")


@wrong("K3", "mean instead of sum of squares")
class MeanNorm(Model):
    def l2_norm(self, t, site):
        return t / np.sqrt(sum_in_order(t * t) / t.shape[-1] + self.epsilon[site])[..., None]


@wrong("K3", "epsilon as a lower limit of the norm")
class ClampedNorm(Model):
    def l2_norm(self, t, site):
        return t / np.maximum(np.sqrt(sum_in_order(t * t)), self.epsilon[site])[..., None]


@wrong("K3", "epsilon outside the root")
class L2EpsilonOutside(Model):
    def l2_norm(self, t, site):
        return t / (np.sqrt(sum_in_order(t * t)) + self.epsilon[site])[..., None]


@wrong("K4", "q not scaled by the root of D")
class UnscaledQ(Model):
    def kda_normed(self, q, k, v):
        return self.l2_norm(q, "l2_q"), self.l2_norm(k, "l2_k"), v


class BetaVariant(Model):
    def kda_recurrence(self, n, q, k, v, alpha, beta):
        return super().kda_recurrence(n, q, k, v, alpha, self.beta(beta))


@wrong("K5", "beta without the logistic function")
class RawBeta(BetaVariant):
    def beta(self, beta):
        return np.log(beta / (1.0 - beta))


@wrong("K5", "beta of the first head for all")
class SharedBeta(BetaVariant):
    def beta(self, beta):
        return np.repeat(beta[:, :1], beta.shape[1], axis=1)


@wrong("K5", "beta doubled")
class DoubledBeta(BetaVariant):
    def beta(self, beta):
        return 2.0 * beta


@wrong("K6", "SiLU between f_a and f_b")
class SiluInDecay(Model):
    def linear(self, name, x):
        y = super().linear(name, x)
        return silu(y) if name.endswith("f_a_proj") else y


class DecayVariant(Model):
    """Another formula for the log decay, from rate [H,1], z [H,D] and dt_bias [H,D]."""

    def kda_log_decay(self, attention, z):
        c = self.config
        stored = self.weights[attention + "A_log"]
        bias = self.heads(self.weights[attention + "dt_bias"][None])[0]
        return self.decay(stored[:c.kda_heads, None], self.heads(z), bias, stored)


@wrong("K6", "dt_bias dropped")
class NoDecayBias(DecayVariant):
    def decay(self, a_log, z, bias, stored):
        return self.config.lower_bound * sigmoid(np.exp(a_log) * z)


@wrong("K6", "dt_bias outside the product")
class DecayBiasOutside(DecayVariant):
    def decay(self, a_log, z, bias, stored):
        return self.config.lower_bound * sigmoid(np.exp(a_log) * z + bias)


@wrong("K7", "softplus decay without a lower bound")
class SoftplusDecay(DecayVariant):
    def decay(self, a_log, z, bias, stored):
        return -np.exp(a_log) * np.logaddexp(0.0, z + bias)


@wrong("K7", "A_log per channel")
class ChannelRate(DecayVariant):
    def decay(self, a_log, z, bias, stored):
        return self.config.lower_bound * sigmoid(np.exp(stored) * (z + bias))


@wrong("K7", "A_log not exponentiated")
class RawRate(DecayVariant):
    def decay(self, a_log, z, bias, stored):
        return self.config.lower_bound * sigmoid(a_log * (z + bias))


@wrong("K8", "A_log sliced from the end")
class RateFromEnd(DecayVariant):
    def decay(self, a_log, z, bias, stored):
        rate = np.exp(stored[-self.config.kda_heads:, None])
        return self.config.lower_bound * sigmoid(rate * (z + bias))


class StepVariant(Model):
    """`wrong_step` as `kda_step`, with the delta write at hand."""

    @staticmethod
    def write(state, k, delta):
        state += k[..., None] * delta[:, None, :]


@wrong("K9", "decay after the key is read")
class LateDecay(StepVariant):
    def kda_step(self, state, q, k, v, alpha, beta):
        u = product(k, state)
        state *= alpha[..., None]
        self.write(state, k, beta * (v - u))
        return product(q, state)


@wrong("K9", "decay along the value index")
class ColumnDecay(StepVariant):
    def kda_step(self, state, q, k, v, alpha, beta):
        state *= alpha[:, None, :]
        self.write(state, k, beta * (v - product(k, state)))
        return product(q, state)


@wrong("K10", "plain write without the delta rule")
class PlainWrite(StepVariant):
    def kda_step(self, state, q, k, v, alpha, beta):
        state *= alpha[..., None]
        self.write(state, k, beta * v)
        return product(q, state)


@wrong("K10", "beta on v only")
class BetaOnValue(StepVariant):
    def kda_step(self, state, q, k, v, alpha, beta):
        state *= alpha[..., None]
        self.write(state, k, beta * v - product(k, state))
        return product(q, state)


@wrong("K11", "output read before the write")
class EarlyOutput(StepVariant):
    def kda_step(self, state, q, k, v, alpha, beta):
        state *= alpha[..., None]
        o = product(q, state)
        self.write(state, k, beta * (v - product(k, state)))
        return o


@wrong("K11", "output from the transposed state")
class TransposedOutput(Model):
    def kda_step(self, state, q, k, v, alpha, beta):
        super().kda_step(state, q, k, v, alpha, beta)
        return product(q, state.swapaxes(1, 2))


class GatedVariant(Model):
    """`gated(o, gate logits, weight)` instead of norm, then logistic gate."""

    def kda_gated(self, attention, o, x):
        gate = self.linear(attention + "g_proj", x)
        return self.gated(o, self.heads(gate), self.weights[attention + "o_norm.weight"]).reshape(
            len(x), -1)


@wrong("K12", "gate before the norm")
class GateFirst(GatedVariant):
    def gated(self, o, gate, w):
        return self.rms_norm(o * sigmoid(gate), w, "o_norm")


@wrong("K12", "SiLU gate")
class SiluGate(GatedVariant):
    def gated(self, o, gate, w):
        return self.rms_norm(o, w, "o_norm") * silu(gate)


@wrong("K12", "no gate")
class NoGate(GatedVariant):
    def gated(self, o, gate, w):
        return self.rms_norm(o, w, "o_norm")


@wrong("K12", "norm over all heads together")
class WideNorm(GatedVariant):
    def gated(self, o, gate, w):
        wide = self.rms_norm(o.reshape(len(o), -1), 1.0, "o_norm").reshape(o.shape)
        return wide * w * sigmoid(gate)


@wrong("K13", "state lost after the prompt")
class StateLost(Model):
    def kda_recurrence(self, n, q, k, v, alpha, beta):
        first = slice(None, PREFILL_ROWS), slice(PREFILL_ROWS, None)
        return np.concatenate([
            super(StateLost, self).kda_recurrence(n, q[p], k[p], v[p], alpha[p], beta[p])
            for p in first])


@wrong("K13", "convolution inputs lost after the prompt")
class HistoryLost(Model):
    def convolve(self, y, taps):
        return np.concatenate([super().convolve(y[:PREFILL_ROWS], taps),
                               super().convolve(y[PREFILL_ROWS:], taps)])


# MLA

@wrong("M1", "no norm on the query's low rank")
class NoQueryNorm(Model):
    def rms_norm(self, x, w, site):
        return x if site == "q_a" else super().rms_norm(x, w, site)


@wrong("M1", "query split as [rope, nope]")
class QuerySwapped(Model):
    def mla_queries(self, attention, x):
        q, rope = super().mla_queries(attention, x), self.config.rope
        return np.concatenate([q[..., rope:], q[..., :rope]], axis=-1)


@wrong("M2", "no latent norm")
class NoLatentNorm(Model):
    def rms_norm(self, x, w, site):
        return x if site == "kv_a" else super().rms_norm(x, w, site)


class CachedVariant(Model):
    """Another treatment of kv_a's output; `changed(c, w)` gives latent and rope part."""

    def mla_cached(self, attention, x):
        c = self.linear(attention + "kv_a_proj_with_mqa", x)
        split, w = self.config.kv_lora, self.weights[attention + "kv_a_layernorm.weight"]
        return self.changed(c[:, :split], c[:, split:], w)


@wrong("M2", "latent norm over the rope columns too")
class NormOverAll(CachedVariant):
    def changed(self, latent, k_rope, w):
        both = self.rms_norm(np.concatenate([latent, k_rope], axis=1), 1.0, "kv_a")
        return both[:, :len(w)] * w, k_rope


@wrong("M3", "rope part normed")
class RopeNormed(CachedVariant):
    def changed(self, latent, k_rope, w):
        return self.rms_norm(latent, w, "kv_a"), self.rms_norm(k_rope, 1.0, "kv_a")


@wrong("M3", "rope part dropped from the keys")
class RopeDropped(CachedVariant):
    def changed(self, latent, k_rope, w):
        return self.rms_norm(latent, w, "kv_a"), np.zeros_like(k_rope)


def rotated(x, base=10000.0):
    """x [T, ..., width] rotated by its position, halves paired."""
    half = x.shape[-1] // 2
    angle = np.arange(len(x))[:, None] * base ** (-np.arange(half) / half)
    angle = angle.reshape((len(x),) + (1,) * (x.ndim - 2) + (half,))
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle),
                           b * np.cos(angle) + a * np.sin(angle)], axis=-1)


@wrong("M3", "rope part rotated")
class RopeRotated(CachedVariant):
    def changed(self, latent, k_rope, w):
        return self.rms_norm(latent, w, "kv_a"), rotated(k_rope)

    def mla_queries(self, attention, x):
        q, nope = super().mla_queries(attention, x), self.config.nope
        return np.concatenate([q[..., :nope], rotated(q[..., nope:])], axis=-1)


@wrong("M4", "scale from the nope width only")
class NopeScale(Model):
    def mla_scale(self):
        return 1.0 / np.sqrt(self.config.nope)


@wrong("M4", "no scale")
class NoScale(Model):
    def mla_scale(self):
        return 1.0


@wrong("M5", "no causal mask")
class NoMask(Model):
    def mask(self, scores):
        return scores


@wrong("M6", "kv_b split as [v, k_nope]")
class ValueFirst(Model):
    def mla_expanded(self, attention, latent):
        c = self.config
        kv = self.linear(attention + "kv_b_proj", latent).reshape(len(latent), c.mla_heads, -1)
        return kv[..., c.v_width:], kv[..., :c.v_width]


@wrong("M6", "kv_b split over all heads first")
class SplitOverHeads(Model):
    def mla_expanded(self, attention, latent):
        c = self.config
        kv = self.linear(attention + "kv_b_proj", latent)
        keys = kv[:, :c.mla_heads * c.nope].reshape(len(latent), c.mla_heads, -1)
        return keys, kv[:, c.mla_heads * c.nope:].reshape(len(latent), c.mla_heads, -1)


@wrong("M7", "no output gate")
class NoMlaGate(Model):
    def mla_gated(self, attention, o, x):
        return o.reshape(len(x), -1)


@wrong("M7", "SiLU output gate")
class SiluMlaGate(Model):
    def mla_gated(self, attention, o, x):
        return o.reshape(len(x), -1) * silu(self.linear(attention + "g_proj", x))


@wrong("M7", "norm before the output gate")
class NormedMlaGate(Model):
    def mla_gated(self, attention, o, x):
        return super().mla_gated(attention, self.rms_norm(o, 1.0, "o_norm"), x)


@wrong("M8", "cache lost after the prompt")
class CacheLost(Model):
    def mask(self, scores):
        causal = super().mask(scores)
        causal[:, PREFILL_ROWS:, :PREFILL_ROWS] = -np.inf
        return causal


# LatentMoE

@wrong("E1", "router on the mix before the norm")
class RouterOnMix(Model):
    def router_input(self, x, h):
        return h


@wrong("E2", "selection without the bias")
class UnbiasedSelection(Model):
    def select(self, scores, bias):
        return super().select(scores, 0.0)


@wrong("E3", "bias in the weights")
class BiasInWeights(Model):
    def router_weights(self, scores, bias, ids):
        return super().router_weights(scores + bias, bias, ids)


@wrong("E3", "softmax instead of the logistic function in the weights")
class SoftmaxWeights(Model):
    def router_weights(self, scores, bias, ids):
        return super().router_weights(softmax(np.log(scores / (1.0 - scores))), bias, ids)


@wrong("E4", "renormalised over all experts")
class RenormalisedOverAll(Model):
    def router_weights(self, scores, bias, ids):
        chosen = np.take_along_axis(scores, ids, axis=1)
        return chosen / sum_in_order(scores)[:, None] * self.config.scaling


@wrong("E5", "scaling factor before renormalisation")
class ScaledFirst(Model):
    def router_weights(self, scores, bias, ids):
        return super().router_weights(scores, bias, ids) / self.config.scaling


@wrong("E6", "experts read the input's first columns")
class NoLatentDown(Model):
    def linear(self, name, x):
        if not name.endswith("routed_expert_down_proj"):
            return super().linear(name, x)
        return x[:, :self.weights[name + ".weight"].shape[1]]


@wrong("E7", "w1 and w3 swapped")
class GateUpSwapped(Model):
    def expert_outputs(self, n, z, ids):
        w1, w2, w3 = (self.weights.experts[n, matrix][ids] for matrix in ("w1", "w2", "w3"))
        each = z[:, None, :]
        return product(self.situ(product(each, w3), product(each, w1)), w2)


class RoutedNormVariant(Model):
    def norm_weight(self, n):
        return self.weights[f"model.layers.{n}.block_sparse_moe.routed_expert_norm.weight"]


@wrong("E8", "norm per expert instead of on the sum")
class NormPerExpert(RoutedNormVariant):
    def expert_outputs(self, n, z, ids):
        return self.rms_norm(super().expert_outputs(n, z, ids), self.norm_weight(n), "latent_norm")

    def routed_output(self, moe, y):
        return self.linear(moe + "routed_expert_up_proj", y)


@wrong("E8", "no latent norm")
class NoRoutedNorm(Model):
    def routed_output(self, moe, y):
        return self.linear(moe + "routed_expert_up_proj", y)


@wrong("E9", "norm after the up-projection")
class NormAfterUp(Model):
    def routed_output(self, moe, y):
        up = self.linear(moe + "routed_expert_up_proj",
                         y * self.weights[moe + "routed_expert_norm.weight"])
        return self.rms_norm(up, 1.0, "latent_norm")


class SharedVariant(Model):
    factor = 1.0

    def dense_mlp(self, name, x):
        y = super().dense_mlp(name, x)
        return y * self.factor if name.endswith("shared_experts") else y


@wrong("E10", "shared MLP left out")
class NoShared(SharedVariant):
    factor = 0.0


@wrong("E10", "shared MLP averaged over its experts")
class HalfShared(SharedVariant):
    factor = 0.5


@wrong("E10", "shared MLP scaled like the routed ones")
class ScaledShared(Model):
    def dense_mlp(self, name, x):
        y = super().dense_mlp(name, x)
        return y * self.config.scaling if name.endswith("shared_experts") else y


# SiTU and MXFP4

class SituVariant(Model):
    def situ(self, gate, up):
        c = self.config
        capped_gate = c.beta * np.tanh(gate / c.beta)
        capped_up = c.linear_beta * np.tanh(up / c.linear_beta)
        return self.product_of(gate, capped_gate, up, capped_up)


@wrong("S1", "logistic function of the capped gate")
class CappedLogistic(SituVariant):
    def product_of(self, gate, capped_gate, up, capped_up):
        return capped_gate * sigmoid(capped_gate) * capped_up


@wrong("S2", "gate not capped")
class GateUncapped(SituVariant):
    def product_of(self, gate, capped_gate, up, capped_up):
        return gate * sigmoid(gate) * capped_up


@wrong("S2", "up not capped")
class UpUncapped(SituVariant):
    def product_of(self, gate, capped_gate, up, capped_up):
        return capped_gate * sigmoid(gate) * up


@wrong("S2", "hard clamps instead of tanh")
class HardClamp(Model):
    def situ(self, gate, up):
        c = self.config
        return (np.clip(gate, -c.beta, c.beta) * sigmoid(gate)
                * np.clip(up, -c.linear_beta, c.linear_beta))


def decode_variant(clause, text, decode):
    def change(model):
        model.weights = Weights(model.tensors, model.config, decode)
    VARIANTS.append((clause, text, change))


def lookup(packed, scale, table):
    """MXFP4 with another table of sixteen codes."""
    codes = np.stack([packed & 0x0F, packed >> 4], axis=-1).reshape(len(packed), -1)
    return table[codes] * np.repeat(np.ldexp(1.0, scale.astype(np.int32) - 127), 32, axis=-1)


def grouped(packed, scale, first):
    """MXFP4 with the scales moved one group along."""
    return float64_from_mxfp4(packed, np.roll(scale, first, axis=1))


MAGNITUDES = np.array(E2M1_VALUES)
WITH_EIGHT = np.array(E2M1_VALUES[:-1] + (8.0,))
decode_variant("Q1", "sign bit ignored",
               lambda p, s: lookup(p, s, np.concatenate([MAGNITUDES, MAGNITUDES])))
decode_variant("Q1", "two's complement codes",
               lambda p, s: lookup(p, s, np.concatenate([MAGNITUDES, -MAGNITUDES[::-1]])))
decode_variant("Q1", "largest code read as 8",
               lambda p, s: lookup(p, s, np.concatenate([WITH_EIGHT, -WITH_EIGHT])))
decode_variant("Q2", "nibbles swapped",
               lambda p, s: float64_from_mxfp4((p >> 4) | (p << 4), s))
decode_variant("Q3", "scale 2^(s-126)", lambda p, s: 2.0 * float64_from_mxfp4(p, s))
decode_variant("Q3", "scale of the next group", lambda p, s: grouped(p, s, -1))
