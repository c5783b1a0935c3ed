"""Measuring JAX's arithmetic: errors of products against FP64, compiled, on the device, in the context that trains."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpcml_train.jax.arithmetic import Arithmetic, read_switches
from hpcml_train.precision import products


def measure_precision(arithmetic: Arithmetic) -> dict[str, Any]:
    """Return the details of the event ``precision``: what was asked for, and the format that each product shows.

    Takes less than a second and uses no random numbers of JAX's.
    """
    switches = read_switches()
    formats, errors = products.measure(
        {
            "matmul": (products.matmul(), _in_context(arithmetic, jnp.matmul)),
            "conv": (products.conv(), _in_context(arithmetic, _convolve)),
        }
    )
    return {
        "requested": arithmetic.precision,
        "numerics": arithmetic.numerics,
        "products": formats,
        "errors": errors,
        "parameters": str(arithmetic.prepare(np.zeros(1)).dtype),
        "device": arithmetic.device.type,
        "loss_scaling": arithmetic.loss_scaling,
        "rounding": None,
        "switches": switches,
        "flipped": {name: value for name, value in switches.items() if value != arithmetic.switches.get(name)},
    }


def describe_framework(arithmetic: Arithmetic) -> dict[str, Any]:
    """Return the details of the event ``framework``: versions, device and whatever else results depend on."""
    device = arithmetic.device.device
    return {
        "framework": "jax",
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "device": arithmetic.device.type,
        "gpu_model": device.device_kind if arithmetic.device.type == "cuda" else None,
        "platform_version": device.client.platform_version,
    }


def _in_context(arithmetic: Arithmetic, product: Callable[[Any, Any], Any]) -> products.Compute:
    def hpcml_probe(data: Any, weights: Any) -> Any:  # noqa: ANN401 - by its name the observer knows that it is ours
        return product(arithmetic.cast(data), arithmetic.cast(weights))

    compiled = jax.jit(hpcml_probe)

    def compute(data: Any, weights: Any) -> Any:  # noqa: ANN401 - NumPy's arrays
        with arithmetic.context():
            return np.asarray(compiled(data, arithmetic.prepare(weights)).astype(_widest()))

    return compute


def _convolve(data: jax.Array, weights: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(data, weights, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _widest() -> str:
    return "float64" if jax.config.jax_enable_x64 else "float32"
