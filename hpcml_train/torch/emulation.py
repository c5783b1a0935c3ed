"""Tensor-core numerics on any device: the inputs of every product rounded, the sums kept in FP32. Numbers, never speed.

Works below autograd, so that the products of the backward pass are rounded too, as the hardware does. Exact: the
rounding of inputs, the exponent range, which operations are rounded. Not modelled: the order and the width of the
hardware's accumulator.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

_aten = torch.ops.aten
_Operation = Any  # torch._ops.OpOverload, which torch does not export
_FP32_MANTISSA_BITS = 23
_FP32_MIN_EXPONENT = -126


class Format(NamedTuple):
    """A floating point format."""

    mantissa_bits: int  # stored ones
    min_exponent: int  # of the smallest normal number
    largest: float  # finite value


FORMATS: Mapping[str, Format] = {
    "tf32": Format(10, -126, float.fromhex("0x1.ffcp127")),
    "bf16": Format(7, -126, float.fromhex("0x1.fep127")),
    "fp16": Format(10, -14, 65504.0),
    "fp8_e4m3": Format(3, -6, 448.0),
    "fp8_e5m2": Format(2, -14, 57344.0),
}
HALF = "half"  # no rounding of our own: 16-bit tensors in, FP32 arithmetic, 16-bit tensors out
ROUNDINGS = ("rna", "rne", "rz")

# operation -> the arguments that feed the multipliers (bias and addend stay FP32)
_PRODUCTS: Mapping[Any, Tuple[int, ...]] = {
    _aten.mm: (0, 1),
    _aten.bmm: (0, 1),
    _aten.mv: (0, 1),
    _aten.dot: (0, 1),
    _aten.addmm: (1, 2),
    _aten.baddbmm: (1, 2),
    _aten.addmv: (1, 2),
    _aten.addbmm: (1, 2),
    _aten.addr: (1, 2),
    _aten.convolution: (0, 1),
    _aten.convolution_backward: (0, 1, 2),
}
# Products inside kernels that torch's flop registry does not list. What it lists and we do not handle is refused too:
# an operation that slips through would be an FP32 number under another name.
_FUSED = (
    "mkldnn_rnn_layer",
    "_transformer_encoder_layer_fwd",
    "_native_multi_head_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "_scaled_dot_product_fused_attention_overrideable",
)
_HALF_DTYPES = (torch.float16, torch.bfloat16)


def round_mantissa(x: torch.Tensor, bits: int, rounding: str = "rne") -> torch.Tensor:
    """Round float32 *x* to *bits* stored mantissa bits: rne, rna (ties away from zero) or rz (towards zero)."""
    as_int, dropped = x.view(torch.int32), _FP32_MANTISSA_BITS - bits
    if rounding == "rne":
        rounded = as_int >> dropped
        rounded &= 1
        rounded += (1 << (dropped - 1)) - 1
        rounded += as_int
    elif rounding == "rna":
        rounded = as_int + (1 << (dropped - 1))
    elif rounding == "rz":
        rounded = as_int.clone()
    else:
        raise ValueError(f"rounding={rounding!r}: choose one of {', '.join(ROUNDINGS)}")
    rounded &= -(1 << dropped)
    y = rounded.view(torch.float32)
    # Canonical NaNs survive the integer arithmetic; one whose payload is all ones would wrap to a zero.
    return y if bool(torch.isfinite(x.sum())) else torch.where(torch.isnan(x), x, y)


def quantise(x: torch.Tensor, name: str, *, rounding: Optional[str] = None, saturate: bool = False) -> torch.Tensor:
    """Return the values of format *name* nearest to float32 *x*, stored as float32; overflow is infinite or clamped.

    *rounding* defaults to rna for TF32, which is what PTX's ``cvt.rna.tf32.f32`` and CUTLASS do, else to rne.
    """
    form = FORMATS[name]
    rounding = rounding or default_rounding(name)
    if rounding == "rne" and name == "bf16" and not saturate:
        return x.to(torch.bfloat16).float()
    if rounding == "rne" and name == "fp16" and not saturate:
        return x.to(torch.float16).float()
    if rounding == "rne" and name in ("fp8_e4m3", "fp8_e5m2") and saturate:
        dtype = torch.float8_e4m3fn if name == "fp8_e4m3" else torch.float8_e5m2
        return x.clamp(-form.largest, form.largest).to(dtype).float()
    return _quantise_by_hand(x, form, rounding, saturate=saturate)


def default_rounding(name: str) -> str:
    """Return how the hardware converts to format *name*."""
    return "rna" if name == "tf32" else "rne"


def _quantise_by_hand(x: torch.Tensor, form: Format, rounding: str, *, saturate: bool) -> torch.Tensor:
    y = round_mantissa(x, form.mantissa_bits, rounding)
    if form.min_exponent == _FP32_MIN_EXPONENT and not saturate:
        return y  # the carry into the exponent has already given infinity
    if form.min_exponent > _FP32_MIN_EXPONENT:  # subnormal numbers: a fixed-point grid
        grid = 2.0 ** (form.min_exponent - form.mantissa_bits)
        y = torch.where(x.abs() < 2.0**form.min_exponent, _round_to_integer(x / grid, rounding) * grid, y)
    limit = torch.full_like(y, form.largest if saturate else math.inf).copysign(x)
    return torch.where((y.abs() > form.largest) & torch.isfinite(x), limit, y)


def _round_to_integer(x: torch.Tensor, rounding: str) -> torch.Tensor:
    if rounding == "rne":
        return torch.round(x)
    if rounding == "rz":
        return torch.trunc(x)
    return torch.trunc(x + torch.full_like(x, 0.5).copysign(x))


class Emulation(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Rounds what feeds the multipliers while it is active; ``calls`` counts the products it saw."""

    def __init__(
        self, name: str, *, rounding: Optional[str] = None, saturate: Optional[bool] = None, scaled: bool = True
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        if name not in FORMATS and name != HALF:
            raise ValueError(f"format={name!r}: choose one of {', '.join([*FORMATS, HALF])}")
        is_fp8 = name.startswith("fp8")
        self.calls: Dict[str, int] = {}
        self._name = name
        self._rounding = rounding
        self._saturate = is_fp8 if saturate is None else saturate
        self._scaled = scaled and is_fp8  # unscaled FP8 does not train
        self._fused = {getattr(_aten, op) for op in _FUSED if hasattr(_aten, op)}

    def __torch_dispatch__(self, func: _Operation, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        kwargs, packet = kwargs or {}, func.overloadpacket
        inputs = _PRODUCTS.get(packet)
        if inputs is None:
            return self._pass_on(func, args, kwargs)
        self.calls[str(packet)] = self.calls.get(str(packet), 0) + 1
        if self._name == HALF:
            return _in_fp32(func, args, kwargs, args[inputs[0]].dtype)
        rounded = list(args)
        for position in inputs:
            if rounded[position].dtype is torch.float32:
                rounded[position] = self._round(rounded[position])
        return func(*rounded, **kwargs)

    def _pass_on(self, func: _Operation, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        with self:  # inference mode hands over operations whole (aten.linear), with their products inside
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        if func.overloadpacket in self._fused or func.overloadpacket in flop_registry:
            raise NotImplementedError(f"{func.overloadpacket} is a fused product: its inputs cannot be rounded here")
        return func(*args, **kwargs)

    def _round(self, x: torch.Tensor) -> torch.Tensor:
        if not self._scaled:
            return quantise(x, self._name, rounding=self._rounding, saturate=self._saturate)
        largest = float(x.abs().amax()) if x.numel() else 0.0
        if not 0.0 < largest < math.inf:
            return x
        # A power of two for each tensor, so that scaling itself is exact; FP32's own range bounds it.
        exponent = math.floor(math.log2(FORMATS[self._name].largest / largest))
        scale = 2.0 ** max(-126, min(126, exponent))
        return quantise(x * scale, self._name, rounding=self._rounding, saturate=self._saturate) / scale


def _in_fp32(func: _Operation, args: Sequence[object], kwargs: Mapping[str, object], dtype: torch.dtype) -> object:
    if dtype not in _HALF_DTYPES:
        return func(*args, **kwargs)
    wide = [x.float() if isinstance(x, torch.Tensor) and x.dtype in _HALF_DTYPES else x for x in args]
    result = func(*wide, **kwargs)
    if isinstance(result, (tuple, list)):
        return tuple(x if x is None else x.to(dtype) for x in result)
    return result.to(dtype)


@contextlib.contextmanager
def emulate(
    name: str, *, rounding: Optional[str] = None, has_rnn: bool = False, must_see: bool = True
) -> Iterator[Emulation]:
    """Emulate format *name* in the block; raise at its end where no product was seen, unless not *must_see*.

    Attention is computed by plain products meanwhile, and with *has_rnn* recurrent layers too, at the price of every
    other oneDNN kernel.
    """
    mode = Emulation(name, rounding=rounding)
    with contextlib.ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if has_rnn:
            stack.enter_context(without_mkldnn())
        stack.enter_context(mode)
        yield mode
    if must_see and not mode.calls:
        raise RuntimeError("no matrix product was rounded: the emulation did not see the model")


@contextlib.contextmanager
def without_mkldnn() -> Iterator[None]:
    """Let torch compute by kernels of its own in the block, and none by oneDNN's."""
    # not torch.backends.mkldnn.flags: in torch 2.13 it also resets the FP32 switches of oneDNN
    mkldnn: Any = torch.backends.mkldnn
    before = mkldnn.enabled
    mkldnn.enabled = False
    try:
        yield
    finally:
        mkldnn.enabled = before
