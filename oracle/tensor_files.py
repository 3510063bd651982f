"""Reads and writes safetensors files, and decodes the two packed dtypes of a K3 checkpoint.

The format: eight bytes little-endian header length, a JSON header (name -> dtype, shape,
data_offsets relative to the end of the header), then the data without gaps. The header is padded
with spaces so that the data starts at a multiple of eight bytes.

BF16 has no numpy dtype: it is kept as uint16 bit patterns and widened on request.
"""

import json
import struct
from pathlib import Path

import numpy as np

NUMPY_DTYPES = {
    "F64": "<f8", "F32": "<f4", "BF16": "<u2", "I32": "<i4", "U8": "|u1",
}
HEADER_ALIGNMENT_BYTES = 8
MXFP4_GROUP_COLUMNS = 32
MXFP4_NAN_SCALE = 255
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def read_safetensors(path):
    """Returns {name: (dtype name, array)}; the arrays are bit patterns in the file's dtype."""
    data = Path(path).read_bytes()
    header, start = parse_header(data)
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype = np.dtype(NUMPY_DTYPES[entry["dtype"]])
        count = int(np.prod(entry["shape"], dtype=np.int64))
        if end - begin != count * dtype.itemsize or start + end > len(data):
            raise ValueError(f"{path}: {name}: offsets do not fit dtype and shape")
        array = np.frombuffer(data, dtype, count, start + begin).reshape(entry["shape"])
        tensors[name] = (entry["dtype"], array)
    return tensors


def parse_header(data):
    """Header as a dict, and the offset of the first data byte."""
    (length,) = struct.unpack_from("<Q", data)
    return json.loads(data[8:8 + length]), 8 + length


def safetensors_bytes(tensors, metadata=None):
    """Serialises {name: (dtype name, array)} in the order given."""
    header, offset, parts = {}, 0, []
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, array) in tensors.items():
        raw = np.ascontiguousarray(array, dtype=NUMPY_DTYPES[dtype]).tobytes()
        header[name] = {
            "dtype": dtype, "shape": list(array.shape),
            "data_offsets": [offset, offset + len(raw)],
        }
        offset += len(raw)
        parts.append(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT_BYTES)
    return struct.pack("<Q", len(text)) + text + b"".join(parts)


def bfloat16_from_float64(values):
    """Bit patterns, nearest even at each of the two roundings (to binary32, then to BF16)."""
    bits = np.asarray(values, np.float64).astype("<f4").view("<u4").astype(np.uint64)
    if np.any((bits & 0x7F800000) == 0x7F800000):
        raise ValueError("not finite in BF16")
    rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    return rounded.astype("<u2")


def float64_from_bfloat16(patterns):
    """Exact."""
    return (patterns.astype("<u4") << np.uint32(16)).view("<f4").astype(np.float64)


def float64_from_mxfp4(packed, scale):
    """packed [out, in/2], scale [out, in/32] -> [out, in]: E2M1 code times 2^(scale - 127).

    The low nibble is the even column; bit 3 of a nibble is the sign.
    """
    if np.any(scale == MXFP4_NAN_SCALE):
        row, group = np.argwhere(scale == MXFP4_NAN_SCALE)[0]
        raise ValueError(f"NaN scale byte at row {row}, group {group}")
    codes = np.empty(packed.shape[:-1] + (packed.shape[-1] * 2,), np.uint8)
    codes[..., 0::2] = packed & 0x0F
    codes[..., 1::2] = packed >> 4
    table = np.array(E2M1_VALUES + tuple(-value for value in E2M1_VALUES))
    factor = np.ldexp(1.0, scale.astype(np.int32) - 127)
    return table[codes] * np.repeat(factor, MXFP4_GROUP_COLUMNS, axis=-1)


def read_checkpoint(folder):
    """config.json and {name: (dtype, array)} of every tensor that the index lists."""
    folder = Path(folder)
    config = json.loads((folder / "config.json").read_text())
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    tensors = {}
    for shard in sorted(set(index.values())):
        for name, tensor in read_safetensors(folder / shard).items():
            if index.get(name) != shard:
                raise ValueError(f"{shard}: {name} is not where the index says")
            tensors[name] = tensor
    missing = sorted(set(index) - set(tensors))
    if missing:
        raise ValueError(f"in the index but in no shard: {missing[0]}")
    return config, tensors
