"""Formats of 8 bits against ml_dtypes, the library that JAX and TensorFlow have them from: bit for bit."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
ml_dtypes = pytest.importorskip("ml_dtypes", reason="comes with jax and tensorflow")

from hpcml_train.torch.rounding import FORMATS, quantise  # noqa: E402
from tests.effort import times  # noqa: E402

pytestmark = pytest.mark.torch
ELEMENTS = {
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
}
COUNT = times(64_000, 1_000_000)


def finite_codes(name: str) -> torch.Tensor:
    values = np.arange(256, dtype=np.uint8).view(ELEMENTS[name]).astype(np.float32)
    return torch.from_numpy(values[np.isfinite(values)])


def any_bits(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (2 * count,), generator=generator).to(torch.int32).view(torch.float32)
    return bits[torch.isfinite(bits)][:count]


def near_one(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, generator=generator) * torch.exp2(
        torch.randint(-20, 20, (count,), generator=generator).float()
    )


def bits_that_differ(ours: torch.Tensor, theirs: np.ndarray) -> int:
    mine = ours.numpy()
    both_nan = np.isnan(mine) & np.isnan(theirs)
    return int(((mine.view(np.int32) != theirs.view(np.int32)) & ~both_nan).sum())


def cast(x: np.ndarray, name: str) -> np.ndarray:
    """By ml_dtypes, saturating."""
    limit = FORMATS[name].largest
    return np.clip(x, -limit, limit).astype(ELEMENTS[name]).astype(np.float32)


@pytest.mark.parametrize("name", ELEMENTS)
def test_every_code_every_tie_and_its_neighbours_are_rounded_as_ml_dtypes_does(name: str) -> None:
    codes = finite_codes(name)
    ordered, _ = torch.sort(codes)
    ties = (ordered[1:] + ordered[:-1]) / 2
    around = [torch.nextafter(ties, torch.full_like(ties, limit)) for limit in (math.inf, -math.inf)]
    x = torch.cat([codes, ties, *around, any_bits(COUNT), near_one(COUNT)])

    assert bits_that_differ(quantise(x, name, saturate=True), cast(x.numpy(), name)) == 0
