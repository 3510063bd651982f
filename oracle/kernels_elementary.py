"""Kernel fixtures of SiTU and of the elementary functions exp, tanh and the logistic."""

import numpy as np

from k3 import sigmoid
from kernel_bits import exp32, exp64, sigmoid32, sigmoid64, tanh32, tanh64
from kernel_case import Kernel, scalar
from kernel_exact import exact_exp, exact_sigmoid, exact_tanh, rounded
from kernel_sums import narrow, wide

# SiTU

def capped(x, beta):
    return beta * np.tanh(x / beta)


def situ_values(case):
    gate, up = wide(case.gate), wide(case.up)
    return {"out.y": capped(gate, case.beta[0]) * sigmoid(gate) * capped(up, case.linear_beta[0]),
            "bits.y": situ_bits(lambda t, s, u, b, l: b * t * s * (l * u))(case)["bits.y"]}


def situ_bits(rule, over_beta=lambda x, beta: x / beta):
    """rule(tanh of the gate, logistic, tanh of up, beta, linear beta), all of them F32."""
    def outputs(case):
        beta, linear_beta = np.float32(case.beta[0]), np.float32(case.linear_beta[0])
        return {"bits.y": rule(tanh32(over_beta(case.gate, beta)), sigmoid32(case.gate),
                               tanh32(over_beta(case.up, linear_beta)), beta, linear_beta)}
    return outputs


def situ_in_float64(case):
    gate, up, beta, linear_beta = wide(case.gate), wide(case.up), case.beta[0], case.linear_beta[0]
    return {"bits.y": narrow(beta * tanh64(gate / beta) * sigmoid64(gate)
                             * (linear_beta * tanh64(up / linear_beta)))}


def situ_of(rule):
    """rule(gate, up, beta, linear beta)."""
    return lambda case: {"out.y": rule(
        wide(case.gate), wide(case.up), case.beta[0], case.linear_beta[0])}


def crude_tanh(case):
    """tanh from 1 - 2 / (e^2x + 1) in f32: nothing is left of small arguments."""
    def tanh(x):
        return 1 - 2 / (np.exp(2 * narrow(x)) + 1)
    beta, linear_beta = np.float32(case.beta[0]), np.float32(case.linear_beta[0])
    return {"out.y": wide(beta * tanh(case.gate / beta) * linear_beta
                          * tanh(case.up / linear_beta)) * sigmoid(wide(case.gate))}


WRONG_SITU = {
    "sigmoid-of-the-capped-gate": situ_of(
        lambda g, u, b, l: capped(g, b) * sigmoid(capped(g, b)) * capped(u, l)),
    "up-not-capped": situ_of(lambda g, u, b, l: capped(g, b) * sigmoid(g) * u),
    "gate-not-capped": situ_of(lambda g, u, b, l: g * sigmoid(g) * capped(u, l)),
    "gate-and-up-swapped": situ_of(lambda g, u, b, l: capped(u, b) * sigmoid(u) * capped(g, l)),
    "betas-swapped": situ_of(lambda g, u, b, l: capped(g, l) * sigmoid(g) * capped(u, b)),
    "hard-caps": situ_of(lambda g, u, b, l: np.clip(g, -b, b) * sigmoid(g) * np.clip(u, -l, l)),
    "betas-of-the-release": situ_of(
        lambda g, u, b, l: capped(g, 4.0) * sigmoid(g) * capped(u, 25.0)),
    "sigmoid-left-out": situ_of(lambda g, u, b, l: capped(g, b) * capped(u, l)),
    "not-divided-inside": situ_of(lambda g, u, b, l: b * np.tanh(g) * sigmoid(g) * l * np.tanh(u)),
    "crude-tanh": crude_tanh,
    "cut-off-at-zero": situ_of(
        lambda g, u, b, l: np.maximum(capped(g, b), 0) * sigmoid(g) * capped(u, l)),
    "sum-of-both": situ_of(lambda g, u, b, l: capped(g, b) * sigmoid(g) + capped(u, l)),
    "float64-rounded-once": situ_in_float64,
    "logistic-before-beta": situ_bits(lambda t, s, u, b, l: b * (t * s) * (l * u)),
    "logistic-with-up": situ_bits(lambda t, s, u, b, l: b * t * (s * (l * u))),
    "gate-with-up-first": situ_bits(lambda t, s, u, b, l: b * t * (l * u) * s),
    "betas-multiplied": situ_bits(lambda t, s, u, b, l: b * l * (t * s * u)),
    "products-contracted": situ_bits(
        lambda t, s, u, b, l: narrow(wide(b) * t * s * (wide(l) * u))),
    "times-one-over-beta": situ_bits(lambda t, s, u, b, l: b * t * s * (l * u),
                                     lambda x, beta: x * (np.float32(1) / beta)),
}
SITU_ROUNDINGS = ["float64-rounded-once", "logistic-before-beta", "logistic-with-up",
                  "gate-with-up-first", "betas-multiplied", "products-contracted",
                  "times-one-over-beta"]


