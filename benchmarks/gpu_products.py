"""What products on a device are: how their inputs are rounded, and how fast torch multiplies at its best.

The inputs have one bit more than the format keeps, so that every second number is a tie: which of the emulation's
roundings a kernel does is then seen in a single product. Both gradients of a convolution are products of their own,
with kernels of their own. Exact are products in FP64, on the CPU, of the inputs as the emulation rounds them; what is
left is the order and the width of the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn.functional import conv2d

from hpcml_client.precisions import PRECISIONS
from hpcml_train.torch import rounding
from hpcml_train.torch.arithmetic import Arithmetic

_ROUNDED = ("tf32", "amp_fp16", "amp_bf16", "bf16", "fp16")
_SCALED = ("fp8_e4m3", "fp8_hybrid")
_SIXTEEN_BITS = {"fp16": torch.float16, "bf16": torch.bfloat16}  # formats whose products are stored in them
_LAYOUTS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
_OF_A_CONVOLUTION = ("convolution", "gradient of data", "gradient of weights")
_UNROUNDED = "not at all"
Products = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large the products are."""

    matrix: tuple[int, int, int]  # rows, inner, columns
    images: tuple[int, int, int]  # how many, channels in and out, pixels in a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """How the inputs of one kind of product are rounded."""

    precision: str
    product: str
    rounded: str  # rne, rna, rz: the emulation's rounding that it is nearest to; or not at all
    left: float  # relative error against the exact product of inputs so rounded
    error: float  # against the exact product of the inputs as they were given


def roundings(device: torch.device, sizes: Sizes) -> Iterator[Rounding]:
    """Yield how each kind of product rounds its inputs, in each precision that *device* can do; emulated on a CPU."""
    for precision in _ROUNDED:
        numerics = "emulated" if device.type == "cpu" and precision not in ("amp_bf16", "bf16") else "native"
        arithmetic = Arithmetic(precision, numerics=numerics, device=device, loss_scaling=False)
        form = PRECISIONS[precision].product
        a, b = (_halfway(shape, form) for shape in (sizes.matrix[:2], sizes.matrix[1:]))
        yield from _compare(precision, form, {"matmul": _matmul(arithmetic, a, b)}, partial(_exact_matmul, a, b))
        count, channels, pixels = sizes.images
        x, w = (_halfway(shape, form) for shape in ((count, channels, pixels, pixels), (channels, channels, 3, 3)))
        g = _halfway(x.shape, form)
        for layout, memory_format in _LAYOUTS.items():
            given = (part.to(memory_format=memory_format) for part in (x, w, g))
            measured = {f"{name} {layout}": found for name, found in _convolve(arithmetic, *given).items()}
            yield from _compare(precision, form, measured, partial(_exact_convolution, layout, x, w, g))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """How exact one product of 8-bit numbers is."""

    precision: str
    product: str
    error: float  # relative, against FP64
    emulated: float  # the same of the emulation
    left: float  # relative difference between the two


def scaled(device: torch.device, sizes: Sizes) -> Iterator[Scaled]:
    """Yield a product of matrices and its gradients in each precision that torch's scaled products compute."""
    rows, inner, columns = sizes.matrix
    x, w, g = (_normal(shape) for shape in ((rows, inner), (inner, columns), (rows, columns)))
    exact = _differentiated(Arithmetic("fp64"), x, w, g)
    for precision in _SCALED:
        native = _differentiated(Arithmetic(precision, numerics="native", device=device), x, w, g)
        emulated = _differentiated(Arithmetic(precision, numerics="emulated"), x, w, g)
        for product, found in native.items():
            reference = exact[product].double()
            yield Scaled(
                precision=precision,
                product=product,
                error=_relative_error(found, reference),
                emulated=_relative_error(emulated[product], reference),
                left=_relative_error(found, emulated[product].double()),
            )


