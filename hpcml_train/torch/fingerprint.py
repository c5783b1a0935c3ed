"""The format that a real product was computed in, by its numbers: whatever types, switches and kernels are called.

A few rows and columns of a layer's product are computed again in FP64 with the factors rounded to each format that a
float32 product may secretly have. The one that leaves no more than the errors of FP32 sums, and far less than the
others, is the format. Formats whose errors lie below that, BF16x9 or 3xTF32, cannot be told from FP32.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

from hpcml_train.torch import traces

_SAMPLE = 12  # rows, and columns
_LEAST_SUM = 16  # numbers in a sum: below, too few digits differ
_CLEARLY = 4.0  # times: how much nearer the best format must be than the next
_SUMS = 6.0  # times sqrt(K) 2**-24: what FP32 sums err by, generously


class Sample(NamedTuple):
    """A part of a product that a program computed, on the CPU: rows (m, K), columns (n, K), their products (m, n)."""

    rows: torch.Tensor
    columns: torch.Tensor
    products: torch.Tensor


def kind_of(module: torch.nn.Module) -> Optional[str]:
    """Return ``linear`` or ``conv`` for a layer whose products can be sampled, else None."""
    if type(module) is torch.nn.Linear:
        return "linear"
    if type(module) is torch.nn.Conv2d and module.groups == 1 and module.padding_mode == "zeros":
        return "conv" if not isinstance(module.padding, str) else None
    return None


def sample(module: Any, x: Any, y: Any) -> Optional[Sample]:  # noqa: ANN401 - any module, and what it got and gave
    """Return a sample of the product that *module* computed of *x*, or None where *y* is none of float32 tensors.

    Nothing of it is seen by autograd, and traces tell it from the program's own work.
    """
    weight = module.weight
    plain = (torch.Tensor, torch.nn.Parameter)
    if any(type(one) not in plain or one.dtype is not torch.float32 for one in (x, y, weight)) or y.numel() == 0:
        return None
    if traces.autocast_dtype(x.device.type) is not None:
        return None  # the product was not of float32
    if math.prod(weight.shape[1:]) < _LEAST_SUM:
        return None
    with torch.no_grad(), traces.own_mark():
        take = _sample_linear if kind_of(module) == "linear" else _sample_convolution
        rows, columns, products = take(module, x.detach(), y.detach(), weight.detach())
        return Sample(rows.cpu(), columns.cpu(), products.cpu())


def format_of(of: Sample) -> Optional[str]:
    """Return the format in which the products of the sample were computed; None where the numbers do not say it."""
    rows, columns, products = of
    scale = rows.double().abs() @ columns.double().abs().T
    if not bool(torch.isfinite(products).all()) or not bool((scale > 0).all()):
        return None
    residuals = {
        name: float((((exact - products) / scale).square().mean()).sqrt())
        for name, exact in _candidates(rows, columns).items()
    }
    best = min(residuals, key=lambda name: residuals[name])
    if residuals[best] > _SUMS * math.sqrt(rows.shape[1]) * 2.0**-24:
        return None
    near = {_SAME.get(name, name) for name, error in residuals.items() if error <= _CLEARLY * residuals[best]}
    return near.pop() if len(near) == 1 else None  # small integers, say, are exact in every format


_SAME = {"tf32 rz": "tf32"}


def _candidates(rows: torch.Tensor, columns: torch.Tensor) -> Dict[str, torch.Tensor]:
    a, b = _split(rows, 2), _split(columns, 2)
    return {
        "fp32": rows.double() @ columns.double().T,
        "tf32": _rounded(rows, 10, nearest=True) @ _rounded(columns, 10, nearest=True).T,
        "tf32 rz": _rounded(rows, 10, nearest=False) @ _rounded(columns, 10, nearest=False).T,
        "bf16": a[0] @ b[0].T,
        "bf16x3": a[0] @ b[0].T + a[0] @ b[1].T + a[1] @ b[0].T,
    }


def _rounded(x: torch.Tensor, bits: int, *, nearest: bool) -> torch.Tensor:
    codes, dropped = x.contiguous().view(torch.int32), 23 - bits
    if nearest:
        codes = codes + (1 << (dropped - 1))
    return (codes & -(1 << dropped)).view(torch.float32).double()


def _split(x: torch.Tensor, parts: int) -> List[torch.Tensor]:
    """Return *x* as a sum of numbers of BF16."""
    rest, found = x, []
    for _ in range(parts):
        part = rest.bfloat16().float()
        found.append(part.double())
        rest = rest - part
    return found


def _spread(count: int) -> List[int]:
    """Return up to as many indices below *count* as a sample has, spread evenly."""
    n = min(_SAMPLE, count)
    return [at * count // n for at in range(n)]


def _sample_linear(
    module: torch.nn.Linear, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    columns = _spread(weight.shape[0])
    places = [_unravel(at, y.shape[:-1]) for at in _spread(math.prod(y.shape[:-1]))]
    rows = torch.stack([x[place] for place in places])
    products = torch.stack([y[place][columns] for place in places]).double()
    return rows, weight[columns], _without_bias(module, products, columns)


def _sample_convolution(
    module: torch.nn.Conv2d, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if x.dim() == 3:
        x, y = x[None], y[None]
    columns, patches, products = _spread(weight.shape[0]), [], []
    for image, row, column in (
        _unravel(at, (y.shape[0], *y.shape[2:])) for at in _spread(y.shape[0] * math.prod(y.shape[2:]))
    ):
        patches.append(_patch(module, x[image], row, column).flatten())
        products.append(y[image, columns, row, column])
    found = _without_bias(module, torch.stack(products).double(), columns)
    return torch.stack(patches), weight[columns].flatten(1), found


def _patch(module: torch.nn.Conv2d, image: torch.Tensor, row: int, column: int) -> torch.Tensor:
    """Return the inputs (channels, kernel height, kernel width) of one result, zeros where they are padding."""
    sizes, (strides, paddings, dilations) = module.kernel_size, (module.stride, module.padding, module.dilation)
    patch = image.new_zeros(image.shape[0], *sizes)
    ranges = []
    for axis, at in enumerate((row, column)):
        begin = at * strides[axis] - int(paddings[axis])
        inside = [k for k in range(sizes[axis]) if 0 <= begin + k * dilations[axis] < image.shape[1 + axis]]
        ranges.append((inside, [begin + k * dilations[axis] for k in inside]))
    (rows, from_rows), (columns, from_columns) = ranges
    if rows and columns:
        patch[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = image[:, from_rows][:, :, from_columns]
    return patch


def _without_bias(module: Any, products: torch.Tensor, columns: List[int]) -> torch.Tensor:  # noqa: ANN401
    return products if module.bias is None else products - module.bias.detach()[columns].double()


def _unravel(at: int, shape: Any) -> Tuple[int, ...]:  # noqa: ANN401 - a torch.Size
    found: List[int] = []
    for size in reversed(shape):
        found.insert(0, at % size)
        at //= size
    return tuple(found)
