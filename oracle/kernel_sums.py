"""The sums of the arithmetic contract on exact float64 products, and wrong orders of the same.

Terms are products of two F32 numbers (or of an F32 number and a weight that is exact in float64),
so they are exact, and only the order of the additions decides the bits. numpy adds element by
element here; nothing is reduced, contracted or handed to BLAS.
"""

import math

import numpy as np

LANES = 16


def wide(x):
    return np.asarray(x).astype(np.float64)


def narrow(x):
    """One rounding to single precision."""
    return np.asarray(x).astype(np.float32)


def exact_sum(terms):
    """Over the last axis, correctly rounded."""
    flat = terms.reshape(-1, terms.shape[-1])
    return np.array([math.fsum(row) for row in flat]).reshape(terms.shape[:-1])


# Folds of the lanes [..., lanes] -> [...]

def halving_fold(lanes):
    """Lane j += lane j + 8, then j + 4, j + 2, j + 1."""
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


def adjacent_fold(lanes):
    while lanes.shape[-1] > 1:
        lanes = lanes[..., 0::2] + lanes[..., 1::2]
    return lanes[..., 0]


def rising_sum(terms):
    """The last axis in rising order, one accumulator that starts at +0."""
    total = np.zeros(terms.shape[:-1], terms.dtype)
    for i in range(terms.shape[-1]):
        total = total + terms[..., i]
    return total


# The row rule over the last axis [..., n] -> [...]

def lane_sum(terms, lanes=LANES, fold=halving_fold, dtype=np.float64, falling=False):
    """Element i goes to lane i mod `lanes`, in rising i; the lanes start at +0."""
    total = np.zeros(terms.shape[:-1] + (lanes,), dtype)
    starts = range(0, terms.shape[-1], lanes)
    for start in reversed(starts) if falling else starts:
        part = terms[..., start:start + lanes].astype(dtype)
        width = part.shape[-1]
        total[..., :width] = total[..., :width] + part
    return fold(total)


def whole_blocks(terms):
    return terms.shape[-1] // LANES * LANES


def tail_after_fold(terms):
    total = lane_sum(terms[..., :whole_blocks(terms)])
    for i in range(whole_blocks(terms), terms.shape[-1]):
        total = total + terms[..., i]
    return total


def tail_in_lane_0(terms):
    """The short tail runs through one lane instead of one lane per element."""
    cut = whole_blocks(terms)

    def fold(lanes):
        lanes = lanes.copy()
        for i in range(cut, terms.shape[-1]):
            lanes[..., 0] = lanes[..., 0] + terms[..., i]
        return halving_fold(lanes)
    return lane_sum(terms[..., :cut], fold=fold)


def split(terms, at):
    return lane_sum(terms[..., :at]) + lane_sum(terms[..., at:])


