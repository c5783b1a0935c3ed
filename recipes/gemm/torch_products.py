"""Products of matrices in torch: inputs in the format of the precision, or rounded to it where that is emulated."""

from __future__ import annotations

import torch

from hpcml_client import Client
from hpcml_train.torch.arithmetic import Arithmetic

_SAMPLE = 64  # rows and columns that are computed again in FP64


def arithmetic_of(run: Client) -> Arithmetic:
    return run.apply_precision("torch")


def make(arithmetic: Arithmetic, size: int, batch: int, seed: int) -> TorchProducts:
    return TorchProducts(arithmetic, size, batch, seed)


class TorchProducts:
    """*batch* pairs of matrices of standard normal numbers: drawn on the CPU in FP64, the same for every precision."""

    def __init__(self, arithmetic: Arithmetic, size: int, batch: int, seed: int) -> None:
        self._arithmetic = arithmetic
        generator = torch.Generator().manual_seed(seed)
        self._sampled = torch.arange(0, size, max(1, size // _SAMPLE))[:_SAMPLE]
        shape = (size, size) if batch == 1 else (batch, size, size)
        exact_a = torch.randn(shape, generator=generator, dtype=torch.float64)
        self._a = self._give(exact_a)
        self._rows = exact_a[..., self._sampled, :].clone()
        del exact_a  # of large matrices no more than one is kept in FP64
        exact_b = torch.randn(shape, generator=generator, dtype=torch.float64)
        self._b = self._give(exact_b)
        self._columns = exact_b[..., :, self._sampled].clone()
        self._product = torch.empty_like(self._a)

    def compute(self) -> None:
        if not self._arithmetic.replaces_products:
            torch.matmul(self._a, self._b, out=self._product)
            return
        with self._arithmetic.context(), torch.autocast(self._a.device.type, enabled=False):
            self._product = torch.matmul(self._a, self._b)

    def wait(self) -> None:
        if self._a.device.type == "cuda":
            torch.cuda.synchronize(self._a.device)

    def relative_error(self) -> float:
        self.compute()
        sample = self._product[..., self._sampled, :][..., self._sampled].cpu().double()
        exact = self._rows @ self._columns
        return float((sample - exact).norm() / exact.norm())

    def _give(self, exact: torch.Tensor) -> torch.Tensor:
        # where a training would cast both matrices for each product, they are given in 16 bits: what is timed is it
        return exact.to(device=self._arithmetic.device, dtype=self._arithmetic.factor_dtype)
