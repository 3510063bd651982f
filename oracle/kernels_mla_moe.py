"""Kernel fixtures of MLA's attention and of the router."""

import numpy as np

from k3 import product, softmax, sum_in_order
from kernel_bits import ATTENDING_OF_FEW, WRONG_ATTENDING, huge, softmax_sum_bits
from kernel_case import Kernel, scalar
from kernel_exact import exact_sigmoid, rounded
from kernel_sums import lane_sum, narrow, rising_sum, wide
from tensor_files import bfloat16_from_float64, float64_from_bfloat16

RENORMALISATION_EPSILON = 1e-20


# MLA


def attention(case, *, split_rows=None, scale=None, visible=None, latent=None, rope=None,
              query=None):
    """o [T, heads, v]; every argument but `case` is there for a wrong variant."""
    nope, width = case.nope[0], case.v[0]
    lora = case.kv_b.shape[1]
    q = wide(case.q) if query is None else query
    latent = wide(case.cache[:, :lora]) if latent is None else latent
    rope = wide(case.cache[:, lora:]) if rope is None else rope
    heads = q.shape[1]
    per_head = wide(case.kv_b).reshape(heads, nope + width, lora)
    key_rows, value_rows = (per_head[:, :nope], per_head[:, nope:]) if split_rows is None else (
        split_rows(wide(case.kv_b), heads, nope, width))
    k = product(latent[:, None], key_rows.swapaxes(1, 2))
    k = np.concatenate([k, np.repeat(rope[:, None], heads, axis=1)], axis=-1)
    v = product(latent[:, None], value_rows.swapaxes(1, 2))
    scale = 1.0 / np.sqrt(q.shape[-1]) if scale is None else scale
    rows = np.arange(len(q))
    visible = rows[:, None] >= rows if visible is None else visible
    scores = product(q.swapaxes(0, 1), k.transpose(1, 2, 0)[:, None]) * scale
    weights = softmax(np.where(visible, scores, -np.inf))
    return {"out.o": product(weights, v.swapaxes(0, 1)[:, None]).swapaxes(0, 1)}


def keys_of_all_heads_first(kv_b, heads, nope, width):
    keys = kv_b[:heads * nope].reshape(heads, nope, -1)
    return keys, kv_b[heads * nope:].reshape(heads, width, -1)


def values_first(kv_b, heads, nope, width):
    per_head = kv_b.reshape(heads, nope + width, -1)
    return per_head[:, width:], per_head[:, :width]


def rope_before_nope(case):
    rope = case.rope[0]
    q = wide(case.q)
    return attention(case, query=np.concatenate([q[..., rope:], q[..., :rope]], axis=-1))


def rotated(case):
    """Rope keys turned by their position, in pairs of neighbours."""
    keys = wide(case.cache[:, case.kv_b.shape[1]:])
    angle = np.arange(len(keys))[:, None] / 100.0 ** (np.arange(0, keys.shape[1], 2) / 2)
    turned = np.empty_like(keys)
    turned[:, 0::2] = keys[:, 0::2] * np.cos(angle) - keys[:, 1::2] * np.sin(angle)
    turned[:, 1::2] = keys[:, 1::2] * np.cos(angle) + keys[:, 0::2] * np.sin(angle)
    return attention(case, rope=turned)


def rows_seen(rule):
    def variant(case):
        rows = np.arange(len(case.q))
        return attention(case, visible=rule(rows[:, None], rows))
    return variant


def normed_latent(case):
    latent = wide(case.cache[:, :case.kv_b.shape[1]])
    root = np.sqrt(sum_in_order(latent * latent) / latent.shape[-1] + 1e-6)
    return attention(case, latent=latent / root[:, None])


def head_of_another(case):
    return {"out.o": np.roll(attention(case)["out.o"], 1, axis=1)}


def heads_of(case):
    """The key and value rows of kv_b, [heads, rows, lora] each; and the scale of a score."""
    nope, width, lora = case.nope[0], case.v[0], case.kv_b.shape[1]
    per_head = case.kv_b.reshape(-1, nope + width, lora)
    scale = np.float32(1.0 / np.sqrt(np.float64(nope + case.rope[0])))
    return per_head[:, :nope], per_head[:, nope:], scale


def rows_of_heads(case, head):
    """head(q [nope + rope], key rows, value rows, cache rows seen, scale) for all of q."""
    keys, values, scale = heads_of(case)
    return {"bits.o": np.stack([np.stack([
        head(case.q[t, h], keys[h], values[h], case.cache[:t + 1], scale)
        for h in range(len(keys))]) for t in range(len(case.q))])}


