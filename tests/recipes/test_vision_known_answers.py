"""Worked examples of a course on deep learning on GPUs (LAPENNA, unit 11), computed again with what recipes use."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own custom

from hpcml_train.torch import emulation as torch_emulation

pytestmark = pytest.mark.torch

# The convolution's input and filters are a lost picture: the example can be followed from its output on. NHWC, 1x3x3x2.
CONVOLVED = (-2, 7, 1, 1, 4, -7, 1, 6, 9, -8, 6, -6, 2, -7, 1, -4, 2, -8)
RECTIFIED = (0, 7, 1, 1, 4, 0, 1, 6, 9, 0, 6, 0, 2, 0, 1, 0, 2, 0)
POOLED = (9, 7, 9, 1, 9, 6, 9, 0)  # 2x2 windows one apart: NHWC, 1x2x2x2
FLAT_AS_PRINTED = (9, 9, 9, 9, 7, 1, 6, 0)
PROBABILITIES = (0.23891544, 0.23891544, 0.23891544, 0.23891544, 0.032333687, 8.0147205e-05, 0.0118949, 2.9484507e-05)


def nhwc(values: tuple[int, ...], side: int) -> torch.Tensor:
    """Return *values*, which are in the order NHWC, as torch indexes them: N, C, H, W."""
    return torch.tensor(values, dtype=torch.float32).reshape(1, side, side, 2).permute(0, 3, 1, 2)


def in_order(images: torch.Tensor) -> list[float]:
    found: list[float] = images.permute(0, 2, 3, 1).flatten().tolist()
    return found


def test_relu_and_pooling_give_the_worked_example() -> None:
    rectified = F.relu(nhwc(CONVOLVED, 3))

    pooled = F.max_pool2d(rectified, kernel_size=2, stride=1)

    assert in_order(rectified) == list(RECTIFIED)
    assert in_order(pooled) == list(POOLED)


def test_what_the_example_calls_row_major_is_the_order_of_nchw() -> None:
    pooled = nhwc(POOLED, 2)

    assert nn.Flatten()(pooled).flatten().tolist() == list(FLAT_AS_PRINTED)
    # the layout is how numbers lie in memory; what a layer means by "flat" does not follow it
    assert nn.Flatten()(pooled.contiguous(memory_format=torch.channels_last)).flatten().tolist() == list(
        FLAT_AS_PRINTED
    )
    assert in_order(pooled) == [9, 7, 9, 1, 9, 6, 9, 0]


@pytest.mark.parametrize(
    ("dtype", "largest_error"),
    [(torch.float64, 1e-8), (torch.float32, 5e-8), (torch.float16, 5e-5), (torch.bfloat16, 5e-4)],
)
def test_softmax_gives_the_worked_example(dtype: torch.dtype, largest_error: float) -> None:
    found = torch.softmax(torch.tensor(FLAT_AS_PRINTED, dtype=dtype), dim=0).double()

    assert float((found - torch.tensor(PROBABILITIES, dtype=torch.float64)).abs().max()) < largest_error


def test_the_network_of_the_example_has_146_parameters() -> None:
    layers = (nn.Conv2d(3, 2, 3, stride=2), nn.Linear(8, 8), nn.Linear(8, 2))

    assert [sum(p.numel() for p in layer.parameters()) for layer in layers] == [56, 72, 18]
    assert layers[0](torch.zeros(1, 3, 7, 7)).shape == (1, 2, 3, 3)


def test_the_mystery_kernel_finds_edges() -> None:
    # 1 around -8, on three channels: its sum is 0, so that what does not change vanishes, and edges stay
    kernel = torch.ones(3, 3).index_put((torch.tensor(1), torch.tensor(1)), torch.tensor(-8.0)).expand(1, 3, 3, 3)
    step = torch.zeros(1, 3, 5, 6)
    step[..., 3:] = 2.0

    flat = F.conv2d(torch.full((1, 3, 5, 5), 7.0), kernel, padding=1)
    edge = F.conv2d(step, kernel, padding=1)

    assert flat[0, 0, 1:-1, 1:-1].abs().max() == 0  # inside a plain picture
    assert flat[0, 0, 0, 2].item() == 3 * 7 * (5 - 8)  # at its border zeros are beside it
    assert edge[0, 0, 2].tolist() == [0, 0, 18, -18, 0, -18]  # 3 channels x 3 neighbours x 2, and the right border
    assert F.conv2d(
        torch.tensor([[[0.0, 0, 1, 0, 0]] * 1]).unsqueeze(0), torch.tensor([[[[1.0, -8, 1]]]])
    ).tolist() == [[[[1, -8, 1]]]]


def test_a_cell_of_a_convolution_is_the_sum_of_nine_products() -> None:
    kernel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    patch = torch.tensor([[1.0, 4, 6], [5, 3, 8], [6, 7, 2]])

    products = kernel * patch

    assert products.flatten().tolist() == [-1, 0, 6, -10, 0, 16, -6, 0, 2]
    assert float(F.conv2d(patch[None, None], kernel[None, None])) == products.sum() == 7


# format, significant bits, distance from 1 to the next number, smallest normal number, largest number: as printed
FORMATS = [
    (torch.bfloat16, 8, 7.81e-3, 1.18e-38, 3.40e38),
    (torch.float16, 11, 9.77e-4, 6.10e-5, 65504),
    (torch.float32, 24, 1.19e-7, 1.18e-38, 3.40e38),
    (torch.float64, 53, 2.22e-16, 2.23e-308, 1.79e308),
]


@pytest.mark.parametrize(("dtype", "bits", "epsilon", "smallest", "largest"), FORMATS)
def test_formats_have_the_range_and_the_precision_of_the_table(
    dtype: torch.dtype, bits: int, epsilon: float, smallest: float, largest: float
) -> None:
    found = torch.finfo(dtype)

    assert found.eps == 2.0 ** (1 - bits) == pytest.approx(epsilon, rel=2e-3)
    assert found.tiny == pytest.approx(smallest, rel=5e-3)
    assert found.max == pytest.approx(largest, rel=6e-3)


def test_tf32_has_the_bits_of_fp16_and_the_range_of_fp32() -> None:
    def rounded(value: float) -> float:
        with torch_emulation.emulate("tf32", rounding="rna", has_rnn=False, must_see=True):
            return float(torch.tensor([[value]]) @ torch.ones(1, 1))

    next_to_one = 1 + 2.0**-10

    assert rounded(next_to_one) == next_to_one
    assert rounded(1 + 2.0**-12) == 1
    assert rounded(2.0**127) == 2.0**127
    assert math.isinf(float(torch.tensor(2.0**127).half()))


# cuDNN's manual: N=1 C=64 H=5 W=4, each element holding its own offset in NCHW
@pytest.mark.parametrize(("channel", "first", "last"), [(0, 0, 19), (1, 20, 39), (31, 620, 639), (63, 1260, 1279)])
def test_elements_lie_where_the_manual_puts_them(channel: int, first: int, last: int) -> None:
    offsets = torch.arange(64 * 5 * 4).reshape(1, 64, 5, 4)

    plane = offsets[0, channel]
    in_memory = offsets.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).reshape(-1)

    assert (int(plane[0, 0]), int(plane[4, 3])) == (first, last)
    assert offsets.stride() == (1280, 20, 4, 1)
    for row in range(5):
        for column in range(4):
            assert int(in_memory[(row * 4 + column) * 64 + channel]) == channel * 20 + row * 4 + column
