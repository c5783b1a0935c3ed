"""Rounding to a format: float32 numbers to the nearest that tensor cores multiply, stored as float32 again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

_FP32_MANTISSA_BITS = 23


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
ROUNDINGS = ("rna", "rne", "rz")
_SIXTEEN_BITS = {"fp16": torch.float16, "bf16": torch.bfloat16}
_EIGHT_BITS = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}  # torch's types


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


def quantise(x: torch.Tensor, name: str, *, rounding: str | None = None, saturate: bool = False) -> torch.Tensor:
    """Return the values of format *name* nearest to float32 *x*, stored as float32.

    Overflow is infinite, or clamped with *saturate*, and always in 8 bits. *rounding* is for TF32 and BF16: by default
    rna for TF32, which is what PTX's ``cvt.rna.tf32.f32`` and CUTLASS do, else rne.
    """
    form = FORMATS[name]
    if name in _EIGHT_BITS:
        return x.clamp(-form.largest, form.largest).to(eight_bits(name)).float()
    if name in _SIXTEEN_BITS and rounding in (None, "rne") and not saturate:
        return x.to(_SIXTEEN_BITS[name]).float()
    y = round_mantissa(x, form.mantissa_bits, rounding or ("rna" if name == "tf32" else "rne"))
    if not saturate:
        return y  # the carry into the exponent has already given infinity
    limit = torch.full_like(y, form.largest).copysign(x)
    return torch.where((y.abs() > form.largest) & torch.isfinite(x), limit, y)


def eight_bits(name: str) -> torch.dtype:
    """Return torch's type for the format *name*, fp8_e4m3 or fp8_e5m2."""
    dtype: torch.dtype = getattr(torch, _EIGHT_BITS[name])
    return dtype