def absorbed(case, *, attend=softmax_sum_bits, nope_sum=rising_sum, row=lane_sum,
             value_row=lane_sum, latent_query=narrow, scaled_query=False, contracted=False):
    """The contract's form; every argument but `case` is there for a wrong variant."""
    def head(q, keys, values, cache, scale):
        nope, lora = keys.shape
        query = latent_query(nope_sum(wide(q[:nope]) * wide(keys).T))
        query = np.concatenate([query, q[nope:]])
        if scaled_query:
            query = query * scale
        scores = row(wide(query) * wide(cache))
        if contracted:
            scores = narrow(scores * wide(scale))
        else:
            scores = narrow(scores) if scaled_query else narrow(scores) * scale
        return narrow(value_row(wide(values) * wide(attend(scores, cache[:, :lora]))))
    return rows_of_heads(case, head)


def expanded(case):
    def head(q, keys, values, cache, scale):
        nope, lora = keys.shape
        latent = wide(cache[:, None, :lora])
        k = narrow(lane_sum(latent * wide(keys)))
        v = narrow(lane_sum(latent * wide(values)))
        row = np.concatenate([k, cache[:, lora:]], axis=1)
        return softmax_sum_bits(narrow(lane_sum(wide(q) * wide(row))) * scale, v)
    return rows_of_heads(case, head)


def values_expanded(case):
    """Scores absorbed, value rows applied to every position."""
    def head(q, keys, values, cache, scale):
        nope, lora = keys.shape
        query = np.concatenate([narrow(rising_sum(wide(q[:nope]) * wide(keys).T)), q[nope:]])
        scores = narrow(lane_sum(wide(query) * wide(cache))) * scale
        return softmax_sum_bits(
            scores, narrow(lane_sum(wide(cache[:, None, :lora]) * wide(values))))
    return rows_of_heads(case, head)


def parts_apart(case):
    """One rounded product for the latent, one for the rope part."""
    def row_of(lora):
        return lambda terms: (wide(narrow(lane_sum(terms[:, :lora])))
                              + wide(narrow(lane_sum(terms[:, lora:]))))
    return absorbed(case, row=row_of(case.kv_b.shape[1]))


def eight_lanes(terms):
    return lane_sum(terms, 8)


def falling_sum(terms):
    return rising_sum(terms[..., ::-1])


ABSORBED_ROUNDINGS = {
    "expanded": expanded,
    "values-expanded": values_expanded,
    "scale-in-the-query": lambda c: absorbed(c, scaled_query=True),
    "scale-before-the-rounding": lambda c: absorbed(c, contracted=True),
    "query-not-rounded": lambda c: absorbed(c, latent_query=lambda query: query),
    "latent-and-rope-apart": parts_apart,
}
OTHER_SCORE_SUMS = {
    "score-by-one-accumulator": lambda c: absorbed(c, row=rising_sum),
    "score-by-eight-lanes": lambda c: absorbed(c, row=eight_lanes),
    "value-by-one-accumulator": lambda c: absorbed(c, value_row=rising_sum),
    "value-by-eight-lanes": lambda c: absorbed(c, value_row=eight_lanes),
}
OTHER_QUERY_SUMS = {
    "query-in-falling-order": lambda c: absorbed(c, nope_sum=falling_sum),
    "query-by-sixteen-lanes": lambda c: absorbed(c, nope_sum=lane_sum),
}
OTHER_POSITION_SUMS = {
    f"positions-{name}": lambda c, attend=WRONG_ATTENDING[name]: absorbed(c, attend=attend)
    for name in ATTENDING_OF_FEW}


WRONG_ATTENTION = {
    **ABSORBED_ROUNDINGS, **OTHER_SCORE_SUMS, **OTHER_QUERY_SUMS, **OTHER_POSITION_SUMS,
    "not-causal": rows_seen(lambda query, key: query + key >= 0),
    "itself-not-seen": rows_seen(lambda query, key: (query > key) | (key + query == 0)),
    "window-of-four": rows_seen(lambda query, key: (query >= key) & (query - key < 4)),
    "scale-of-nope-only": lambda c: attention(c, scale=1.0 / np.sqrt(c.nope[0])),
    "no-scale": lambda c: attention(c, scale=1.0),
    "rope-not-scored": lambda c: attention(c, rope=np.zeros((len(c.cache), c.rope[0]))),
    "rope-rotated": rotated,
    "rope-first-in-the-query": rope_before_nope,
    "keys-of-all-heads-first": lambda c: attention(c, split_rows=keys_of_all_heads_first),
    "values-before-keys": lambda c: attention(c, split_rows=values_first),
    "latent-normed-again": normed_latent,
    "another-head": head_of_another,
    "last-cache-row-overwritten": lambda c: attention(
        c, latent=wide(np.concatenate([c.cache[:-1], c.cache[:1]])[:, :c.kv_b.shape[1]])),
}


