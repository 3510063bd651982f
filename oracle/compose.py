"""Lays a twin over the tiny model: its shards with the tensors of a delta overwritten.

    python oracle/compose.py TINY_MODEL DELTA CONFIG OUTPUT

Recipe: copy the index and the shards; for every tensor of the delta, find its shard in the index,
its place in that shard's header, require equal dtype and shape, and replace exactly those bytes.
config.json is replaced as a whole. Nothing else changes, headers included.
"""

import json
import sys
from pathlib import Path

from tensor_files import parse_header

INDEX = "model.safetensors.index.json"


def overlay(shard, delta):
    """`shard` with every tensor that `delta` also has overwritten, and the names of these."""
    header, start = parse_header(shard)
    other_header, other_start = parse_header(delta)
    result, names = bytearray(shard), []
    for name, entry in other_header.items():
        if name == "__metadata__" or name not in header:
            continue
        place = header[name]
        if (place["dtype"], place["shape"]) != (entry["dtype"], entry["shape"]):
            raise ValueError(f"{name}: dtype or shape differs from the tiny model's")
        begin, end = (start + offset for offset in place["data_offsets"])
        other_begin, other_end = (other_start + offset for offset in entry["data_offsets"])
        result[begin:end] = delta[other_begin:other_end]
        names.append(name)
    return bytes(result), names


def compose(tiny_model, delta_path, config_path, output):
    """Writes the twin's checkpoint folder."""
    tiny_model, output = Path(tiny_model), Path(output)
    delta = Path(delta_path).read_bytes()
    expected = set(parse_header(delta)[0]) - {"__metadata__"}
    index_text = (tiny_model / INDEX).read_text()
    output.mkdir(parents=True, exist_ok=True)
    (output / INDEX).write_text(index_text)
    (output / "config.json").write_bytes(Path(config_path).read_bytes())
    for shard in sorted(set(json.loads(index_text)["weight_map"].values())):
        data, names = overlay((tiny_model / shard).read_bytes(), delta)
        (output / shard).write_bytes(data)
        expected -= set(names)
    if expected:
        raise ValueError(f"in the delta but in no shard: {sorted(expected)[0]}")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit("usage: python oracle/compose.py TINY_MODEL DELTA CONFIG OUTPUT")
    compose(*sys.argv[1:])
