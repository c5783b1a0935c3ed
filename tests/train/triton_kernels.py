"""A product of matrices in Triton, which reads a kernel's source from its file and knows no types of Python."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 64


@triton.jit
def product_kernel(a, b, c, n: tl.constexpr, block: tl.constexpr) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
    row, column, at = tl.program_id(0), tl.program_id(1), tl.arange(0, block)
    total = tl.zeros((block, block), tl.float32)
    for k in range(0, n, block):
        left = tl.load(a + (row * block + at)[:, None] * n + k + at[None])
        right = tl.load(b + (k + at)[:, None] * n + (column * block + at)[None])
        total += tl.dot(left, right)
    tl.store(c + (row * block + at)[:, None] * n + (column * block + at)[None], total)


def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the product of two square matrices on a GPU, whose size is a multiple of 64."""
    c = torch.empty_like(a)
    blocks = len(a) // _BLOCK
    product_kernel[(blocks, blocks)](a, b, c, len(a), _BLOCK)
    return c