def attention_bound(_case, right, name):
    """A score of 60 keeps 2^-19 of its weight."""
    return 2.0 ** -16 * np.abs(right["out." + name]).max()


def attention_inputs(stream, rows, heads, nope=6, rope=4, width=4, lora=20):
    return {"q": stream.bell("q", (rows, heads, nope + rope)),
            "cache": stream.bell("cache", (rows, lora + rope)),
            "kv_b": stream.bell("kv_b", (heads * (nope + width), lora), 0.4),
            "nope": scalar(nope, np.int32), "rope": scalar(rope, np.int32),
            "v": scalar(width, np.int32)}


def cancelling_latents(stream):
    """Pairs of equal latent columns; kv_b's columns for them are huge and opposite."""
    given = attention_inputs(stream, 3, 1)
    order = stream.permutation("pairs", 20)[:12]
    first, second = order[0::2], order[1::2]
    given["cache"][:, second] = given["cache"][:, first]
    given["kv_b"][:, first] = huge(stream, "huge", (10, len(first)), 27, 34)
    given["kv_b"][:, second] = -given["kv_b"][:, first]
    return given


def cancelling_queries(stream):
    """Equal key rows 0 and 3, 1 and 5; the queries' elements for them are huge and opposite."""
    given = attention_inputs(stream, 3, 1)
    for first, second in ((0, 3), (1, 5)):
        given["kv_b"][second] = given["kv_b"][first]
        given["q"][..., first] = huge(stream, f"huge-{first}", (3, 1), 29, 36)
        given["q"][..., second] = -given["q"][..., first]
    return given


def cancelling_rows(stream):
    """Pairs of cache rows, equal but for the sign of huge latents that no key row sees."""
    given = attention_inputs(stream, 9, 1)
    unseen = np.arange(24) % 5 == 2
    unseen[20:] = False
    given["kv_b"][:6, unseen[:20]] = 0
    for first, second in ((0, 4), (3, 6)):
        given["cache"][first, unseen] = huge(stream, f"huge-{first}", int(unseen.sum()))
        given["cache"][second] = np.where(unseen, -given["cache"][first], given["cache"][first])
    return given


def mla_attention():
    kernel = Kernel("mla-attention", lambda case: attention(case) | absorbed(case),
                    WRONG_ATTENTION, bound=attention_bound)
    layout = ["keys-of-all-heads-first", "values-before-keys", "another-head",
              "latent-normed-again"]
    scores = ["scale-of-nope-only", "no-scale", "rope-not-scored", "rope-first-in-the-query"]

    def add(case, text, rows, exposes, *, heads=3, nope=6, rope=4, width=5, lora=11,
            query_scale=1.0, rope_scale=1.0):
        stream = kernel.stream(case)
        cache = wide(stream.bell("cache", (rows, lora + rope)))
        cache[:, lora:] *= rope_scale
        kernel.add(case, text, {
            "q": stream.bell("q", (rows, heads, nope + rope), query_scale),
            "cache": narrow(cache),
            "kv_b": stream.bell("kv_b", (heads * (nope + width), lora), 0.4),
            "nope": scalar(nope, np.int32), "rope": scalar(rope, np.int32),
            "v": scalar(width, np.int32)}, exposes)

    add("one-position", "a single row sees itself: its own value rows, whatever the scores",
        1, layout)
    add("two-positions", "the first row must not see the second; both ends of a short cache",
        2, [*layout, *scores, "not-causal", "itself-not-seen", "last-cache-row-overwritten"])
    add("nine-positions", "causal over nine rows: scale, rope part, order of kv_b's rows, a "
        "window", 9, [*layout, *scores, "not-causal", "itself-not-seen", "window-of-four",
                      "rope-rotated", "last-cache-row-overwritten", *ABSORBED_ROUNDINGS])
    add("rope-decides", "large rope keys decide the scores: rotated, not scored, or read from the "
        "front of the query", 9, ["rope-rotated", "rope-not-scored", "rope-first-in-the-query"],
        rope_scale=4.0)
    add("sharp-scores", "large queries, one position takes nearly all: scale, order of rows",
        4, ["no-scale", "scale-of-nope-only", "values-before-keys", "not-causal"],
        query_scale=12.0)
    add("one-head-wider-values", "one head, values wider than keys, a single rope pair",
        3, ["values-before-keys", "rope-not-scored", "not-causal"], heads=1, nope=3, rope=2,
        width=8, lora=5)
    for case, text, build, exposes in (
            ("cancelling-latents", "scores and values that cancel over the latent: the row "
             "rule's sixteen lanes", cancelling_latents, OTHER_SCORE_SUMS),
            ("cancelling-queries", "queries that cancel over the key rows: their rising order",
             cancelling_queries, OTHER_QUERY_SUMS),
            ("cancelling-rows", "latents that cancel over the positions: another order, a "
             "running maximum, roundings elsewhere", cancelling_rows, OTHER_POSITION_SUMS)):
        exposes = list(exposes)
        kernel.add(case, text, kernel.search(case, build, exposes), exposes, bits_only=True)
    return kernel


