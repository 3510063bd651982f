"""fixtures/manifest.json: every file there with size, hash, origin, and what it catches.

Entries made by other generators are kept as they are. The manifest itself is not listed: its own
hash stands beside it in manifest.sha256, so that no file of the folder is without a witness.
"""

import hashlib
import json
from pathlib import Path

import recipe
from kernel_case import KERNEL_SEED

GENERATOR = "oracle/generate.py"
KERNEL_GENERATOR = "oracle/kernel_fixtures.py"
NAME = "manifest.json"
WITNESS = "manifest.sha256"
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
    "faint/delta.safetensors": (
        "the tensors in which the faint twin differs from the tiny model", "", ""),
    "faint/config.json": ("the faint twin's configuration", "", ""),
    "faint/expected.json": (
        "the faint twin's ids, argmax, margins, noise, hashes of the composed files",
        "a BF16 engine that decides differently: BF16 rounding alone does not", ANSWER_BUDGET),
    "faint/expected.safetensors": (
        "the faint twin's float64 logits and router choices",
        "1e-5 for 1e-6 in MLA's low-rank norms or in l2norm, in a BF16 engine", ANSWER_BUDGET),
}


def listed_files(folder):
    return sorted(path for path in Path(folder).rglob("*")
                  if path.is_file() and path.name not in (NAME, WITNESS))


def witness(manifest):
    """The one line of manifest.sha256, in the form that `sha256sum` checks."""
    return f"{hashlib.sha256(manifest.read_bytes()).hexdigest()}  {NAME}\n"


def describe(folder, path, kernel_texts):
    name = path.relative_to(folder).as_posix()
    data = path.read_bytes()
    generator, seed = GENERATOR, recipe.WEIGHT_SEED
    if name in kernel_texts:
        generator, seed = KERNEL_GENERATOR, KERNEL_SEED
    what, catches, budget = kernel_texts[name] if name in kernel_texts else WHAT[name]
    return {
        "path": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(),
        "generator": generator, "seed": seed, "what": what, "catches": catches,
        "budget": budget,
    }


def write_manifest(folder, kernel_texts):
    """Replaces our own entries. `kernel_texts`: as WHAT, for every file of kernel fixtures."""
    target = Path(folder) / NAME
    entries = []
    if target.exists():
        entries = [entry for entry in json.loads(target.read_text())["files"]
                   if entry["generator"] not in (GENERATOR, KERNEL_GENERATOR)]
    foreign = {entry["path"] for entry in entries}
    entries += [describe(folder, path, kernel_texts) for path in listed_files(folder)
                if path.relative_to(folder).as_posix() not in foreign]
    entries.sort(key=lambda entry: entry["path"])
    lines = ",\n".join("  " + json.dumps(entry) for entry in entries)
    recipe_text = ("mild/ and faint/ are checkpoints once composed: the three shards and the "
                   "index of tiny/model, with the bytes of every tensor in the twin's "
                   "delta.safetensors overwritten in place (same name, dtype, shape), and the "
                   "twin's config.json")
    target.write_text('{\n "twin_recipe": ' + json.dumps(recipe_text) + ',\n "files": [\n'
                      + lines + "\n ]\n}\n")
    (Path(folder) / WITNESS).write_text(witness(target))
