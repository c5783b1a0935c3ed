"""What a factorisation is worth: its residual, and how often a solution from it must be refined in FP64."""

from __future__ import annotations

from typing import NamedTuple

import torch
from factors import Solve

_ENOUGH = 1e-15  # a backward error of about four units of FP64's last bit: nothing more to be had


class Refined(NamedTuple):
    """The backward errors of the first and of the last solution; iterations None where it never got there."""

    iterations: int | None
    first: float
    last: float


def factorisation_residual(a: torch.Tensor, lu: torch.Tensor, order: torch.Tensor) -> float:
    """Return |PA - LU| / (N |A|) in the Frobenius norm, computed in FP64: the check of MAGMA's testers."""
    wide = lu.double()
    lower = torch.tril(wide, -1) + torch.eye(len(a), dtype=torch.float64, device=a.device)
    return float((a[order] - lower @ torch.triu(wide)).norm() / (len(a) * a.norm()))


def refine(a: torch.Tensor, b: torch.Tensor, solve: Solve, *, dtype: torch.dtype, most: int) -> Refined:
    """Solve a x = b by *solve* in *dtype*, and add the solution for what is left until the backward error is FP64's.

    What is left is computed in FP64 and solved for in the factors' format, scaled to 1 so that it is in range. The
    backward error is |b - a x| / (|a| |x| + |b|) in the maximum norm.
    """
    a_norm, b_norm = a.abs().sum(dim=1).max(), b.abs().max()
    x = _scaled(solve, dtype, b)
    first = last = float("nan")
    for iteration in range(most + 1):
        left = b - a @ x
        last = float(left.abs().max() / (a_norm * x.abs().max() + b_norm))
        first = last if iteration == 0 else first
        if last < _ENOUGH:
            return Refined(iteration, first, last)
        x = x + _scaled(solve, dtype, left)
    return Refined(None, first, last)


def lu_solver(lu: torch.Tensor, order: torch.Tensor) -> Solve:
    """Return what solves by L and U."""

    def solve(right: torch.Tensor) -> torch.Tensor:
        half = torch.linalg.solve_triangular(lu, right[order].unsqueeze(1), upper=False, unitriangular=True)
        return torch.linalg.solve_triangular(lu, half, upper=True).squeeze(1)

    return solve


def _scaled(solve: Solve, dtype: torch.dtype, right: torch.Tensor) -> torch.Tensor:
    scale = right.abs().max()
    return solve((right / scale).to(dtype)).double() * scale
