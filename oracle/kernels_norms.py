"""Kernel fixtures of the norms: RMSNorm, l2norm of queries and keys, KDA's gated output norm."""

import numpy as np

from k3 import sigmoid, silu
from kernel_bits import sigmoid32, sigmoid64
from kernel_case import Kernel, scalar
from kernel_sums import exact_sum, lane_sum, narrow, wide

L2_EPSILON = 1e-6


def squares(x):
    return wide(x) * wide(x)


def elementwise_bound(case, right, name):
    return np.abs(right["out." + name]) * 2.0 ** -22 + 2.0 ** -149


# RMSNorm

def rms_rate(case):
    """r by the contract: the row rule without its final rounding, the rest in float64."""
    return 1.0 / np.sqrt(lane_sum(squares(case.x)) / case.x.shape[-1] + case.epsilon[0])


def rms_norms(case):
    mean_square = exact_sum(squares(case.x)) / case.x.shape[-1]
    root = np.sqrt(mean_square + case.epsilon[0])
    rate = rms_rate(case)[:, None]
    return {"out.y": wide(case.x) / root[:, None] * wide(case.weight),
            "bits.y": narrow(wide(case.x) * rate * wide(case.weight))}


def with_root(root):
    """RMSNorm that divides by something else."""
    def variant(case):
        mean_square = lane_sum(squares(case.x)) / case.x.shape[-1]
        divisor = root(mean_square, case.epsilon[0], case.x.shape[-1])
        return {"out.y": wide(case.x) / divisor[:, None] * wide(case.weight)}
    return variant


def rounded_rate(case):
    rate = wide(narrow(rms_rate(case)))[:, None]
    return {"bits.y": narrow(wide(case.x) * rate * wide(case.weight))}


def rounded_before_the_weight(case):
    y = narrow(wide(case.x) * rms_rate(case)[:, None])
    return {"bits.y": y * case.weight}


def sum_of_squares_in_f32(case):
    mean_square = wide(lane_sum(narrow(squares(case.x)), dtype=np.float32)) / case.x.shape[-1]
    rate = 1.0 / np.sqrt(mean_square + case.epsilon[0])
    return {"bits.y": narrow(wide(case.x) * rate[:, None] * wide(case.weight))}


def weight_before_the_mean(case):
    weighted = wide(case.x) * wide(case.weight)
    root = np.sqrt(exact_sum(weighted * weighted) / case.x.shape[-1] + case.epsilon[0])
    return {"out.y": weighted / root[:, None]}


def first_row_for_all(case):
    root = np.sqrt(exact_sum(squares(case.x)) / case.x.shape[-1] + case.epsilon[0])
    return {"out.y": wide(case.x) / root[0] * wide(case.weight)}


