"""Measuring torch's arithmetic: errors of products against FP64, on the device, in the context that trains."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from hpcml_client.formats import BEYOND_FP16, name_format
from hpcml_train.torch import switches as torch_switches
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.emulation import emulate
from hpcml_train.torch.scaled_products import USES_FAST_ACCUMULATION

_SEED = 20170911

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (data, weight) -> their product

_COARSE = ("fp8_e4m3", "fp8_e5m2", "unknown")  # names by size of error that several formats of 8 bits share
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


def measure_precision(arithmetic: Arithmetic) -> dict[str, Any]:
    """Return the details of the event ``precision``: the precision asked for, and the format that each product shows.

    Takes milliseconds and leaves torch's random numbers alone. ``switches`` are their values now, ``flipped`` those
    that were changed since the arithmetic set them.
    """
    switches = torch_switches.read_switches()
    errors: dict[str, float] = {}
    formats: dict[str, str] = {}
    with arithmetic.apart():
        for name, product in _PRODUCTS.items():
            if name == "conv" and not arithmetic.has_convolutions:
                continue
            measured, exact = _measure(arithmetic, product)
            errors[name] = _relative_error(measured, exact)
            formats[name] = _name_of(arithmetic, product, errors[name])
    flipped = {name: value for name, value in switches.items() if value != arithmetic.switches.get(name)}
    if arithmetic.replaces_products and arithmetic.numerics == "native":
        switches["scaled_products.use_fast_accum"] = USES_FAST_ACCUMULATION
    parameters = _name(arithmetic.parameter_dtype)
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
        "flipped": flipped,
    }


def describe_framework(arithmetic: Arithmetic) -> dict[str, Any]:
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
        "blas": _blas(torch.__config__.show()),  # type: ignore[no-untyped-call, unused-ignore]
    }


def _blas(build: str) -> str | None:
    """Return which library multiplies FP32 and FP64 matrices on the CPU, as torch's description of its *build* says."""
    version = re.search(r"Intel\(R\) (?:oneAPI )?(Math Kernel Library Version [\w.-]+)", build)
    name = re.search(r"\bBLAS_INFO=(\w+)", build)
    return version[1] if version else name[1] if name else None


def _has_nccl() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_nccl_available()


class Product(NamedTuple):
    """A product that is measured: its factors in FP64, and the layer that computes it."""

    x: torch.Tensor
    weight: torch.Tensor
    layer: Callable[[], torch.nn.Module]
    single: Callable[[], torch.nn.Module]  # a layer of as many inputs as outputs, for products without a sum
    reference: Multiply

    def scaled(self, scale: float) -> Product:
        """Return the product with factors of another size, and the same result."""
        return self._replace(x=self.x * scale, weight=self.weight / scale)


def _measure(arithmetic: Arithmetic, product: Product) -> tuple[torch.Tensor, torch.Tensor]:
    return _run(arithmetic, product.layer(), product.x, product.weight), product.reference(product.x, product.weight)


def _name_of(arithmetic: Arithmetic, product: Product, error: float) -> str:
    def is_finite_beyond_fp16() -> bool:
        measured, _ = _measure(arithmetic, product.scaled(BEYOND_FP16))
        return bool(torch.isfinite(measured).all())

    name = name_format(error, is_finite_beyond_fp16)
    if name == "fp32":
        return _name_of_full_precision(
            lambda x, weight: _run(arithmetic, product.single(), x, weight), product.single()
        )
    if name in _COARSE and arithmetic.parameter_dtype is torch.float32:
        measured, _ = _measure(arithmetic, product)
        return _nearest(measured, product.x, product.weight, product.reference) or name
    return name


def _relative_error(measured: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the error of *measured* in the Frobenius norm over that of *exact*; inf where it is not finite."""
    error = float((measured - exact).norm() / exact.norm())
    return error if math.isfinite(error) else math.inf


def _name_of_full_precision(compute: Multiply, layer: torch.nn.Module) -> str:
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
    for (name, (_, missing)), lack in zip(_LEAVES_OUT.items(), lacking.tolist(), strict=False):
        if abs(lack - missing) < abs(missing) / 8:
            return name
    return "fp32"


def _nearest(measured: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, multiply: Multiply) -> str | None:
    """Return the format of 8 bits whose emulated product of FP64 *x* and *weight* is *measured*; None: of none."""
    distances: dict[str, float] = {}
    for name in _SCALED_FORMATS:
        with torch.no_grad(), emulate(name):
            emulated = multiply(x.float(), weight.float()).double()
        distances[name] = _relative_error(measured, emulated)
    name = min(distances, key=lambda one: distances[one])
    return name if distances[name] < _CLOSE * _relative_error(measured, multiply(x, weight)) else None


def _run(arithmetic: Arithmetic, layer: torch.nn.Module, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    layer = arithmetic.prepare(layer)
    if x.dim() == 4:
        layer, x = layer.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with torch.no_grad():
        next(layer.parameters()).copy_(weight)
        with arithmetic.context():
            y: torch.Tensor = layer(arithmetic.cast(x).to(next(layer.parameters()).dtype))
    return y.cpu().double()


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(_SEED + seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# skip_init: an ordinary layer would draw from the random numbers that the training is going to use
def _linear(inputs: int, outputs: int) -> torch.nn.Module:
    return torch.nn.utils.skip_init(torch.nn.Linear, inputs, outputs, bias=False)  # type: ignore[no-untyped-call, no-any-return, unused-ignore]


def _conv(channels: int, size: int) -> torch.nn.Module:
    return torch.nn.utils.skip_init(  # type: ignore[no-untyped-call, no-any-return, unused-ignore]
        torch.nn.Conv2d, channels, channels, size, padding=size // 2, bias=False
    )


_PRODUCTS: Mapping[str, Product] = {
    "matmul": Product(
        x=_random(256, 1024),
        weight=_random(256, 1024, seed=1),
        layer=lambda: _linear(1024, 256),
        single=lambda: _linear(64, 64),
        reference=torch.nn.functional.linear,
    ),
    # A shape that tensor cores are made for: cuDNN may compute others, 32 channels in NCHW say, by FP32 kernels
    # although TF32 is allowed (cuDNN 9.19 on an H100), and the probe asks what is allowed.
    "conv": Product(
        x=_random(4, 64, 16, 16),
        weight=_random(64, 64, 3, 3, seed=1),
        layer=lambda: _conv(64, 3),
        single=lambda: _conv(64, 1),
        reference=lambda x, weight: torch.nn.functional.conv2d(x, weight, padding=1),
    ),
}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).rpartition(".")[2]
