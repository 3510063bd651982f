"""The integer generator behind every fixture: SplitMix64, one independent stream per name.

A stream is a 64-bit state; draw i (from 0) is mix(state + (i + 1) * GAMMA) modulo 2^64. The state
of a named stream is the FNV-1a hash of "<seed>/<name>", so a tensor keeps its draws when others
come or go. Numbers leave this file as integers; what turns them into weights rounds explicitly.
"""

import numpy as np

GAMMA = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
# The published test vector of SplitMix64: the first draws from the state 1234567.
TEST_STATE = 1234567
TEST_DRAWS = (
    6457827717110365317, 3203168211198807973, 9817491932198370423,
    4593380528125082431, 16408922859458223821,
)
# Standard deviation of `bell` draws: four uniform 16-bit numbers, sqrt(4 * (2^32 - 1) / 12).
BELL_DEVIATION = 37837.2275


def fnv1a_64(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def splitmix64(state, count):
    """The first `count` draws from a state, as uint64."""
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GAMMA)
    z = steps + np.uint64(state)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def check_test_vector():
    """Stops when this implementation is not SplitMix64."""
    got = tuple(int(draw) for draw in splitmix64(TEST_STATE, len(TEST_DRAWS)))
    if got != TEST_DRAWS:
        raise SystemExit(f"splitmix64 does not give its published test vector: {got}")


def draws(seed, name, count):
    return splitmix64(fnv1a_64(f"{seed}/{name}"), count)


def bell(seed, name, count):
    """int64, mean 0, deviation BELL_DEVIATION: the four 16-bit parts of a draw, summed."""
    word = draws(seed, name, count)
    parts = [(word >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48)]
    return sum(part.astype(np.int64) for part in parts) - 131070


def below(seed, name, count, bound):
    """int64 in [0, bound): the upper 32 bits of a draw modulo the bound."""
    return ((draws(seed, name, count) >> np.uint64(32)) % np.uint64(bound)).astype(np.int64)
