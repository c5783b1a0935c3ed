"""One product of matrices, or convolution, or a convolution's gradients, computed of the parts of its factors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch

from hpcml_train.torch import operations
from hpcml_train.torch.operations import CONVOLUTION_BACKWARD, CONVOLUTIONS, Operation, Product
from hpcml_train.torch.schemes import Scheme

_IN_PLACE = "_"


class Call(NamedTuple):
    """A product as a program asked for it."""

    func: Operation
    product: Product
    args: Sequence[Any]  # all that have a position
    kwargs: Mapping[str, Any]

    @classmethod
    def of(cls, func: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """Return the call with each argument in its position."""
        placed, rest = list(args), dict(kwargs)
        for argument in func._schema.arguments[len(args) :]:  # noqa: SLF001 - the schema has no public name
            if argument.kwarg_only:
                break
            placed.append(rest.pop(argument.name, argument.default_value))
        return cls(func, operations.product_of(func), placed, rest)

    @property
    def name(self) -> str:
        """The operation: ``addmm``."""
        return operations.name_of(self.func)

    @property
    def factors(self) -> list[torch.Tensor]:
        """The factors, as they are."""
        return [self.args[position] for position in self.product.factors]

    def flops(self) -> float:
        """Return its floating-point operations: a multiply-add as two; a sparse tensor has those of its values."""
        if self.name == CONVOLUTION_BACKWARD:
            gradient, x, weight = self.factors
            asked = sum(bool(one) for one in self.args[10][:2])
            return 2.0 * asked * (x if self.args[7] else gradient).numel() * (weight.numel() / max(1, weight.shape[0]))
        first, second = self.factors
        if self.name in CONVOLUTIONS:
            return 2.0 * second.numel() / max(1, second.shape[0]) * self._positions(first, second)
        count = first.numel() if first.layout is torch.strided else first._nnz()  # noqa: SLF001 - has no public name
        return 2.0 * count * (second.shape[-1] if second.dim() > 1 else 1)

    def _positions(self, x: torch.Tensor, weight: torch.Tensor) -> float:
        """Return how many times a convolution applies its weights: elements of its result, transposed of its input."""
        if self.args[6]:
            return float(x.numel())
        sizes = [x.shape[0], weight.shape[0]]
        for at, kernel in enumerate(weight.shape[2:]):
            stride, padding, dilation = (one[at % len(one)] for one in self.args[3:6])
            sizes.append((x.shape[2 + at] + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1)
        return float(math.prod(sizes))

    def compute(self, factors: Sequence[torch.Tensor]) -> Any:  # noqa: ANN401 - a tensor, for most
        """Return the result with other *factors*."""
        return self.func(*self._with(factors), **self.kwargs)

    def bare(self, factors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the product of other *factors* alone, without what is added to it."""
        if self.name in CONVOLUTIONS:
            args = self._with(factors)
            args[2] = None
            return cast("torch.Tensor", self.func(*args))
        base = getattr(torch.ops.aten, _BARE[self.name.rstrip(_IN_PLACE)])
        found = base(*factors)
        if self.name.startswith("addbmm"):
            found = found.sum(0)
        return cast("torch.Tensor", found if self.kwargs.get("alpha", 1) == 1 else found * self.kwargs["alpha"])

    def _with(self, factors: Sequence[torch.Tensor]) -> list[Any]:
        args = list(self.args)
        for position, factor in zip(self.product.factors, factors, strict=True):
            args[position] = factor
        return args


_BARE: Mapping[str, str] = {
    "mm": "mm",
    "bmm": "bmm",
    "mv": "mv",
    "dot": "dot",
    "vdot": "vdot",
    "addmm": "mm",
    "addbmm": "bmm",
    "baddbmm": "bmm",
    "addmv": "mv",
}


def multiply(call: Call, scheme: Scheme, are_gradients: Sequence[bool]) -> Any:  # noqa: ANN401
    """Return the sum of the products of the parts of both factors, and what the program adds to it."""
    first, second = (
        scheme.parts(x, is_gradient=is_gradient) for x, is_gradient in zip(call.factors, are_gradients, strict=True)
    )
    (i, j), *smaller = scheme.pairs
    corrections: list[torch.Tensor] = []
    first_finite, second_finite = (_finite(parts) if smaller else parts for parts in (first, second))
    for left, right in reversed(smaller):  # the smallest first
        term = call.bare((first_finite[left], second_finite[right]))
        corrections = [corrections[0].add_(term) if corrections else term]
    result = call.compute((first[i], second[j]))
    return result.add_(corrections[0]) if corrections else result


def differentiate_convolution(call: Call, scheme: Scheme) -> tuple[Any, ...]:
    """Return the gradients of a convolution's input, weight and bias.

    The first two are products, whose factors are rounded once. The last is a sum of what came from the loss, which
    nothing rounds.
    """
    gradient, mask = call.factors[0], call.args[10]
    results: list[Any] = [None, None, None]
    if mask[0] or mask[1]:
        _add_gradients(results, call, scheme)
    if mask[2]:
        results[2] = gradient.sum([dim for dim in range(gradient.dim()) if dim != 1])
    return tuple(results)


def _add_gradients(results: list[Any], call: Call, scheme: Scheme) -> None:
    """Add to *results* the gradients of the input and of the weight, as far as they are wanted."""
    mask = call.args[10]
    needed = (True, mask[1], mask[0])  # the gradient of the one is made of the other
    factors = [
        scheme.parts(x, is_gradient=at == 0) if is_needed else [x] * (1 + max(j for _, j in scheme.pairs))
        for at, (x, is_needed) in enumerate(zip(call.factors, needed, strict=True))
    ]
    call = call._replace(args=[*call.args[:-1], [mask[0], mask[1], False]])
    finite = [_finite(parts) if len(scheme.pairs) > 1 else parts for parts in factors]
    for pair in reversed(scheme.pairs):
        i, j = pair
        gradients, xs, weights = factors if pair == scheme.pairs[0] else finite
        for at, term in enumerate(call.compute((gradients[i], xs[j], weights[j]))):
            if term is not None:
                results[at] = term if results[at] is None else results[at].add_(term)


def _finite(parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return *parts* for the smaller products: what is infinite is all in the largest one, and would be NaN by a 0."""
    return [torch.where(torch.isfinite(parts[0]), parts[0], torch.zeros_like(parts[0])), *parts[1:]]


def multiply_in_fp32(call: Call) -> Any:  # noqa: ANN401
    """Return the product of 16-bit factors, computed in FP32 and rounded to their type once."""
    dtype = call.factors[0].dtype

    def widened(x: Any) -> Any:  # noqa: ANN401
        return x.float() if isinstance(x, torch.Tensor) and x.dtype in (torch.float16, torch.bfloat16) else x

    result = call.func(*map(widened, call.args), **{name: widened(x) for name, x in call.kwargs.items()})
    if isinstance(result, (tuple, list)):
        return tuple(x if x is None else x.to(dtype) for x in result)
    return result.to(dtype)


def refuse_layouts(call: Call) -> None:
    """Raise `NotImplementedError` where a factor is sparse, or stored in another way in which it cannot be rounded."""
    for x in call.factors:
        if x.layout is not torch.strided or x.is_nested:
            raise NotImplementedError(f"aten.{call.name} of a tensor in {x.layout}: this arithmetic rounds dense ones")


def is_convolution_backward(call: Call) -> bool:
    """Tell whether *call* is the gradients of a convolution: three factors, two products."""
    return call.name == CONVOLUTION_BACKWARD
