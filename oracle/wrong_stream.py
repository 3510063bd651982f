"""Wrong variants of configs, layer lists, norms and residual mixes (L, N, R and plain numbers)."""

import numpy as np

from k3 import Model, softmax, sum_in_order
from wrong_variants import config_variant, epsilon_variant, wrong


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
