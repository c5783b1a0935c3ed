"""The products that TensorFlow's and JAX's probes compute: inputs and exact results in FP64, as NumPy arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from hpcml_client.formats import BEYOND_FP16, name_format

_SEED = 20170911

Array = Any  # numpy.ndarray, whose type parameters differ between the versions of NumPy
Compute = Callable[[Array, Array], Array]  # (data, weights) -> their product as a framework computes it


class Product(NamedTuple):
    """A product of random numbers: its inputs and its result in FP64."""

    data: Array
    weights: Array
    exact: Array


def matmul() -> Product:
    """Return a product of matrices: 256 x 1024 by 1024 x 256."""
    data, weights = _random(256, 1024), _random(1024, 256, seed=1)
    return Product(data, weights, data @ weights)


def conv() -> Product:
    """Return a convolution, padded to the same size: 4 x 12 x 12 x 32 (NHWC) with 3 x 3 x 32 x 32 (HWIO)."""
    data, weights = _random(4, 12, 12, 32), _random(3, 3, 32, 32, seed=1)
    padded = np.pad(data, ((0, 0), (1, 1), (1, 1), (0, 0)))
    exact = sum(
        padded[:, row : row + 12, column : column + 12, :] @ weights[row, column]
        for row in range(3)
        for column in range(3)
    )
    return Product(data, weights, exact)


def measure(products: Mapping[str, tuple[Product, Compute]]) -> tuple[dict[str, str], dict[str, float]]:
    """Return the format that each product shows, and its relative error in the Frobenius norm."""
    formats: dict[str, str] = {}
    errors: dict[str, float] = {}
    for name, (product, compute) in products.items():
        errors[name] = _relative_error(_scaled(product, compute, 1.0), product.exact)
        formats[name] = name_format(errors[name], functools.partial(_is_finite_beyond_fp16, product, compute))
    return formats, errors


def _is_finite_beyond_fp16(product: Product, compute: Compute) -> bool:
    return bool(np.isfinite(_scaled(product, compute, BEYOND_FP16)).all())


def _scaled(product: Product, compute: Compute, scale: float) -> Array:
    return np.asarray(compute(product.data * scale, product.weights / scale), dtype=np.float64)


def _relative_error(measured: Array, exact: Array) -> float:
    error = float(np.linalg.norm(measured - exact) / np.linalg.norm(exact))
    return error if np.isfinite(error) else float("inf")


def _random(*shape: int, seed: int = 0) -> Array:
    return np.random.RandomState(_SEED + seed).standard_normal(shape)  # not the global generator, which trainings use
