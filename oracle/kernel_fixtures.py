"""Writes fixtures/kernels/: for each kernel of the engine its inputs, values and bits, by case.

    python oracle/kernel_fixtures.py              writes them and their manifest entries
    python oracle/kernel_fixtures.py --check      regenerates elsewhere and compares
    python oracle/kernel_fixtures.py --variants   prints which case exposes which wrong variant
    --output DIR                                  writes to, or checks, another folder

Tensors are named <case>/in.<name>, <case>/out.<name> (the value, in float64) and
<case>/bits.<name> (what the arithmetic contract yields, bit by bit). Nothing is written unless
every case exposes the wrong variants that it is there for. `generate.py` runs all of this too.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from fixture_check import check
from integer_generator import check_test_vector
from kernels_elementary import elementary, situ
from kernels_kda import convolution, kda_decay
from kernels_kda_steps import kda_steps
from kernels_mla_moe import mla_attention, router
from kernels_norms import gated_norm, l2_norm, rms_norm
from kernels_vectors import moe_sum, residual_mix, softmax_sum, weighted_sum
from kernels_weights import bf16_widen, mxfp4_decode, row_product
from manifest import write_manifest

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
FOLDER = "kernels"
MAX_TOTAL_BYTES = 415_000
BITS = "bits exactly"
BOTH = f"{BITS}; out within the rounding of the subject's precision"
SUMS = f"{BITS}; out within terms * 2^-53 * the sum of their absolute values: the terms cancel"
# Builder -> (what the file holds, budget).
KERNELS = {
    mxfp4_decode: ("MXFP4 codes and scale bytes, decoded", BITS),
    bf16_widen: ("BF16 codes, widened", BITS),
    row_product: ("a weight row of each dtype times a vector; sums before rounding", SUMS),
    weighted_sum: ("weighted sums of vectors", SUMS),
    rms_norm: ("RMSNorm", BOTH),
    l2_norm: ("l2norm of queries and keys", BOTH),
    convolution: ("the short convolution with its history", BOTH),
    kda_decay: ("KDA's log decay and decay", BOTH),
    kda_steps: ("KDA's delta-rule steps on a carried state", BOTH),
    softmax_sum: ("softmax-weighted sums of vectors", BOTH),
    residual_mix: ("the attention-residual mix", BOTH),
    router: ("expert selection and weights", "ids exactly; weights to the subject's precision"),
    situ: ("SiTU", BOTH),
    gated_norm: ("KDA's output norm and gate", BOTH),
    mla_attention: ("causal MLA attention over cached rows", BOTH),
    moe_sum: ("the weighted sum of expert outputs", SUMS),
    elementary: ("exp, tanh and the logistic, correctly rounded to float64 and to F32", BOTH),
}


def write_kernels(folder, built=None):
    """Writes the files; returns {path: (what, catches, budget)} for the manifest."""
    place = Path(folder) / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    texts, contents = {}, {}
    for build, (what, budget) in KERNELS.items():
        kernel = build()
        if built is not None:
            built.append(kernel)
        path = f"{FOLDER}/{kernel.name}.safetensors"
        contents[path] = kernel.file_bytes()
        catches = ", ".join(variant.replace("-", " ") for variant in kernel.wrong)
        texts[path] = (f"{what}: {len(kernel.texts)} cases", catches, budget)
    total = sum(len(data) for data in contents.values())
    if total > MAX_TOTAL_BYTES:
        raise SystemExit(f"refused: the kernel fixtures take {total} bytes")
    for path, data in contents.items():
        (Path(folder) / path).write_bytes(data)
    return texts


def print_variants(kernels):
    for kernel in kernels:
        for variant, cases in kernel.exposed.items():
            print(f"{kernel.name}\t{variant}\t{' '.join(cases)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files")
    parser.add_argument("--variants", action="store_true", help="print who exposes what")
    parser.add_argument("--output", type=Path, default=FIXTURES, metavar="DIR")
    arguments = parser.parse_args()
    check_test_vector()
    if not (arguments.check or arguments.variants):
        write_manifest(arguments.output, write_kernels(arguments.output))
        return
    kernels, passed = [], True
    with tempfile.TemporaryDirectory() as place:
        write_manifest(place, write_kernels(place, kernels))
        if arguments.variants:
            print_variants(kernels)
        if arguments.check:
            passed = check(arguments.output, place)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