def contiguous_lanes(terms):
    """Each lane takes a stretch of neighbours instead of every sixteenth element."""
    per_lane = -(-terms.shape[-1] // LANES)
    lanes = [rising_sum(terms[..., lane * per_lane:(lane + 1) * per_lane])
             for lane in range(LANES)]
    return halving_fold(np.stack(lanes, axis=-1))


def group_by_group(terms):
    """One finished sum per MXFP4 group, then the groups."""
    starts = range(0, terms.shape[-1], 32)
    return rising_sum(np.stack([lane_sum(terms[..., i:i + 32]) for i in starts], axis=-1))


def started_by_the_first_term(terms):
    """No +0 to start from: sixteen negative zeros stay negative."""
    lanes = terms[..., :LANES]
    for start in range(LANES, terms.shape[-1], LANES):
        lanes = lanes + terms[..., start:start + LANES]
    return halving_fold(lanes)


WRONG_ROW_SUMS = {
    "eight-lanes": lambda terms: lane_sum(terms, 8),
    "thirty-two-lanes": lambda terms: lane_sum(terms, 32),
    "adjacent-pair-fold": lambda terms: lane_sum(terms, fold=adjacent_fold),
    "sequential-fold": lambda terms: lane_sum(terms, fold=rising_sum),
    "single-accumulator": rising_sum,
    "contiguous-lanes": contiguous_lanes,
    "split-in-halves": lambda terms: split(terms, -(-terms.shape[-1] // 2)),
    "split-at-a-block": lambda terms: split(terms, -(-terms.shape[-1] // 32) * LANES),
    "f32-accumulator": lambda terms: wide(lane_sum(terms, dtype=np.float32)),
    "f32-products": lambda terms: lane_sum(wide(narrow(terms))),
    "dropped-tail": lambda terms: lane_sum(terms[..., :whole_blocks(terms)]),
    "tail-in-one-lane": tail_in_lane_0,
    "tail-after-the-fold": tail_after_fold,
    "falling-order": lambda terms: lane_sum(terms, falling=True),
    "group-by-group": group_by_group,
    "lanes-start-at-first-term": started_by_the_first_term,
}


def relevant_row_sums(n, groups=0):
    """The wrong row sums that are another sequence of additions at length n.

    Up to 16 terms the lanes hold one term each, and 8 lanes make the same tree; up to 32 terms a
    lane adds two terms at most, whose order is free, and 32 lanes make the same tree.
    """
    tail = n % LANES
    rules = {
        "f32-accumulator": True, "f32-products": True, "dropped-tail": tail > 0,
        "adjacent-pair-fold": n > 2, "sequential-fold": n > 2, "single-accumulator": n > 2,
        "split-in-halves": n > 2, "eight-lanes": n > LANES, "contiguous-lanes": n > LANES,
        "split-at-a-block": n > LANES, "thirty-two-lanes": n > 2 * LANES,
        "falling-order": n > 2 * LANES,
        "tail-in-one-lane": tail > 1 and n > 2,
        "tail-after-the-fold": tail > 0 and n > 2, "group-by-group": groups > 1,
    }
    return [name for name, is_relevant in rules.items() if is_relevant]


# Sums down a column over the last axis [..., m] -> [...]

def pairwise_sum(terms):
    m = terms.shape[-1]
    if m == 1:
        return terms[..., 0]
    return pairwise_sum(terms[..., :m // 2]) + pairwise_sum(terms[..., m // 2:])


def blocked_sum(terms, width=4):
    starts = range(0, terms.shape[-1], width)
    return rising_sum(np.stack([rising_sum(terms[..., i:i + width]) for i in starts], axis=-1))


WRONG_COLUMN_SUMS = {
    "falling-order": lambda terms: rising_sum(terms[..., ::-1]),
    "pairwise": pairwise_sum,
    "blocks-of-four": blocked_sum,
    "sixteen-lanes": lane_sum,
    "f32-accumulator": lambda terms: wide(rising_sum(narrow(terms))),
    "f32-products": lambda terms: rising_sum(wide(narrow(terms))),
    "last-term-dropped": lambda terms: rising_sum(terms[..., :-1]),
}


def relevant_column_sums(m):
    rules = {
        "f32-accumulator": m > 1, "f32-products": m > 1, "last-term-dropped": True,
        "falling-order": m > 2, "pairwise": m > 2, "sixteen-lanes": m > 2,
        "blocks-of-four": m > 5,
    }
    return [name for name, is_relevant in rules.items() if is_relevant]


def cancelling(stream, rows, n, *, bits=24, signed=True):
    """x [n] and w [rows, n] in float64, exact in F32 (in `bits` bits for w), whose products
    cancel: two thirds of each row are pairs of huge opposite products in different lanes, the
    rest is small, so that what is left shows how the huge ones were rounded. How huge is drawn
    per row: rounding of the small products shows beside the less huge ones only."""
    x = np.ldexp(np.abs(stream.significand("x", 1, 24)), stream.integers("x-scale", n, -9, 10))
    if signed:
        x = x * (1 - 2 * stream.integers("x-sign", n, 0, 2))
    w = stream.significand("w", (rows, n), bits)
    small = stream.integers("w-small", (rows, n), -4, 3)
    huge = stream.integers("w-huge", (rows, n), -12, 0) + stream.integers(
        "w-top", (rows, 1), 20, 46)
    exponent_of_x = np.frexp(x)[1] - 1
    pairs = max(n // 3, 1) if n > 2 else 0
    for row in range(rows):
        order = stream.permutation(f"pairs-{row}", n)
        power = small[row] - exponent_of_x
        first, second = order[0:2 * pairs:2], order[1:2 * pairs:2]
        apart = first % LANES != second % LANES
        first, second = first[apart], second[apart]
        power[first] = huge[row, first] - exponent_of_x[first]
        w[row] = np.ldexp(w[row], power)
        w[row, second] = -w[row, first] * (x[first] / x[second])
    return x, w
