"""Telling arithmetics of the same size of error apart, by what each makes of the very same numbers."""

from __future__ import annotations

import math
from typing import Callable, Dict, Optional

import torch

from hpcml_train.torch.emulation import emulate

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (data, weight) -> their product

COARSE = ("fp8_e4m3", "fp8_e5m2", "unknown")  # names by size of error that several formats of 8 bits share
_SCALED_FORMATS = ("fp8_e4m3", "fp8_e5m2", "fp8_hybrid")
_CLOSE = 0.1  # of the error: a tensor core's sums are off by less (14 bits on Hopper), other formats by more

_SIZE = 64
# Of v * v - 1 the leading parts cancel, and what leaves out the product of small parts lacks it:
#   v = 1 + 2**-9 is two parts of BF16, and the product of the second ones is 2**-18;
#   v = 1 + 2**-11 is two parts of TF32, and the product of the second ones is 2**-22.
_LEAVES_OUT = {
    "bf16x3": (1 + 2.0**-9, 2.0**-18),
    "tf32x3": (1 + 2.0**-11, 2.0**-22),
}


def relative_error(measured: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the error of *measured* in the Frobenius norm over that of *exact*; inf where it is not finite."""
    error = float((measured - exact).norm() / exact.norm())
    return error if math.isfinite(error) else math.inf


def name_of_full_precision(compute: Multiply, layer: torch.nn.Module) -> str:
    """Return which arithmetic of FP32's accuracy *compute* has: ``fp32``, or three products that stand for one.

    *layer* says which shape the weights have: as many outputs as inputs, of size 1.
    """
    shape = next(layer.parameters()).shape[2:]

    def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        found = compute(x.reshape(_SIZE, _SIZE, *shape), weight.reshape(_SIZE, _SIZE, *shape))
        return found.reshape(_SIZE, _SIZE)

    x = torch.zeros(_SIZE, _SIZE, dtype=torch.float64)
    weight = torch.zeros_like(x)
    for at, (value, _) in enumerate(_LEAVES_OUT.values()):
        x[at, at] = weight[at, at] = value
        x[at, at + len(_LEAVES_OUT)], weight[at, at + len(_LEAVES_OUT)] = -1, 1
    lacking = (x @ weight.T - product(x, weight)).diagonal()
    for (name, (_, missing)), lack in zip(_LEAVES_OUT.items(), lacking.tolist()):  # noqa: B905 - Python 3.8
        if abs(lack - missing) < abs(missing) / 8:
            return name
    return "fp32"


def nearest(measured: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, multiply: Multiply) -> Optional[str]:
    """Return the format of 8 bits whose emulated product of FP64 *x* and *weight* is *measured*; None: of none."""
    distances: Dict[str, float] = {}
    for name in _SCALED_FORMATS:
        with torch.no_grad(), emulate(name):
            emulated = multiply(x.float(), weight.float()).double()
        distances[name] = relative_error(measured, emulated)
    name = min(distances, key=lambda one: distances[one])
    return name if distances[name] < _CLOSE * relative_error(measured, multiply(x, weight)) else None
