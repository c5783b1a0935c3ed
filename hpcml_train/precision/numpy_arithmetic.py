"""The arithmetic of NumPy: products on the CPU in FP64 or FP32, set and measured as that of the frameworks."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from hpcml_client.precisions import OWN
from hpcml_train.precision import products
from hpcml_train.precision.products import Array

_DTYPES = {"fp64": "float64", "fp32": "float32"}


class Arithmetic:
    """A precision in NumPy: the type of the arrays."""

    def __init__(self, precision: str, *, numerics: str = "auto", device: str | None = None) -> None:
        if precision not in _DTYPES and precision != OWN:
            raise ValueError(f"precision={precision!r} is not there with numpy: choose {' or '.join(_DTYPES)}")
        if numerics not in ("auto", "native"):
            raise ValueError(f"numerics={numerics!r} is refused with numpy: hpcml_client emulates in torch only")
        if device not in (None, "cpu"):
            raise ValueError(f"numpy computes on the CPU, not on {device}: set resources.gpus_per_node=0")
        self.precision = precision
        self.numerics = "native"
        self.parameter_dtype = _DTYPES.get(precision, "float64")  # NumPy's own choice

    def cast(self, x: Array) -> Array:
        """Return *x* in the type of this precision, as it is where none was asked for."""
        return x if self.precision == OWN else x.astype(self.parameter_dtype)


def describe_framework() -> dict[str, Any]:
    """Return the details of the event ``framework``."""
    return {
        "framework": "numpy",
        "numpy": np.__version__,
        "device": "cpu",
        "threads": int(os.environ.get("OMP_NUM_THREADS") or 0) or None,  # None: as many as its BLAS takes
        "blas": _blas(),
    }


def _blas() -> str | None:
    """Return name and version of the BLAS that NumPy was built with; None where it is too old to say."""
    try:
        built = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    except (KeyError, TypeError):
        return None
    return " ".join(filter(None, (str(built.get("name", "")), str(built.get("version", ""))))) or None


def measure_precision(arithmetic: Arithmetic) -> dict[str, Any]:
    """Return the details of the event ``precision``: what was asked for, and what a product shows."""
    product = products.matmul()
    formats, errors = products.measure({"matmul": (product, lambda a, b: arithmetic.cast(a) @ arithmetic.cast(b))})
    return {
        "requested": arithmetic.precision,
        "numerics": arithmetic.numerics,
        "products": formats,
        "errors": errors,
        "parameters": arithmetic.parameter_dtype,
        "device": "cpu",
        "loss_scaling": False,
        "rounding": None,
        "switches": {},
        "flipped": {},
    }
