"""exp, tanh and the logistic correctly rounded to F32, and the softmax sum in the contract's bits.

The engine's functions are correctly rounded but for a few arguments whose exact value lies within
a ten-millionth of an ulp of a rounding boundary. Arguments that near to one are refused here, so
these bits are the engine's. Decimal and IEEE arithmetic only: no platform library takes part.
"""

import math
from functools import lru_cache

import numpy as np

from kernel_case import refuse
from kernel_exact import exact_exp, exact_sigmoid, exact_tanh, rounded
from kernel_sums import WRONG_COLUMN_SUMS, blocked_sum, narrow, rising_sum, wide

DIGITS_OF_A_NEAR_TIE = 7
LEAST_EXPONENT = -149
# Beyond this every result is a limit: e^-104 is below half of the smallest subnormal.
FAR = 110.0


def nearest_f32(value, place):
    """A float or Decimal of moderate size, rounded once to nearest even."""
    if value == 0:
        return float(value)
    over, under = value.as_integer_ratio()
    sign, over = (-1.0, -over) if over < 0 else (1.0, over)
    power = over.bit_length() - under.bit_length()
    if over << max(-power, 0) < under << max(power, 0):
        power -= 1
    ulp = max(power - 23, LEAST_EXPONENT)
    over, under = over << max(-ulp, 0), under << max(ulp, 0)
    whole, rest = divmod(over, under)
    if abs(2 * rest - under) * 10 ** DIGITS_OF_A_NEAR_TIE <= 2 * under:
        refuse(f"{place} is too near to the middle of two F32 numbers")
    result = math.ldexp(whole + (2 * rest > under), ulp)
    return sign * (result if result < 2.0 ** 128 else math.inf)


@lru_cache(maxsize=None)
def _exp(x):
    if abs(x) > FAR:
        return math.inf if x > 0 else 0.0
    return nearest_f32(exact_exp(x), f"exp({x!r})")


@lru_cache(maxsize=None)
def _sigmoid(x):
    if abs(x) > FAR:
        return 1.0 if x > 0 else 0.0
    return nearest_f32(exact_sigmoid(x), f"sigmoid({x!r})")


@lru_cache(maxsize=None)
def _tanh_of_magnitude(x):
    return 1.0 if x > FAR else nearest_f32(exact_tanh(x), f"tanh({x!r})")


def _tanh(x):
    return math.copysign(_tanh_of_magnitude(abs(x)), x)


def over_array(function):
    def elementwise(x):
        """From F32 or F64 to F32."""
        flat = [function(float(value)) for value in np.ravel(x)]
        return np.array(flat, np.float64).astype(np.float32).reshape(np.shape(x))
    return elementwise


exp32, tanh32, sigmoid32 = over_array(_exp), over_array(_tanh), over_array(_sigmoid)


def sigmoid64(x):
    return rounded(exact_sigmoid, x)


def tanh64(x):
    return rounded(exact_tanh, x)


def exp64(x):
    return rounded(exact_exp, x)


# The softmax sum: scores [m] and values [m, n], both F32 -> [n]

def exponentials(scores):
    return exp32(scores - scores.max())


def numerators(weights, values):
    """Exact products [n, m]."""
    return wide(values).T * wide(weights)


def softmax_sum_bits(scores, values, weights=exponentials, total=rising_sum):
    e = weights(scores)
    return narrow(total(numerators(e, values)) / total(wide(e)))


def divisor_rounded(scores, values):
    e = exponentials(scores)
    return narrow(rising_sum(numerators(e, values)) / wide(narrow(rising_sum(wide(e)))))


def both_rounded(scores, values):
    e = exponentials(scores)
    return narrow(rising_sum(numerators(e, values))) / narrow(rising_sum(wide(e)))


def normalised_first(scores, values):
    e = wide(exponentials(scores))
    return narrow(rising_sum(numerators(narrow(e / rising_sum(e)), values)))


def running_maximum(width):
    """Block by block; what has been summed is rescaled when a block brings a new maximum."""
    def attend(scores, values):
        top, z, n = scores[0], np.float64(0), np.zeros(values.shape[1])
        for start in range(0, len(scores), width):
            part = slice(start, start + width)
            raised = max(top, scores[part].max())
            factor = wide(exp32(top - raised))
            e = exp32(scores[part] - raised)
            top, z, n = raised, z * factor, n * factor
            for weight, row in zip(wide(e), wide(values[part])):
                z, n = z + weight, n + weight * row
        return narrow(n / z)
    return attend


def summed_by(total):
    return lambda scores, values: softmax_sum_bits(scores, values, total=total)


def weighted_by(weights):
    return lambda scores, values: softmax_sum_bits(scores, values, weights=weights)


WRONG_ATTENDING = {
    **{name: summed_by(WRONG_COLUMN_SUMS[name]) for name in (
        "falling-order", "pairwise", "sixteen-lanes", "f32-accumulator", "f32-products")},
    "blocks-of-four": summed_by(blocked_sum),
    "blocks-of-64": summed_by(lambda terms: blocked_sum(terms, 64)),
    **{f"running-maximum-by-{width}": running_maximum(width) for width in (1, 4, 16, 64, 128)},
    "divisor-in-f32": divisor_rounded,
    "both-sums-in-f32": both_rounded,
    "normalised-before-the-sum": normalised_first,
    "difference-not-rounded": weighted_by(lambda s: exp32(wide(s) - wide(s.max()))),
    "exponentials-not-rounded": weighted_by(lambda s: exp64(s - s.max())),
}
ATTENDING_OF_FEW = [name for name in WRONG_ATTENDING if name not in (
    "blocks-of-64", *(f"running-maximum-by-{width}" for width in (16, 64, 128)))]


def huge(stream, what, shape, low=29, high=44):
    """F32 of 2^low to 2^high, with all bits of the significand."""
    drawn = stream.significand(what, shape, 24)
    return narrow(np.ldexp(drawn, stream.integers(what + "-power", drawn.shape, low, high)))
