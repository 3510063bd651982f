"""Wrong variants of the router, the experts, SiTU and MXFP4 (E, S, Q)."""

import numpy as np

from k3 import Model, Weights, product, sigmoid, softmax, sum_in_order
from tensor_files import E2M1_VALUES, float64_from_mxfp4
from wrong_variants import VARIANTS, wrong


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
