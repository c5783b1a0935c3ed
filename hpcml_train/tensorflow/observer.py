"""Sees what a TensorFlow program multiplies: the products in the graph of every function, gradients included.

Each graph tells the types of its products and in which layer they are, also where XLA compiles it. What runs eagerly is
in no graph and is not seen. FP32 products on a GPU are FP32 only where TF32 is switched off; where it is allowed,
kernels alone know.
"""

from __future__ import annotations

import functools
import math
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import tensorflow as tf

from hpcml_train.precision.compiled_programs import (
    BACKWARD,
    BESIDE,
    FORWARD,
    Function,
    Product,
    ProgramObserver,
    Reporter,
)
from hpcml_train.tensorflow.arithmetic import read_switches

_FORMATS = {
    "float64": "fp64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
}
OURS = "hpcml_"  # what names of our own functions begin with
_PRODUCT = re.compile(r"MatMul|Conv[23]D|DepthwiseConv2d|Einsum|XlaDot|XlaConv")
_IS_NONE = re.compile(r"Quant|ToEinsum|MatMulSparse$")
_UNSEEN = ("CudnnRNN", "XlaLaunch", "XlaCallModule", "PyFunc", "EagerPyFunc")
_PART = re.compile(r"(^|_)(while|cond|body|true|false)_|_rewritten|_grad_")
_GRADIENT = ("gradient_tape/", "gradients/")
_OUTER = re.compile(r"(gradient_tape|gradients|while|while_grad|replica(_\d+)?)$|.*_grad$")
_MODEL = re.compile(r"(sequential|functional|model)(?:_\d+)*?((?:_\d+)?)$")


def observe(report: Reporter, *, how: str = "client", is_brief: bool = False, on_gpu: bool) -> ProgramObserver:
    """Observe this process from now on; return the observer."""
    observer = TensorflowObserver(report, how=how, is_brief=is_brief, on_gpu=on_gpu)
    observer.install()
    return observer


