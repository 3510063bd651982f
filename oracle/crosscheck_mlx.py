"""Runs mlx-lm's `kimi_k3`, an implementation by others, on evidence sets and compares.

    python oracle/crosscheck_mlx.py                       the tiny oracle that ships
    python oracle/crosscheck_mlx.py SET [SET ...]         any evidence sets
    python oracle/crosscheck_mlx.py --report FILE         writes what it prints to a file too
    python oracle/crosscheck_mlx.py --precision bf16 SET  activations in BF16

Every sequence of a set (full_ids, and long_ids where it has them) is run twice: as one prefill,
and token by token with the cache carried. Both are held to `logits.f64` at every position: argmax,
and every logit within the set's tolerance for float32. Greedy ids are decoded from the prompt with
the cache. As mlx-lm loads the release, the F32 convolution taps and output norms turn all later
activations into F32; --precision bf16 casts them, and refuses to judge when the logits do not come
out in BF16. Its limit is 8 times `noise.bf16`, the oracle's own measurement, and a set on which
that rounding changes a decision is left out as NOT APPLICABLE.

Needs the packages of oracle/requirements-mlx.txt. Exit 1 when something disagrees, 4 when nothing
was compared.
"""

import argparse
import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model

from tensor_files import read_safetensors

TINY = Path(__file__).parent.parent / "fixtures" / "tiny"
DTYPES = {"f32": mx.float32, "bf16": mx.bfloat16}
DEFAULT_TOLERANCE = 2e-3
BF16_FACTOR = 8


def open_model(folder, precision):
    """The model with its activations in the precision, which is checked on one token."""
    model, _ = load_model(folder, lazy=False, strict=True)
    if precision == "f32":
        model.set_dtype(mx.float32)
    else:
        for name, part in model.named_modules():
            if name.endswith(("conv", "conv1d", "norm")):
                part.set_dtype(mx.bfloat16)
    got = model(mx.array([[0]])).dtype
    if got != DTYPES[precision]:
        sys.exit(f"the logits come out in {got}, expected {DTYPES[precision]}")
    return model


def logits_of(model, ids, cache=None):
    """Logits [T, V] of ids in one call, as float64."""
    out = model(mx.array([ids]), cache=cache)[0]
    return np.array(out.astype(mx.float32)).astype(np.float64)


def token_by_token(model, ids):
    """Logits [T, V] with the state carried from token to token."""
    cache = model.make_cache()
    return np.concatenate([logits_of(model, [i], cache) for i in ids])


def greedy(model, prompt, count):
    """The ids that greedy decoding appends to the prompt."""
    cache, feed, chosen = model.make_cache(), prompt, []
    for _ in range(count):
        feed = [int(logits_of(model, feed, cache)[-1].argmax())]
        chosen += feed
    return chosen


def limit_of(expected, precision):
    """How far a logit may be off, or None where the set cannot judge the precision."""
    if precision == "f32":
        tolerance = expected.get("suggested_tolerance", {})
        return tolerance.get("float32_engine_max_abs_vs_f64", DEFAULT_TOLERANCE)
    noise = expected.get("noise", {}).get("bf16", {})
    steady = noise.get("argmax_agree") == 1.0 and noise.get("router_rows_agree") == 1.0
    return BF16_FACTOR * noise["max_abs_vs_f64"] if steady else None


def crosscheck(folder, precision, say):
    """Compares one set; returns how many checks failed, or None where it cannot judge."""
    expected = json.loads((folder / "expected.json").read_text())
    limit = limit_of(expected, precision)
    if limit is None:
        say(f"NOT APPLICABLE {folder.name}: bf16 rounding alone changes a decision, or is unknown")
        return None
    tensors = {k: v for k, (_, v) in read_safetensors(folder / "expected.safetensors").items()}
    mx.set_default_device(mx.cpu)
    model = open_model(folder / "model", precision)
    failed = 0
    for name, tensor in [("full_ids", "logits.f64"), ("long_ids", "long.logits.f64")]:
        if name not in expected:
            continue
        ids, right = expected[name], tensors[tensor]
        for way, run in [("prefill", logits_of), ("token by token", token_by_token)]:
            got = run(model, ids)
            worst = np.abs(got - right).max()
            where = np.unravel_index(np.abs(got - right).argmax(), right.shape)
            same = int((got.argmax(1) == right.argmax(1)).sum())
            passed = bool(worst <= limit) and same == len(ids)
            failed += not passed
            say(f"{'ok  ' if passed else 'FAIL'} {folder.name} {name}, {way}: argmax {same} of "
                f"{len(ids)}, max |diff| {worst:.3e} at position {where[0]}, id {where[1]}, "
                f"limit {limit:.3e}")
    chosen = greedy(model, expected["prompt_ids"], len(expected["greedy_ids"]))
    same = chosen == expected["greedy_ids"]
    failed += not same
    say(f"{'ok  ' if same else 'FAIL'} {folder.name} greedy: {len(chosen)} ids with the cache")
    return failed


def main():
    """Reads the arguments and ends with the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sets", nargs="*", type=Path, default=[TINY])
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    lines = []

    def say(line):
        print(line)
        lines.append(line)

    say(f"mlx {mx.__version__}, kimi_k3 of mlx-lm, {arguments.precision}, CPU")
    counts = [crosscheck(folder, arguments.precision, say) for folder in arguments.sets]
    judged = [count for count in counts if count is not None]
    if arguments.report:
        arguments.report.write_text("\n".join(lines) + "\n")
    sys.exit(4 if not judged else 1 if any(judged) else 0)


if __name__ == "__main__":
    main()
