"""Kernel fixtures of sums over vectors: weighted sum, MoE sum, softmax sum, residual mix."""

from types import SimpleNamespace

import numpy as np

from k3 import product, softmax, sum_in_order
from kernel_bits import ATTENDING_OF_FEW, WRONG_ATTENDING, huge, softmax_sum_bits
from kernel_case import Kernel, scalar
from kernel_sums import (
    WRONG_COLUMN_SUMS, cancelling, exact_sum, lane_sum, narrow, relevant_column_sums, rising_sum,
    wide,
)


def column_terms(weights, vectors):
    """Exact products [n, m]: the summed index last."""
    return (wide(weights)[:, None] * wide(vectors)).T


def column_bound(terms, total):
    return (terms.shape[-1] * 2.0 ** -53 * np.abs(terms).sum(axis=-1)
            + np.abs(total) * 2.0 ** -24)


def column_case(m, n, signed=True):
    """weights [m] and vectors [m, n] whose products cancel down every column."""
    def build(stream):
        x, w = cancelling(stream, n, m, signed=signed)
        return narrow(x), narrow(w.T)
    return build


# Weighted sum of vectors

def weighted_terms(case):
    return column_terms(case.weights, case.vectors)


def weighted_sums(case):
    terms = weighted_terms(case)
    return {"out.sum": exact_sum(terms), "bits.sum": narrow(rising_sum(terms))}


def wrong_column_sum(total, terms):
    return lambda case: {"bits.sum": narrow(total(terms(case)))}


def weighted_sum():
    kernel = Kernel(
        "weighted-sum", weighted_sums,
        {name: wrong_column_sum(total, weighted_terms)
         for name, total in WRONG_COLUMN_SUMS.items()},
        bound=lambda case, right, _: column_bound(weighted_terms(case), right["bits.sum"]))
    sizes = {1: 6, 2: 6, 3: 12, 4: 8, 9: 16, 16: 8, 17: 5, 40: 4, 200: 3}
    for m, n in sizes.items():
        def build(stream, m=m, n=n):
            weights, vectors = column_case(m, n)(stream)
            return {"weights": weights, "vectors": vectors}
        case, exposes = f"vectors-{m}", relevant_column_sums(m)
        orders = ("f32 accumulators or products, falling, pairwise, blocked or laned order"
                  if m > 2 else "f32 accumulators or products, a vector left out")
        kernel.add(case, f"{m} vectors that cancel: {orders}",
                   kernel.search(case, build, exposes), exposes)
    return kernel


# MoE sum

def expert_terms(case):
    """In rising expert id."""
    order = np.argsort(case.ids, kind="stable")
    return column_terms(case.weights[order], case.outputs[order])


def expert_sums(case):
    terms = expert_terms(case)
    return {"out.sum": exact_sum(terms), "bits.sum": narrow(rising_sum(terms))}


def weights_sorted_alone(case):
    order = np.argsort(case.ids, kind="stable")
    return {"bits.sum": narrow(rising_sum(column_terms(case.weights[order], case.outputs)))}


WRONG_EXPERT_SUMS = {
    "arrival-order": lambda c: {"bits.sum": narrow(rising_sum(
        column_terms(c.weights, c.outputs)))},
    "weights-sorted-alone": weights_sorted_alone,
    "f32-weighted-outputs": lambda c: {"bits.sum": narrow(rising_sum(
        wide(narrow(expert_terms(c)))))},
    **{name: wrong_column_sum(total, expert_terms) for name, total in WRONG_COLUMN_SUMS.items()
       if name in ("falling-order", "pairwise", "f32-accumulator", "last-term-dropped")},
}


def moe_sum():
    kernel = Kernel(
        "moe-sum", expert_sums, WRONG_EXPERT_SUMS,
        bound=lambda case, right, _: column_bound(expert_terms(case), right["bits.sum"]))
    arrivals = {
        "one-expert": [5], "two-experts-falling": [7, 2], "three-experts": [6, 0, 3],
        "eight-experts": [12, 3, 880, 41, 7, 895, 0, 128],
        "sixteen-experts": [895, 17, 2, 640, 301, 0, 77, 512, 33, 894, 128, 5, 256, 411, 9, 700],
        "ids-in-rising-order": [1, 4, 9, 16, 25],
    }
    for case, ids in arrivals.items():
        def build(stream, ids=ids):
            weights, outputs = column_case(len(ids), 12, signed=False)(stream)
            return {"ids": np.array(ids, np.int32), "outputs": outputs, "weights": weights}
        unsorted = ids != sorted(ids)
        exposes = ["last-term-dropped"]
        exposes += ["f32-accumulator", "f32-weighted-outputs"] if len(ids) > 1 else []
        exposes += ["weights-sorted-alone"] if unsorted else []
        exposes += ["falling-order", "pairwise"] if len(ids) > 2 else []
        exposes += ["arrival-order"] if unsorted and len(ids) > 2 else []
        text = (f"{len(ids)} out of order: the sum taken as they arrive, weights and outputs "
                "paired wrongly" if unsorted else f"{len(ids)} in order: f32 steps, one left out")
        kernel.add(case, text, kernel.search(case, build, exposes), exposes)
    return kernel


