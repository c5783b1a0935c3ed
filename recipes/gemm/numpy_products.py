"""Products of matrices in NumPy, on the CPU."""

from __future__ import annotations

import numpy as np
from sampled import Pairs

from hpcml_client import Client
from hpcml_train.precision.numpy_arithmetic import Arithmetic


def arithmetic_of(run: Client) -> Arithmetic:
    return run.apply_precision("numpy")


def make(arithmetic: Arithmetic, size: int, batch: int, seed: int) -> NumpyProducts:
    return NumpyProducts(arithmetic, size, batch, seed)


class NumpyProducts:
    """*batch* pairs of matrices of standard normal numbers, drawn in FP64: the same for every precision."""

    def __init__(self, arithmetic: Arithmetic, size: int, batch: int, seed: int) -> None:
        self._pairs = Pairs(size, batch, seed)
        self._a, self._b = arithmetic.cast(self._pairs.a), arithmetic.cast(self._pairs.b)
        self._product = np.empty_like(self._a)

    def compute(self) -> None:
        np.matmul(self._a, self._b, out=self._product)

    def wait(self) -> None:
        """Do nothing: NumPy returns when it is done."""

    def relative_error(self) -> float:
        self.compute()
        return self._pairs.relative_error(self._product)