class TensorflowObserver(ProgramObserver):
    """Sees the graphs that become functions of TensorFlow's runtime."""

    framework = "tensorflow"

    def version(self) -> str:
        """Return TensorFlow's."""
        return str(tf.__version__)

    def hook(self, seen: Callable[[Any], None]) -> Callable[[], None]:
        """Stand before the place where graphs become functions, of which none is public."""
        from tensorflow.python.eager.polymorphic_function import (
            atomic_function,
        )

        make = atomic_function.from_func_graph

        @functools.wraps(make)
        def look_and_make(name: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as TensorFlow calls it
            seen((name, graph))
            return make(name, graph, *args, **kwargs)

        atomic_function.from_func_graph = look_and_make

        def undo() -> None:
            if atomic_function.from_func_graph is look_and_make:
                atomic_function.from_func_graph = make

        return undo

    def read(self, compiled: Any) -> Function:  # noqa: ANN401
        """Return the products of a graph."""
        title, graph = compiled
        title = title.decode() if isinstance(title, bytes) else str(title)
        if _is_ours(graph):
            return Function(())
        found: List[Product] = []
        unknown: List[str] = []
        for operation in graph.get_operations():
            if operation.type.startswith(_UNSEEN):
                unknown.append(f"{operation.type}: what it computes is in no graph")
            elif _PRODUCT.search(operation.type) and not _IS_NONE.search(operation.type):
                found.append(self._product(operation, title))
        if not any(one.phase == BACKWARD for one in found) and title.startswith("__forward_"):
            # what was a function of its own is differentiated outside of it
            found = [one._replace(phase=FORWARD) for one in found]
        elif any(one.phase == BACKWARD for one in found):
            found = [one._replace(phase=FORWARD) if one.phase == BESIDE else one for one in found]
        return Function(found, tuple(dict.fromkeys(unknown)), is_part=bool(_PART.search(title)))

    def switches(self) -> Mapping[str, object]:
        """Return TensorFlow's and Keras'."""
        return read_switches()

    def at_last(self) -> Sequence[str]:
        """Name what makes the graphs say too little."""
        found = []
        if tf.config.functions_run_eagerly():
            found.append("functions run eagerly")
        if self.switches()["auto_mixed_precision"]:
            found.append("auto_mixed_precision rewrites the graphs")
        return found

    def _product(self, operation: Any, title: str) -> Product:  # noqa: ANN401 - TensorFlow has no types
        name = str(operation.name)
        is_gradient = "Backprop" in operation.type or "__backward_" in title or any(word in name for word in _GRADIENT)
        form, why = self._format(operation)
        return Product(form, BACKWARD if is_gradient else BESIDE, _layer(name), _flops(operation), why, name)

    def _format(self, operation: Any) -> Tuple[Optional[str], str]:  # noqa: ANN401
        kinds = sorted({one.dtype.name for one in _factors(operation)})
        forms = [_FORMATS.get(kind, kind) for kind in kinds]
        if len(forms) > 1:
            return " x ".join(forms), ""
        if not forms:
            return None, f"{operation.type} without factors"
        if forms == ["fp32"] and self.on_gpu and tf.config.experimental.tensor_float_32_execution_enabled():
            return None, "float32 on a GPU, where TF32 is allowed"
        return forms[0], ""


def _is_ours(graph: Any) -> bool:  # noqa: ANN401
    """Tell whether *graph* is part of what hpcml makes to count with, and never runs."""
    while graph is not None:
        if str(getattr(graph, "name", "")).startswith(OURS):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def _factors(operation: Any) -> List[Any]:  # noqa: ANN401
    """Return the factors: a convolution's gradients have a shape among their inputs."""
    return [one for one in list(operation.inputs)[:3] if one.dtype.is_floating or one.dtype.is_complex]


def _layer(name: str) -> Optional[str]:
    """Return the layer that Keras names in front of an operation.

    >>> _layer("gradient_tape/sequential_1/head_1/MatMul/MatMul_1"), _layer("functional/dense_1/MatMul")
    ('head', 'dense_1')
    """
    parts = [part for part in name.split("/")[:-1] if not _OUTER.match(part) and not _PRODUCT.search(part)]
    model = _MODEL.match(parts[0]) if parts else None
    if model is None:
        return parts[0] if parts else None
    # a model that is traced once more has a number behind its name, and each of its layers has the same
    layer, again = parts[1] if len(parts) > 1 else None, model[2]
    return layer[: -len(again)] if layer is not None and again and layer.endswith(again) else layer


def _flops(operation: Any) -> float:  # noqa: ANN401
    """Return the operations of a product; a dimension that the graph leaves open counts as 1."""
    factors = [_shape(one) for one in _factors(operation)]
    result = _shape(operation.outputs[0])
    if "Conv" in operation.type:
        return _of_convolution(operation, factors, result)
    if len(factors) < 2:
        return 0.0
    if "Einsum" in operation.type:
        return 2.0 * _of_einsum(operation.get_attr("equation").decode(), factors)
    transposed = any(_true(operation, name) for name in ("transpose_a", "adj_x"))
    summed = factors[0][-2 if transposed else -1] if len(factors[0]) > 1 else 1
    return 2.0 * math.prod(result) * summed


def _of_convolution(operation: Any, factors: Sequence[Sequence[int]], result: Sequence[int]) -> float:  # noqa: ANN401
    """Both gradients of a convolution need as many operations as it does: its result times the window of one."""
    if "BackpropInput" in operation.type:
        filters, images = factors[0], factors[-1]
    elif "BackpropFilter" in operation.type:
        filters, images = result, factors[-1]
    else:
        filters, images = factors[1], result
    window = filters[:-2] if "Depthwise" in operation.type else filters[:-1]
    return 2.0 * math.prod(images) * math.prod(window)


def _of_einsum(equation: str, factors: Sequence[Sequence[int]]) -> int:
    terms = equation.partition("->")[0].split(",")
    sizes: Dict[str, int] = {}
    for term, shape in zip(terms, factors):  # noqa: B905 - Python 3.8
        letters = [letter for letter in term if letter.isalpha()]
        sizes.update(zip(reversed(letters), reversed(list(shape))))  # noqa: B905
    return math.prod(sizes.values())


def _shape(tensor: Any) -> List[int]:  # noqa: ANN401
    known = tensor.shape
    return [1] if known.rank is None else [1 if side is None else int(side) for side in known]


def _true(operation: Any, name: str) -> bool:  # noqa: ANN401
    try:
        return bool(operation.get_attr(name))
    except ValueError:
        return False
