"""Emulated products held against bounds that no rounding to the format can exceed, and formats against their tables."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from hpcml_train.torch.emulation import emulate  # noqa: E402
from hpcml_train.torch.rounding import FORMATS, quantise  # noqa: E402

pytestmark = pytest.mark.torch

# (rounding, unit roundoff): half a unit in the last place, or a whole one where low digits are dropped
ROUNDINGS = [
    ("tf32", "rna", 2**-11),
    ("tf32", "rne", 2**-11),
    ("tf32", "rz", 2**-10),
    ("bf16", None, 2**-8),
    ("fp16", None, 2**-11),
    ("fp8_e4m3", None, 2**-4),
    ("fp8_e5m2", None, 2**-3),
]
FP32_U = 2**-24


@pytest.mark.parametrize(("name", "rounding", "u"), ROUNDINGS)
@settings(max_examples=25, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 24), st.integers(1, 200), st.integers(1, 24)),
    spread=st.integers(0, 3),  # exponents: small enough that nothing is subnormal in any format, scaled or not
    seed=st.integers(0, 2**31 - 1),
)
def test_every_element_of_a_product_is_within_the_bound(
    name: str, rounding: str | None, u: float, shape: tuple[int, int, int], spread: int, seed: int
) -> None:
    rows, inner, columns = shape
    generator = torch.Generator().manual_seed(seed)
    a, b = (_normal(size, spread, generator) for size in ((rows, inner), (inner, columns)))

    with emulate(name, rounding=rounding):
        found = (a @ b).double()

    gamma = inner * FP32_U / (1 - inner * FP32_U)
    bound = (2 * u + u**2 + gamma * (1 + u) ** 2) * (a.double().abs() @ b.double().abs())
    assert bool(((found - a.double() @ b.double()).abs() <= bound).all())


@pytest.mark.parametrize(("name", "rounding", "u"), ROUNDINGS)
def test_the_bound_is_not_idle(name: str, rounding: str | None, u: float) -> None:
    """An eighth of it, which is what three more digits would keep, is exceeded."""
    generator = torch.Generator().manual_seed(0)
    a, b = (_normal(size, 3, generator) for size in ((64, 2), (2, 64)))

    with emulate(name, rounding=rounding):
        found = (a @ b).double()

    bound = (2 * u + u**2) * (a.double().abs() @ b.double().abs())
    assert bool(((found - a.double() @ b.double()).abs() > bound / 8).any())


def _normal(shape: tuple[int, int], spread: int, generator: torch.Generator) -> torch.Tensor:
    mantissas = 1 + torch.rand(shape, generator=generator)
    signs = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    exponents = torch.randint(-spread, spread + 1, shape, generator=generator)
    return signs * mantissas * torch.exp2(exponents.float())


# epsilon, smallest normal and largest number as the LAPENNA training material, unit 11, prints them: three digits, the
# last one not always rounded (BF16's largest number is 3.39e38)
@pytest.mark.parametrize(
    ("name", "epsilon", "underflow", "overflow"),
    [("bf16", 7.81e-3, 1.18e-38, 3.40e38), ("fp16", 9.77e-4, 6.10e-5, 65504.0), ("tf32", 9.766e-4, 1.18e-38, 3.40e38)],
)
def test_formats_have_the_epsilon_and_the_range_of_the_table(
    name: str, epsilon: float, underflow: float, overflow: float
) -> None:
    form = FORMATS[name]

    assert 2.0**-form.mantissa_bits == pytest.approx(epsilon, rel=5e-3)
    assert 2.0**form.min_exponent == pytest.approx(underflow, rel=5e-3)
    assert form.largest == pytest.approx(overflow, rel=5e-3)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_holds_its_epsilon_and_its_largest_number_and_nothing_finer(name: str) -> None:
    form = FORMATS[name]
    next_to_one = 1 + 2.0**-form.mantissa_bits
    numbers = torch.tensor([next_to_one, form.largest, 2.0**form.min_exponent, 1 + 2.0 ** -(form.mantissa_bits + 2)])

    assert quantise(numbers, name).tolist() == [next_to_one, form.largest, 2.0**form.min_exponent, 1.0]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
        ("fp8_e4m3", torch.float8_e4m3fn),
        ("fp8_e5m2", torch.float8_e5m2),
    ],
)
def test_formats_are_those_of_torch(name: str, dtype: torch.dtype) -> None:
    facts, form = torch.finfo(dtype), FORMATS[name]

    assert (facts.eps, facts.smallest_normal, facts.max) == (
        2.0**-form.mantissa_bits,
        2.0**form.min_exponent,
        form.largest,
    )
