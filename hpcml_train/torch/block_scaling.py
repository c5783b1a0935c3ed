"""Block-scaled formats: numbers of 4 or 8 bits that share a scale in blocks along the sum of a product.

MX formats have blocks of 32 and a power of two as scale (OCP Microscaling Formats 1.0, section 6.3). NVFP4 has blocks
of 16, an E4M3 number as scale, and a scale in FP32 for the whole tensor. A product sums over one dimension, and each of
the three products of a layer over another: a tensor is rounded for each product anew.
"""

from __future__ import annotations

import math
from typing import Tuple

import torch

from hpcml_train.torch.rounding import FORMATS, quantise

MX_BLOCK = 32
NVFP4_BLOCK = 16
SCALE_ROUNDINGS = ("ceil", "floor")  # up: nothing saturates, as NVIDIA's libraries do; down: as OCP's specification
_LEAST_EXPONENT, _LARGEST_EXPONENT = -127, 127  # of E8M0, whose code 255 is NaN
_SCALE = "fp8_e4m3"  # of a block of NVFP4


def quantise_mx(
    x: torch.Tensor, element: str, *, scale_rounding: str = "ceil", block: int = MX_BLOCK
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return *x* rounded in blocks along its last dimension, and the exponent of each block's scale.

    The last block may be shorter. A block with a number that is not finite is NaN, as its scale would be.
    """
    if scale_rounding not in SCALE_ROUNDINGS:
        raise ValueError(f"scale_rounding={scale_rounding!r}: choose {' or '.join(SCALE_ROUNDINGS)}")
    blocks = _in_blocks(x, block)
    largest = blocks.abs().amax(-1, keepdim=True)
    limit = FORMATS[element].largest
    if scale_rounding == "floor":
        exponents = _floor_log2(largest) - math.floor(math.log2(limit))
    else:
        ratio = largest / limit
        mantissa, exponent = torch.frexp(ratio)  # of numbers from 0.5 to 1
        exponents = exponent - 1 + (mantissa > 0.5).int()
    exponents = torch.where(largest == 0, torch.full_like(exponents, _LEAST_EXPONENT), exponents)
    exponents = exponents.clamp(_LEAST_EXPONENT, _LARGEST_EXPONENT)
    scales = torch.ldexp(torch.ones_like(largest, dtype=torch.float64), exponents)
    # in FP64: the scale of a block of subnormal numbers is one itself
    codes = quantise((blocks.double() / scales).float(), element, saturate=True)
    values = (codes.double() * scales).float()
    values = torch.where(torch.isfinite(largest), values, torch.full_like(values, math.nan))
    return _as_before(values, x), exponents.squeeze(-1)


def quantise_nvfp4(x: torch.Tensor, *, block: int = NVFP4_BLOCK) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return *x* rounded in blocks along its last dimension, the scale of each block, and that of the tensor.

    A block so much smaller than the largest that its scale rounds to 0 is 0.
    """
    element = FORMATS["fp4_e2m1"].largest
    blocks = _in_blocks(x, block)
    whole = (x.abs().amax() if x.numel() else x.new_zeros(())) / (element * FORMATS[_SCALE].largest)
    whole = whole.clamp(min=torch.finfo(torch.float32).tiny)
    scales = quantise(blocks.abs().amax(-1, keepdim=True) / element / whole, _SCALE, saturate=True)
    decode = scales * whole
    codes = quantise(blocks / torch.where(decode > 0, decode, torch.ones_like(decode)), "fp4_e2m1", saturate=True)
    values = torch.where(decode == 0, torch.zeros_like(blocks), codes * decode)
    return _as_before(values, x), scales.squeeze(-1), whole


def _in_blocks(x: torch.Tensor, block: int) -> torch.Tensor:
    """Return *x* with its last dimension divided into blocks, the last of them filled up with zeros."""
    missing = -x.shape[-1] % block
    padded = torch.nn.functional.pad(x, (0, missing)) if missing else x
    return padded.reshape(*padded.shape[:-1], padded.shape[-1] // block, block)


def _as_before(blocks: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return blocks.flatten(-2)[..., : x.shape[-1]]


def _floor_log2(x: torch.Tensor) -> torch.Tensor:
    return torch.frexp(x)[1] - 1
