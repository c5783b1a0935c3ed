"""The random numbers that torch draws on a CPU, drawn by NumPy: sample orders are the same without torch.

Both use the Mersenne Twister (M. Matsumoto, T. Nishimura, ACM TOMACS 8, 1998), seeded alike; they derive other numbers
from its output, and here it is done as torch does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any  # numpy.ndarray, which old NumPys cannot say more of

_BLOCK = 16  # normal numbers that torch draws at once


class Twister:
    """Draws as a ``torch.Generator`` on the CPU; seeds below 2^32."""

    def __init__(self, seed: int) -> None:
        self._state = np.random.RandomState(seed)

    def permutation(self, count: int) -> Array:
        """Return the numbers below *count* in the order of ``torch.randperm``, as int64."""
        places = (self._raw(max(0, count - 1)) % np.arange(count, 1, -1, dtype=np.uint32)).tolist()
        order = list(range(count))
        for index, further in enumerate(places):
            other = index + further
            order[index], order[other] = order[other], order[index]
        return np.array(order, dtype=np.int64)

    def uniform(self, count: int) -> Array:
        """Return *count* FP32 numbers from 0 to below 1, as ``torch.rand`` does."""
        return (self._raw(count) & 0xFFFFFF).astype(np.float32) / np.float32(1 << 24)

    def normal(self, count: int) -> Array:
        """Return *count* FP32 numbers with mean 0 and deviation 1, those of ``torch.randn`` up to its last digits.

        Box and Muller's way in blocks of sixteen, of which the first eight numbers are radii and the others angles.
        Fewer than sixteen torch draws in another way: raises `ValueError`.
        """
        if count < _BLOCK:
            raise ValueError(f"count={count} must be at least {_BLOCK}")
        found = self.uniform(count)
        whole = count // _BLOCK * _BLOCK
        found[:whole] = _by_box_and_muller(found[:whole])
        if whole < count:  # the last block is drawn anew, over the end of the one before
            found[-_BLOCK:] = _by_box_and_muller(self.uniform(_BLOCK))
        return found

    def integers(self, below: int, count: int) -> Array:
        """Return *count* integers from 0 to below *below*, as ``torch.randint`` does."""
        return (self._raw(count) % np.uint32(below)).astype(np.int64)

    def _raw(self, count: int) -> Array:
        return self._state.randint(0, 1 << 32, size=count, dtype=np.uint32)


def _by_box_and_muller(uniform: Array) -> Array:
    pairs = uniform.reshape(-1, 2, _BLOCK // 2)
    radii = np.sqrt(-2 * np.log(1 - pairs[:, 0]))
    angles = np.float32(2 * np.pi) * pairs[:, 1]
    return np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1).reshape(-1)
