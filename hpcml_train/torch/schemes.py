"""What becomes of the factors of a product in each emulated arithmetic, and which products stand for it."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import torch

from hpcml_train.torch.rounding import FORMATS, quantise

_Pairs = Sequence[tuple[int, int]]
_LARGEST_FP32 = float(torch.finfo(torch.float32).max)


class Scheme(abc.ABC):
    """How the factors of products are rounded."""

    # Which parts of the first factor are multiplied by which of the second; the largest product first.
    pairs: _Pairs = ((0, 0),)
    tells_gradients = False  # whether factors that came from the loss are rounded otherwise

    @abc.abstractmethod
    def parts(self, x: torch.Tensor, *, is_gradient: bool = False) -> list[torch.Tensor]:
        """Return the parts, whose sum stands for float32 *x*; each is as large as *x*."""


class Rounded(Scheme):
    """Each number rounded by itself."""

    def __init__(self, form: str, rounding: str | None = None) -> None:
        self._form, self._rounding = form, rounding

    def parts(self, x: torch.Tensor, *, is_gradient: bool = False) -> list[torch.Tensor]:
        """Return one."""
        del is_gradient
        return [quantise(x, self._form, rounding=self._rounding)]


class Split(Scheme):
    """Each number as a sum of two of fewer bits: what BF16x3 and 3xTF32 multiply."""

    pairs = ((0, 0), (0, 1), (1, 0))  # the product of both second parts is too small to count

    def __init__(self, form: str) -> None:
        self._form = form

    def parts(self, x: torch.Tensor, *, is_gradient: bool = False) -> list[torch.Tensor]:
        """Return the nearest number, and the nearest to what is left."""
        del is_gradient
        parts, left = [], x
        for _ in range(2):
            part = quantise(left, self._form, rounding="rne", saturate=True)
            parts.append(torch.where(torch.isfinite(left), part, left))
            left = torch.where(torch.isfinite(left), left - part, torch.zeros_like(left))  # exact
        return parts


class TensorScaled(Scheme):
    """FP8 with a scale for each tensor, which brings its largest number to the format's: one format for gradients.

    As Transformer Engine does it (recipe Float8CurrentScaling).
    """

    def __init__(self, forward: str, gradient: str, *, power_of_two: bool = False) -> None:
        self._forms = {False: forward, True: gradient}
        self._power_of_two = power_of_two
        self.tells_gradients = forward != gradient

    def form(self, *, is_gradient: bool) -> str:
        """Return the format of a factor."""
        return self._forms[is_gradient]

    def scale(self, x: torch.Tensor, *, is_gradient: bool) -> torch.Tensor:
        """Return what *x* is multiplied by before it is rounded: 1 for zeros, and where there is no limit."""
        limit = FORMATS[self.form(is_gradient=is_gradient)].largest
        largest = x.abs().amax() if x.numel() else x.new_zeros(())
        scale = (limit / largest.double()).float().clamp(max=_LARGEST_FP32)
        if self._power_of_two:
            _, exponent = torch.frexp(limit / largest.double())
            scale = torch.ldexp(torch.ones_like(largest), (exponent - 1).clamp(-126, 126))  # a normal number of FP32
        return torch.where((largest > 0) & torch.isfinite(largest), scale, torch.ones_like(scale))

    def parts(self, x: torch.Tensor, *, is_gradient: bool = False) -> list[torch.Tensor]:
        """Return one; what is not finite stays as it is, so that a training that diverged is seen to."""
        scale = self.scale(x, is_gradient=is_gradient)
        rounded = quantise(x * scale, self.form(is_gradient=is_gradient), saturate=True) / scale
        return [torch.where(torch.isfinite(x), rounded, x)]


def scheme(name: str, rounding: str | None = None) -> Scheme:
    """Return the scheme of the emulated arithmetic *name*; raise `ValueError` where there is none.

    *rounding* is rna, rne or rz; None: the format's own.
    """
    if name not in names():
        raise ValueError(f"format={name!r}: choose one of {', '.join(names())}")
    if name == "fp8_hybrid":
        return TensorScaled("fp8_e4m3", "fp8_e5m2")
    if name in _SPLIT:
        return Split(_SPLIT[name])
    if name.startswith("fp8"):
        return TensorScaled(name, name, power_of_two=True)  # so that scaling itself is exact
    return Rounded(name, rounding)


def names() -> list[str]:
    """Return the names of all schemes."""
    return [*FORMATS, "fp8_hybrid", *_SPLIT]


_SPLIT = {"bf16x3": "bf16", "tf32x3": "tf32"}
