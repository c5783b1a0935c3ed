"""Products of matrices in JAX, compiled by XLA, on the run's device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from sampled import Pairs

from hpcml_client import Client
from hpcml_train.jax.arithmetic import Arithmetic


def arithmetic_of(run: Client) -> Arithmetic:
    return run.apply_precision("jax")


def make(arithmetic: Arithmetic, size: int, batch: int, seed: int) -> JaxProducts:
    return JaxProducts(arithmetic, size, batch, seed)


class JaxProducts:
    """*batch* pairs of matrices of standard normal numbers, NumPy's: the same for every precision."""

    def __init__(self, arithmetic: Arithmetic, size: int, batch: int, seed: int) -> None:
        self._pairs = Pairs(size, batch, seed)
        self._arithmetic = arithmetic
        self._multiply = jax.jit(jnp.matmul)
        self._a, self._b = (arithmetic.cast(arithmetic.prepare(exact)) for exact in (self._pairs.a, self._pairs.b))
        self.compute()

    def compute(self) -> None:
        with self._arithmetic.context():
            self._product = self._multiply(self._a, self._b)

    def wait(self) -> None:
        self._product.block_until_ready()

    def relative_error(self) -> float:
        self.compute()
        return self._pairs.relative_error(np.asarray(self._product))
