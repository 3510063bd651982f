"""Runs every wrong variant on the tiny oracle; prints how far it moves a logit, smallest first.

    python oracle/sensitivity.py [SET]            prints the table
    python oracle/sensitivity.py [SET] --write    also replaces oracle/sensitivity.tsv

The evidence that the tiny oracle can fail: exit 1 when a variant moves no logit of full_ids by
more than LIMIT (EPSILON_LIMIT where only the epsilon of one norm changes). A variant that needs
tensors which the checkpoint does not have is caught earlier, by binding, and is listed as such.

Many effects are large because a small change flips a router choice somewhere. The second column
pins the router choices to the right ones and shows what remains: the change itself.
"""

import copy
import json
import sys
from pathlib import Path

import numpy as np

from k3 import Config, Model, Weights
from tensor_files import read_checkpoint
from wrong_variants import VARIANTS

# Each enters its variants into the list.
import wrong_stream  # noqa: F401
import wrong_kda  # noqa: F401
import wrong_mla  # noqa: F401
import wrong_moe  # noqa: F401

SET = Path(__file__).resolve().parent.parent / "fixtures" / "tiny"
TABLE = Path(__file__).resolve().parent / "sensitivity.tsv"
LIMIT = 1e-4
EPSILON_LIMIT = 1e-5


def changed_model(model, change):
    """A copy with its own config and epsilons, and the variant applied."""
    other = copy.copy(model)
    other.config, other.epsilon = copy.copy(model.config), dict(model.epsilon)
    if isinstance(change, type):
        other.__class__ = change
    else:
        change(other)
    return other


def pinned(model, right_ids):
    """The same model with its router choices replaced by `right_ids` of each layer."""
    def router(self, n, x):
        self.layer = n
        return super(cls, self).router(n, x)

    def select(self, scores, bias):
        return right_ids[self.layer]

    cls = type("Pinned", (model.__class__,), {"router": router, "select": select})
    model.__class__ = cls
    return model


def effect(model, ids, right, change, right_ids=None):
    """Largest change of a logit; infinite when the variant cannot bind or is not finite."""
    try:
        with np.errstate(all="ignore"):
            other = changed_model(model, change)
            logits = (pinned(other, right_ids) if right_ids else other).forward(ids)
    except KeyError:
        return "cannot bind", np.inf
    worst = np.abs(logits - right).max()
    if not np.isfinite(worst):
        return "not finite", np.inf
    return f"{worst:.3e}", float(worst)


def sensitivities(root, tensors, ids, with_pinned=False):
    """[(effect, clause, variant, its text, text with pinned choices)], smallest first."""
    config = Config(root)
    model = Model(config, Weights(tensors, config))
    model.tensors = tensors
    right = model.forward(ids)
    right_ids = {n: model.stages[f"layers.{n}.router_ids"]
                 for n in range(config.dense_layers, config.layers)}
    rows = []
    for clause, text, change in VARIANTS:
        shown, worst = effect(model, ids, right, change)
        rest = effect(model, ids, right, change, right_ids)[0] if with_pinned else ""
        rows.append((worst, clause, text, shown, rest))
    return sorted(rows)


def too_small(rows):
    """The rows that stay below their limit."""
    return [row for row in rows
            if row[0] <= (EPSILON_LIMIT if row[2].startswith("epsilon") else LIMIT)]


def main():
    arguments = [x for x in sys.argv[1:] if x != "--write"]
    folder = Path(arguments[0]) if arguments else SET
    ids = json.loads((folder / "expected.json").read_text())["full_ids"]
    rows = sensitivities(*read_checkpoint(folder / "model"), ids, with_pinned=True)
    lines = ["max |logit change|\twith router choices pinned\tclause\twrong variant"]
    lines += [f"{shown}\t{rest}\t{clause}\t{text}" for _, clause, text, shown, rest in rows]
    print("\n".join(lines))
    if "--write" in sys.argv:
        TABLE.write_text("\n".join(lines) + "\n")
    failed = too_small(rows)
    for row in failed:
        print(f"FAIL too small to see: {row[1]} {row[2]}")
    print(f"{len(rows)} wrong variants, {len(failed)} too small to see")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
