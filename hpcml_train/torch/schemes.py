"""What becomes of the factors of a product in each emulated arithmetic, and which products stand for it."""

from __future__ import annotations

import abc
from typing import Callable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

from hpcml_train.torch.block_scaling import quantise_mx, quantise_nvfp4
from hpcml_train.torch.rounding import FORMATS, quantise
from hpcml_train.torch.tensor_scaling import AmaxHistory, current_scale

_Pairs = Sequence[Tuple[int, int]]


class Place(NamedTuple):
    """Where a factor stands."""

    along: int  # the dimension that the product sums over, and blocks lie along
    groups: int = 1  # equal parts of that dimension, over which it is summed apart
    is_gradient: bool = False  # it came from the loss
    name: str = ""  # which is the same in each step


class Scheme(abc.ABC):
    """How the factors of products are rounded."""

    # Which parts of the first factor are multiplied by which of the second; the largest product first.
    pairs: _Pairs = ((0, 0),)
    is_directional = False  # whether `Place.along` matters: whether a factor is rounded for each product anew
    tells_gradients = False  # whether `Place.is_gradient` matters

    @abc.abstractmethod
    def parts(self, x: torch.Tensor, place: Place) -> List[torch.Tensor]:
        """Return the parts, whose sum stands for float32 *x*; each is as large as *x*."""


class Rounded(Scheme):
    """Each number rounded by itself."""

    def __init__(self, form: str, rounding: Optional[str] = None) -> None:
        self._form, self._rounding = form, rounding

    def parts(self, x: torch.Tensor, place: Place) -> List[torch.Tensor]:
        """Return one."""
        del place
        return [quantise(x, self._form, rounding=self._rounding)]


class Split(Scheme):
    """Each number as a sum of several of fewer bits: what BF16x3, BF16x6, BF16x9 and 3xTF32 multiply.

    *pairs* are those of the parts whose products count; the others are too small.
    """

    def __init__(self, form: str, count: int, pairs: int) -> None:
        self._form, self._count = form, count
        every = sorted(((i, j) for i in range(count) for j in range(count)), key=lambda pair: (sum(pair), pair))
        self.pairs = every[:pairs]

    def parts(self, x: torch.Tensor, place: Place) -> List[torch.Tensor]:
        """Return the nearest number, the nearest to what is left, and so on."""
        del place
        parts, left = [], x
        for _ in range(self._count):
            part = quantise(left, self._form, rounding="rne", saturate=True)
            parts.append(torch.where(torch.isfinite(left), part, left))
            left = torch.where(torch.isfinite(left), left - part, torch.zeros_like(left))  # exact
        return parts


class TensorScaled(Scheme):
    """FP8 with a scale for each tensor: one format forward, one for gradients."""

    def __init__(
        self, forward: str, gradient: str, *, power_of_two: bool = False, history: Optional[AmaxHistory] = None
    ) -> None:
        self._forms = {False: forward, True: gradient}
        self._power_of_two = power_of_two
        self._history = history
        self.tells_gradients = forward != gradient

    def form(self, place: Place) -> str:
        """Return the format of the factor at *place*."""
        return self._forms[place.is_gradient]

    def scale(self, x: torch.Tensor, place: Place) -> torch.Tensor:
        """Return the number that *x* is multiplied by before it is rounded."""
        if self._history is not None:
            return self._history.scale(x, self.form(place), place.name)
        return current_scale(x, self.form(place), power_of_two=self._power_of_two)

    def parts(self, x: torch.Tensor, place: Place) -> List[torch.Tensor]:
        """Return one; what is not finite stays as it is, so that a training that diverged is seen to."""
        scale = self.scale(x, place)
        rounded = quantise(x * scale, self.form(place), saturate=True) / scale
        return [torch.where(torch.isfinite(x), rounded, x)]


class Blocks(Scheme):
    """A format with a scale for each block along the sum."""

    is_directional = True

    def __init__(self, quantise_last: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._quantise_last = quantise_last

    def parts(self, x: torch.Tensor, place: Place) -> List[torch.Tensor]:
        """Return one, in the memory format of *x*."""
        along = place.along % x.dim()
        length = x.shape[along] // place.groups
        moved = x.reshape(*x.shape[:along], place.groups, length, *x.shape[along + 1 :]).movedim(along + 1, -1)
        rounded = self._quantise_last(moved).movedim(-1, along + 1).flatten(along, along + 1)
        return [torch.empty_like(x).copy_(rounded)]


class Options(NamedTuple):
    """What changes an arithmetic of the same name."""

    rounding: Optional[str] = None  # rna, rne or rz; None: the format's own
    scale_rounding: str = "ceil"  # of block scales that are powers of two
    history: Optional[AmaxHistory] = None  # of the training, for scales that are delayed


def scheme(name: str, options: Options) -> Scheme:
    """Return the scheme of the emulated arithmetic *name*; raise `ValueError` where there is none."""
    if name in FORMATS and name.startswith("fp8"):
        return TensorScaled(name, name, power_of_two=True)  # so that scaling itself is exact
    if name in FORMATS and not name.startswith("fp4"):
        return Rounded(name, options.rounding)
    if name not in _MADE:
        raise ValueError(f"format={name!r}: choose one of {', '.join(names())}")
    return _MADE[name](options)


def names() -> List[str]:
    """Return the names of all schemes."""
    return [*(form for form in FORMATS if not form.startswith("fp4")), *_MADE]


def _mx(element: str) -> Callable[[Options], Scheme]:
    def make(options: Options) -> Scheme:
        return Blocks(lambda x: quantise_mx(x, element, scale_rounding=options.scale_rounding)[0])

    return make


_MADE: Mapping[str, Callable[[Options], Scheme]] = {
    "fp8_hybrid": lambda _: TensorScaled("fp8_e4m3", "fp8_e5m2"),
    "fp8_hybrid_delayed": lambda options: TensorScaled(
        "fp8_e4m3", "fp8_e5m2", history=options.history or AmaxHistory()
    ),
    "mxfp8": _mx("fp8_e4m3"),
    "mxfp4": _mx("fp4_e2m1"),
    "nvfp4": lambda _: Blocks(lambda x: quantise_nvfp4(x)[0]),
    "bf16x3": lambda _: Split("bf16", 2, 3),
    "bf16x6": lambda _: Split("bf16", 3, 6),
    "bf16x9": lambda _: Split("bf16", 3, 9),
    "tf32x3": lambda _: Split("tf32", 2, 3),
}
