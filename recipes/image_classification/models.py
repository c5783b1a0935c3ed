"""The networks, by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own custom

PIXELS = 28  # the height and width that the networks expect
CLASSES = 10
DEFAULTS = {"groups": 1, "dilation": 1}  # of mnist_cnn


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the zeros before and after an axis that TensorFlow's "same" adds: ceil(size / stride) outputs.

    An odd sum puts one more behind, which torch's own symmetric padding cannot say.
    """
    outputs = -(-size // stride)
    total = max(0, (outputs - 1) * stride + kernel - size)
    return total // 2, total - total // 2


class SameConv2d(nn.Conv2d):
    """A convolution padded as TensorFlow's "same"."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        reach = [(kernel - 1) * apart + 1 for kernel, apart in zip(self.kernel_size, self.dilation, strict=True)]
        top, bottom = same_padding(x.shape[-2], reach[0], self.stride[0])
        left, right = same_padding(x.shape[-1], reach[1], self.stride[1])
        if top == bottom and left == right:
            return F.conv2d(x, self.weight, self.bias, self.stride, (top, left), self.dilation, self.groups)
        padded = F.pad(x, (left, right, top, bottom))
        return F.conv2d(padded, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


def mnist_cnn(groups: int = DEFAULTS["groups"], dilation: int = DEFAULTS["dilation"]) -> nn.Module:
    """Return three convolutions and two dense layers: 354,002 parameters.

    The second and the third convolution have *groups* of channels that do not see each other, and *dilation* pixels
    from one weight to the next.
    """
    return nn.Sequential(
        SameConv2d(1, 12, 3),
        nn.ReLU(),
        SameConv2d(12, 24, 6, stride=2, groups=groups, dilation=dilation),
        nn.ReLU(),
        SameConv2d(24, 32, 6, stride=2, groups=groups, dilation=dilation),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(7 * 7 * 32, 200),
        nn.ReLU(),
        nn.Linear(200, CLASSES),
    )


def mnist_mlp() -> nn.Module:
    """Return 784-16-10: 12,730 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(PIXELS * PIXELS, 16), nn.ReLU(), nn.Linear(16, CLASSES))


MODELS: dict[str, Callable[..., nn.Module]] = {"mnist_cnn": mnist_cnn, "mnist_mlp": mnist_mlp}
