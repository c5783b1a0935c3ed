"""Measuring torch's arithmetic: errors of products against FP64, on the device, in the context that trains."""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Dict, Mapping, Tuple

import torch

from hpcml_train.precision.formats import BEYOND_FP16, name_format
from hpcml_train.torch import switches as torch_switches
from hpcml_train.torch.arithmetic import Arithmetic

_SEED = 20170911

Product = Callable[[float], Tuple[torch.Tensor, torch.Tensor]]


def measure_precision(arithmetic: Arithmetic) -> Dict[str, Any]:
    """Return the details of the event ``precision``: the precision asked for, and the format that each product shows.

    Takes milliseconds and leaves torch's random numbers alone. ``switches`` are their values now, ``flipped`` those
    that were changed since the arithmetic set them.
    """
    switches, counted = torch_switches.read_switches(), (dict(arithmetic.products), dict(arithmetic.unrounded))
    products: Mapping[str, Product] = {
        "matmul": lambda scale: _matmul(arithmetic, scale),
        "conv": lambda scale: _conv(arithmetic, scale),
    }
    errors = {name: _relative_error(*product(1.0)) for name, product in products.items()}
    formats = {
        name: name_format(errors[name], functools.partial(_is_finite_beyond_fp16, product))
        for name, product in products.items()
    }
    parameters = _name(next(_linear(arithmetic).parameters()).dtype)
    arithmetic.products, arithmetic.unrounded = counted  # those of the probe are not the training's
    return {
        "requested": arithmetic.precision,
        "numerics": arithmetic.numerics,
        "products": formats,
        "errors": errors,
        "parameters": parameters,
        "device": arithmetic.device.type,
        "loss_scaling": arithmetic.loss_scaling,
        "rounding": arithmetic.rounding,
        "switches": switches,
        "flipped": {name: value for name, value in switches.items() if value != arithmetic.switches.get(name)},
    }


def describe_framework(arithmetic: Arithmetic) -> Dict[str, Any]:
    """Return the details of the event ``framework``: versions, device and whatever else results depend on."""
    on_gpu = arithmetic.device.type == "cuda"
    return {
        "framework": "torch",
        "torch": torch.__version__,
        "device": arithmetic.device.type,
        "gpu_model": torch.cuda.get_device_name(arithmetic.device) if on_gpu else None,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,  # type: ignore[no-untyped-call, unused-ignore]
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if on_gpu and _has_nccl() else None,  # type: ignore[no-untyped-call, unused-ignore]
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def _has_nccl() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_nccl_available()


def _is_finite_beyond_fp16(product: Product) -> bool:
    measured, _ = product(BEYOND_FP16)
    return bool(torch.isfinite(measured).all())


def _relative_error(measured: torch.Tensor, exact: torch.Tensor) -> float:
    error = float((measured - exact).norm() / exact.norm())
    return error if math.isfinite(error) else math.inf


def _matmul(arithmetic: Arithmetic, scale: float) -> Tuple[torch.Tensor, torch.Tensor]:
    a, b = _random(256, 1024), _random(256, 1024, seed=1)
    layer = _linear(arithmetic)
    exact = a @ b.T
    return _run(arithmetic, layer, a * scale, b / scale), exact


def _conv(arithmetic: Arithmetic, scale: float) -> Tuple[torch.Tensor, torch.Tensor]:
    # A shape that tensor cores are made for: cuDNN may compute others, 32 channels in NCHW say, by FP32 kernels
    # although TF32 is allowed (cuDNN 9.19 on an H100), and the probe asks what is allowed.
    x, w = _random(4, 64, 16, 16), _random(64, 64, 3, 3, seed=1)
    layer = arithmetic.prepare(torch.nn.utils.skip_init(torch.nn.Conv2d, 64, 64, 3, padding=1, bias=False))  # type: ignore[no-untyped-call, unused-ignore]
    layer = layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    exact = torch.nn.functional.conv2d(x, w, padding=1)
    x = x.to(memory_format=torch.channels_last)
    return _run(arithmetic, layer, x * scale, w / scale), exact


def _linear(arithmetic: Arithmetic) -> torch.nn.Module:
    # skip_init: an ordinary layer would draw from the random numbers that the training is going to use
    return arithmetic.prepare(torch.nn.utils.skip_init(torch.nn.Linear, 1024, 256, bias=False))  # type: ignore[no-untyped-call, unused-ignore]


def _run(arithmetic: Arithmetic, layer: torch.nn.Module, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        next(layer.parameters()).copy_(weight)
        with arithmetic.context():
            y: torch.Tensor = layer(arithmetic.cast(x).to(next(layer.parameters()).dtype))
    return y.cpu().double()


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(_SEED + seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).rpartition(".")[2]
