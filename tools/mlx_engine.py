"""mlx-lm's `kimi_k3` behind `--engine-cmd`: a foreign engine in a few lines.

    k3-verify gates --engine-cmd 'python tools/mlx_engine.py {model} {ids} {gen} {logits}'

A fifth word, f32 (the default) or bf16, is the precision of the activations. Needs the packages of
oracle/requirements-mlx.txt.
"""

import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model


def main(folder, ids, count, out, precision="f32"):
    """Prefill, then one token at a time with the cache; logits of every position fed."""
    mx.set_default_device(mx.cpu)
    model, _ = load_model(Path(folder), lazy=False, strict=True)
    if precision == "f32":
        model.set_dtype(mx.float32)
    else:  # the F32 taps and norms would turn every activation behind them into F32
        for name, part in model.named_modules():
            if name.endswith(("conv", "conv1d", "norm")):
                part.set_dtype(mx.bfloat16)
    feed, cache = [int(i) for i in ids.split(",")], model.make_cache()
    rows, chosen = [], []
    for _ in range(int(count)):
        rows.append(np.array(model(mx.array([feed]), cache=cache)[0].astype(mx.float32)))
        feed = [int(rows[-1][-1].argmax())]
        chosen += feed
    np.concatenate(rows).astype("<f4").tofile(out)
    print(",".join(map(str, chosen)))


if __name__ == "__main__":
    main(*sys.argv[1:])