# Router

def routed(case, *, choice=None, keys=None, ties_low=True, renormalise=None):
    """ids ascending and their weights; keyword arguments make wrong variants."""
    choice = case.scores + case.bias if choice is None else choice
    k = case.top_k[0]
    order = np.argsort(-choice, kind="stable") if ties_low else (
        np.argsort(choice, kind="stable")[::-1])
    ids = np.sort(order[:k])
    weights = wide(case.scores if keys is None else keys)[ids]
    if (k > 1 and case.renormalize[0]) if renormalise is None else renormalise:
        weights = weights / (sum_in_order(weights) + RENORMALISATION_EPSILON)
    return {"out.ids": ids.astype(np.int32), "out.weights": weights * case.scaling[0]}


def rounded_scores(case):
    scores = float64_from_bfloat16(bfloat16_from_float64(case.scores))
    return routed(case, choice=narrow(scores) + case.bias)


def taken_again(mark):
    """Chosen one after the other, the taken ones marked in the choice: they win again."""
    def outputs(case):
        choice, ids = case.scores + case.bias, []
        for _ in range(case.top_k[0]):
            ids.append(int(np.argmax(choice)))
            choice[ids[-1]] = mark
        return {"out.ids": np.sort(np.array(ids, np.int32))}
    return outputs


def over_all_experts(case):
    return {"out.weights": wide(case.scores)[routed(case)["out.ids"]]
            / sum_in_order(wide(case.scores)) * case.scaling[0]}


def in_order_of_choice(case):
    """Weights (and ids) left in falling order of choice."""
    choice = case.scores + case.bias
    order = np.argsort(-choice, kind="stable")[:case.top_k[0]]
    right = routed(case)
    place = np.searchsorted(right["out.ids"], order)
    return {"out.weights": right["out.weights"][place]}


def without_divisor_epsilon(case):
    weights = routed(case, renormalise=False)["out.weights"]
    return {"out.weights": weights / sum_in_order(weights)}


WRONG_ROUTER = {
    "bias-in-the-weights": lambda c: routed(c, keys=c.scores + c.bias),
    "bias-left-out": lambda c: routed(c, choice=c.scores),
    "ties-to-the-higher-index": lambda c: routed(c, ties_low=False),
    "scores-in-bf16": rounded_scores,
    "not-renormalised": lambda c: routed(c, renormalise=False),
    "always-renormalised": lambda c: routed(c, renormalise=True),
    "renormalised-over-all": over_all_experts,
    "scaling-left-out": lambda c: {
        "out.weights": routed(c)["out.weights"] / c.scaling[0]},
    "smallest-chosen": lambda c: routed(c, choice=-(c.scores + c.bias)),
    "in-order-of-choice": in_order_of_choice,
    "taken-experts-win-again": taken_again(-1e30),
    "taken-experts-win-over-none": taken_again(-np.inf),
    "first-512-experts-only": lambda c: routed(c, choice=np.where(
        np.arange(len(c.scores)) < 512, c.scores + c.bias, -np.inf)),
    "no-1e-20": without_divisor_epsilon,
}


def selected_alike(case, right):
    """Selection in f32 and in f64 agree, so that both subjects can be judged."""
    exact = routed(case, choice=wide(case.scores) + wide(case.bias))
    return np.array_equal(exact["out.ids"], right["out.ids"])


