"""Kernel fixtures of the weights: MXFP4 decoding, BF16 widening, the row product by dtype."""

import math

import numpy as np

from kernel_case import Kernel
from kernel_sums import (
    WRONG_ROW_SUMS, cancelling, exact_sum, lane_sum, narrow, relevant_row_sums, wide,
)
from tensor_files import bfloat16_from_float64, float64_from_bfloat16, float64_from_mxfp4

# E2M1 magnitudes in halves.
HALVES = (0, 1, 2, 3, 4, 6, 8, 12)
GROUP = 32


# MXFP4

def codes_of(packed):
    codes = np.empty(packed.shape[:-1] + (packed.shape[-1] * 2,), np.uint8)
    codes[..., 0::2], codes[..., 1::2] = packed & 15, packed >> 4
    return codes


def pack(codes):
    return (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)


def decode(codes, scales, magnitude=lambda code: HALVES[code] / 2, bias=127):
    """One value after the other, in exact powers of two."""
    value = np.empty(codes.shape)
    for row, column in np.ndindex(codes.shape):
        code, scale = int(codes[row, column]), int(scales[row, column // GROUP])
        value[row, column] = math.ldexp(magnitude(code & 7), scale - bias)
        if code & 8:
            value[row, column] = -value[row, column]
    return value


def mxfp4_values(case):
    return {"bits.values": decode(codes_of(case.packed), case.scales)}


def wrong_decoding(change):
    """A variant that changes codes and scales, or takes other magnitudes or another bias."""
    def variant(case):
        return {"bits.values": change(codes_of(case.packed), case.scales)}
    return variant


def flushed(values):
    return np.where(np.abs(values) < 2.0 ** -126, 0.0, values)


WRONG_MXFP4 = {
    "swapped-nibbles": lambda c: {"bits.values": decode(
        codes_of(c.packed >> 4 | (c.packed & 15) << 4), c.scales)},
    "sign-dropped": wrong_decoding(lambda codes, scales: decode(codes & 7, scales)),
    "minus-zero-lost": wrong_decoding(lambda codes, scales: decode(codes, scales) + 0.0),
    "subnormal-code-as-normal": wrong_decoding(lambda codes, scales: decode(
        codes, scales, lambda code: (2 + code % 2) * 2.0 ** (code // 2 - 2))),
    "code-1-as-a-sixteenth": wrong_decoding(lambda codes, scales: decode(
        codes, scales, lambda code: 0.0625 if code == 1 else HALVES[code] / 2)),
    "bias-126": wrong_decoding(lambda codes, scales: decode(codes, scales, bias=126)),
    "scale-byte-as-number": wrong_decoding(lambda codes, scales: decode(
        codes, np.full_like(scales, 127)) * np.repeat(scales, GROUP, axis=-1)),
    "scale-byte-0-as-zero": wrong_decoding(lambda codes, scales: np.where(
        np.repeat(scales, GROUP, axis=-1) == 0, 0.0, decode(codes, scales))),
    "scale-128-as-nan": wrong_decoding(lambda codes, scales: np.where(
        np.repeat(scales, GROUP, axis=-1) == 134, np.nan, decode(codes, scales))),
    "f32-overflow": wrong_decoding(lambda codes, scales: wide(narrow(decode(codes, scales)))),
    "f32-subnormals-flushed": wrong_decoding(lambda codes, scales: flushed(
        decode(codes, scales))),
    "first-scale-for-the-row": wrong_decoding(lambda codes, scales: decode(
        codes, np.repeat(scales[:, :1], scales.shape[1], axis=1))),
    "scales-transposed": wrong_decoding(lambda codes, scales: decode(
        codes, scales.T.reshape(scales.shape))),
}


def mxfp4_decode():
    kernel = Kernel("mxfp4-decode", mxfp4_values, WRONG_MXFP4)
    # Sixteen codes in order, then in an order without symmetry.
    codes = np.concatenate([np.arange(16), (np.arange(16) * 7 + 3) % 16]).astype(np.uint8)
    every = set(WRONG_MXFP4) - {"first-scale-for-the-row", "scales-transposed"}
    kernel.add(
        "all-codes-all-scales",
        "row s has scale byte s: a wrong code or sign, byte 0 as 0, values beyond f32 at 253 and "
        "254, f32 subnormals flushed",
        {"packed": pack(np.tile(codes, (255, 1))),
         "scales": np.arange(255, dtype=np.uint8)[:, None]}, sorted(every),
        promise=lambda c, right: np.array_equal(
            float64_from_mxfp4(c.packed, c.scales), right["bits.values"]))
    kernel.add(
        "byte-0x21", "0x21 is 0.5, then 1.0: the high nibble taken for the even column",
        {"packed": np.full((1, 16), 0x21, np.uint8), "scales": np.full((1, 1), 127, np.uint8)},
        ["swapped-nibbles"],
        promise=lambda c, right: right["bits.values"][0, :2].tolist() == [0.5, 1.0])
    kernel.add(
        "scales-126-127-128-134", "0.5, 1, 2 and 128: a NaN test on the value 128, a wrong bias",
        {"packed": pack(np.tile(codes, (4, 1))),
         "scales": np.array([[126], [127], [128], [134]], np.uint8)},
        ["scale-128-as-nan", "bias-126", "scale-byte-as-number"],
        promise=lambda c, right: right["bits.values"][:, 2].tolist() == [0.5, 1.0, 2.0, 128.0])
    for groups in (1, 2, 3):
        case = f"groups-{groups}"
        stream = kernel.stream(case)
        exposes = ["swapped-nibbles", "minus-zero-lost"]
        exposes += ["first-scale-for-the-row", "scales-transposed"] if groups > 1 else []
        kernel.add(
            case, f"{groups} scale bytes per row: a scale of another group or another row",
            {"packed": stream.integers("packed", (3, groups * 16), 0, 256).astype(np.uint8),
             "scales": stream.integers("scales", (3, groups), 90, 160).astype(np.uint8)}, exposes)
    return kernel


# BF16

def bf16_values(case):
    return {"bits.values": float64_from_bfloat16(case.codes)}


def as_half_precision(codes):
    return wide(codes.astype(np.uint16).view(np.float16))


WRONG_BF16 = {
    "subnormals-flushed": lambda c: {"bits.values": np.copysign(
        flushed(float64_from_bfloat16(c.codes)), float64_from_bfloat16(c.codes))},
    "minus-zero-lost": lambda c: {"bits.values": float64_from_bfloat16(c.codes) + 0.0},
    "taken-for-f16": lambda c: {"bits.values": as_half_precision(c.codes)},
    "bytes-swapped": lambda c: {"bits.values": float64_from_bfloat16(
        c.codes.astype(np.uint16).byteswap())},
    "not-shifted": lambda c: {"bits.values": wide(c.codes.astype(np.uint32).view(np.float32))},
    "largest-as-infinity": lambda c: {"bits.values": np.where(
        np.abs(float64_from_bfloat16(c.codes)) >= 2.0 ** 127, np.inf,
        float64_from_bfloat16(c.codes))},
}


def bf16_widen():
    kernel = Kernel("bf16-widen", bf16_values, WRONG_BF16)
    ordinary = kernel.stream("ordinary").bell("codes", 48)
    cases = {
        "zeros": ("both zeros: the sign of -0 lost", [0x0000, 0x8000], ["minus-zero-lost"]),
        "subnormals": (
            "subnormals of both signs, 2^-133 to just below 2^-126: flushed to zero",
            [0x0001, 0x0002, 0x0003, 0x0040, 0x0055, 0x007E, 0x007F,
             0x8001, 0x8040, 0x807F], ["subnormals-flushed", "not-shifted"]),
        "smallest-normals": (
            "2^-126 and its neighbours: a flush that takes one code too many or too few",
            [0x0080, 0x0081, 0x8080, 0x80FF, 0x007F, 0x807F], ["subnormals-flushed"]),
        "largest": ("the largest finite codes: taken for infinity, or overflowing as f16",
                    [0x7F7F, 0xFF7F, 0x7F00, 0xFF00, 0x7EFF],
                    ["largest-as-infinity", "taken-for-f16"]),
        "ordinary": ("ordinary values: f16 in place of bf16, swapped bytes, the wrong half",
                     [0x3F80, 0xBF80, 0x3F81, 0x4049, 0x3E80]
                     + bfloat16_from_float64(ordinary).tolist(),
                     ["taken-for-f16", "bytes-swapped", "not-shifted"]),
    }
    for case, (text, codes, exposes) in cases.items():
        kernel.add(case, text, {"codes": np.array(codes, np.int32)}, exposes)
    return kernel


# Row product

def row_weights(case):
    if hasattr(case, "weights"):
        return wide(case.weights)
    if hasattr(case, "codes"):
        return float64_from_bfloat16(case.codes)
    return float64_from_mxfp4(case.packed, case.scales)


def row_terms(case):
    """Exact products [rows, n] of a row of any dtype with x."""
    return row_weights(case) * wide(case.x)


def row_products(case):
    terms = row_terms(case)
    total = lane_sum(terms)
    return {"out.value": exact_sum(terms), "bits.sum": total, "bits.value": narrow(total)}


def wrong_row_product(total):
    return lambda case: {"bits.sum": total(row_terms(case))}


WRONG_ROW_PRODUCTS = {
    **{name: wrong_row_product(total) for name, total in WRONG_ROW_SUMS.items()},
    "weights-through-f32": lambda c: {
        "bits.sum": lane_sum(wide(narrow(row_weights(c))) * wide(c.x))},
    "subnormal-weights-flushed": lambda c: {
        "bits.sum": lane_sum(flushed(row_weights(c)) * wide(c.x))},
    "subnormal-x-flushed": lambda c: {
        "bits.sum": lane_sum(row_weights(c) * flushed(wide(c.x)))},
    "subnormal-result-flushed": lambda c: {
        "bits.value": narrow(flushed(row_products(c)["bits.value"]))},
}


def row_bound(case, right, _name):
    """Rounding of n additions at the size of the sum of absolute terms, then one to F32."""
    terms = row_terms(case)
    size = np.abs(terms).sum(axis=-1)
    return (terms.shape[-1] * 2.0 ** -53 * size + np.abs(right["bits.sum"]) * 2.0 ** -24
            + 2.0 ** -150)


LENGTH_TEXTS = {
    1: "one term: products or the accumulator in f32, a single element left out",
    5: "shorter than the lanes: a fold in another order, the short row run through one lane",
    15: "one short of the lanes: the short row dropped, or run through one lane",
    16: "exactly the lanes: another fold, two half sums",
    17: "one element past a block: 8 lanes, the tail dropped or added after the fold",
    31: "one short of two blocks: 8 lanes, the tail in one lane",
    32: "two blocks: 8 lanes, one stretch of neighbours per lane, two half sums",
    33: "one past two blocks: 32 lanes, falling order, the tail dropped",
    48: "three blocks: 32 lanes, falling order, 8 lanes",
    100: "six blocks and a tail of four: every other order of additions",
    257: "sixteen blocks and a tail of one: every other order of additions",
}


def f32_case(n):
    def build(stream):
        x, w = cancelling(stream, 3, n)
        return {"weights": narrow(w), "x": narrow(x)}
    return build


def bf16_case(rows, n):
    def build(stream):
        x, w = cancelling(stream, rows, n, bits=8)
        return {"codes": bfloat16_from_float64(w).astype(np.int32), "x": narrow(x)}
    return build


def mxfp4_case(rows, groups):
    """Columns come in pairs with one value of x and opposite codes, far apart in exponent."""
    def build(stream):
        n = groups * GROUP
        power = np.where(stream.integers("kind", n, 0, 4) > 0,
                         stream.integers("huge", n, 22, 40), stream.integers("small", n, -8, 0))
        x = np.ldexp(stream.significand("x", n, 24), power)
        codes = stream.integers("codes", (rows, n), 0, 16)
        for group in range(groups):
            order = stream.permutation(f"pairs-{group}", GROUP) + group * GROUP
            first, second = order[0::2], order[1::2]
            pick = (first % 16 != second % 16) & (power[first] > 0)
            first, second = first[pick], second[pick]
            x[second] = x[first]
            codes[:, second] = codes[:, first] ^ 8
        scales = stream.integers("scales", (rows, groups), 118, 137)
        return {"packed": pack(codes.astype(np.uint8)), "scales": scales.astype(np.uint8),
                "x": narrow(x)}
    return build


def add_extreme_rows(kernel):
    """Weights, inputs and results at the ends of the exponent range."""
    stream = kernel.stream("subnormal-f32")
    tiny = np.ldexp(stream.significand("x", 20, 9), -140)
    kernel.add(
        "subnormal-f32", "subnormal x under row 0's ordinary weights, subnormal weights in row 1, "
        "a subnormal result in row 2: flushed to zero",
        {"weights": narrow(np.stack([stream.significand("w", 20, 24) * 2.0 ** 60, tiny,
                                     stream.significand("v", 20, 3)])), "x": narrow(tiny)},
        ["subnormal-weights-flushed", "subnormal-x-flushed", "subnormal-result-flushed"])
    stream = kernel.stream("bf16-subnormals")
    kernel.add(
        "bf16-subnormals", "subnormal BF16 weights of both signs: flushed by the widening",
        {"codes": (stream.integers("codes", (2, 20), 1, 128)
                   + 0x8000 * stream.integers("sign", (2, 20), 0, 2)).astype(np.int32),
         "x": narrow(stream.significand("x", 20, 24) * 2.0 ** 100)},
        ["subnormal-weights-flushed"])
    case, scales = "mxfp4-scales-0-1-253-254", [0, 1, 253, 254]
    stream = kernel.stream(case)
    power = np.repeat([110, 110, -110, -110], GROUP)
    kernel.add(
        case, "scale bytes 0, 1, 253, 254 in one row: weights squeezed through f32 overflow or "
        "are flushed", {
            "packed": stream.integers("packed", (3, 64), 0, 256).astype(np.uint8),
            "scales": np.tile(np.array(scales, np.uint8), (3, 1)),
            "x": narrow(np.ldexp(stream.significand("x", 128, 24), power))},
        ["weights-through-f32", "subnormal-weights-flushed", "f32-products", "f32-accumulator"])


def row_product():
    kernel = Kernel("row-product", row_products, WRONG_ROW_PRODUCTS, bound=row_bound)

    def searched(case, text, build, exposes):
        kernel.add(case, text, kernel.search(case, build, exposes), exposes)

    for n, text in LENGTH_TEXTS.items():
        searched(f"length-{n}", text, f32_case(n), relevant_row_sums(n))
    kernel.add(
        "negative-zeros", "sixteen products of -0: the sum is +0, not -0",
        {"weights": np.full((2, 16), -1.5, np.float32), "x": np.zeros(16, np.float32)},
        ["lanes-start-at-first-term"])
    add_extreme_rows(kernel)
    widths = (96, 64, 47, 33, 32, 40, 34, 33)
    for rows, n in zip((1, 2, 7, 8, 9, 15, 16, 17), widths):
        searched(f"bf16-rows-{rows}-columns-{n}",
                 f"{rows} BF16 rows of {n}: a block of rows, or a fused widening, that adds in "
                 "another order", bf16_case(rows, n), relevant_row_sums(n))
    for rows in (1, 2, 7, 8, 9, 15, 16, 17):
        for groups in (1, 2, 3):
            searched(f"mxfp4-rows-{rows}-groups-{groups}",
                     f"{rows} MXFP4 rows of {groups} groups: a fused decode that sums group by "
                     "group or differs at this number of rows",
                     mxfp4_case(rows, groups), relevant_row_sums(groups * GROUP, groups))
    return kernel