def situ():
    kernel = Kernel("situ", situ_values, WRONG_SITU)

    def add(case, text, gate, up, betas, exposes):
        kernel.add(case, text, {
            "gate": narrow(np.array(gate)), "up": narrow(np.array(up)),
            "beta": scalar(betas[0]), "linear_beta": scalar(betas[1])}, exposes)

    released, other = (4.0, 25.0), (3.0, 11.0)
    shared = ["sigmoid-of-the-capped-gate", "up-not-capped", "gate-not-capped",
              "gate-and-up-swapped", "betas-swapped", "hard-caps", "sigmoid-left-out",
              "not-divided-inside"]
    for case, betas in (("released-betas", released), ("other-betas", other)):
        stream = kernel.stream(case)
        text = "ordinary values and some beyond the caps: the logistic of the capped gate, "
        text += "a cap left out" + (", released constants written in, "
                                             "roundings elsewhere" if betas == other else "")
        exposes = shared + (["betas-of-the-release"] if betas == other else [])
        add(case, text, stream.bell("gate", 24, 3.0), stream.bell("up", 24, 12.0), betas,
            exposes + (SITU_ROUNDINGS if betas == other else []))
    add("beyond-both-caps", "gates and ups far beyond the caps, all four signs: at most 100 in "
        "absolute value", [60, 60, -8, -8, 1e4, -30, 200, 12], [500, -500, 500, -500, 1e5, 90,
                                                                 -1e4, -300], released,
        ["up-not-capped", "gate-not-capped", "sigmoid-left-out", "betas-swapped"])
    add("zeros", "zero in either place gives zero", [0, 0, -0.0, 1.5, 0, -0.0],
        [0, 2.5, 2.5, 0, -40, -0.0], released, ["sum-of-both"])
    add("negative-gates", "negative gates keep a small negative share: cut off at zero, or the "
        "capped gate in the logistic", [-0.5, -1, -2, -4, -6, -9, -12, -1e-3],
        [1, -2, 3, -4, 5, 6, -7, 20], released,
        ["sigmoid-of-the-capped-gate", "sigmoid-left-out", "cut-off-at-zero"])
    add("tiny-values", "values so small that tanh is the identity: a tanh that loses digits",
        [1e-6, -3e-6, 2e-20, 1e-3], [2e-6, 5e-5, 1e-20, -1e-3], other, ["crude-tanh"])
    return kernel


# Elementary functions

FUNCTIONS = {"exp": exact_exp, "tanh": exact_tanh, "sigmoid": exact_sigmoid}
IN_F32 = {"exp": exp32, "tanh": tanh32, "sigmoid": sigmoid32}


def elementary_values(case):
    values = {f"out.{name}": rounded(function, case.x) for name, function in FUNCTIONS.items()
              if name in case.functions}
    return values | {f"bits.{name}": IN_F32[name](case.x) for name in FUNCTIONS
                     if name in case.functions}


def towards_zero(case):
    """The value cut off, not rounded, to F32."""
    right, cut = elementary_values(case), {}
    for name in case.functions:
        bits, value = right["bits." + name], right["out." + name]
        over = np.abs(wide(bits)) > np.abs(value)
        cut["bits." + name] = np.where(over, np.nextafter(bits, np.float32(0)), bits)
    return cut


# Arguments whose exponential lies within 2^-16 of an ulp of the middle of two F32 numbers, on
# either side. A function that is off by a thousandth of an ulp, as those of platforms are, rounds
# half of them the wrong way.
NEARLY_TIED_EXP = [float.fromhex(text) for text in (
    "0x1.23d4c6p+0", "0x1.98f8f8p-1", "0x1.59f67ep+3", "-0x1.816cc6p+2", "0x1.ac60b4p-1",
    "-0x1.5a0f8cp-2", "-0x1.1defcep+3", "-0x1.a79166p+2", "-0x1.1915f0p+3", "0x1.04bc90p+0",
    "-0x1.44baf4p-3", "0x1.f6ed98p+1")]


def exp_off_by(error):
    """exp with a relative error of that size, then rounded."""
    def outputs(case):
        if "exp" not in case.functions:
            return {}
        return {"bits.exp": narrow(exp64(wide(case.x)) * (1 + error))}
    return outputs


def nearly_tied(_case, right):
    """Whether each exact value is as near to a middle as the table says."""
    value, bits = right["out.exp"], wide(right["bits.exp"])
    ulp = np.spacing(narrow(bits)).astype(np.float64)
    return bool(np.all(np.abs(np.abs(value - bits) / ulp - 0.5) < 2.0 ** -16))


def elementwise_bound(_case, right, name):
    return np.abs(right["out." + name]) * 2.0 ** -24 + 2.0 ** -149


def in_f32(**formulas):
    """Crude single-precision formulas by function name."""
    def variant(case):
        return {f"out.{name}": wide(formula(case.x)) for name, formula in formulas.items()
                if name in case.functions}
    return variant


def cut_off(x):
    """exp that gives up where its result leaves the normal numbers."""
    return np.where(x < -87.0, np.float32(0), np.exp(x))


