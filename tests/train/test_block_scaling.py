"""Formats of 4 and 8 bits against ml_dtypes, the library that JAX and TensorFlow have them from: bit for bit."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
ml_dtypes = pytest.importorskip("ml_dtypes", reason="comes with jax and tensorflow")

from hpcml_train.torch.block_scaling import MX_BLOCK, NVFP4_BLOCK, quantise_mx, quantise_nvfp4  # noqa: E402
from hpcml_train.torch.emulation import emulate  # noqa: E402
from hpcml_train.torch.rounding import FORMATS, quantise  # noqa: E402
from tests.effort import times  # noqa: E402

pytestmark = pytest.mark.torch
ELEMENTS = {
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "fp4_e2m1": ml_dtypes.float4_e2m1fn,
}
CODES = {"fp8_e4m3": 256, "fp8_e5m2": 256, "fp4_e2m1": 16}
COUNT = times(64_000, 1_000_000)


def finite_codes(name: str) -> torch.Tensor:
    values = np.arange(CODES[name], dtype=np.uint8).view(ELEMENTS[name]).astype(np.float32)
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


@pytest.mark.parametrize("element", ["fp8_e4m3", "fp4_e2m1"])
def test_every_code_under_every_scale_is_a_number_of_the_format(element: str) -> None:
    codes, largest = finite_codes(element), FORMATS[element].largest
    scales = np.arange(255, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    reachable = [scale for scale in scales if scale * largest < float(np.finfo(np.float32).max)]
    assert len(reachable) >= 247

    rows = torch.nn.functional.pad(codes, (0, -len(codes) % (MX_BLOCK - 1))).reshape(-1, MX_BLOCK - 1)
    block = torch.cat([torch.full((len(rows), 1), largest), rows], 1).double()
    x = torch.stack([(block * scale) for scale in reachable]).float()
    values, exponents = quantise_mx(x, element)

    assert torch.equal(values, x)
    assert torch.equal(torch.exp2(exponents[:, 0, 0].double()), torch.tensor(reachable))


def test_every_code_under_every_scale_of_nvfp4_is_a_number_of_the_format() -> None:
    codes, whole = finite_codes("fp4_e2m1"), 2.0**-3
    scales = finite_codes("fp8_e4m3")
    scales = scales[scales > 0]
    x = torch.cat([torch.outer(scales, codes), 6 * scales[:, None]], 1) * whole
    x = x[:, -NVFP4_BLOCK:]  # 16 codes, of which the first is 0, and the largest, by which a block knows its scale

    values, found, of_tensor = quantise_nvfp4(x)

    assert float(of_tensor) == whole
    assert torch.equal(found[:, 0], scales)
    assert torch.equal(values, x)


def reference_mx(x: np.ndarray, element: str, scale_rounding: str) -> np.ndarray:
    """Block after block, with the standard library's exponents and ml_dtypes' casts."""
    result, limit = np.empty_like(x), FORMATS[element].largest
    for begin in range(0, x.size, MX_BLOCK):
        block = x[begin : begin + MX_BLOCK].astype(np.float64)
        largest = float(np.abs(block).max())
        if scale_rounding == "floor":
            exponent = math.frexp(largest)[1] - math.frexp(limit)[1]
        else:
            mantissa, exponent = math.frexp(float(np.float32(largest) / np.float32(limit)))
            exponent -= mantissa == 0.5
        scale = 2.0 ** min(127, max(-127, exponent if largest else -127))
        with np.errstate(over="ignore"):  # what is rounded up may be beyond FP32
            scaled = cast((block / scale).astype(np.float32), element).astype(np.float64) * scale
            result[begin : begin + MX_BLOCK] = scaled.astype(np.float32)
    return result


@pytest.mark.parametrize("scale_rounding", ["ceil", "floor"])
@pytest.mark.parametrize("element", ["fp8_e4m3", "fp4_e2m1"])
def test_blocks_of_any_numbers_are_those_of_a_reference(element: str, scale_rounding: str) -> None:
    x = torch.cat([near_one(COUNT // 4), any_bits(COUNT // 4), torch.zeros(64)])
    x = x[: len(x) // MX_BLOCK * MX_BLOCK]

    values, _ = quantise_mx(x, element, scale_rounding=scale_rounding)

    assert bits_that_differ(values, reference_mx(x.numpy(), element, scale_rounding)) == 0


def test_nvfp4_of_any_numbers_is_that_of_a_reference() -> None:
    x = near_one(COUNT // NVFP4_BLOCK * NVFP4_BLOCK)
    x[: 8 * NVFP4_BLOCK] *= 2.0**-40
    blocks = x.numpy().reshape(-1, NVFP4_BLOCK)
    whole = np.float32(np.abs(blocks).max() / np.float32(6 * 448))
    scales = cast((np.abs(blocks).max(1) / np.float32(6) / whole).astype(np.float32), "fp8_e4m3")
    decode = (scales * whole)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.where(decode > 0, cast((blocks / decode).astype(np.float32), "fp4_e2m1"), 0).astype(np.float32)

    values, found, of_tensor = quantise_nvfp4(x)

    assert float(of_tensor) == float(whole)
    assert np.array_equal(found.numpy(), scales)
    assert np.array_equal(values.numpy(), (codes * decode).ravel())
    assert bool((found == 0).any())  # blocks so small that nothing is left of them


def test_a_block_with_what_is_no_number_is_none_and_the_others_are_left() -> None:
    x = torch.ones(3, MX_BLOCK)
    x[0, 5], x[1, 7] = math.inf, math.nan

    values, _ = quantise_mx(x, "fp8_e4m3")

    assert values[:2].isnan().all()
    assert torch.equal(values[2], x[2])


def test_the_last_block_may_be_short_and_nothing_has_no_blocks() -> None:
    x = near_one(3 * 40).reshape(3, 40)

    whole, _ = quantise_mx(torch.nn.functional.pad(x, (0, 24)), "fp8_e4m3")

    assert torch.equal(quantise_mx(x, "fp8_e4m3")[0], whole[:, :40])
    assert quantise_mx(x[:, :0], "fp8_e4m3")[0].shape == (3, 0)
    assert quantise_nvfp4(x[:0])[0].shape == (0, 40)


def test_a_rounding_of_scales_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="scale_rounding='even': choose ceil or floor"):
        quantise_mx(torch.ones(32), "fp8_e4m3", scale_rounding="even")


@pytest.mark.parametrize("name", ["mxfp8", "mxfp4", "nvfp4"])
def test_each_of_the_three_products_of_a_layer_has_blocks_along_its_own_sum(name: str) -> None:
    """A row that is 2**12 larger spoils its neighbours in a block, and the blocks of one product only."""
    x, w, g = near_one(64 * 96).reshape(64, 96), near_one(48 * 96).reshape(48, 96), near_one(64 * 48).reshape(64, 48)
    x, w = x.requires_grad_(), w.requires_grad_()
    blocks = {"mxfp8": lambda t: quantise_mx(t, "fp8_e4m3")[0], "mxfp4": lambda t: quantise_mx(t, "fp4_e2m1")[0]}
    rounded = blocks.get(name, lambda t: quantise_nvfp4(t)[0])

    with emulate(name):
        y = torch.nn.functional.linear(x, w)
        of_x, of_w = torch.autograd.grad(y, (x, w), g)

    with torch.no_grad():
        assert torch.equal(y, rounded(x) @ rounded(w).T)
        assert torch.equal(of_x, rounded(g) @ rounded(w.T).T)
        assert torch.equal(of_w, rounded(g.T) @ rounded(x.T).T)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_convolutions_have_blocks_along_channels_and_images(name: str, groups: int) -> None:
    """By the same convolution of what was rounded by hand, channels and images moved to the end for it."""
    generator = torch.Generator().manual_seed(3)
    shapes = {"conv2d": (80, 96 // groups), "conv_transpose2d": (96, 80 // groups)}
    x = torch.randn(40, 96, 5, 5, generator=generator, requires_grad=True)
    w = torch.randn(*shapes[name], 3, 3, generator=generator, requires_grad=True)
    compute = getattr(torch.nn.functional, name)

    def rounded(t: torch.Tensor, along: int, parts: int) -> torch.Tensor:
        pieces = [quantise_mx(piece.movedim(along, -1), "fp8_e4m3")[0] for piece in t.chunk(parts, along)]
        return torch.cat([piece.movedim(-1, along) for piece in pieces], along)

    with emulate("mxfp8"):
        y = compute(x, w, groups=groups)
        g = torch.randn(y.shape, generator=generator)
        of_x, of_w = torch.autograd.grad(y, (x, w), g)

    inputs, outputs = (1, 0) if name == "conv2d" else (0, 1)  # of the weight
    parts = (1, groups) if name == "conv2d" else (groups, 1)
    with torch.enable_grad():
        by_hand = compute(rounded(x, 1, groups), rounded(w, inputs, parts[0]), groups=groups)
        from_channels = compute(x, rounded(w, outputs, parts[1]), groups=groups)
        (expected_x,) = torch.autograd.grad(from_channels, x, rounded(g, 1, groups))
        from_images = compute(rounded(x, 0, 1), w, groups=groups)
        (expected_w,) = torch.autograd.grad(from_images, w, rounded(g, 0, 1))
    for found, expected in ((y, by_hand), (of_x, expected_x), (of_w, expected_w)):
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5 * float(expected.detach().abs().max()))
