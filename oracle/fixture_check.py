"""Compares committed fixtures with regenerated ones, and the manifest with the committed files.

Weights, index, config, delta, inputs and bits of the kernel fixtures: byte for byte. Ids, shapes,
dtypes, names and their order: equal. A float64 answer may differ from its committed value by
CHECK_LIMIT times the largest absolute value of the committed tensor that it belongs to, in a kernel
fixture by CHECK_LIMIT times its own absolute value. Margins may differ by MARGIN_LIMIT. Noise
figures are measurements of rounding and are not compared.
"""

import hashlib
import json
from pathlib import Path

import numpy as np

from manifest import NAME, WITNESS, listed_files, witness
from tensor_files import parse_header, read_safetensors

CHECK_LIMIT = 1e-12
MARGIN_LIMIT = 1e-9
NOT_COMPARED = ("noise",)
MEASURED = ("margins", "wrong_mla_epsilon_effect", "wrong_epsilon_effects")


def check(committed, regenerated):
    """Prints every difference; returns whether there is none."""
    committed, regenerated = Path(committed), Path(regenerated)
    problems = check_manifest(committed)
    for path in listed_files(regenerated):
        name = path.relative_to(regenerated).as_posix()
        other = committed / name
        if not other.is_file():
            problems.append(f"{name}: missing")
        elif name.endswith("expected.json"):
            problems += compare_json(name, other, path)
        elif name.endswith("expected.safetensors"):
            problems += compare_tensors(name, other, path)
        elif name.startswith("kernels/"):
            problems += compare_kernel(name, other, path)
        elif other.read_bytes() != path.read_bytes():
            problems.append(f"{name}: differs from what the generator writes")
    problems += compare_manifests(committed / NAME, regenerated / NAME)
    for problem in problems:
        print(f"FAIL {problem}")
    if not problems:
        print("ok   every committed fixture comes from this generator")
    return not problems


def check_manifest(committed):
    """The manifest against the files that it lists, and against those that it does not."""
    if not (committed / NAME).is_file():
        return [f"{NAME}: missing"]
    entries = json.loads((committed / NAME).read_text())["files"]
    problems = []
    beside = committed / WITNESS
    if not beside.is_file() or beside.read_text() != witness(committed / NAME):
        problems.append(f"{WITNESS}: is not the hash of {NAME}")
    for entry in entries:
        path = committed / entry["path"]
        if not path.is_file():
            problems.append(f"{entry['path']}: listed in the manifest, but missing")
            continue
        data = path.read_bytes()
        if len(data) != entry["bytes"] or hashlib.sha256(data).hexdigest() != entry["sha256"]:
            problems.append(f"{entry['path']}: size or hash is not the manifest's")
    listed = {entry["path"] for entry in entries}
    problems += [f"{path.relative_to(committed)}: not in the manifest"
                 for path in listed_files(committed)
                 if path.relative_to(committed).as_posix() not in listed]
    return problems


def compare_manifests(committed, regenerated):
    """Entries of the generators that ran: same files, seeds and texts. Hashes are judged file by
    file."""
    if not committed.is_file():
        return []
    generators = {entry["generator"] for entry in json.loads(regenerated.read_text())["files"]}

    def entries(path):
        return [{key: value for key, value in entry.items() if key not in ("bytes", "sha256")}
                for entry in json.loads(path.read_text())["files"]
                if entry["generator"] in generators]
    return [] if entries(committed) == entries(regenerated) else [f"{NAME}: entries differ"]


def compare_json(name, committed, regenerated):
    old, new = json.loads(committed.read_text()), json.loads(regenerated.read_text())
    problems = [] if list(old) == list(new) else [f"{name}: keys differ"]
    for key in old:
        if key in NOT_COMPARED or key not in new:
            continue
        same = close(old[key], new[key]) if key in MEASURED else old[key] == new[key]
        if not same:
            problems.append(f"{name}: {key}: expected {old[key]}, got {new[key]}")
    return problems


def close(old, new):
    if isinstance(old, dict):
        return list(old) == list(new) and all(close(old[key], new[key]) for key in old)
    return abs(old - new) <= MARGIN_LIMIT


def compare_tensors(name, committed, regenerated):
    old, new = read_safetensors(committed), read_safetensors(regenerated)
    if list(old) != list(new):
        return [f"{name}: tensor names or their order differ"]
    problems, worst = [], 0.0
    for tensor, (dtype, want) in old.items():
        other, got = new[tensor]
        if other != dtype or got.shape != want.shape:
            problems.append(f"{name}: {tensor}: dtype or shape differs")
        elif dtype != "F64":
            if not np.array_equal(want, got):
                problems.append(f"{name}: {tensor}: integers differ")
        else:
            scale = np.abs(want).max()
            difference = np.abs(got - want).max()
            worst = max(worst, difference / scale if scale else difference)
            if not difference <= CHECK_LIMIT * scale:
                problems.append(f"{name}: {tensor}: {difference:.3e} away, largest {scale:.3e}")
    print(f"     {name}: worst difference {worst:.2e} of the largest value in its tensor")
    return problems


def compare_kernel(name, committed, regenerated):
    """Header with its texts equal; every tensor but float64 `out.*` byte for byte."""
    headers = [parse_header(path.read_bytes())[0] for path in (committed, regenerated)]
    if list(headers[0].items()) != list(headers[1].items()):
        return [f"{name}: cases, texts, tensor names, order, dtypes or shapes differ"]
    old, new = read_safetensors(committed), read_safetensors(regenerated)
    problems = []
    for tensor, (dtype, want) in old.items():
        got = new[tensor][1]
        if dtype == "F64" and "/out." in tensor:
            difference = np.abs(got - want)
            if not np.all(difference <= CHECK_LIMIT * np.abs(want)):
                problems.append(f"{name}: {tensor}: {difference.max():.3e} away")
        elif want.tobytes() != got.tobytes():
            problems.append(f"{name}: {tensor}: bytes differ")
    return problems
