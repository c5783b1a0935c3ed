"""One product of matrices, or convolution, or a convolution's gradients, computed of the parts of its factors."""

from __future__ import annotations

import math
from typing import Any, List, Mapping, NamedTuple, Sequence, Tuple, cast

import torch

from hpcml_train.torch import operations
from hpcml_train.torch.operations import CONVOLUTION_BACKWARD, CONVOLUTIONS, Operation, Product
from hpcml_train.torch.schemes import Place, Scheme

_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)
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
    def factors(self) -> List[torch.Tensor]:
        """The factors, as they are."""
        return [self.args[position] for position, _ in self.product.factors]

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

    def places(self) -> List[Place]:
        """Return where each of two factors is summed over."""
        along, groups = [dim for _, dim in self.product.factors], [1, 1]
        if self.name in CONVOLUTIONS:
            groups[0] = self.args[8]
            if self.args[6]:  # transposed: its weight has the channels of the input in front
                along[1], groups[1] = 0, self.args[8]
        return [Place(*place) for place in zip(along, groups)]  # noqa: B905 - Python 3.8

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

    def _with(self, factors: Sequence[torch.Tensor]) -> List[Any]:
        args = list(self.args)
        for (position, _), factor in zip(self.product.factors, factors):  # noqa: B905 - Python 3.8
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


def multiply(call: Call, scheme: Scheme, places: Sequence[Place]) -> Any:  # noqa: ANN401
    """Return the sum of the products of the parts of both factors, and what the program adds to it."""
    first, second = (_parts_of(x, scheme, place) for x, place in zip(call.factors, places))  # noqa: B905 - Python 3.8
    (i, j), *smaller = scheme.pairs
    corrections: List[torch.Tensor] = []
    first_finite, second_finite = (_finite(parts) if smaller else parts for parts in (first, second))
    for left, right in reversed(smaller):  # the smallest first
        term = call.bare((first_finite[left], second_finite[right]))
        corrections = [corrections[0].add_(term) if corrections else term]
    result = call.compute((first[i], second[j]))
    return result.add_(corrections[0]) if corrections else result


def differentiate_convolution(call: Call, scheme: Scheme, name: str) -> Tuple[Any, ...]:
    """Return the gradients of a convolution's input, weight and bias.

    The first two are products, over the channels of the output and over the images. The last is a sum of what came from
    the loss, which nothing rounds.
    """
    gradient = call.factors[0]
    is_transposed, groups, mask = call.args[7], call.args[9], call.args[10]
    outputs = Place(1, 1) if is_transposed else Place(0, groups)  # of the weight
    over_channels = (Place(1, groups, is_gradient=True, name=f"{name}.0"), Place(0, name=f"{name}.1"), outputs)
    over_images = (over_channels[0]._replace(along=0, groups=1), *over_channels[1:])
    results: List[Any] = [None, None, None]
    if not scheme.is_directional:  # a factor of two products is rounded once
        places = (*over_channels[:2], outputs._replace(name=f"{name}.2"))
        _add_gradients(results, call, scheme, places, (mask[0], mask[1]))
    else:
        if mask[0]:
            _add_gradients(results, call, scheme, over_channels, (True, False))
        if mask[1]:
            _add_gradients(results, call, scheme, over_images, (False, True))
    if mask[2]:
        results[2] = gradient.sum([dim for dim in range(gradient.dim()) if dim != 1])
    return tuple(results)


def _add_gradients(
    results: List[Any], call: Call, scheme: Scheme, places: Sequence[Place], wanted: Tuple[bool, bool]
) -> None:
    """Add to *results* the gradients of the input and of the weight, as far as *wanted*."""
    if not any(wanted):
        return
    needed = (True, wanted[1], wanted[0])  # the gradient of the one is made of the other
    of_gradient, of_x, of_weight = (
        scheme.parts(x, place) if is_needed else [x] * (1 + max(j for _, j in scheme.pairs))
        for x, place, is_needed in zip(call.factors, places, needed)  # noqa: B905 - Python 3.8
    )
    call = call._replace(args=[*call.args[:-1], [*wanted, False]])
    factors = (of_gradient, of_x, of_weight)
    finite = [_finite(parts) if len(scheme.pairs) > 1 else parts for parts in factors]
    for pair in reversed(scheme.pairs):
        i, j = pair
        gradients, xs, weights = factors if pair == scheme.pairs[0] else finite
        for at, term in enumerate(call.compute((gradients[i], xs[j], weights[j]))):
            if term is not None:
                results[at] = term if results[at] is None else results[at].add_(term)


def _finite(parts: Sequence[torch.Tensor]) -> List[torch.Tensor]:
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


def refuse_layouts(call: Call, scheme: Scheme) -> None:
    """Raise `NotImplementedError` where a factor is stored in a way in which it cannot be rounded."""
    for x in call.factors:
        is_plain = x.layout is torch.strided and not x.is_nested
        if not is_plain and (x.layout not in _SPARSE or scheme.is_directional or len(scheme.pairs) > 1):
            raise NotImplementedError(f"aten.{call.name} of a tensor in {x.layout}: this arithmetic rounds dense ones")


def _parts_of(x: torch.Tensor, scheme: Scheme, place: Place) -> List[torch.Tensor]:
    if x.layout is torch.strided:
        return scheme.parts(x, place)
    return [_with_values(x, scheme.parts(_values(x), place)[0])]


def _values(x: torch.Tensor) -> torch.Tensor:
    # values() is refused for a matrix that names a place twice
    return x._values() if x.layout is torch.sparse_coo else x.values()  # noqa: SLF001


def _with_values(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return *x*, a sparse matrix, with other values in the same places."""
    if x.layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(
            x._indices(),  # noqa: SLF001
            values,
            x.shape,
            is_coalesced=x.is_coalesced(),
            check_invariants=False,
        )
    rows = x.layout is torch.sparse_csr
    outer, inner = (x.crow_indices(), x.col_indices()) if rows else (x.ccol_indices(), x.row_indices())
    return torch.sparse_compressed_tensor(outer, inner, values, x.shape, layout=x.layout, check_invariants=False)


def is_convolution_backward(call: Call) -> bool:
    """Tell whether *call* is the gradients of a convolution: three factors, two products."""
    return call.name == CONVOLUTION_BACKWARD
