"""Pairs of matrices drawn in FP64 by NumPy, and how far a product of theirs is from the exact one."""

from __future__ import annotations

import numpy as np

_SAMPLE = 64  # rows and columns that are computed again in FP64


class Pairs:
    """*batch* pairs `a`, `b` of standard normal numbers: the same for every precision."""

    def __init__(self, size: int, batch: int, seed: int) -> None:
        generator = np.random.default_rng(seed)
        shape = (size, size) if batch == 1 else (batch, size, size)
        self.a, self.b = generator.standard_normal(shape), generator.standard_normal(shape)
        self._sampled = np.arange(0, size, max(1, size // _SAMPLE))[:_SAMPLE]
        self._exact = self.a[..., self._sampled, :] @ self.b[..., :, self._sampled]

    def relative_error(self, product: np.ndarray) -> float:
        """Return the error of the sampled elements of *product* in Frobenius' norm."""
        sample = product[..., self._sampled, :][..., self._sampled].astype(np.float64)
        return float(np.linalg.norm(sample - self._exact) / np.linalg.norm(self._exact))
