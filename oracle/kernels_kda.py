"""Kernel fixtures of KDA before its recurrence: short convolution and decay."""

import numpy as np

from k3 import sigmoid, silu
from kernel_bits import exp32, exp64, sigmoid32, sigmoid64
from kernel_case import Kernel, scalar
from kernel_sums import WRONG_COLUMN_SUMS, narrow, rising_sum, wide

# Convolution


def conv_terms(case, history=None):
    """Products [T, P, kernel], oldest tap first; and the inputs [kernel - 1 + T, P]."""
    history = case.history if history is None else history
    inputs = np.concatenate([history, case.x])
    rows, kernel = len(case.x), case.taps.shape[1]
    window = np.stack([inputs[j:j + rows] for j in range(kernel)], axis=-1)
    return wide(window) * wide(case.taps), inputs


def convolved(case, terms=None, total=rising_sum):
    exact, inputs = conv_terms(case)
    conv = total(exact if terms is None else terms)
    return {"out.conv": conv, "out.y": silu(conv), "bits.conv": narrow(conv),
            "bits.y": narrow(conv) * sigmoid32(narrow(conv)),
            "bits.history": inputs[len(case.x):].copy()}


def wrong_conv(terms):
    """A variant that multiplies something else: judged by the value."""
    return lambda case: {"out.conv": convolved(case, terms(case))["out.conv"]}


def wrong_conv_sum(total):
    return lambda case: {"bits.conv": convolved(case, total=total)["bits.conv"]}


def wrong_silu(rule):
    """rule(the sum before its rounding)."""
    return lambda case: {"bits.y": rule(convolved(case)["out.conv"])}


def silu_of_f32_sum(case):
    return {"bits.y": convolved(case, total=WRONG_COLUMN_SUMS["f32-accumulator"])["bits.y"]}


def taps_by_kernel(case):
    """Taps [P, kernel] read as [kernel, P]."""
    kernel = case.taps.shape[1]
    window = conv_terms(case)[0] / wide(case.taps)
    return window * wide(case.taps.reshape(kernel, -1).T)


def history_overwritten(case):
    """Written from the front, not shifted, when the input is shorter than the history."""
    history = case.history.copy()
    last = case.x[-len(history):]
    history[:len(last)] = last
    return {"bits.history": history}


def history_of_this_call(case):
    """Zeros in place of what came before this call."""
    inputs = np.concatenate([np.zeros_like(case.history), case.x])
    return {"bits.history": inputs[len(case.x):].copy()}


WRONG_CONV = {
    "taps-newest-first": wrong_conv(lambda c: conv_terms(c)[0] / wide(c.taps)
                                    * wide(c.taps[:, ::-1])),
    "taps-transposed": wrong_conv(taps_by_kernel),
    "history-newest-first": wrong_conv(lambda c: conv_terms(c, c.history[::-1])[0]),
    "history-ignored": wrong_conv(lambda c: conv_terms(c, np.zeros_like(c.history))[0]),
    "history-overwritten": history_overwritten,
    "history-of-this-call-only": history_of_this_call,
    "history-not-updated": lambda c: {"bits.history": c.history},
    "no-silu": lambda c: {"out.y": convolved(c)["out.conv"]},
    "sigmoid-for-silu": lambda c: {"out.y": sigmoid(convolved(c)["out.conv"])},
    "newest-tap-added-first": wrong_conv_sum(lambda terms: rising_sum(terms[..., ::-1])),
    "pairwise": wrong_conv_sum(WRONG_COLUMN_SUMS["pairwise"]),
    "f32-accumulator": wrong_conv_sum(WRONG_COLUMN_SUMS["f32-accumulator"]),
    "f32-products": wrong_conv_sum(WRONG_COLUMN_SUMS["f32-products"]),
    "silu-in-float64": wrong_silu(lambda conv: narrow(conv * sigmoid64(conv))),
    "silu-of-f32-in-float64": wrong_silu(
        lambda conv: narrow(wide(narrow(conv)) * sigmoid64(narrow(conv)))),
    "silu-by-division": wrong_silu(
        lambda conv: narrow(conv) / (np.float32(1) + exp32(-narrow(conv)))),
    "silu-of-an-f32-sum": silu_of_f32_sum,
}
SILU_ROUNDINGS = ["silu-in-float64", "silu-of-f32-in-float64", "silu-by-division",
                  "silu-of-an-f32-sum"]


def cancelling_taps(stream):
    """One value of x per channel; the oldest and the third tap are huge and cancel."""
    channels = 12
    value = narrow(stream.significand("x", channels, 24))
    taps = stream.significand("taps", (channels, 4), 24)
    taps[:, 0] = np.ldexp(taps[:, 0], stream.integers("huge", channels, 20, 40))
    taps[:, 2] = -taps[:, 0]
    return {"taps": narrow(taps), "history": np.tile(value, (3, 1)),
            "x": np.tile(value, (2, 1))}


