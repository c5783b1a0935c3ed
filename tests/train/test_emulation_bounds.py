"""Emulated products held against bounds that no rounding to the format can exceed, and formats against their tables."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from hpcml_train.torch.emulation import emulate  # noqa: E402
from hpcml_train.torch.rounding import FORMATS, quantise  # noqa: E402
from tests.effort import times  # noqa: E402

pytestmark = pytest.mark.torch
Envelope = Callable[[torch.Tensor], torch.Tensor]

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


# What a number can be off by after rounding, from the formats' definitions alone: *x*, the largest of its block or
# tensor -> a bound for each element. A number below the smallest normal one is off by half the distance of two
# neighbours.
def _of_tensor(u: float, largest: float, subnormal: float) -> Envelope:
    def bound(x: torch.Tensor) -> torch.Tensor:
        step = x.abs().max() / largest  # the number that 1 in the format stands for, but for the scale's own rounding
        return torch.maximum(u * x.abs(), subnormal * step) + 2**-21 * (x.abs() + step)

    return bound


_E4M3, _E5M2 = _of_tensor(2**-4, 448, 2**-10), _of_tensor(2**-3, 57344, 2**-17)
# arithmetic -> envelopes of a factor of the forward pass, and of a gradient
SCALED = {
    "fp8_hybrid": (_E4M3, _E5M2),
    # a scale that is a power of two brings the largest number to the format's, or to half of it
    "fp8_e4m3": (_of_tensor(2**-4, 448 / 2, 2**-10),) * 2,
}


@pytest.mark.parametrize("arm", SCALED)
@settings(max_examples=times(15, 100), deadline=None)
@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 100), st.integers(1, 40)),
    spread=st.integers(0, 12),
    seed=st.integers(0, 2**31 - 1),
)
def test_scaled_products_forward_and_backward_are_within_their_bounds(
    arm: str, shape: tuple[int, int, int], spread: int, seed: int
) -> None:
    rows, inner, columns = shape
    generator = torch.Generator().manual_seed(seed)
    a, b, g = (_normal(size, spread, generator) for size in ((rows, inner), (inner, columns), (rows, columns)))

    with emulate(arm):
        product = a.requires_grad_() @ b.requires_grad_()
        of_a, of_b = torch.autograd.grad(product, (a, b), g)

    forward, gradient = SCALED[arm]
    with torch.no_grad():
        for found, first, second, (of_first, of_second) in (
            (product, a, b, (forward, forward)),
            (of_a, g, b.T, (gradient, forward)),
            (of_b, a.T, g, (forward, gradient)),
        ):
            x, y = first.double(), second.double()
            off_x, off_y = of_first(x), of_second(y.T).T  # both along the sum
            gamma = x.shape[1] * FP32_U / (1 - x.shape[1] * FP32_U)
            bound = x.abs() @ off_y + off_x @ y.abs() + off_x @ off_y
            bound += gamma * (x.abs() + off_x) @ (y.abs() + off_y)
            assert bool(((found.double() - x @ y).abs() <= bound).all())


@pytest.mark.parametrize("arm", SCALED)
def test_the_bounds_of_scaled_products_are_not_idle(arm: str) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (_normal(size, 3, generator) for size in ((64, 32), (32, 64)))

    with emulate(arm):
        found = (a @ b).double()

    forward, _ = SCALED[arm]
    x, y = a.double(), b.double()
    off_x, off_y = forward(x), forward(y.T).T
    assert bool(((found - x @ y).abs() > (x.abs() @ off_y + off_x @ y.abs()) / 16).any())


# arithmetic -> (unit roundoff of a part, what is dropped and what is left of the numbers, over |A||B|)
SPLIT = {
    "bf16x3": (2**-8, 3 * 2**-16 + 2**-32),  # two parts: what is left of each number, and the smallest product
    "tf32x3": (2**-11, 3 * 2**-22 + 2**-44),
}


@pytest.mark.parametrize("name", SPLIT)
@settings(max_examples=times(15, 100), deadline=None)
@given(
    shape=st.tuples(st.integers(1, 24), st.integers(1, 200), st.integers(1, 24)),
    spread=st.integers(0, 20),
    seed=st.integers(0, 2**31 - 1),
)
def test_products_of_split_numbers_are_within_their_bounds(
    name: str, shape: tuple[int, int, int], spread: int, seed: int
) -> None:
    rows, inner, columns = shape
    generator = torch.Generator().manual_seed(seed)
    a, b = (_normal(size, spread, generator) for size in ((rows, inner), (inner, columns)))

    with emulate(name):
        found = (a @ b).double()

    u, dropped = SPLIT[name]
    sums = inner + 2  # of each product of parts, and of these three
    gamma = sums * FP32_U / (1 - sums * FP32_U)
    bound = (dropped + gamma * (1 + 3 * u) ** 2) * (a.double().abs() @ b.double().abs())
    assert bool(((found - a.double() @ b.double()).abs() <= bound).all())


@pytest.mark.parametrize("name", ["bf16x3", "tf32x3"])
def test_what_is_infinite_in_fp32_is_infinite_in_products_that_stand_for_one(name: str) -> None:
    x, weight = torch.ones(2, 2, 4, 4), torch.full((3, 2, 3, 3), 1.1)  # parts of 1 are zeros
    x[0, 0, 1, 1], x[1, 1, 2, 2] = math.inf, -math.inf

    def compute() -> list[torch.Tensor]:
        given = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        y = torch.nn.functional.conv2d(given[0], given[1], padding=1)
        gradients = torch.autograd.grad(y, given, torch.ones_like(y))
        return [y.detach(), *gradients, x.flatten(1) @ torch.full((32, 5), 1.1)]

    exact = compute()
    with emulate(name):
        found = compute()

    for one, reference in zip(found, exact, strict=True):
        assert bool((~torch.isfinite(reference)).any()) is (reference is not exact[1])
        assert torch.allclose(one, reference, rtol=1e-4, equal_nan=True)


@pytest.mark.parametrize(("name", "least"), [("bf16x3", 2**-18), ("tf32x3", 2**-24)])
def test_more_products_of_parts_are_nearer(name: str, least: float) -> None:
    """One product of two numbers has no sums but those of the parts."""
    generator = torch.Generator().manual_seed(0)
    a, b = (_normal(size, 3, generator) for size in ((256, 1), (1, 256)))

    with emulate(name):
        found = (a @ b).double()

    exact = a.double() @ b.double()
    error = float(((found - exact).abs() / exact.abs()).max())
    assert least < error <= SPLIT[name][1] + 9 * FP32_U


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
