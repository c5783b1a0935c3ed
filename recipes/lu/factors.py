"""What a library makes of a matrix besides LU: Cholesky's factor of a positive definite one, and Householder's QR."""

from __future__ import annotations

from collections.abc import Callable

import torch

Solve = Callable[[torch.Tensor], torch.Tensor]  # of a right side in the factors' format

# operations over N^3, a multiply-add as two (LAPACK Working Note 41)
OPERATIONS = {"cholesky": 1 / 3, "qr": 4 / 3}


def positive_definite(a: torch.Tensor) -> torch.Tensor:
    """Return a symmetric matrix of the numbers of *a*, in 0..1, that is positive definite by its diagonal."""
    return (a + a.T) / 2 + len(a) * torch.eye(len(a), dtype=a.dtype, device=a.device)


def factorised(kind: str, a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return L of a = L L^T, or Q and R."""
    return (torch.linalg.cholesky(a),) if kind == "cholesky" else tuple(torch.linalg.qr(a))


def multiplied(factors: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return the product of *factors* in FP64."""
    first, last = factors[0].double(), factors[-1].double()
    return first @ (last.T if len(factors) == 1 else last)


def solver(factors: tuple[torch.Tensor, ...]) -> Solve:
    """Return what solves by *factors*."""
    if len(factors) == 1:
        return lambda right: torch.cholesky_solve(right.unsqueeze(1), factors[0]).squeeze(1)
    q, r = factors
    return lambda right: torch.linalg.solve_triangular(r, (q.T @ right).unsqueeze(1), upper=True).squeeze(1)