def convolution():
    kernel = Kernel("convolution", convolved, WRONG_CONV)
    rounded = ["f32-accumulator", "f32-products"]
    always = ["taps-newest-first", "taps-transposed", "no-silu", "sigmoid-for-silu"]
    shapes = [(4, rows, past) for rows in (1, 2, 3, 7) for past in ("zero", "carried")]
    for width, rows, past in [*shapes, (2, 1, "carried"), (2, 2, "zero"), (2, 7, "carried")]:
        case = f"kernel-{width}-rows-{rows}-{past}-history"
        stream = kernel.stream(case)
        carried, short = past == "carried", rows < width - 1
        exposes = [*always, "history-not-updated", *(rounded if rows * width > 8 else []),
                   *(SILU_ROUNDINGS if rows * width > 20 else []),
                   *(["history-ignored"] if carried else []),
                   *(["history-newest-first"] if carried and width > 2 else []),
                   *(["history-overwritten"] if short else []),
                   *(["history-of-this-call-only"] if short and carried else [])]
        size = "shorter than" if short else "as long as" if rows == width - 1 else "longer than"
        kernel.add(
            case, f"{rows} inputs, {size} the history of {width - 1}: taps or history from the "
            "wrong end, history overwritten instead of shifted",
            {"taps": stream.bell("taps", (6, width)),
             "history": stream.bell("history", (width - 1, 6)) * np.float32(carried),
             "x": stream.bell("x", (rows, 6))}, exposes)
    exposes = ["newest-tap-added-first", "pairwise", *rounded]
    kernel.add("cancelling-taps", "huge taps that cancel: any other order of the four additions",
               kernel.search("cancelling-taps", cancelling_taps, exposes), exposes,
               bits_only=True)
    return kernel


# Decay

def decays(case, argument=None, squash=sigmoid):
    rate = np.exp(wide(case.a_log))[:, None]
    argument = rate * (wide(case.z) + wide(case.dt_bias)) if argument is None else argument
    g = case.lower_bound[0] * squash(argument)
    return {"out.g": g, "out.alpha": np.exp(g)}


def decay_bits(case, argument=None):
    """argument(rate, z, dt_bias), all of them F32, to F32."""
    rate = exp32(case.a_log)[:, None]
    p = rate * (case.z + case.dt_bias) if argument is None else argument(
        rate, case.z, case.dt_bias)
    g = sigmoid32(p) * np.float32(case.lower_bound[0])
    return {"bits.g": g, "bits.alpha": exp32(g)}


def decay_in_float64(case):
    rate = exp64(case.a_log)[:, None]
    g = sigmoid64(rate * (wide(case.z) + wide(case.dt_bias))) * case.lower_bound[0]
    return {"bits.g": narrow(g), "bits.alpha": exp32(g)}


def only(name, outputs):
    return {name: outputs[name]}


def alpha_of_unrounded_g(case):
    rate = exp32(case.a_log)[:, None]
    logistic = wide(sigmoid32(rate * (case.z + case.dt_bias)))
    return {"bits.alpha": exp32(logistic * wide(np.float32(case.lower_bound[0])))}


def decay_bound(_case, right, name):
    """An argument of 40 keeps 2^-19 of its logistic."""
    return 2.0 ** -17 * np.abs(right["out." + name]).max()


def softplus_decay(case):
    """The older form, clamped at the bound."""
    softplus = np.logaddexp(0.0, wide(case.z) + wide(case.dt_bias))
    g = np.maximum(-np.exp(wide(case.a_log))[:, None] * softplus, case.lower_bound[0])
    return {"out.g": g}


def with_argument(argument):
    """argument(rate [H, 1], z [T, H, D], dt_bias [H, D])."""
    def variant(case):
        rate = np.exp(wide(case.a_log))[:, None]
        value = argument(rate, wide(case.z), wide(case.dt_bias))
        return {"out.g": decays(case, value)["out.g"]}
    return variant


def rate_per_channel(case):
    heads, width = case.dt_bias.shape
    rate = np.exp(wide(case.a_log))[np.arange(width) % heads]
    return {"out.g": decays(case, rate * (wide(case.z) + wide(case.dt_bias)))["out.g"]}


