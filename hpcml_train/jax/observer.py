"""Sees what a JAX program multiplies: the products of every function that JAX lowers, eager ones too.

What was asked for is exact: types, precision and algorithm of each product, which part of it is a backward pass, and
how long loops are. What XLA makes of it is not said for FP32 on a GPU unless its precision is the highest: by default
XLA may take TF32 there, and its calls of cuBLAS name no format.
"""

from __future__ import annotations

import functools
import math
import re
from typing import Any, Callable, Iterator, List, Mapping, Optional, Sequence, Tuple

import jax

from hpcml_train.jax.arithmetic import read_switches
from hpcml_train.jax.flops import convolution_flops, dot_flops, programs_in
from hpcml_train.precision.compiled_programs import (
    BACKWARD,
    BESIDE,
    FORWARD,
    Function,
    Product,
    ProgramObserver,
    Reporter,
)

_FORMATS = {
    "float64": "fp64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "int8": "int8",
}
# jax.lax.DotAlgorithmPreset, and what JAX's configuration calls them
_ALGORITHMS = {
    "BF16_BF16_F32": "bf16",
    "BF16_BF16_F32_X3": "bf16x3",
    "BF16_BF16_F32_X6": "bf16x6",
    "BF16_BF16_F32_X9": "bf16x9",
    "TF32_TF32_F32": "tf32",
    "TF32_TF32_F32_X3": "tf32x3",
    "F32_F32_F32": "fp32",
    "F64_F64_F64": "fp64",
    "F16_F16_F16": "fp16",
    "F16_F16_F32": "fp16",
    "BF16_BF16_BF16": "bf16",
}
_PRECISIONS = {"HIGHEST": "fp32", "HIGH": "tf32"}  # jax.lax.Precision on a GPU
_KERNELS = ("pallas_call", "ffi_call", "custom_call", "call_exported", "triton", "cudnn", "dot_product_attention")
_WRAPPED = re.compile(r"(?:jvp|transpose|vmap|pmap|jit|pjit|checkpoint|remat|remat2|shard_map|named)\(([^()]*)\)")
_NO_LAYER = ("", "rematted_computation", "checkpoint")  # what JAX adds to the stack of names by itself
# In a compiled program's text, whose names of files and functions are the user's: products of XLA's own, of libraries
# and of Triton
_MULTIPLIES = re.compile(
    r"""\s(?:dot|convolution|ragged-dot|scaled-dot)\(|custom_call_target="[^"]*(?:cublas|cudnn|gemm|matmul|conv)"""
    r"""|"kind":\s*"__(?:triton\w*gemm|cublas|cudnn)"""
)
_PROBE = "hpcml_probe"  # what hpcml_train.jax.probe compiles


def observe(report: Reporter, *, how: str = "client", is_brief: bool = False, on_gpu: bool) -> ProgramObserver:
    """Observe this process from now on; return the observer."""
    observer = JaxObserver(report, how=how, is_brief=is_brief, on_gpu=on_gpu)
    observer.install()
    return observer


