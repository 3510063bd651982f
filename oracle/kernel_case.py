"""One kernel's fixture file: named cases, their tensors, and the wrong variants that they expose.

A kernel is a right function and a table of wrong ones, all from the inputs of a case to its
outputs. A case lists the wrong variants that it has to expose; adding it refuses when one of them
gives the same outputs, when an output is not finite, or when `bits.*` and `out.*` of one name lie
further apart than rounding explains.
"""

from types import SimpleNamespace

import numpy as np

from integer_generator import BELL_DEVIATION, bell, below, draws
from tensor_files import safetensors_bytes

KERNEL_SEED = 1
DTYPES = {"float64": "F64", "float32": "F32", "int32": "I32", "uint8": "U8"}
# A wrong `out.*` has to be this far off, relative to the largest value, to be called visible: a
# hundred times what single precision needs.
MIN_VISIBLE = 1e-4
MAX_ROUNDING = 2.0 ** -20
MAX_STREAMS = 400


def refuse(text):
    raise SystemExit(f"refused: {text}")


class Stream:
    """Draws of one case, a stream of its own per tensor; every conversion rounds once."""

    def __init__(self, name):
        self.name = f"kernels/{name}"

    def integers(self, what, shape, low, high):
        """int64 in [low, high)."""
        shape = np.atleast_1d(shape)
        drawn = below(KERNEL_SEED, f"{self.name}/{what}", int(np.prod(shape)), high - low)
        return (drawn + low).reshape(shape)

    def bell(self, what, shape, scale=1.0, offset=0.0):
        """F32, about normal."""
        shape = np.atleast_1d(shape)
        drawn = bell(KERNEL_SEED, f"{self.name}/{what}", int(np.prod(shape)))
        return (drawn / BELL_DEVIATION * scale + offset).astype(np.float32).reshape(shape)

    def uniform(self, what, shape, low, high):
        """F32 in [low, high)."""
        part = self.integers(what, shape, 0, 1 << 24) / float(1 << 24)
        return (low + part * (high - low)).astype(np.float32)

    def significand(self, what, shape, bits):
        """F64, +-[1, 2) with so many significant bits, the last one set."""
        whole = self.integers(what, shape, 1 << (bits - 1), 1 << bits) | 1
        sign = 1 - 2 * self.integers(what + "-sign", shape, 0, 2)
        return np.ldexp(whole.astype(np.float64), 1 - bits) * sign

    def part(self, name):
        return Stream(f"{self.name.removeprefix('kernels/')}/{name}")

    def permutation(self, what, count):
        return np.argsort(draws(KERNEL_SEED, f"{self.name}/{what}", count), kind="stable")


def scalar(value, dtype=np.float64):
    return np.array([value], dtype)


def shows(right, wrong, visible, elementwise):
    """Whether outputs of a wrong variant differ: `bits.*` and ids at all, `out.*` visibly."""
    for name, got in wrong.items():
        want = right[name]
        if name.startswith("bits.") or want.dtype.kind == "i" or got.shape != want.shape:
            if got.tobytes() != want.tobytes():
                return True
            continue
        scale = np.abs(want) if elementwise else np.abs(want).max()
        zero_sign = elementwise and np.any((want == 0) & (np.signbit(want) != np.signbit(got)))
        if zero_sign or not np.all(np.abs(got - want) <= visible * scale):
            return True
    return False


def rounding_of_largest(_case, right, name):
    return MAX_ROUNDING * np.abs(right["out." + name]).max()


class Kernel:
    """`right` and every entry of `wrong` map a case (its inputs as attributes) to outputs."""

    def __init__(self, name, right, wrong, *, visible=MIN_VISIBLE, elementwise=False,
                 bound=rounding_of_largest):
        self.name, self.right, self.wrong = name, right, wrong
        self.visible, self.elementwise, self.bound = visible, elementwise, bound
        self.texts, self.tensors = {}, {}
        self.exposed = {variant: [] for variant in wrong}

    def stream(self, case):
        return Stream(f"{self.name}/{case}")

    def outputs(self, inputs, options):
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            return self.right(SimpleNamespace(**inputs, **options))

    def hidden(self, inputs, right, exposes, options):
        """The variants of `exposes` that do not show."""
        with np.errstate(all="ignore"):
            return [variant for variant in exposes if not shows(
                right, self.wrong[variant](SimpleNamespace(**inputs, **options)),
                self.visible, self.elementwise)]

    def search(self, case, build, exposes, **options):
        """Inputs from the first of the numbered streams whose case exposes every variant."""
        for attempt in range(MAX_STREAMS):
            inputs = build(self.stream(f"{case}/{attempt}"))
            if not self.hidden(inputs, self.outputs(inputs, options), exposes, options):
                return inputs
        return refuse(f"{self.name}: {case}: no stream exposes {exposes}")

    def add(self, case, text, inputs, exposes, *, promise=None, bits_only=False, **options):
        """`promise` judges the right outputs; `bits_only` stores no `out.*`; `options` are
        handed to the functions beside the inputs, and not stored."""
        right = self.outputs(inputs, options)
        place = f"{self.name}: {case}"
        if case in self.texts or not exposes:
            refuse(f"{place}: a second case of this name, or one that exposes nothing")
        hidden = self.hidden(inputs, right, exposes, options)
        if hidden:
            refuse(f"{place}: does not expose {hidden}")
        if promise and not promise(SimpleNamespace(**inputs), right):
            refuse(f"{place}: is not what its name says")
        self.refuse_doubtful(place, inputs, right, bits_only)
        for variant in exposes:
            self.exposed[variant].append(case)
        self.texts[case] = text
        for name, value in inputs.items():
            self.tensors[f"{case}/in.{name}"] = value
        for name, value in right.items():
            if not (bits_only and name.startswith("out.")):
                self.tensors[f"{case}/{name}"] = value

    def refuse_doubtful(self, place, inputs, right, bits_only):
        for name, value in right.items():
            if not np.all(np.isfinite(value)):
                refuse(f"{place}: {name} is not finite")
        for name in (name.removeprefix("bits.") for name in right if name.startswith("bits.")):
            if "out." + name in right and not bits_only:
                apart = np.abs(right["bits." + name].astype(np.float64) - right["out." + name])
                if not np.all(apart <= self.bound(SimpleNamespace(**inputs), right, name)):
                    refuse(f"{place}: bits.{name} is {apart.max():.3e} away from out.{name}")

    def file_bytes(self):
        """The safetensors file: widest dtypes first, so that every tensor is aligned."""
        unseen = [variant for variant, cases in self.exposed.items() if not cases]
        if unseen:
            refuse(f"{self.name}: no case exposes {unseen}")
        order = sorted(self.tensors, key=lambda name: -self.tensors[name].dtype.itemsize)
        return safetensors_bytes(
            {name: (DTYPES[self.tensors[name].dtype.name], self.tensors[name])
             for name in order}, self.texts)
