"""A trained TensorFlow model as it is examined: in real FP32 (fp64: FP64), whatever it was trained in."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator

import tensorflow as tf


class Examination:
    """A copy of the model that computes in FP32, and in FP64 where that was trained in; 16-bit weights fit into it.

    Keras' own metrics are not used: under CentralStorageStrategy Keras 3.15 reports a wrong loss.
    """

    def __init__(self, build: Callable[[], Any], *, policy: str, seed: int) -> None:
        self._policy = "float64" if policy == "float64" else "float32"
        first = _build(build, "float32", seed)
        self.first_weights = first.get_weights()  # drawn in FP32: the same for every precision and strategy
        self.model = first if self._policy == "float32" else _build(build, self._policy, seed)

    @contextlib.contextmanager
    def of(self, model: Any) -> Iterator[Any]:  # noqa: ANN401 - Keras has no types
        """Yield the copy with the weights that *model* has now, TF32 being switched off meanwhile."""
        self.model.set_weights(model.get_weights())
        tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
        tf.config.experimental.enable_tensor_float_32_execution(False)  # noqa: FBT003 - TensorFlow's own signature
        try:
            yield self.model
        finally:
            tf.config.experimental.enable_tensor_float_32_execution(tf32)


def _build(build: Callable[[], Any], policy: str, seed: int) -> Any:  # noqa: ANN401 - Keras has no types
    before = tf.keras.mixed_precision.dtype_policy()
    tf.keras.mixed_precision.set_dtype_policy(policy)
    try:
        tf.keras.utils.set_random_seed(seed)
        return build()
    finally:
        tf.keras.mixed_precision.set_dtype_policy(before)
