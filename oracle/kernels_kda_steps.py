"""Kernel fixtures of KDA's recurrence: the delta-rule step over one and over many positions."""

import numpy as np

from k3 import product
from kernel_case import Kernel
from kernel_sums import (
    WRONG_COLUMN_SUMS, cancelling, narrow, relevant_column_sums, rising_sum, wide,
)
from tensor_files import bfloat16_from_float64, float64_from_bfloat16


def exact_step(state, q, k, v, alpha, beta):
    state = alpha[..., None] * state
    delta = beta * (v - product(k, state))
    state = state + k[..., None] * delta[..., None, :]
    return state, product(q, state)


def contract_step(state, q, k, v, alpha, beta, total=rising_sum):
    """State, vectors in F32; sums over the key index, one float64 accumulator each."""
    def column(vector):
        return narrow(total(np.swapaxes(wide(state) * wide(vector)[..., None], -1, -2)))
    u = column(alpha * k)
    delta = beta * (v - u)
    state = narrow(wide(alpha)[..., None] * wide(state)
                   + wide(k)[..., None] * wide(delta)[..., None, :])
    return state, column(q)


def run(case, step, dtype, state=None):
    """All T positions; o keeps the last `case.o_rows` rows."""
    state = (case.state if state is None else state).astype(dtype)
    outputs = []
    for t in range(len(case.q)):
        vectors = [x[t].astype(dtype) for x in (case.q, case.k, case.v, case.alpha)]
        state, o = step(state, *vectors, case.beta[t].astype(dtype)[:, None])
        outputs.append(o)
    return np.stack(outputs)[-case.o_rows:], state


def kda_outputs(case):
    o, state = run(case, exact_step, np.float64)
    bits_o, bits_state = run(case, contract_step, np.float32)
    return {"out.o": o, "out.state": state, "bits.o": bits_o, "bits.state": bits_state}


def wrong_step(step):
    """step(state, q, k, v, alpha [H, D], beta [H, 1]) in float64."""
    def variant(case):
        o, state = run(case, step, np.float64)
        return {"out.o": o, "out.state": state}
    return variant


def wrong_bits(step):
    def variant(case):
        o, state = run(case, step, np.float32)
        return {"bits.o": o, "bits.state": state}
    return variant


def written(state, k, delta):
    return state + k[..., None] * delta[..., None, :]


def decay_after_the_write(state, q, k, v, alpha, beta):
    state = alpha[..., None] * written(state, k, beta * (v - product(k, state)))
    return state, product(q, state)


def undecayed_read(state, q, k, v, alpha, beta):
    state = written(alpha[..., None] * state, k, beta * (v - product(k, state)))
    return state, product(q, state)


def output_before_the_write(state, q, k, v, alpha, beta):
    state = alpha[..., None] * state
    return written(state, k, beta * (v - product(k, state))), product(q, state)


def decay_of_value_columns(state, q, k, v, alpha, beta):
    state = alpha[..., None, :] * state
    state = written(state, k, beta * (v - product(k, state)))
    return state, product(q, state)


def plain_write(state, q, k, v, alpha, beta):
    state = written(alpha[..., None] * state, k, beta * v)
    return state, product(q, state)


def beta_on_the_value_only(state, q, k, v, alpha, beta):
    state = alpha[..., None] * state
    state = written(state, k, beta * v - product(k, state))
    return state, product(q, state)


def transposed_state(case):
    o, state = run(case, exact_step, np.float64, np.swapaxes(case.state, -1, -2))
    return {"out.o": o, "out.state": state}


def state_handed_back_transposed(case):
    return {"out.state": np.swapaxes(run(case, exact_step, np.float64)[1], -1, -2)}


def decayed_state_rounded(state, q, k, v, alpha, beta):
    """Decays in place first, and reads from the rounded state."""
    return contract_step(alpha[..., None] * state, q, k, v, np.ones_like(alpha), beta)