# Softmax-weighted sum

def softmax_sums(case):
    return {"out.sum": product(softmax(wide(case.scores)), wide(case.values)),
            "bits.sum": softmax_sum_bits(case.scores, case.values)}


def with_exponentials(change):
    """The same sum from other, unnormalised weights."""
    def variant(case):
        weights = wide(change(case.scores))
        return {"out.sum": product(weights, wide(case.values)) / rising_sum(weights)}
    return variant


WRONG_SOFTMAX = {
    "no-maximum-in-f32": with_exponentials(np.exp),
    "no-normalisation": lambda c: {"out.sum": product(
        np.exp(wide(c.scores) - wide(c.scores).max()), wide(c.values))},
    "uniform-weights": with_exponentials(np.ones_like),
    "power-of-two": with_exponentials(lambda scores: np.exp2(wide(scores) - scores.max())),
    "maximum-of-the-first-block": with_exponentials(
        lambda scores: np.exp(narrow(scores - scores[:64].max()))),
    "last-position-dropped": lambda c: {"out.sum": product(
        softmax(wide(c.scores[:-1])), wide(c.values[:-1])) if len(c.scores) > 1
        else np.zeros(c.values.shape[1])},
    "first-position-dropped": lambda c: {"out.sum": product(
        softmax(wide(c.scores[1:])), wide(c.values[1:])) if len(c.scores) > 1
        else np.zeros(c.values.shape[1])},
    "masked-score-as-zero": with_exponentials(
        lambda scores: np.exp(np.where(scores < -1e29, 0, wide(scores)))),
    **{name: lambda c, attend=attend: {"bits.sum": attend(c.scores, c.values)}
       for name, attend in WRONG_ATTENDING.items()},
}