def router_cases(kernel):
    """Name -> (text, scores, bias, top_k, renormalize, scaling, exposed, expected ids or None)."""
    near = rounded(exact_sigmoid, np.array([1.0, 1 + 1 / 512]))
    scores_13 = np.full(12, 0.25)
    scores_13[[2, 7, 8]] = 0.9, near[1], near[0]
    bias_13 = np.zeros(12)
    bias_13[8] = 1 / 8192
    one_left = np.full(6, -1e30)
    one_left[4] = 0.0
    switched_off = np.full(5, -np.inf)
    switched_off[[0, 3]] = 0.0
    cut = np.full(64, 0.25)
    cut[[3, 11]] = 0.75
    cut[[1, 60]] = 0.5
    stream = kernel.stream("ordinary")
    many = kernel.stream("16-of-896")
    ordinary = stream.uniform("scores", 16, 0.05, 0.95)
    neighbours = 0.5 + np.array([0, 3, 1, 2, 4, 6, 5, 7]) * 2.0 ** -20
    return {
        "bias-steers-selection-only": (
            "scores .5, bias 0 0 3 1: experts 2 and 3 with one half each; a leak gives .7 and .3",
            np.full(4, 0.5), [0, 0, 3, 1], 2, 1, 1.0,
            ["bias-in-the-weights", "bias-left-out"], [2, 3]),
        "all-ties": ("eight equal scores: always experts 0 and 1", np.full(8, 0.5), np.zeros(8),
                     2, 1, 1.0, ["ties-to-the-higher-index"], [0, 1]),
        "ties-at-the-cut": (
            "two clear winners, then experts 1 and 60 equal for the last seat: expert 1",
            cut, np.zeros(64), 3, 1, 1.0, ["ties-to-the-higher-index"], [1, 3, 11]),
        "near-tie-lost-in-bf16": (
            "logits 1 + 1/512 (expert 7) and 1 with bias 1/8192 (expert 8), one seat left: "
            "expert 7; expert 8 once scores are rounded to bf16", scores_13, bias_13, 2, 1, 1.0,
            ["scores-in-bf16"], [2, 7]),
        "neighbours-a-millionth-apart": (
            "scores 2^-20 apart: any rounding of scores below f32, any other order", neighbours,
            np.zeros(8), 3, 1, 1.0, ["scores-in-bf16", "smallest-chosen"], [5, 6, 7]),
        "bias-changes-the-selection": (
            "16 ordinary scores, a bias that replaces part of the choice, scaling 2.827", ordinary,
            stream.bell("bias", 16, 0.4), 4, 1, 2.827,
            ["bias-left-out", "bias-in-the-weights", "scaling-left-out", "in-order-of-choice",
             "renormalised-over-all", "not-renormalised"], None),
        "top-1": ("one expert: its own score, not divided by itself", ordinary, np.zeros(16),
                  1, 1, 1.375, ["always-renormalised", "scaling-left-out"], None),
        "no-renormalisation": ("the flag is off: scores as they are", ordinary, np.zeros(16),
                               3, 0, 1.0, ["always-renormalised"], None),
        "tiny-scores": ("scores near 1e-20 beside the 1e-20 of the divisor: left out of it",
                        np.array([1e-20, 3e-20, 2e-20, 5e-21]), np.zeros(4), 2, 1, 1.0,
                        ["no-1e-20", "not-renormalised"], [1, 2]),
        "16-of-896": ("the released size: a fixed array of 512 experts", many.uniform(
            "scores", 896, 0.02, 0.98), many.bell("bias", 896, 0.1), 16, 1, 1.0,
            ["first-512-experts-only", "bias-left-out", "in-order-of-choice"], None),
        "bias-minus-1e30-but-one": (
            "three seats, every bias but one -1e30: three distinct ids, the lowest ones beside it",
            np.array([0.3, 0.4, 0.5, 0.6, 0.2, 0.7]), one_left, 3, 1, 1.0,
            ["taken-experts-win-again", "bias-left-out"], [0, 1, 4]),
        "experts-switched-off": (
            "three seats, two biases that are not minus infinity: the lowest of the rest, once",
            np.array([0.3, 0.4, 0.5, 0.6, 0.2]), switched_off, 3, 1, 1.0,
            ["taken-experts-win-over-none", "bias-left-out"], [0, 1, 3]),
        "every-expert": ("top-k equal to the number of experts", np.array([0.9, 0.1, 0.4]),
                         [0.5, -0.5, 0.0], 3, 1, 1.0,
                         ["in-order-of-choice", "bias-in-the-weights"], [0, 1, 2]),
    }


def router():
    kernel = Kernel("router", routed, WRONG_ROUTER)
    for case, (text, scores, bias, top_k, renormalize, scaling, exposes, ids) in (
            router_cases(kernel).items()):
        def promise(given, right, ids=ids):
            expected = ids is None or right["out.ids"].tolist() == ids
            return expected and selected_alike(given, right)
        kernel.add(case, text, {
            "scores": narrow(scores), "bias": narrow(bias), "top_k": scalar(top_k, np.int32),
            "renormalize": scalar(renormalize, np.int32), "scaling": scalar(scaling)},
            exposes, promise=promise)
    return kernel
