"""The forward pass with every stored activation rounded to a narrower precision.

This measures the noise floor that an engine of that precision cannot avoid: sums stay in float64,
each step's result is rounded once. The KDA state is never kept narrower than binary32.
"""

import numpy as np

from k3 import Model
from tensor_files import bfloat16_from_float64, float64_from_bfloat16


def to_float32(x):
    return x.astype(np.float32).astype(np.float64)


def to_bfloat16(x):
    return float64_from_bfloat16(bfloat16_from_float64(x))


class Rounded(Model):
    """A model whose steps round their results with `self.round`."""

    def __init__(self, config, weights, rounding, **keywords):
        super().__init__(config, weights, **keywords)
        self.round = rounding

    def linear(self, name, x):
        return self.round(super().linear(name, x))

    def rms_norm(self, x, w, site):
        return self.round(super().rms_norm(x, w, site))

    def mix(self, banks, s, name, site):
        return self.round(super().mix(banks, s, name, site))

    def decoder_layer(self, n, s, banks):
        return self.round(super().decoder_layer(n, s, banks))

    def kda_activation(self, y):
        return self.round(super().kda_activation(self.round(y)))

    def l2_norm(self, t, site):
        return self.round(super().l2_norm(t, site))

    def kda_log_decay(self, attention, z):
        return to_float32(super().kda_log_decay(attention, z))

    def kda_step(self, state, q, k, v, alpha, beta):
        o = super().kda_step(state, q, k, v, to_float32(alpha), self.round(beta))
        state[:] = to_float32(state)
        return self.round(o)

    def kda_gated(self, attention, o, x):
        return self.round(super().kda_gated(attention, o, x))

    def mla_attention(self, q, k_nope, k_rope, v):
        return self.round(super().mla_attention(q, k_nope, k_rope, v))

    def mla_gated(self, attention, o, x):
        return self.round(super().mla_gated(attention, o, x))

    def situ(self, gate, up):
        return self.round(super().situ(self.round(gate), self.round(up)))

    def expert_outputs(self, n, z, ids):
        return self.round(super().expert_outputs(n, z, ids))

    def weighted_sum(self, outputs, weights):
        return self.round(super().weighted_sum(outputs, to_float32(weights)))