def cancelling_positions(m, n):
    """Pairs of equal scores with huge opposite values, small ones between; the largest score
    comes near the end."""
    def build(stream):
        scores, values = stream.bell("scores", m, 1.5), stream.bell("values", (m, n))
        order = stream.permutation("pairs", m)[:m // 3 * 2]
        first, second = order[0::2], order[1::2]
        scores[second] = scores[first]
        values[first] = huge(stream, "huge", (len(first), n))
        values[second] = -values[first]
        scores[-2:] = np.abs(scores).max() + np.abs(scores[-2:]) + np.float32([0.5, 0.25])
        return {"scores": scores, "values": values}
    return build


def softmax_sum():
    kernel = Kernel("softmax-sum", softmax_sums, WRONG_SOFTMAX)
    ordinary = ["no-normalisation", "uniform-weights", "power-of-two"]
    dropped = ["last-position-dropped", "first-position-dropped"]

    def scores_of(case, m, scale, offset=0.0):
        return kernel.stream(case).bell("scores", m, scale, offset)

    cases = {
        "one-position": ("the values of that position exactly: a weight that is not 1",
                         scores_of("one-position", 1, 3.0), dropped),
        "two-equal": ("one half each: the sum of weights not divided by, one position only",
                      np.full(2, 1.5, np.float32), ["no-normalisation", *dropped]),
        "plus-and-minus-1e30": (
            "weights 1 and 0: no maximum subtracted, 1e30 - -1e30 not survived",
            np.array([1e30, -1e30], np.float32), ["no-maximum-in-f32", "uniform-weights"]),
        "minus-1e30-among-ordinary": (
            "a masked position weighs exactly nothing: -1e30 taken for 0",
            np.array([0.5, -1e30, 1.25, -0.75, 0.0], np.float32),
            ["masked-score-as-zero", "uniform-weights", *dropped]),
        "200-positions": (
            "a long cache: another base, no normalisation, a dropped end",
            scores_of("200-positions", 200, 2.0), [*ordinary, *dropped]),
        "late-maximum": (
            "the largest score after 64 others: a maximum over the first block only overflows",
            np.concatenate([scores_of("late-maximum", 64, 2.0), scores_of("late", 6, 2.0, 120.0)]),
            ["maximum-of-the-first-block", "uniform-weights"]),
        "offset-plus-80": ("scores around 80: exp in f32 overflows without the maximum",
                           scores_of("offset-plus-80", 24, 6.0, 84.0),
                           [*ordinary, "no-maximum-in-f32"]),
        "offset-minus-80": ("scores around -80: another base, no normalisation",
                            scores_of("offset-minus-80", 24, 3.0, -80.0), ordinary),
        "offset-minus-110": ("scores around -110: every exp in f32 is 0 without the maximum",
                             scores_of("offset-minus-110", 24, 2.0, -112.0),
                             [*ordinary, "no-maximum-in-f32"]),
        "ordinary": ("nine ordinary scores: another base, no normalisation, a dropped end",
                     scores_of("ordinary", 9, 1.5), [*ordinary, *dropped]),
    }
    for case, (text, scores, exposes) in cases.items():
        values = kernel.stream(case).bell("values", (len(scores), 5), 1.0, 0.25)
        kernel.add(case, text, {"scores": scores, "values": values}, exposes)
    for m, n, exposes in ((12, 6, ATTENDING_OF_FEW), (140, 3, list(WRONG_ATTENDING))):
        case = f"cancelling-{m}"
        kernel.add(case, f"{m} positions whose values cancel: any other order, blocks under a "
                   "running maximum, roundings elsewhere",
                   kernel.search(case, cancelling_positions(m, n), exposes), exposes,
                   bits_only=True)
    return kernel


# Residual mix

SOURCE_SIZES = (0.01, 1.0, 100.0, 0.1, 30.0, 0.03, 60.0, 0.3, 10.0)


def normed(sources, epsilon):
    mean_square = sum_in_order(sources * sources) / sources.shape[-1]
    return sources / np.sqrt(mean_square + epsilon)[..., None]


def mixed(case, keys=None, values=None, epsilon=None, sources=None):
    sources = wide(case.sources) if sources is None else sources
    epsilon = case.epsilon[0] if epsilon is None else epsilon
    keys = normed(sources, epsilon) if keys is None else keys
    weights = softmax(sum_in_order(keys * wide(case.fold)))
    return {"out.mix": product(weights, sources if values is None else values),
            "out.weights": weights}


def mix_bits(case, *, attend=softmax_sum_bits, rate=lambda r: r, key=narrow, row=lane_sum):
    sources = wide(case.sources)
    mean_square = lane_sum(sources * sources) / sources.shape[-1]
    r = rate(1.0 / np.sqrt(mean_square + case.epsilon[0]))[:, None]
    scores = narrow(row(wide(case.fold) * wide(key(sources * r))))
    return {"bits.mix": attend(scores, case.sources)}


def rate_after_the_sum(case):
    """The rate taken out of the row product."""
    sources = wide(case.sources)
    r = 1.0 / np.sqrt(lane_sum(sources * sources) / sources.shape[-1] + case.epsilon[0])
    scores = narrow(lane_sum(wide(case.fold) * sources) * r)
    return {"bits.mix": softmax_sum_bits(scores, case.sources)}


def mix_bound(_case, right, name):
    """Scores of 10 keep 2^-20 of a weight, and there are several."""
    return 2.0 ** -17 * np.abs(right["out." + name]).max()


def epsilon_outside(case):
    sources = wide(case.sources)
    root = np.sqrt(sum_in_order(sources * sources) / sources.shape[-1])
    return mixed(case, keys=sources / (root + case.epsilon[0])[:, None])


def values_weighted_by_fold(case):
    return {"out.mix": mixed(case)["out.mix"] * wide(case.fold)}


WRONG_MIX = {
    "values-normed": lambda c: mixed(c, values=normed(wide(c.sources), c.epsilon[0])),
    "keys-raw": lambda c: mixed(c, keys=wide(c.sources)),
    "no-epsilon": lambda c: mixed(c, epsilon=0.0),
    "epsilon-1e-6": lambda c: mixed(c, epsilon=1e-6),
    "epsilon-outside-the-root": epsilon_outside,
    "sum-of-squares-not-mean": lambda c: mixed(c, keys=normed(
        wide(c.sources), c.epsilon[0]) / np.sqrt(c.sources.shape[1])),
    "fold-on-the-values": values_weighted_by_fold,
    "scaled-scores": lambda c: mixed(c, keys=normed(
        wide(c.sources), c.epsilon[0]) / np.sqrt(len(c.fold))),
    "newest-source-first": lambda c: {"out.weights": mixed(c)["out.weights"][::-1].copy()},
    "running-sum-left-out": lambda c: mixed(
        c, sources=np.concatenate([wide(c.sources[:-1]), wide(c.sources[:1])])),
    "running-sum-first": lambda c: mix_bits(SimpleNamespace(
        sources=np.roll(c.sources, 1, axis=0), fold=c.fold, epsilon=c.epsilon)),
    "keys-not-rounded": lambda c: mix_bits(c, key=lambda keys: keys),
    "rate-in-f32": lambda c: mix_bits(c, rate=lambda r: wide(narrow(r))),
    "rate-after-the-row-product": rate_after_the_sum,
    **{f"score-{name}": lambda c, row=row: mix_bits(c, row=row) for name, row in (
        ("single-accumulator", rising_sum), ("eight-lanes", lambda terms: lane_sum(terms, 8)),
        ("f32-accumulator", lambda terms: lane_sum(terms, dtype=np.float32)))},
    **{name: lambda c, attend=WRONG_ATTENDING[name]: mix_bits(c, attend=attend)
       for name in ATTENDING_OF_FEW},
}
MIX_ROUNDINGS = ["keys-not-rounded", "rate-in-f32", "rate-after-the-row-product",
                 "divisor-in-f32", "normalised-before-the-sum", "difference-not-rounded",
                 "exponentials-not-rounded", "score-f32-accumulator"]


def cancelling_sources(stream):
    """Sources 0 and 3, 2 and 5 differ in the sign of huge elements which the fold does not
    see, so that their scores are equal."""
    sources, fold = stream.bell("sources", (8, 20)), stream.bell("fold", 20, 0.4)
    seen = np.arange(20) % 4 != 1
    for first, second in ((0, 3), (2, 5)):
        sources[first, ~seen] = huge(stream, f"huge-{first}", 5)
        sources[second] = np.where(seen, sources[first], -sources[first])
    return {"sources": sources, "fold": fold * seen.astype(np.float32), "epsilon": scalar(1e-5)}


def cancelling_folds(stream):
    """Pairs of equal columns under huge opposite folds."""
    sources, fold = stream.bell("sources", (4, 40)), stream.bell("fold", 40, 0.4)
    order = stream.permutation("pairs", 40)[:24]
    first, second = order[0::2], order[1::2]
    sources[:, second] = sources[:, first]
    fold[first] = huge(stream, "huge", len(first), 24, 34)
    fold[second] = -fold[first]
    return {"sources": sources, "fold": fold, "epsilon": scalar(1e-5)}


def residual_mix():
    kernel = Kernel("residual-mix", lambda case: mixed(case) | mix_bits(case), WRONG_MIX,
                    bound=mix_bound)
    several = ["values-normed", "keys-raw", "scaled-scores", "sum-of-squares-not-mean",
               "fold-on-the-values", "newest-source-first", "running-sum-left-out"]
    epsilons = ["no-epsilon", "epsilon-1e-6", "epsilon-outside-the-root"]
    for m, width in ((2, 128), (9, 128), (1, 40), (2, 40), (9, 40)):
        case = f"sources-{m}-width-{width}"
        stream = kernel.stream(case)
        sizes = np.array(SOURCE_SIZES[:m])[:, None]
        sources = narrow(wide(stream.bell("sources", (m, width))) * sizes)
        text = (f"{m} sources of width {width}, sizes 0.01 to 100: normed values, raw keys, "
                "an epsilon elsewhere" if m > 1 else
                "one source: it comes out as it is, raw, with weight 1")
        kernel.add(case, text,
                   {"sources": sources, "fold": stream.bell("fold", width, 0.2),
                    "epsilon": scalar(1e-5)},
                   several + epsilons + (MIX_ROUNDINGS if m == 9 else [])
                   if m > 1 else ["values-normed", "fold-on-the-values"])
    case = "tiny-sources"
    stream = kernel.stream(case)
    kernel.add(case, "sources of mean square near 1e-5: epsilon decides the scores",
               {"sources": stream.bell("sources", (4, 40), 0.003),
                "fold": stream.bell("fold", 40, 0.4), "epsilon": scalar(1e-5)},
               several + epsilons)
    for case, text, build, exposes in (
            ("cancelling-sources", "huge elements that cancel between sources: another order, a "
             "running maximum, f32 sums", cancelling_sources,
             ["falling-order", "running-sum-first", "pairwise", "sixteen-lanes",
              "f32-accumulator", "f32-products", "blocks-of-four", "running-maximum-by-1",
              "running-maximum-by-4", "both-sums-in-f32"]),
            ("cancelling-folds", "a fold that cancels over a source: other lanes in the scores",
             cancelling_folds, ["score-single-accumulator", "score-eight-lanes",
                                "score-f32-accumulator"])):
        kernel.add(case, text, kernel.search(case, build, exposes), exposes, bits_only=True)
    return kernel
