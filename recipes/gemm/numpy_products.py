"""Products of matrices in NumPy, on the CPU."""

from __future__ import annotations

import numpy as np

from hpcml_client import Client
from hpcml_client.numpy_arithmetic import Arithmetic

_SAMPLE = 64  # rows and columns that are computed again in FP64


def arithmetic_of(run: Client) -> Arithmetic:
    return run.apply_precision("numpy")


def make(arithmetic: Arithmetic, size: int, batch: int, seed: int) -> NumpyProducts:
    return NumpyProducts(arithmetic, size, batch, seed)


class NumpyProducts:
    """*batch* pairs of matrices of standard normal numbers, drawn in FP64: the same for every precision."""

    def __init__(self, arithmetic: Arithmetic, size: int, batch: int, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self._sampled = np.arange(0, size, max(1, size // _SAMPLE))[:_SAMPLE]
        shape = (size, size) if batch == 1 else (batch, size, size)
        exact_a, exact_b = generator.standard_normal(shape), generator.standard_normal(shape)
        self._rows = exact_a[..., self._sampled, :]
        self._columns = exact_b[..., :, self._sampled]
        self._a, self._b = arithmetic.cast(exact_a), arithmetic.cast(exact_b)
        self._product = np.empty_like(self._a)

    def compute(self) -> None:
        np.matmul(self._a, self._b, out=self._product)

    def wait(self) -> None:
        """Do nothing: NumPy returns when it is done."""

    def relative_error(self) -> float:
        self.compute()
        sample = self._product[..., self._sampled, :][..., self._sampled].astype(np.float64)
        exact = self._rows @ self._columns
        return float(np.linalg.norm(sample - exact) / np.linalg.norm(exact))