class JaxObserver(ProgramObserver):
    """Sees the programs (jaxprs) that JAX lowers."""

    framework = "jax"

    def version(self) -> str:
        """Return JAX's."""
        return str(jax.__version__)

    def hook(self, seen: Callable[[Any], None]) -> Callable[[], None]:
        """Stand before JAX's own lowering, which has no public place to look on."""
        from jax._src.interpreters import mlir

        lower = mlir.lower_jaxpr_to_module

        @functools.wraps(lower)
        def look_and_lower(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever JAX passes
            seen((args, kwargs))
            return lower(*args, **kwargs)

        mlir.lower_jaxpr_to_module = look_and_lower

        def undo() -> None:
            if mlir.lower_jaxpr_to_module is look_and_lower:
                mlir.lower_jaxpr_to_module = lower

        return undo

    def read(self, compiled: Any) -> Function:  # noqa: ANN401
        """Return the products of the program among the arguments of a lowering."""
        args, kwargs = compiled
        program = kwargs.get("jaxpr") or next(one for one in args if hasattr(one, "jaxpr"))
        unknown: List[str] = []
        found = list(self._products(program.jaxpr, "", 1, unknown))
        return Function(found, tuple(dict.fromkeys(unknown)))

    def switches(self) -> Mapping[str, object]:
        """Return JAX's."""
        return read_switches()

    def before(self) -> Sequence[str]:
        """Return the compiled functions with products that live already, but for those of the probe."""
        modules = (module for one in jax.local_devices()[0].client.live_executables() for module in one.hlo_modules())
        return [
            f"{module.name} was compiled before it was observed"
            for module in modules
            if _PROBE not in module.name and _MULTIPLIES.search(module.to_string())
        ]

    def _products(self, program: Any, stack: str, times: int, unknown: List[str]) -> Iterator[Product]:  # noqa: ANN401
        for equation in program.eqns:
            name, parameters = equation.primitive.name, equation.params
            place = f"{stack}/{equation.source_info.name_stack}"
            if name == "dot_general":
                yield self._product(equation, dot_flops(equation) * times, place)
            elif name == "conv_general_dilated":
                yield self._product(equation, convolution_flops(equation) * times, place)
            elif name.startswith("ragged_dot"):
                yield self._product(equation, _ragged_flops(equation) * times, place)
            elif any(word in name for word in _KERNELS):
                unknown.append(f"{name}: a kernel of its own")
            else:
                within = int(parameters["length"]) if name == "scan" else 1
                values = [parameters["jaxprs"].solve] if name == "custom_linear_solve" else parameters.values()
                inner = [part for value in values for part in programs_in(value)]
                found = [list(self._products(part, place, times * within, unknown)) for part in inner]
                if name == "cond" and found:  # one of its branches runs
                    found = [max(found, key=lambda branch: math.fsum(one.flops for one in branch))]
                for part in found:
                    yield from part

    def _product(self, equation: Any, flops: float, place: str) -> Product:  # noqa: ANN401
        form, why = self._format(equation)
        phase = BACKWARD if "transpose(" in place else FORWARD if "jvp(" in place else BESIDE
        return Product(form, phase, _layer(place), float(flops), why)

    def _format(self, equation: Any) -> Tuple[Optional[str], str]:  # noqa: ANN401
        """Return the format of the factors, or None and why it is not known."""
        kinds = sorted({str(variable.aval.dtype) for variable in equation.invars[:2]})
        forms = [_FORMATS.get(kind, kind) for kind in kinds]
        if forms == ["fp8_e4m3", "fp8_e5m2"]:
            return "fp8_hybrid", ""
        if forms != ["fp32"] or not self.on_gpu:
            # a CPU multiplies FP32 numbers as they are, whatever algorithm is asked for (JAX 0.10, measured)
            return " x ".join(forms), ""
        asked = equation.params.get("precision")
        names = {str(getattr(one, "name", one)) for one in (asked if isinstance(asked, tuple) else (asked,))}
        name = names.pop() if len(names) == 1 else ""
        # a convolution drops what algorithm it is told
        known = _PRECISIONS if equation.primitive.name != "dot_general" else {**_PRECISIONS, **_ALGORITHMS}
        return known.get(name), "float32 on a GPU, in a precision that XLA chooses"


def _layer(place: str) -> Optional[str]:
    """Return the scopes that the program has named, without what JAX adds.

    >>> _layer("/transpose(jvp(net))/dense")
    'net/dense'
    """
    before = ""
    while before != place:
        before, place = place, _WRAPPED.sub(r"\1", place)
    return "/".join(part for part in place.split("/") if part not in _NO_LAYER and "->" not in part) or None  # einsum


def _ragged_flops(equation: Any) -> int:  # noqa: ANN401
    """Each row of the left factor is multiplied by one matrix, or added to the one product of its group."""
    rows, result = equation.invars[0].aval, equation.outvars[0].aval
    numbers = equation.params.get("ragged_dot_dimension_numbers")
    if numbers is None:  # before JAX 0.5: (rows, inner) by (groups, inner, columns)
        return 2 * int(result.size) * int(rows.shape[-1])
    (summed, _), _ = numbers.dot_dimension_numbers
    is_by_group = set(summed) & set(numbers.lhs_ragged_dimensions)
    groups = int(equation.invars[2].aval.shape[-1]) if is_by_group else 1
    return 2 * int(result.size) // groups * math.prod(int(rows.shape[axis]) for axis in summed)
