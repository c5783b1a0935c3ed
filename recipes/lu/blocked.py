"""LU with partial pivoting in blocks: panels in the working format, the products below them in the run's precision."""

from __future__ import annotations

from collections.abc import Callable

import torch

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of two matrices, in and out in the working format


def factorise(a: torch.Tensor, block: int, product: Product) -> tuple[torch.Tensor, torch.Tensor]:
    """Return L and U in one matrix, L without its diagonal of ones, and the order of the rows: a[order] = L U."""
    lu = a.clone()
    size = len(lu)
    order = torch.arange(size, device=a.device)
    for begin in range(0, size, block):
        end = min(begin + block, size)
        panel, pivots = torch.linalg.lu_factor(lu[begin:, begin:end])
        moved = _order_of(pivots, size - begin)
        lu[begin:] = lu[begin:][moved]
        order[begin:] = order[begin:][moved]
        lu[begin:, begin:end] = panel
        if end < size:
            top = torch.linalg.solve_triangular(
                lu[begin:end, begin:end], lu[begin:end, end:], upper=False, unitriangular=True
            )
            lu[begin:end, end:] = top
            lu[end:, end:] -= product(lu[end:, begin:end], top)
    return lu, order


def _order_of(pivots: torch.Tensor, size: int) -> torch.Tensor:
    """Return the order of the rows that LAPACK's exchanges, counted from 1, lead to."""
    order = list(range(size))
    for row, other in enumerate((pivots - 1).tolist()):
        order[row], order[other] = order[other], order[row]
    return torch.tensor(order, device=pivots.device)


def lapack_factorise(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same from LAPACK, or what takes its place on a GPU."""
    lu, pivots = torch.linalg.lu_factor(a)
    return lu, _order_of(pivots, len(a))
