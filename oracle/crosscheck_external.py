"""Runs this forward pass on an evidence set made by others and compares all its answers.

    python oracle/crosscheck_external.py SET [SET ...]

A set is a folder with model/, expected.json and expected.safetensors. Exit 1 when a logit differs
by more than LIMIT from `logits.f64`, or an id differs from what the set says.
"""

import json
import sys
from pathlib import Path

import numpy as np

from k3 import load_model
from tensor_files import read_safetensors

LIMIT = 1e-10


def crosscheck(folder):
    """Compares one set; returns whether it agrees."""
    expected = json.loads((folder / "expected.json").read_text())
    tensors = {k: v for k, (_, v) in read_safetensors(folder / "expected.safetensors").items()}
    model = load_model(folder / "model")
    ids = expected["full_ids"]
    logits = model.forward(ids)
    worst = np.abs(logits - tensors["logits.f64"]).max()
    checks = {
        f"logits.f64 within {LIMIT:g} (worst {worst:.3e})": worst <= LIMIT,
        "argmax at every position": logits.argmax(1).tolist() == expected["argmax_per_position"],
    }
    prompt, greedy = len(expected["prompt_ids"]), expected["greedy_ids"]
    checks["greedy ids"] = logits.argmax(1)[prompt - 1:-1].tolist() == greedy
    for name, want in tensors.items():
        if name.startswith("router_ids."):
            got = [model.stages[f"layers.{n}.router_ids"] for n in expected["moe_layers"]]
            checks[name] = np.array_equal(np.stack(got), want)
    report_distances(model, tensors, expected, logits)
    for text, passed in checks.items():
        print(f"{'ok  ' if passed else 'FAIL'} {folder.name}: {text}")
    return all(checks.values())


def report_distances(model, tensors, expected, logits):
    """Prints how far the set's other tensors are; they have their own noise and do not gate."""
    for name, want in tensors.items():
        if name.startswith("logits.") and want.shape == logits.shape and name != "logits.f64":
            print(f"     {name}: {np.abs(logits - want).max():.3e} away")
        if name.startswith("layer_out."):
            got = [model.stages[f"layers.{n}.out"] for n in range(model.config.layers)]
            print(f"     {name}: {np.abs(np.stack(got) - want).max():.3e} away")
        if name.startswith("router_weights."):
            got = [model.stages[f"layers.{n}.router_weights"] for n in expected["moe_layers"]]
            print(f"     {name}: {np.abs(np.stack(got) - want).max():.3e} away")


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: python oracle/crosscheck_external.py SET [SET ...]")
    results = [crosscheck(Path(argument)) for argument in sys.argv[1:]]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
