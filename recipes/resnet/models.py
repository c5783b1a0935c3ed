"""ResNet-18 and ResNet-50: K. He et al., Deep Residual Learning for Image Recognition, arXiv 1512.03385, table 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

_WIDTHS = (64, 128, 256, 512)  # of the four stages; each halves the picture but the first


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolve(inputs, width, 3, stride), nn.ReLU(inplace=True), *_convolve(width, width, 3, 1)
        )
        self.shortcut = _shortcut(inputs, width, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.relu(self.body(x) + self.shortcut(x))
        return y


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut; the 3x3 one strides, as in all of today's code ("v1.5")."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolve(inputs, width, 1, 1),
            nn.ReLU(inplace=True),
            *_convolve(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolve(width, width * self.expansion, 1, 1),
        )
        self.shortcut = _shortcut(inputs, width * self.expansion, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.relu(self.body(x) + self.shortcut(x))
        return y


def resnet(kind: type[Block | Bottleneck], depths: Sequence[int], classes: int) -> nn.Sequential:
    """Return the stem, four stages of so many blocks, and the classifier."""
    layers: list[nn.Module] = [
        *_convolve(3, _WIDTHS[0], 7, 2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    inputs = _WIDTHS[0]
    for stage, (width, depth) in enumerate(zip(_WIDTHS, depths, strict=True)):
        for number in range(depth):
            layers.append(kind(inputs, width, stride=2 if stage > 0 and number == 0 else 1))
            inputs = width * kind.expansion
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "resnet18": lambda classes: resnet(Block, (2, 2, 2, 2), classes),  # 11,689,512 parameters for 1000 classes
    "resnet50": lambda classes: resnet(Bottleneck, (3, 4, 6, 3), classes),  # 25,557,032
}


def _convolve(inputs: int, outputs: int, kernel: int, stride: int) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution, nn.BatchNorm2d(outputs)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if inputs == outputs and stride == 1:
        return nn.Identity()
    return nn.Sequential(*_convolve(inputs, outputs, 1, stride))
