"""The numbers that torch draws on a CPU, drawn by NumPy: orders and lots are then the same without torch.

Both have the Mersenne Twister, seeded alike; what they make of its numbers differs, and is torch's way here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any  # numpy.ndarray, which old NumPys cannot say more of


class Twister:
    """As a ``torch.Generator`` on the CPU, of whose seeds it knows those below 2^32."""

    def __init__(self, seed: int) -> None:
        self._state = np.random.RandomState(seed)

    def permutation(self, count: int) -> Array:
        """Return the numbers below *count* as ``torch.randperm`` orders them."""
        places = (self._raw(max(0, count - 1)) % np.arange(count, 1, -1, dtype=np.uint32)).tolist()
        order = list(range(count))
        for index, further in enumerate(places):
            other = index + further
            order[index], order[other] = order[other], order[index]
        return np.array(order, dtype=np.int64)

    def uniform(self, count: int) -> Array:
        """Return FP32 numbers from 0 to below 1 as ``torch.rand`` does."""
        return (self._raw(count) & 0xFFFFFF).astype(np.float32) / np.float32(1 << 24)

    def integers(self, below: int, count: int) -> Array:
        """Return whole numbers as ``torch.randint`` does."""
        return (self._raw(count) % np.uint32(below)).astype(np.int64)

    def _raw(self, count: int) -> Array:
        return self._state.randint(0, 1 << 32, size=count, dtype=np.uint32)