WRONG_RMS = {
    "no-epsilon": with_root(lambda mean, epsilon, n: np.sqrt(mean)),
    "epsilon-outside-the-root": with_root(lambda mean, epsilon, n: np.sqrt(mean) + epsilon),
    "epsilon-on-the-sum": with_root(lambda mean, epsilon, n: np.sqrt(mean + epsilon / n)),
    "epsilon-1e-6": with_root(lambda mean, epsilon, n: np.sqrt(mean + 1e-6)),
    "sum-for-mean": with_root(lambda mean, epsilon, n: np.sqrt(mean * n + epsilon)),
    "mean-over-sixteens": with_root(
        lambda mean, epsilon, n: np.sqrt(mean * n / (-(-n // 16) * 16) + epsilon)),
    "one-plus-weight": lambda c: {
        "out.y": rms_norms(c)["out.y"] * (1.0 + wide(c.weight)) / wide(c.weight)},
    "weight-before-the-mean": weight_before_the_mean,
    "first-row-for-all": first_row_for_all,
    "rate-in-f32": rounded_rate,
    "rounded-before-the-weight": rounded_before_the_weight,
    "sum-of-squares-in-f32": sum_of_squares_in_f32,
}
RMS_EPSILONS = ["no-epsilon", "epsilon-outside-the-root", "epsilon-on-the-sum", "epsilon-1e-6"]


def rms_norm():
    kernel = Kernel("rms-norm", rms_norms, WRONG_RMS, bound=elementwise_bound)

    def inputs(case, rows, width, scale, epsilon=1e-5):
        stream = kernel.stream(case)
        return {"x": stream.bell("x", (rows, width), scale),
                "weight": stream.bell("weight", width, 0.3, 1.0), "epsilon": scalar(epsilon)}

    rounded = ["rate-in-f32", "rounded-before-the-weight"]
    for width in (1, 16, 40, 128, 130):
        case = f"width-{width}"
        given = inputs(case, 2, width, 0.7)
        given["x"] = narrow(wide(given["x"]) * np.array([[4.0], [0.125]]))
        exposes = ["first-row-for-all", "one-plus-weight"]
        exposes += ["sum-for-mean", "weight-before-the-mean", *rounded] if width > 1 else []
        exposes += ["mean-over-sixteens"] if width % 16 else []
        exposes += ["sum-of-squares-in-f32"] if width > 16 else []
        kernel.add(case, f"2 rows of {width}, of different sizes: a mean over another count, "
                   "another row's mean, roundings to f32 on the way", given, exposes)
    kernel.add("tiny-inputs", "mean square far below epsilon: epsilon left out, outside the root, "
               "on the sum, or another one", inputs("tiny-inputs", 2, 40, 1e-4), RMS_EPSILONS)
    kernel.add("near-epsilon", "mean square near an epsilon of 3e-5: a constant of one's own",
               inputs("near-epsilon", 2, 24, 5e-3, 3e-5), RMS_EPSILONS)
    given = inputs("subnormal-inputs", 2, 16, 1.0)
    given["x"] = narrow(wide(given["x"]) * 2.0 ** -135)
    kernel.add("subnormal-inputs", "subnormal f32 inputs: flushed to zero, or an epsilon missing",
               given, ["no-epsilon", "epsilon-outside-the-root"])
    given = inputs("zeros", 2, 16, 1.0)
    given["x"] = np.zeros((2, 16), np.float32)
    given["x"][1, ::2] = -0.0
    kernel.add("zeros", "zero rows give zeros, with their signs: 0/0 without an epsilon",
               given, ["no-epsilon"], promise=lambda c, right: not np.any(right["out.y"]))
    kernel.add("large-1e18", "values around 1e18 to 1e19: a sum of squares that overflows f32",
               inputs("large-1e18", 2, 40, 6e18), ["sum-of-squares-in-f32", *rounded])
    return kernel


# l2norm

def l2_norms(case):
    rate = 1.0 / np.sqrt(lane_sum(squares(case.x)) + L2_EPSILON)
    root = np.sqrt(exact_sum(squares(case.x)) + L2_EPSILON)
    return {"out.y": wide(case.x) / root[:, None] * wide(case.scale[0]),
            "bits.y": narrow(wide(case.x) * rate[:, None]) * case.scale[0]}


def l2_divided_by(root):
    def variant(case):
        total = lane_sum(squares(case.x))
        divisor = root(total, case.x.shape[-1])
        return {"out.y": wide(case.x) / divisor[:, None] * wide(case.scale[0])}
    return variant


def scale_inside(case):
    """The factor multiplied in before the rounding to f32."""
    rate = 1.0 / np.sqrt(lane_sum(squares(case.x)) + L2_EPSILON)
    return {"bits.y": narrow(wide(case.x) * rate[:, None] * wide(case.scale[0]))}


def l2_rate_in_f32(case):
    rate = narrow(1.0 / np.sqrt(lane_sum(squares(case.x)) + L2_EPSILON))
    return {"bits.y": case.x * rate[:, None] * case.scale[0]}


def l2_sum_in_f32(case):
    total = wide(lane_sum(narrow(squares(case.x)), dtype=np.float32))
    rate = 1.0 / np.sqrt(total + L2_EPSILON)
    return {"bits.y": narrow(wide(case.x) * rate[:, None]) * case.scale[0]}


WRONG_L2 = {
    "no-epsilon": l2_divided_by(lambda total, n: np.sqrt(total)),
    "epsilon-on-the-mean": l2_divided_by(lambda total, n: np.sqrt(total + L2_EPSILON * n)),
    "rms-norm": l2_divided_by(lambda total, n: np.sqrt(total / n + L2_EPSILON)),
    "epsilon-1e-5": l2_divided_by(lambda total, n: np.sqrt(total + 1e-5)),
    "epsilon-outside-the-root": l2_divided_by(lambda total, n: np.sqrt(total) + L2_EPSILON),
    "maximum-of-norm-and-epsilon": l2_divided_by(
        lambda total, n: np.maximum(np.sqrt(total), 1e-12)),
    "scale-dropped": lambda c: {"out.y": l2_norms(c)["out.y"] / wide(c.scale[0])},
    "scale-before-the-rounding": scale_inside,
    "rate-in-f32": l2_rate_in_f32,
    "sum-of-squares-in-f32": l2_sum_in_f32,
}
L2_EPSILONS = ["no-epsilon", "epsilon-on-the-mean", "epsilon-1e-5", "epsilon-outside-the-root",
               "maximum-of-norm-and-epsilon"]


def l2_norm():
    kernel = Kernel("l2-norm", l2_norms, WRONG_L2, bound=elementwise_bound)

    def add(case, text, x, exposes, width_scaled=False, promise=None):
        scale = 1.0 / np.sqrt(x.shape[-1]) if width_scaled else 1.0
        kernel.add(case, text, {"x": x, "scale": scalar(scale, np.float32)}, exposes,
                   promise=promise)

    def bell(case, rows, width, scale):
        return kernel.stream(case).bell("x", (rows, width), scale)

    add("128-times-1e-4", "128 values of 1e-4 give 0.0662266: an epsilon on the mean, outside the "
        "root, or none", np.full((1, 128), 1e-4, np.float32), [*L2_EPSILONS, "rms-norm"],
        promise=lambda c, right: np.all(np.abs(right["out.y"] - 0.0662266) < 5e-8))
    add("zeros", "zeros give zeros: 0/0 without the epsilon", np.zeros((2, 16), np.float32),
        ["no-epsilon"], promise=lambda c, right: not np.any(right["out.y"]))
    add("one-element", "one element: about its sign, epsilon aside",
        np.array([[0.5], [-2e-3], [0.03125]], np.float32), ["no-epsilon", "rate-in-f32"])
    add("key-rows", "keys of three sizes, no factor: a mean in place of the sum, f32 on the way",
        narrow(wide(bell("key-rows", 3, 24, 1.0)) * np.array([[1.0], [0.02], [50.0]])),
        ["rms-norm", "rate-in-f32", "sum-of-squares-in-f32"])
    add("query-rows-128", "the factor 128^-1/2 in f32, after the rounding: dropped, or folded in",
        bell("query-rows-128", 1, 128, 0.5),
        ["scale-dropped", "scale-before-the-rounding", "rate-in-f32", "sum-of-squares-in-f32"],
        True)
    add("query-rows-130", "a width that is no multiple of 16, with its factor",
        bell("query-rows-130", 1, 130, 0.01),
        ["scale-dropped", "scale-before-the-rounding", "epsilon-on-the-mean"], True)
    add("tiny-query", "queries of norm near 1e-3, where epsilon counts, with the factor",
        bell("tiny-query", 3, 24, 3e-4), [*L2_EPSILONS, "scale-before-the-rounding"], True)
    add("large-1e19", "values around 1e19: a sum of squares that overflows f32",
        bell("large-1e19", 2, 33, 1e19), ["sum-of-squares-in-f32", "rate-in-f32"])
    return kernel


# KDA's output: RMSNorm per head, then the logistic gate

def gated(case, gate=sigmoid, normed=None):
    if normed is None:
        o = wide(case.o)
        root = np.sqrt(exact_sum(o * o) / o.shape[-1] + case.epsilon[0])
        normed = o / root[..., None] * wide(case.weight)
    return {"out.y": normed * gate(wide(case.gate))}


def gated_bits(case, rule=None, rate=lambda mean, epsilon: 1.0 / np.sqrt(mean + epsilon)):
    """rule(o, rate, weight, gate), wide but for the gate, to F32."""
    r = rate(lane_sum(squares(case.o)) / case.o.shape[-1], case.epsilon[0])[..., None]
    given = wide(case.o), wide(r), wide(case.weight), case.gate
    if rule is not None:
        return {"bits.y": rule(*given)}
    return {"bits.y": narrow(given[0] * given[1] * given[2]) * sigmoid32(case.gate)}


def gate_before_norm(case):
    o = wide(case.o) * sigmoid(wide(case.gate))
    root = np.sqrt(exact_sum(o * o) / o.shape[-1] + case.epsilon[0])
    return {"out.y": o / root[..., None] * wide(case.weight)}


def normed_over_all_heads(case):
    o = wide(case.o)
    mean_square = exact_sum(o.reshape(len(o), -1) ** 2) / o[0].size
    root = np.sqrt(mean_square + case.epsilon[0])
    return gated(case, normed=o / root[:, None, None] * wide(case.weight))


def gate_of_the_next_head(case):
    return {"out.y": gated(case)["out.y"] / sigmoid(wide(case.gate))
            * sigmoid(np.roll(wide(case.gate), 1, axis=1))}


def epsilon_of_l2norm(case):
    o = wide(case.o)
    root = np.sqrt(exact_sum(o * o) / o.shape[-1] + 1e-6)
    return gated(case, normed=o / root[..., None] * wide(case.weight))


WRONG_GATED = {
    "silu-gate": lambda c: gated(c, gate=silu),
    "no-gate": lambda c: gated(c, gate=np.ones_like),
    "gate-not-squashed": lambda c: gated(c, gate=lambda gate: gate),
    "gate-before-the-norm": gate_before_norm,
    "norm-over-all-heads": normed_over_all_heads,
    "gate-of-another-head": gate_of_the_next_head,
    "epsilon-1e-6": epsilon_of_l2norm,
    "product-in-float64": lambda c: gated_bits(
        c, lambda o, r, w, gate: narrow(o * r * w * wide(sigmoid32(gate)))),
    "float64-rounded-once": lambda c: gated_bits(
        c, lambda o, r, w, gate: narrow(o * r * w * sigmoid64(gate))),
    "logistic-in-float64": lambda c: gated_bits(
        c, lambda o, r, w, gate: narrow(wide(narrow(o * r * w)) * sigmoid64(gate))),
    "weight-with-the-gate": lambda c: gated_bits(
        c, lambda o, r, w, gate: narrow(o * r) * (narrow(w) * sigmoid32(gate))),
    "rounded-before-the-weight": lambda c: gated_bits(
        c, lambda o, r, w, gate: narrow(o * r) * narrow(w) * sigmoid32(gate)),
    "rate-in-f32": lambda c: gated_bits(
        c, rate=lambda mean, epsilon: narrow(1.0 / np.sqrt(mean + epsilon))),
}
GATED_ROUNDINGS = ["product-in-float64", "float64-rounded-once", "logistic-in-float64",
                   "weight-with-the-gate", "rounded-before-the-weight", "rate-in-f32"]


def gated_norm():
    kernel = Kernel("gated-norm", lambda case: gated(case) | gated_bits(case), WRONG_GATED)
    # Heads of 1024: epsilon is beyond the eleventh digit, the normed value is 1.
    kernel.add(
        "normed-value-1", "normed value 1, gate 0 and -3: 0.5 and 0.047426, where a SiLU gate "
        "gives 0 and -0.142278",
        {"o": np.full((1, 2, 8), 1024.0, np.float32), "weight": np.ones(8, np.float32),
         "gate": np.repeat(np.array([[[0.0], [-3.0]]], np.float32), 8, axis=2),
         "epsilon": scalar(1e-5)},
        ["silu-gate", "no-gate", "gate-not-squashed", "gate-of-another-head",
         "gate-before-the-norm"],
        promise=lambda c, right: np.all(
            np.abs(right["out.y"][0] - [[0.5], [0.047426]]) < 1e-6))
    for case, text, shape, size, exposes in (
            ("heads-of-different-size", "heads of very different size: one norm over all of them, "
             "the gate of another head", (3, 4, 12), np.array([1.0, 20.0, 0.05, 3.0])[:, None],
             ["norm-over-all-heads", "gate-of-another-head", "gate-before-the-norm",
              "silu-gate", *GATED_ROUNDINGS]),
            ("tiny-heads", "heads of mean square near epsilon: the epsilon of l2norm",
             (2, 2, 16), 2e-3, ["epsilon-1e-6", "gate-before-the-norm"]),
            ("width-60", "a head width that is no power of two: padding taken in",
             (1, 2, 60), 1.0, ["silu-gate", "gate-before-the-norm", *GATED_ROUNDINGS])):
        stream = kernel.stream(case)
        o = narrow(wide(stream.bell("o", shape)) * size)
        kernel.add(case, text, {
            "o": o, "weight": stream.bell("weight", shape[-1], 0.3, 1.0),
            "gate": stream.bell("gate", shape, 2.0), "epsilon": scalar(1e-5)}, exposes)
    return kernel
