"""The floating point operations of one step in TensorFlow, counted once in its graph, which is never run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hpcml_train.loop import StepCount
from hpcml_train.tensorflow.recipe import Batch, Model

_Operation = Any  # TensorFlow has no types
# Products that are counted nowhere, and graphs within the graph, of which nobody knows how often they run.
_UNSEEN = (
    *("Conv3D", "DepthwiseConv2dNative", "Einsum", "CudnnRNN", "CudnnRNNV2", "CudnnRNNV3"),
    *("While", "StatelessWhile", "If", "StatelessIf", "PartitionedCall", "StatefulPartitionedCall", "XlaLaunch"),
)


def count_step(model: Model, batch: Batch, loss: Callable[[Model, Batch], tf.Tensor]) -> StepCount:
    """Count ``loss(model, batch)`` and its backward pass: products of matrices, and convolutions.

    What the gradients of the weights do not need, such as that of the first layer's input, is not counted. A model
    whose graph or shapes cannot be known beforehand has no count, and the doubt says why.
    """
    try:
        needed = _needed_by(_outputs(model, batch, loss))
        flops = sum(_FORMULAS[operation.type](operation) for operation in needed if operation.type in _FORMULAS)
    except Exception as error:  # noqa: BLE001 - a training does not end because it cannot be counted
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return StepCount(None, f"not counted: the graph of the model cannot be read: {reason}")
    unseen = ", ".join(sorted({operation.type for operation in needed} & set(_UNSEEN)))
    return StepCount(float(flops), f"operations that are not counted: {unseen}" if unseen else None)


def _outputs(model: Model, batch: Batch, loss: Callable[[Model, Batch], tf.Tensor]) -> list[tf.Tensor]:
    """Return the loss and all gradients, as they are in the graph."""

    def loss_and_gradients() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            result = loss(model, batch)
        return [result, *tape.gradient(result, model.trainable_variables)]

    return list(tf.function(loss_and_gradients).get_concrete_function().outputs)


def _needed_by(outputs: list[tf.Tensor]) -> list[_Operation]:
    """Return the operations that *outputs* follow from: TensorFlow writes down more gradients than it computes."""
    found: list[_Operation] = []
    seen: set[str] = set()
    waiting = [tensor.op for tensor in outputs]
    while waiting:
        operation = waiting.pop()
        if operation.name in seen:
            continue
        seen.add(operation.name)
        found.append(operation)
        waiting += [tensor.op for tensor in operation.inputs]
    return found


def _matmul(operation: _Operation) -> int:
    """Multiply the numbers of the result by the length of the rows that make each of them."""
    left = operation.inputs[0].shape
    transposed = operation.get_attr("transpose_a" if operation.type == "MatMul" else "adj_x")
    return 2 * _size(operation.outputs[0].shape) * int(left[-2 if transposed else -1])


def _convolution(operation: _Operation) -> int:
    return _windows(filters=operation.inputs[1].shape, result=operation.outputs[0].shape)


def _convolution_to_input(operation: _Operation) -> int:
    return _windows(filters=operation.inputs[1].shape, result=operation.inputs[2].shape)


def _convolution_to_filters(operation: _Operation) -> int:
    return _windows(filters=operation.outputs[0].shape, result=operation.inputs[2].shape)


def _windows(*, filters: Any, result: Any) -> int:  # noqa: ANN401 - TensorFlow's shapes
    """Return the operations of a convolution; both of its gradients need as many."""
    height, width, inputs, _ = filters  # inputs: of one group
    return 2 * _size(result) * int(height) * int(width) * int(inputs)


def _size(shape: Any) -> int:  # noqa: ANN401 - TensorFlow's shape
    return math.prod(int(side) for side in shape)


_FORMULAS: dict[str, Callable[[_Operation], int]] = {
    "MatMul": _matmul,
    "BatchMatMulV2": _matmul,
    "Conv2D": _convolution,
    "Conv2DBackpropInput": _convolution_to_input,
    "Conv2DBackpropFilter": _convolution_to_filters,
}
