"""Wrong variants of KDA (K1 to K13)."""

import numpy as np

from k3 import Model, product, sigmoid, silu, sum_in_order
from wrong_variants import PREFILL_ROWS, wrong


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
