"""The floating point operations of one step in JAX, counted once on shapes alone, before anything is compiled."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from hpcml_train.loop import StepCount

_DOUBTFUL = {
    "while": "a loop of unknown length, counted once",
    "checkpoint": "what is computed again, counted twice",
    "pallas_call": "a kernel, counted as one block",
    "ffi_call": "a foreign function, not counted",
}


def count_step(step: Callable[..., object], *arguments: object) -> StepCount:
    """Count the products of matrices and the convolutions of ``step(*arguments)``, its backward pass included."""
    doubts: set[str] = set()
    flops = _count(jax.make_jaxpr(step)(*arguments).jaxpr, doubts)
    return StepCount(float(flops), "; ".join(sorted(doubts)) or None)


def _count(program: Any, doubts: set[str]) -> int:  # noqa: ANN401 - JAX exports no name for it
    return sum(_count_one(equation, doubts) for equation in program.eqns)


def _count_one(equation: Any, doubts: set[str]) -> int:  # noqa: ANN401
    name, parameters = equation.primitive.name, equation.params
    if name == "dot_general":
        return _dot_flops(equation)
    if name == "conv_general_dilated":
        return _convolution_flops(equation)
    if name in _DOUBTFUL:
        doubts.add(f"{name}: {_DOUBTFUL[name]}")
    inner = [_count(part, doubts) for value in parameters.values() for part in _programs_in(value)]
    if name == "cond":
        return max(inner)  # one of its branches runs
    return sum(inner) * (int(parameters["length"]) if name == "scan" else 1)


def _programs_in(value: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield the programs in a parameter of an operation, open or closed."""
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _programs_in(part)
    elif hasattr(value, "eqns"):  # asked first: from JAX 0.11 on an open one is its own ``jaxpr``
        yield value


def _dot_flops(equation: Any) -> int:  # noqa: ANN401
    """Multiply the numbers of the result by the length of the sum that makes each of them."""
    (contracted, _), _ = equation.params["dimension_numbers"]
    left: list[int] = list(equation.invars[0].aval.shape)
    return 2 * _size(equation.outvars[0].aval.shape) * _size(left[axis] for axis in contracted)


def _convolution_flops(equation: Any) -> int:  # noqa: ANN401
    """Multiply the products of each window by the windows; zeros that a backward pass puts between do not count."""
    parameters = equation.params
    data, weights = (variable.aval.shape for variable in equation.invars[:2])
    result, numbers = equation.outvars[0].aval.shape, parameters["dimension_numbers"]
    outputs, inputs, *sides = numbers.rhs_spec  # inputs: of one group
    window = _size(weights[axis] for axis in sides)
    if any(dilation != 1 for dilation in parameters["lhs_dilation"]):
        return 2 * _size(data) * window * int(weights[outputs]) // int(parameters["feature_group_count"])
    return 2 * _size(result) * window * int(weights[inputs])


def _size(sides: Iterable[Any]) -> int:
    return math.prod(int(side) for side in sides)
