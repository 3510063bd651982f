"""The same forward pass one token at a time, for several sequences at once, with carried state.

A row is a sequence here, not a position. `generate.py` uses it to confirm that carried state
gives the answers of the full pass (K13, M8); `search.py` uses it because it is fast.
"""

import numpy as np

from k3 import Model, product, softmax


class Carried(Model):
    """Call `step` with one id per sequence; `keep_rows` drops sequences."""

    def __init__(self, config, weights, **keywords):
        super().__init__(config, weights, **keywords)
        self.carried, self.place = {}, 0

    def step(self, ids):
        """ids [B] -> logits [B, vocabulary] of the next position of every sequence."""
        self.place = 0
        return self.forward(ids)

    def keep_rows(self, rows):
        """Goes on with these sequences; an index may repeat."""
        self.carried = {place: tuple(array[rows] for array in arrays)
                        for place, arrays in self.carried.items()}

    def swap(self, initial, update):
        """Replaces what is carried at the next place of the pass; places follow call order."""
        arrays = self.carried.get(self.place, initial)
        self.carried[self.place] = result = update(*arrays)
        self.place += 1
        return result

    def convolve(self, y, taps):
        kernel = taps.shape[1]
        zeros = np.zeros((len(y), kernel - 1, y.shape[1]))
        window = []

        def update(history):
            window.append(np.concatenate([history, y[:, None]], axis=1))
            return (window[0][:, 1:],)
        self.swap((zeros,), update)
        total = window[0][:, 0] * taps[:, 0]
        for j in range(1, kernel):
            total += window[0][:, j] * taps[:, j]
        return total

    def kda_recurrence(self, n, q, k, v, alpha, beta):
        outputs = []

        def update(state):
            state = state.copy()
            outputs.append(self.kda_step(state, q, k, v, alpha, beta[..., None]))
            return (state,)
        self.swap((np.zeros(k.shape + v.shape[-1:]),), update)
        return outputs[0]

    def mla_attention(self, q, k_nope, k_rope, v):
        shared = np.broadcast_to(k_rope[:, None], k_nope.shape[:2] + k_rope.shape[1:])
        key = np.concatenate([k_nope, shared], axis=-1)
        empty = (np.zeros(key.shape + (0,)), np.zeros(v.shape[:2] + (0,) + v.shape[2:]))
        keys, values = self.swap(empty, lambda old_keys, old_values: (
            np.concatenate([old_keys, key[..., None]], axis=-1),
            np.concatenate([old_values, v[:, :, None]], axis=2)))
        return product(softmax(product(q, keys) * self.mla_scale()), values)
