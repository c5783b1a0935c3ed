"""Operations with products inside their kernels, written out in operations that an emulation sees.

They compute what torch's own kernels compute: the sums are the same, in another order. One may return
`NotImplemented`, where the kernel has no product for these arguments.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional, Sequence

import torch

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MANY_POINTS = 25  # from which on torch takes products for Euclidean distances, unless it is told


def addmm_activation(
    self: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    use_gelu: bool = False,
) -> torch.Tensor:
    """Return the activated sum of *self* and a product."""
    y = torch.addmm(self, mat1, mat2, beta=beta, alpha=alpha)
    return torch.nn.functional.gelu(y, approximate="tanh") if use_gelu else torch.relu(y)


def conv_tbc(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, pad: int = 0) -> torch.Tensor:
    """Return a convolution over time of (time, batch, channels)."""
    y = torch.nn.functional.conv1d(x.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
    return y.permute(2, 0, 1).contiguous()


def trilinear(
    i1: torch.Tensor,
    i2: torch.Tensor,
    i3: torch.Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    """Return the sum over *sumdim* of the product of three tensors, each expanded along dimensions of its own."""
    del unroll_dim  # how torch saves memory
    dims = range(i1.dim() + len(expand1))
    letters = ["".join(_LETTERS[dim] for dim in dims if dim not in expand) for expand in (expand1, expand2, expand3)]
    result = "".join(_LETTERS[dim] for dim in dims if dim not in sumdim)
    between = "".join(x for x in _LETTERS[: len(dims)] if x in letters[0] + letters[1] and x in letters[2] + result)
    pair = torch.einsum(f"{letters[0]},{letters[1]}->{between}", i1, i2)
    return torch.einsum(f"{between},{letters[2]}->{result}", pair, i3).contiguous()


def euclidean_dist(x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
    """Return distances by a product, as torch does: |a|^2 - 2ab + |b|^2 is one row times one column."""
    norm1, norm2 = x1.pow(2).sum(-1, keepdim=True), x2.pow(2).sum(-1, keepdim=True)
    rows = torch.cat([x1.mul(-2), norm1, torch.ones_like(norm1)], -1)
    columns = torch.cat([x2, torch.ones_like(norm2), norm2], -1)
    return rows.matmul(columns.mT).clamp_min(0).sqrt()


def cdist_forward(x1: torch.Tensor, x2: torch.Tensor, p: float, compute_mode: Optional[int]) -> Any:  # noqa: ANN401
    """Return distances by a product where torch would take one; `NotImplemented` where it goes pair by pair."""
    many = x1.shape[-2] > _MANY_POINTS or x2.shape[-2] > _MANY_POINTS
    if p == 2 and (compute_mode == 1 or (not compute_mode and many)):
        return euclidean_dist(x1, x2)
    return NotImplemented


def affine_grid_generator(theta: torch.Tensor, size: Sequence[int], align_corners: bool) -> torch.Tensor:  # noqa: FBT001 - as torch has it
    """Return where each pixel of (N, C, H, W) or (N, C, D, H, W) comes from, by one product as torch does it."""
    pixels = list(size[2:])
    base = theta.new_ones(size[0], *pixels, len(pixels) + 1)
    for dim, n in enumerate(reversed(pixels)):  # x is the last dimension
        steps = torch.linspace(-1, 1, n, dtype=theta.dtype, device=theta.device) if n > 1 else theta.new_zeros(1)
        steps = steps if align_corners else steps * (n - 1) / n
        base[..., dim] = steps.reshape(-1, *[1] * dim)
    return base.flatten(1, -2).bmm(theta.mT).reshape(size[0], *pixels, len(pixels))


REPLACEMENTS: Mapping[str, Callable[..., Any]] = {
    "_addmm_activation": addmm_activation,
    "conv_tbc": conv_tbc,
    "_trilinear": trilinear,
    "_euclidean_dist": euclidean_dist,
    "_cdist_forward": cdist_forward,
    "affine_grid_generator": affine_grid_generator,
}