WRONG_DECAY = {
    "softplus-clamped": softplus_decay,
    "bias-per-head": with_argument(lambda rate, z, bias: rate * (z + bias[:, :1])),
    "bias-transposed": with_argument(
        lambda rate, z, bias: rate * (z + bias.T.reshape(bias.shape))),
    "bias-left-out": with_argument(lambda rate, z, bias: rate * z),
    "bias-outside-the-rate": with_argument(lambda rate, z, bias: rate * z + bias),
    "a-log-without-exp": with_argument(lambda rate, z, bias: np.log(rate) * (z + bias)),
    "minus-exp-a-log": with_argument(lambda rate, z, bias: -rate * (z + bias)),
    "rate-of-the-first-head": with_argument(lambda rate, z, bias: rate[0] * (z + bias)),
    "rate-per-channel": rate_per_channel,
    "bound-of-the-release": lambda c: {"out.g": decays(c)["out.g"] / c.lower_bound[0] * -5.0},
    "alpha-is-g": lambda c: {"out.alpha": decays(c)["out.g"]},
    "alpha-kept-below-1": lambda c: {"out.alpha": np.minimum(decays(c)["out.alpha"], 0.999)},
    "alpha-kept-above-0.01": lambda c: {"out.alpha": np.maximum(decays(c)["out.alpha"], 0.01)},
    "float64-rounded-once": lambda c: only("bits.g", decay_in_float64(c)),
    "alpha-in-float64": lambda c: only("bits.alpha", decay_in_float64(c)),
    "alpha-of-unrounded-g": alpha_of_unrounded_g,
    "rate-distributed": lambda c: decay_bits(c, lambda rate, z, bias: rate * z + rate * bias),
    "rate-distributed-and-fused": lambda c: decay_bits(
        c, lambda rate, z, bias: narrow(wide(rate) * z + wide(rate * bias))),
    "sum-not-rounded": lambda c: decay_bits(
        c, lambda rate, z, bias: narrow(wide(rate) * (wide(z) + wide(bias)))),
    "argument-not-rounded": lambda c: decay_bits(
        c, lambda rate, z, bias: wide(rate) * (z + bias)),
    "rate-in-float64": lambda c: decay_bits(
        c, lambda rate, z, bias: narrow(exp64(c.a_log)[:, None] * (z + bias))),
}
DECAY_ROUNDINGS = ["float64-rounded-once", "alpha-in-float64", "alpha-of-unrounded-g",
                   "rate-distributed", "rate-distributed-and-fused", "sum-not-rounded",
                   "argument-not-rounded", "rate-in-float64"]


def kda_decay():
    kernel = Kernel("kda-decay", lambda case: decays(case) | decay_bits(case), WRONG_DECAY,
                    bound=decay_bound)

    def add(case, text, z, bias, a_log, exposes, bound=-5.0, promise=None):
        kernel.add(case, text, {
            "z": z, "dt_bias": bias, "a_log": narrow(np.array(a_log)),
            "lower_bound": scalar(bound)}, exposes, promise=promise)

    add("bound-times-sigmoid", "inputs -1, 0, 1 give -1.344707, -2.5, -3.655293; the softplus form "
        "gives -0.313262, -0.693147, -1.313262",
        np.array([[[-1.0, 0.0, 1.0]]], np.float32), np.zeros((1, 3), np.float32), [0.0],
        ["softplus-clamped", "minus-exp-a-log", "alpha-is-g"],
        promise=lambda c, right: np.all(
            np.abs(right["out.g"][0, 0] - [-1.344707, -2.5, -3.655293]) < 5e-7))
    ramp = narrow(np.arange(24).reshape(4, 6) / 8.0 - 1.5)
    add("bias-ramp", "dt_bias a ramp over heads and channels: one bias per head, transposed, or "
        "outside the rate", kernel.stream("bias-ramp").bell("z", (2, 4, 6)), ramp,
        [0.5, -0.5, 0.25, -1.0],
        ["bias-per-head", "bias-transposed", "bias-left-out", "bias-outside-the-rate"])
    changed = ramp * 0
    changed[2, 3] = 2.0
    add("one-bias-channel", "a bias in channel 3 of head 2 only: felt by any other channel",
        np.zeros((1, 4, 6), np.float32), changed, [0.0] * 4,
        ["bias-per-head", "bias-transposed", "bias-left-out"],
        promise=lambda c, right: np.count_nonzero(np.abs(right["out.g"] + 2.5) > 1e-9) == 1)
    stream = kernel.stream("rates-per-head")
    add("rates-per-head", "A_log from -3 to 2: one rate for all heads, a rate per channel, no "
        "exp, roundings elsewhere",
        stream.bell("z", (3, 4, 6)), stream.bell("bias", (4, 6), 0.5), [-3.0, 2.0, 0.0, 1.0],
        ["rate-per-channel", "rate-of-the-first-head", "a-log-without-exp", "minus-exp-a-log",
         "bias-outside-the-rate", *DECAY_ROUNDINGS])
    stream = kernel.stream("alpha-exactly-1")
    add("alpha-exactly-1", "alpha rounds to exactly 1 in f32: kept below 1, or the bias left out",
        stream.bell("z", (2, 2, 5)), stream.uniform("bias", (2, 5), -44.0, -36.0), [0.0, 0.125],
        ["alpha-kept-below-1", "bias-left-out"],
        promise=lambda c, right: np.all(narrow(right["out.alpha"]) == 1))
    stream = kernel.stream("alpha-near-its-bound")
    add("alpha-near-its-bound", "alpha within a millionth of e^-5: kept above 0.01",
        stream.bell("z", (2, 2, 5)), stream.uniform("bias", (2, 5), 20.0, 24.0), [0.0, 0.25],
        ["alpha-kept-above-0.01", "bias-left-out"],
        promise=lambda c, right: np.all(np.abs(right["out.g"] + 5.0) < 5e-6))
    stream = kernel.stream("another-bound")
    add("another-bound", "lower bound -4.25: the released constant written into the code",
        stream.bell("z", (2, 3, 4), 2.0), stream.bell("bias", (3, 4)), [0.5, -0.25, 0.0],
        ["bound-of-the-release", "softplus-clamped"], -4.25)
    return kernel