def rational_tanh(x):
    return np.clip(x * (27 + x * x) / (27 + 9 * x * x), -1, 1)


WRONG_ELEMENTARY = {
    "tanh-by-difference": in_f32(tanh=lambda x: 1 - 2 / (np.exp(2 * x) + np.float32(1))),
    "tanh-by-quotient": in_f32(
        tanh=lambda x: (np.exp(2 * x) - 1) / (np.exp(2 * x) + np.float32(1))),
    "tanh-rational": in_f32(tanh=rational_tanh),
    "sigmoid-by-overflowing-exp": in_f32(sigmoid=lambda x: 1 / (1 + np.exp(-x))),
    "sigmoid-by-quotient": in_f32(sigmoid=lambda x: np.exp(x) / (1 + np.exp(x))),
    "sigmoid-saturated-at-16": in_f32(sigmoid=lambda x: np.where(
        x < -16, np.float32(0), np.where(x > 16, np.float32(1), 1 / (1 + np.exp(-x))))),
    "exp-without-subnormals": in_f32(exp=cut_off),
    "exp-of-few-terms": in_f32(exp=lambda x: 1 + x + x * x / 2 + x * x * x / 6),
    "subnormal-inputs-flushed": in_f32(tanh=lambda x: np.where(
        np.abs(x) < 2.0 ** -126, np.float32(0), np.tanh(x))),
    "zero-sign-lost": lambda c: {"out.tanh": rounded(exact_tanh, c.x) + 0.0},
    "cut-off-not-rounded": towards_zero,
    "exp-of-33-bits-too-large": exp_off_by(2.0 ** -33),
    "exp-of-33-bits-too-small": exp_off_by(-2.0 ** -33),
}


def elementary():
    kernel = Kernel("elementary", elementary_values, WRONG_ELEMENTARY, elementwise=True,
                    bound=elementwise_bound)
    every = tuple(FUNCTIONS)

    def add(case, text, x, exposes, functions=every, promise=None):
        kernel.add(case, text, {"x": narrow(np.array(x, np.float64))}, exposes,
                   functions=functions, promise=promise)

    add("zeros", "both zeros: tanh keeps the sign, exp is 1, the logistic one half", [0.0, -0.0],
        ["zero-sign-lost"])
    tiny = [2.0 ** -149, -2.0 ** -149, 3 * 2.0 ** -149, 2.0 ** -140, -2.0 ** -130, 2.0 ** -126]
    add("subnormal-inputs", "subnormal arguments: flushed, or lost in a difference", tiny,
        ["subnormal-inputs-flushed", "tanh-by-difference", "tanh-by-quotient"])
    add("tiny-inputs", "1e-30 and the like: tanh is its argument, not a difference of ones",
        [1e-30, -1e-30, 1e-20, -1e-12, 1e-8, 2e-8], ["tanh-by-difference", "tanh-by-quotient"])
    small = kernel.stream("tanh-near-zero").uniform("x", 12, 0.0, 1.0)
    add("tanh-near-zero", "1e-6 to 0.6: a difference that loses digits",
        [1e-6, -1e-5, 1e-4, -5e-4, 2e-3, 0.01, *(wide(small) * 0.6)], ["tanh-by-difference"])
    add("sigmoid-at-20", "the logistic at 20 and around: saturated too early",
        [20.0, -20.0, 16.5, -16.5, 17.25, -17.25, 9.0, -9.0], ["sigmoid-saturated-at-16"])
    add("saturated-at-90", "+90 and -90, no exp (it overflows f32): the logistic of -90 is a "
        "subnormal, not 0, of +90 no NaN", [90.0, -90.0, 88.75, -88.75, 100.0, -100.0, 1e4, 3e38],
        ["sigmoid-by-quotient", "sigmoid-by-overflowing-exp"], ("tanh", "sigmoid"))
    add("exp-low-end", "results from the smallest subnormals to the smallest normals: cut off at "
        "-87", [-87.0, -87.3, -87.33654, -87.4, -88.0, -90.0, -95.0, -100.0, -103.0, -103.9,
                -103.97, -104.0], ["exp-without-subnormals"])
    add("exp-high-end", "up to the largest argument with a finite result: too early an overflow",
        [80.0, 85.5, 88.0, 88.5, 88.7, 88.72], ["exp-of-few-terms"])
    add("exp-nearly-tied", "values that lie in the middle of two F32 numbers but for a hundred-"
        "thousandth of an ulp: a platform's exp, right to a thousandth", NEARLY_TIED_EXP,
        ["exp-of-33-bits-too-large", "exp-of-33-bits-too-small"], ("exp",), nearly_tied)
    ordinary = kernel.stream("ordinary").bell("x", 40, 3.0)
    add("ordinary", "ordinary points on both sides: a short series, a rational tanh",
        [1.0, -1.0, 0.5, -0.5, 2.0, -3.0, *wide(ordinary)],
        ["exp-of-few-terms", "tanh-rational", "cut-off-not-rounded"])
    return kernel
