"""Products of matrices in JAX, compiled by XLA, on the run's device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from hpcml_client import Client
from hpcml_client.jax_arithmetic import Arithmetic

_SAMPLE = 64  # rows and columns that are computed again in FP64


def arithmetic_of(run: Client) -> Arithmetic:
    return run.apply_precision("jax")


def make(arithmetic: Arithmetic, size: int, batch: int, seed: int) -> JaxProducts:
    return JaxProducts(arithmetic, size, batch, seed)


class JaxProducts:
    """*batch* pairs of matrices of standard normal numbers, NumPy's: the same for every precision."""

    def __init__(self, arithmetic: Arithmetic, size: int, batch: int, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self._sampled = np.arange(0, size, max(1, size // _SAMPLE))[:_SAMPLE]
        shape = (size, size) if batch == 1 else (batch, size, size)
        exact_a, exact_b = generator.standard_normal(shape), generator.standard_normal(shape)
        self._rows = exact_a[..., self._sampled, :]
        self._columns = exact_b[..., :, self._sampled]
        self._arithmetic = arithmetic
        self._multiply = jax.jit(jnp.matmul)
        self._a, self._b = (arithmetic.cast(arithmetic.prepare(exact)) for exact in (exact_a, exact_b))
        self.compute()

    def compute(self) -> None:
        with self._arithmetic.context():
            self._product = self._multiply(self._a, self._b)

    def wait(self) -> None:
        self._product.block_until_ready()

    def relative_error(self) -> float:
        self.compute()
        sample = np.asarray(self._product)[..., self._sampled, :][..., self._sampled].astype(np.float64)
        exact = self._rows @ self._columns
        return float(np.linalg.norm(sample - exact) / np.linalg.norm(exact))