def update_in_f32_steps(state, q, k, v, alpha, beta):
    a = wide(alpha * k)
    u = narrow(rising_sum(np.swapaxes(wide(state) * a[..., None], -1, -2)))
    state = alpha[..., None] * state + k[..., None] * (beta * (v - u))[..., None, :]
    return state, narrow(rising_sum(np.swapaxes(wide(state) * wide(q)[..., None], -1, -2)))


def delta_rounded_once(state, q, k, v, alpha, beta):
    a = wide(alpha * k)
    u = narrow(rising_sum(np.swapaxes(wide(state) * a[..., None], -1, -2)))
    delta = wide(narrow(wide(beta) * (wide(v) - wide(u))))
    state = narrow(wide(alpha)[..., None] * wide(state) + wide(k)[..., None] * delta[..., None, :])
    return state, narrow(rising_sum(np.swapaxes(wide(state) * wide(q)[..., None], -1, -2)))


def state_in_bf16(state, q, k, v, alpha, beta):
    state, o = contract_step(state, q, k, v, alpha, beta)
    return narrow(float64_from_bfloat16(bfloat16_from_float64(state))), o


def state_in_f64(case):
    o, state = run(case, exact_step, np.float64)
    return {"bits.o": narrow(o), "bits.state": narrow(state)}


def ordered_step(total):
    def step(state, q, k, v, alpha, beta):
        return contract_step(state, q, k, v, alpha, beta, total)
    return wrong_bits(step)


WRONG_STEPS = {
    "decay-after-the-write": wrong_step(decay_after_the_write),
    "read-before-the-decay": wrong_step(undecayed_read),
    "output-before-the-write": wrong_step(output_before_the_write),
    "decay-of-value-columns": wrong_step(decay_of_value_columns),
    "no-delta": wrong_step(plain_write),
    "beta-on-the-value-only": wrong_step(beta_on_the_value_only),
    "beta-left-out": wrong_step(lambda state, q, k, v, alpha, beta: exact_step(
        state, q, k, v, alpha, np.ones_like(beta))),
    "no-decay": wrong_step(lambda state, q, k, v, alpha, beta: exact_step(
        state, q, k, v, np.ones_like(alpha), beta)),
    "state-of-another-head": lambda c: dict(zip(("out.o", "out.state"), run(
        c, exact_step, np.float64, np.roll(c.state, 1, axis=0)))),
    "state-not-carried": wrong_step(lambda state, q, k, v, alpha, beta: exact_step(
        np.zeros_like(state), q, k, v, alpha, beta)),
    "state-read-transposed": transposed_state,
    "state-handed-back-transposed": state_handed_back_transposed,
    "decayed-state-rounded-first": wrong_bits(decayed_state_rounded),
    "update-in-f32-steps": wrong_bits(update_in_f32_steps),
    "delta-rounded-once": wrong_bits(delta_rounded_once),
    "state-in-bf16": wrong_bits(state_in_bf16),
    "state-in-f64": state_in_f64,
    **{name: ordered_step(total) for name, total in WRONG_COLUMN_SUMS.items()},
}
ORDER_OF_STEPS = ["decay-after-the-write", "read-before-the-decay", "output-before-the-write",
                  "decay-of-value-columns", "no-delta", "beta-on-the-value-only",
                  "beta-left-out", "no-decay"]
ROUNDINGS = ["decayed-state-rounded-first", "update-in-f32-steps", "delta-rounded-once",
             "state-in-bf16", "state-in-f64"]
STEP_ROUNDING = 2.0 ** -16


def unit_rows(x):
    """F32 rows of norm 1, by IEEE operations alone."""
    return narrow(wide(x) / np.sqrt(rising_sum(wide(x) * wide(x)))[..., None])


def step_inputs(stream, rows, heads, width, alpha=(0.6, 1.0), state_scale=1.0):
    shape = (rows, heads, width)
    q = unit_rows(stream.bell("q", shape))
    return {
        "q": narrow(wide(q) / np.sqrt(width)), "k": unit_rows(stream.bell("k", shape)),
        "v": stream.bell("v", shape), "alpha": stream.uniform("alpha", shape, *alpha),
        "beta": stream.uniform("beta", (rows, heads), 0.1, 0.95),
        "state": stream.bell("state", (heads, width, width), state_scale),
    }


