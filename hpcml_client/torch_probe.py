"""What torch's arithmetic really is: measured by errors against FP64, on the device, in the context that trains."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Mapping, Tuple

import torch

from hpcml_client.torch_arithmetic import Arithmetic

_SEED = 20170911
# Upper limits of the relative Frobenius error, between the measured ones (docs/precision.md): fp64 1e-15, fp32 3.4e-7,
# tf32 and fp16 2.9e-4 (truncated tf32 7.7e-4), bf16 2.3e-3 (2.9e-3 where the result is bf16 too), e4m3 3.8e-2,
# e5m2 7.4e-2. Each limit is the geometric mean of its neighbours.
_LIMITS = (
    (1e-11, "fp64"),
    (1e-5, "fp32"),
    (1.3e-3, "eleven bits"),
    (9.4e-3, "bf16"),
    (5.3e-2, "fp8_e4m3"),
    (0.2, "fp8_e5m2"),
)
# tf32 and fp16 both have eleven significant bits, but 2**17 is beyond FP16's range. A power of two: exact everywhere.
_BEYOND_FP16 = 2.0**17

Product = Callable[[float], Tuple[torch.Tensor, torch.Tensor]]


def measure_precision(arithmetic: Arithmetic) -> Dict[str, Any]:
    """Return the details of the event ``precision``: what was asked for, and the format that each product shows.

    Takes milliseconds and leaves torch's random numbers alone.
    """
    products: Mapping[str, Product] = {
        "matmul": lambda scale: _matmul(arithmetic, scale),
        "conv": lambda scale: _conv(arithmetic, scale),
    }
    errors = {name: _relative_error(*product(1.0)) for name, product in products.items()}
    formats = {name: _classify(errors[name], product) for name, product in products.items()}
    parameters = _name(next(_linear(arithmetic).parameters()).dtype)
    arithmetic.products.clear()  # those of the probe are not the training's
    return {
        "requested": arithmetic.precision,
        "numerics": arithmetic.numerics,
        "products": formats,
        "errors": errors,
        "parameters": parameters,
        "device": arithmetic.device.type,
        "loss_scaling": arithmetic.loss_scaling,
        "rounding": arithmetic.rounding,
        "switches": dict(arithmetic.switches),
    }


def describe_framework(arithmetic: Arithmetic) -> Dict[str, Any]:
    """Return the details of the event ``framework``: the software and the device, as far as results depend on them."""
    on_gpu = arithmetic.device.type == "cuda"
    return {
        "framework": "torch",
        "torch": torch.__version__,
        "device": arithmetic.device.type,
        "gpu_model": torch.cuda.get_device_name(arithmetic.device) if on_gpu else None,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,  # type: ignore[no-untyped-call, unused-ignore]
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def _classify(error: float, product: Product) -> str:
    for limit, name in _LIMITS:
        if error < limit:
            return _tf32_or_fp16(product) if name == "eleven bits" else name
    return "unknown"


def _tf32_or_fp16(product: Product) -> str:
    measured, _ = product(_BEYOND_FP16)
    return "tf32" if bool(torch.isfinite(measured).all()) else "fp16"


def _relative_error(measured: torch.Tensor, exact: torch.Tensor) -> float:
    error = float((measured - exact).norm() / exact.norm())
    return error if math.isfinite(error) else math.inf


def _matmul(arithmetic: Arithmetic, scale: float) -> Tuple[torch.Tensor, torch.Tensor]:
    a, b = _random(256, 1024), _random(256, 1024, seed=1)
    layer = _linear(arithmetic)
    exact = a @ b.T
    return _run(arithmetic, layer, a * scale, b / scale), exact


def _conv(arithmetic: Arithmetic, scale: float) -> Tuple[torch.Tensor, torch.Tensor]:
    x, w = _random(4, 32, 12, 12), _random(32, 32, 3, 3, seed=1)
    layer = arithmetic.prepare(torch.nn.utils.skip_init(torch.nn.Conv2d, 32, 32, 3, padding=1, bias=False))  # type: ignore[no-untyped-call, unused-ignore]
    exact = torch.nn.functional.conv2d(x, w, padding=1)
    return _run(arithmetic, layer, x * scale, w / scale), exact


def _linear(arithmetic: Arithmetic) -> torch.nn.Module:
    # skip_init: an ordinary layer would draw from the random numbers that the training is going to use
    return arithmetic.prepare(torch.nn.utils.skip_init(torch.nn.Linear, 1024, 256, bias=False))  # type: ignore[no-untyped-call, unused-ignore]


def _run(arithmetic: Arithmetic, layer: torch.nn.Module, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        next(layer.parameters()).copy_(weight)
        with arithmetic.context():
            y: torch.Tensor = layer(arithmetic.cast(x))
    return y.cpu().double()


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(_SEED + seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).rpartition(".")[2]