def _differentiated(arithmetic: Arithmetic, x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> Products:
    x, w = (arithmetic.cast(part).detach().requires_grad_() for part in (x, w))
    with arithmetic.context():
        y = x @ w
        loss = (y * arithmetic.cast(g)).sum()
    arithmetic.backward(loss)
    names = ("product", "gradient of data", "gradient of weights")
    return {name: part.detach().cpu() for name, part in zip(names, (y, x.grad, w.grad), strict=True)}


def _normal(shape: Sequence[int]) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _halfway(shape: Sequence[int], form: str) -> torch.Tensor:
    """Return normal numbers with one bit more than *form* has."""
    return rounding.round_mantissa(_normal(shape), rounding.FORMATS[form].mantissa_bits + 1)


def _matmul(arithmetic: Arithmetic, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with torch.no_grad(), arithmetic.context():
        return arithmetic.cast(a) @ arithmetic.cast(b)


def _exact_matmul(a: torch.Tensor, b: torch.Tensor, rounded: Callable[[torch.Tensor], torch.Tensor]) -> Products:
    return {"matmul": rounded(a).double() @ rounded(b).double()}


def _convolve(arithmetic: Arithmetic, x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> Products:
    x, w = (arithmetic.cast(part).detach().requires_grad_() for part in (x, w))
    with arithmetic.context():
        y = conv2d(x, w, padding=1)
        loss = (y.float() * g.to(arithmetic.device)).sum()
    arithmetic.backward(loss)
    return dict(zip(_OF_A_CONVOLUTION, (y, x.grad, w.grad), strict=True))


def _exact_convolution(
    layout: str,
    x: torch.Tensor,
    w: torch.Tensor,
    g: torch.Tensor,
    rounded: Callable[[torch.Tensor], torch.Tensor],
) -> Products:
    x, w = (rounded(part).double().requires_grad_() for part in (x, w))
    y = conv2d(x, w, padding=1)
    y.backward(rounded(g).double())
    parts = zip(_OF_A_CONVOLUTION, (y.detach(), x.grad, w.grad), strict=True)
    return {f"{name} {layout}": part for name, part in parts}


def _compare(
    precision: str,
    form: str,
    measured: Products,
    exact: Callable[[Callable[[torch.Tensor], torch.Tensor]], Products],
) -> Iterator[Rounding]:
    unrounded = exact(lambda x: x)
    by_rounding = {name: exact(partial(rounding.quantise, name=form, rounding=name)) for name in rounding.ROUNDINGS}
    stored = _SIXTEEN_BITS.get(form)
    for product, found in measured.items():
        errors = {_UNROUNDED: _relative_error(found, unrounded[product])}
        for name, references in by_rounding.items():
            reference = references[product]
            errors[name] = _relative_error(found, reference if stored is None else reference.to(stored).double())
        rounded = min(errors, key=errors.__getitem__)
        yield Rounding(
            precision=precision, product=product, rounded=rounded, left=errors[rounded], error=errors[_UNROUNDED]
        )


def _relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.detach().cpu().double() - exact).norm() / exact.norm())


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How fast torch multiplies square matrices of one size."""

    precision: str
    size: int
    tflops: float  # in the fastest of some repeats


def rates(device: torch.device, precisions: Sequence[str], sizes: Sequence[int]) -> Iterator[Rate]:
    """Yield the rates of `torch.matmul`, in the type of each precision, by the device's own clock."""
    for precision in precisions:
        arithmetic = Arithmetic(precision, device=device)
        for size in sizes:
            a, b = (torch.randn(size, size, device=device, dtype=arithmetic.factor_dtype) for _ in range(2))
            multiply = partial(torch.matmul, a, b, out=torch.empty_like(a))
            yield Rate(precision=precision, size=size, tflops=2 * size**3 / _fastest_s(multiply) / 1e12)


def _fastest_s(call: Callable[[], object], *, repeats: int = 5, lasts_s: float = 0.05) -> float:
    """Return the seconds of one call in the fastest of *repeats*, of which each lasts about *lasts_s*."""
    _device_s(call, 3)
    calls = max(1, int(lasts_s / (_device_s(call, 3) / 3)))
    return min(_device_s(call, calls) / calls for _ in range(repeats))


def _device_s(call: Callable[[], object], calls: int) -> float:
    began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    began.record()
    for _ in range(calls):
        call()
    ended.record()
    ended.synchronize()
    return began.elapsed_time(ended) / 1e3
