"""Wrong variants of MLA (M1 to M8)."""

import numpy as np

from k3 import Model, silu
from wrong_variants import PREFILL_ROWS, wrong


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
