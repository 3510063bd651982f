"""fixtures/manifest.json: every file there with size, hash, origin, and what it catches.

Entries made by other generators are kept as they are. Documents (*.md) and the manifest itself
are not listed.
"""

import hashlib
import json
from pathlib import Path

import recipe

GENERATOR = "oracle/generate.py"
NAME = "manifest.json"
SHARD_CATCHES = (
    "wrong order within a shard, wrong dtype widths, swapped nibbles, misread scales, padding of "
    "A_log used as heads")
ANSWER_BUDGET = "float64 1e-9, float32 2e-3 absolute; ids exactly"
# Path -> (what it is, which wrong implementations it catches, budget).
WHAT = {
    "tiny/model/config.json": (
        "the tiny model's configuration",
        "constants of the release written into the code: none has its released value here", ""),
    "tiny/model/model.safetensors.index.json": (
        "which shard holds which tensor", "a reader that guesses the shard", ""),
    "tiny/model/model-00001-of-000003.safetensors": ("layers 0..4", SHARD_CATCHES, ""),
    "tiny/model/model-00002-of-000003.safetensors": ("layers 5..8", SHARD_CATCHES, ""),
    "tiny/model/model-00003-of-000003.safetensors": (
        "layers 9..12, embedding, final norm and mix, head, three vision tensors",
        SHARD_CATCHES + ", vision tensors taken for the text model's", ""),
    "tiny/expected.json": (
        "ids, argmax, margins, noise, hashes", "any different decision", ANSWER_BUDGET),
    "tiny/expected.safetensors": (
        "float64 logits of 32 and of 200 ids, router choices, all stage tensors of 4 rows",
        "every wrong variant in oracle/sensitivity.tsv", ANSWER_BUDGET),
    "mild/delta.safetensors": (
        "the tensors in which the mild twin differs from the tiny model", "", ""),
    "mild/config.json": ("the mild twin's configuration", "", ""),
    "mild/expected.json": (
        "the twin's ids, argmax, margins, noise, hashes of the composed files",
        "a BF16 engine that decides differently: BF16 rounding alone does not", ANSWER_BUDGET),
    "mild/expected.safetensors": (
        "the twin's float64 logits and router choices",
        "mistakes that hide behind a BF16 engine's rounding on the tiny model", ANSWER_BUDGET),
}


def listed_files(folder):
    return sorted(path for path in Path(folder).rglob("*")
                  if path.is_file() and path.suffix != ".md" and path.name != NAME)


def describe(folder, path):
    name = path.relative_to(folder).as_posix()
    data = path.read_bytes()
    what, catches, budget = WHAT[name]
    return {
        "path": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(),
        "generator": GENERATOR, "seed": recipe.WEIGHT_SEED, "what": what, "catches": catches,
        "budget": budget,
    }


def write_manifest(folder):
    """Replaces our own entries."""
    target = Path(folder) / NAME
    entries = []
    if target.exists():
        entries = [entry for entry in json.loads(target.read_text())["files"]
                   if entry["generator"] != GENERATOR]
    foreign = {entry["path"] for entry in entries}
    entries += [describe(folder, path) for path in listed_files(folder)
                if path.relative_to(folder).as_posix() not in foreign]
    entries.sort(key=lambda entry: entry["path"])
    lines = ",\n".join("  " + json.dumps(entry) for entry in entries)
    recipe_text = ("mild/ is a checkpoint once composed: the three shards and the index of "
                   "tiny/model, with the bytes of every tensor in mild/delta.safetensors "
                   "overwritten in place (same name, dtype, shape), and mild/config.json")
    target.write_text('{\n "mild_recipe": ' + json.dumps(recipe_text) + ',\n "files": [\n'
                      + lines + "\n ]\n}\n")
