"""FP8 by the device's own units: each product of matrices is one of torch's scaled products of 8-bit numbers.

The same scales and formats as emulated. Torch has no convolution of 8-bit numbers, so convolutions are refused; batches
of products are computed one after the other. Sums are kept in FP32: cuBLAS' faster accumulation on Hopper, which keeps
fewer digits, is off. A CPU computes these products too, slowly, which is how they are tested without a GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch

from hpcml_train.torch.emulation import Emulation, Pass, plain_kernels
from hpcml_train.torch.multiplication import Call
from hpcml_train.torch.rounding import FORMATS, eight_bits
from hpcml_train.torch.schemes import Scheme, TensorScaled

_UNIT = 16  # what the length of a sum and of a row must be a multiple of, for cuBLAS
_LEAST_CAPABILITY = (8, 9)
USES_FAST_ACCUMULATION = False


def why_not(device: torch.device) -> str | None:
    """Return why torch has no scaled products on *device*; None where it has them."""
    operation = getattr(torch.ops.aten, "_scaled_mm", None)
    returned = operation.default._schema.returns if operation is not None else []  # noqa: SLF001
    if len(returned) != 1 or not hasattr(torch, "float8_e4m3fn"):
        return f"torch {torch.__version__} has no scaled products of one result, which came with 2.5"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
        return "it needs compute capability 8.9"
    return None


class ScaledProducts(Emulation):  # type: ignore[no-untyped-call, unused-ignore]
    """Computes each product in FP8 while it is active; ``calls`` counts them."""

    is_emulated = False

    def _compute(self, call: Call, rounding: Scheme) -> Any:  # noqa: ANN401
        if isinstance(rounding, TensorScaled) and call.name in _SHAPES:
            return _finish(call, _multiply(call, rounding, self._which_are_gradients(call)))
        raise NotImplementedError(
            f"aten.{call.name} has no FP8 in torch: {self._name} is native in models without convolutions"
        )


@contextlib.contextmanager
def scaled_products(name: str, *, has_rnn: bool = False, must_see: bool = True, of: Pass) -> Iterator[ScaledProducts]:
    """Compute in the FP8 arithmetic *name* in the block, as `hpcml_train.torch.emulation.emulate` emulates it."""
    mode = ScaledProducts(name, of=of)
    with plain_kernels(has_rnn=has_rnn), mode:
        yield mode
    if must_see and not mode.calls:
        raise RuntimeError(f"no matrix product was computed in FP8: {name} did not see the model")


_SHAPES = {  # name -> how many dimensions each factor has
    **dict.fromkeys(("mm", "addmm", "addmm_"), (2, 2)),
    **dict.fromkeys(("bmm", "baddbmm", "baddbmm_", "addbmm", "addbmm_"), (3, 3)),
    **dict.fromkeys(("mv", "addmv", "addmv_"), (2, 1)),
    **dict.fromkeys(("dot", "vdot"), (1, 1)),
}


def _multiply(call: Call, rounding: TensorScaled, are_gradients: Sequence[bool]) -> torch.Tensor:
    """Return the product of the factors of *call* in FP32."""
    codes, decoders = [], []
    for x, is_gradient in zip(call.factors, are_gradients, strict=True):
        scale, form = rounding.scale(x, is_gradient=is_gradient), rounding.form(is_gradient=is_gradient)
        limit = FORMATS[form].largest
        limited = (x * scale).clamp(-limit, limit)  # but what is not finite stays so, where the format can say it
        codes.append(torch.where(torch.isfinite(x), limited, torch.full_like(x, torch.nan)).to(eight_bits(form)))
        decoders.append(scale.reciprocal())
    a, b = codes
    if _SHAPES[call.name] == (3, 3):
        products = [_multiply_matrices(one, other, *decoders) for one, other in zip(a, b, strict=True)]
        whole = torch.stack(products) if products else call.factors[0].new_zeros(0, a.shape[1], b.shape[2])
        return whole.sum(0) if call.name.startswith("addbmm") else whole
    rows = a if a.dim() == 2 else a.unsqueeze(0)
    columns = b if b.dim() == 2 else b.unsqueeze(1)
    return _multiply_matrices(rows, columns, *decoders).reshape((*a.shape[:-1], *(b.shape[1:] if b.dim() == 2 else ())))


def _multiply_matrices(
    a: torch.Tensor, b: torch.Tensor, decode_a: torch.Tensor, decode_b: torch.Tensor
) -> torch.Tensor:
    """Return the product of two matrices of 8-bit numbers, filled up with zeros to the sizes that cuBLAS takes."""
    columns = b.shape[1]
    product = torch._scaled_mm(  # noqa: SLF001 - its public form came with torch 2.10
        _filled(a, 1),
        _filled(_filled(b.t(), 0), 1).t(),  # in the order of columns, as cuBLAS wants it
        scale_a=decode_a,
        scale_b=decode_b,
        out_dtype=torch.float32,
        use_fast_accum=USES_FAST_ACCUMULATION,
    )
    return product[:, :columns]


def _filled(x: torch.Tensor, dim: int) -> torch.Tensor:
    missing = -x.shape[dim] % _UNIT
    if not missing:
        return x.contiguous()
    shape = list(x.shape)
    shape[dim] = missing
    zeros = torch.zeros(shape, dtype=torch.uint8, device=x.device).view(x.dtype)
    return torch.cat([x.view(torch.uint8), zeros.view(torch.uint8)], dim).view(x.dtype)


def _finish(call: Call, product: torch.Tensor) -> torch.Tensor:
    """Return what *call* returns: the product, what is added to it, and where it is to be written."""
    alpha, beta = call.kwargs.get("alpha", 1), call.kwargs.get("beta", 1)
    result = product if alpha == 1 else product * alpha
    if call.product.addend is not None and beta != 0:
        result = result + call.args[call.product.addend] * beta
    out = call.args[0] if call.name.endswith("_") else call.kwargs.get("out")
    if out is None:
        return result
    if out.shape != result.shape:
        out.resize_(result.shape)
    return cast("torch.Tensor", out.copy_(result))