def correlated_inputs(stream, rows, width):
    """Keys that hardly differ, decay from 1 - 2^-7 up: errors of a step are kept for long."""
    given = step_inputs(stream, rows, 1, width, (1 - 2.0 ** -7, 1.0), 0.0)
    common = stream.bell("common", (1, 1, width))
    given["k"] = unit_rows(wide(common) + 0.2 * wide(stream.bell("own", (rows, 1, width))))
    return given


def cancelling_state(stream):
    """Head 0 reads u from columns that cancel; head 1 writes nothing and reads o from such."""
    width = 20
    rows = [cancelling(stream.part(name), width, width) for name in ("head-0", "head-1")]
    shape = (1, 2, width)
    k = np.stack([rows[0][0], np.ones(width)]).reshape(shape)
    q = np.stack([np.ones(width), rows[1][0]]).reshape(shape)
    return {"q": narrow(q), "k": narrow(k), "v": stream.bell("v", shape),
            "alpha": np.ones(shape, np.float32), "beta": np.array([[1.0, 0.0]], np.float32),
            "state": narrow(np.stack([w.T for _, w in rows]))}


def kda_steps():
    kernel = Kernel(
        "kda-steps", kda_outputs, WRONG_STEPS,
        bound=lambda c, right, name: STEP_ROUNDING * np.abs(right["out." + name]).max())

    def add(case, text, given, exposes, o_rows=None, **more):
        kernel.add(case, text, given, exposes, o_rows=o_rows or len(given["q"]), **more)

    def inputs(case, *shape, **more):
        return step_inputs(kernel.stream(case), *shape, **more)

    add("random", "5 steps of 3 heads: each step of the rule out of order, another head's state, "
        "each rounding of the contract left out or added", inputs("random", 5, 3, 6),
        [*ORDER_OF_STEPS, *ROUNDINGS, "state-of-another-head", "state-read-transposed",
         "state-handed-back-transposed", "state-not-carried"])
    add("zero-state", "from a zero state: the first write, state carried from step to step",
        inputs("zero-state", 3, 2, 6, state_scale=0.0),
        ["state-not-carried", "output-before-the-write", "state-handed-back-transposed"])
    given = inputs("asymmetric-state", 1, 2, 8)
    given["state"] = narrow(np.arange(128).reshape(2, 8, 8) / 16.0)
    add("asymmetric-state", "a state that rises along its values: read or handed back transposed, "
        "decay along the values", given,
        ["state-read-transposed", "state-handed-back-transposed", "decay-of-value-columns"])
    given = inputs("alpha-exactly-1", 3, 2, 6)
    given["alpha"] = np.ones_like(given["alpha"])
    add("alpha-exactly-1", "no decay at all: the delta rule by itself", given,
        ["no-delta", "beta-on-the-value-only", "output-before-the-write", "delta-rounded-once"])
    add("alpha-near-its-bound", "alpha near e^-5: what was stored is almost gone after a step",
        inputs("alpha-near-its-bound", 3, 2, 6, alpha=(0.00674, 0.0069)),
        ["no-decay", "decay-after-the-write", "read-before-the-decay", "update-in-f32-steps"])
    given = inputs("zero-keys", 3, 2, 6)
    given["k"] = np.zeros_like(given["k"])
    add("zero-keys", "keys of zero write nothing: the state decays and is read", given,
        ["no-decay", "decay-of-value-columns", "state-read-transposed"])
    for rows, width in ((64, 6), (300, 5)):
        case = f"correlated-keys-{rows}"
        add(case, f"{rows} correlated keys, slow decay; o holds the last 8 rows: rounding that "
            "piles up, no delta", correlated_inputs(kernel.stream(case), rows, width),
            [*ROUNDINGS, "no-delta", "decay-after-the-write", "output-before-the-write"], 8)
    case = "cancelling-state"
    exposes = relevant_column_sums(20)
    given = kernel.search(case, cancelling_state, exposes, o_rows=1)
    add(case, "columns of the state that cancel: u (head 0) and o (head 1) summed in another "
        "order or in f32", given, exposes, bits_only=True)
    return kernel
