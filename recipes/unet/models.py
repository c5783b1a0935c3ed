"""A small U-Net: O. Ronneberger et al., arXiv 1505.04597, with padded convolutions and GroupNorm."""

from __future__ import annotations

from typing import cast

import torch
from pixels import GROUPS, HALVINGS
from torch import nn


class UNet(nn.Module):
    """Down and up again by halves; each way up is given what was seen on the way down."""

    def __init__(self, channels: int, classes: int, width: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(HALVINGS + 1)]
        self.down = nn.ModuleList(
            _convolve_twice(inputs, outputs)
            for inputs, outputs in zip([channels, *widths[:-2]], widths[:-1], strict=True)
        )
        self.bottom = _convolve_twice(widths[-2], widths[-1])
        self.enlarge = nn.ModuleList(
            # not nn.Upsample: the gradient of its interpolation is not deterministic on a GPU
            nn.ConvTranspose2d(2 * outputs, outputs, 2, stride=2)
            for outputs in reversed(widths[:-1])
        )
        self.up = nn.ModuleList(_convolve_twice(2 * outputs, outputs) for outputs in reversed(widths[:-1]))
        self.shrink = nn.MaxPool2d(2)
        self.classify = nn.Conv2d(width, classes, 1)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
                # as published (section 3). From torch's own weights, not half as large, it learns that there is a
                # shape, and for hundreds of steps not which
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen: list[torch.Tensor] = []
        for down in self.down:
            seen.append(down(x))
            x = self.shrink(seen[-1])
        x = self.bottom(x)
        for enlarge, up in zip(self.enlarge, self.up, strict=True):
            x = up(torch.cat([seen.pop(), enlarge(x)], dim=1))
        return cast("torch.Tensor", self.classify(x))


def _convolve_twice(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(*_convolve(inputs, outputs), *_convolve(outputs, outputs))


def _convolve(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    # GroupNorm sees one sample at a time: batches in parts, and shared by processes, give what the whole gives
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.GroupNorm(GROUPS, outputs), nn.ReLU(inplace=True)
