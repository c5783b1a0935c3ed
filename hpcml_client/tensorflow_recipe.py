"""What distinguishes one TensorFlow training from another: its model, its samples, its loss and how it is examined."""

from __future__ import annotations

from typing import Any, Mapping

import numpy as np
import tensorflow as tf

Batch = Any  # what `batch` returns and `loss` takes: tensors, alone or in tuples
Model = Any  # Keras has no types


class Recipe:
    """Derive from it, set `samples` in ``__init__(task, arithmetic)``, and hand the class to `train`."""

    samples: int  # in the training set

    def build(self) -> Model:
        """Return the network, as Keras' dtype policy of the moment has it; called more than once.

        Its first weights are drawn from the random numbers that the seed has just set, in FP32 for every precision.
        """
        raise NotImplementedError

    def batch(self, indices: np.ndarray[Any, np.dtype[np.int64]]) -> Batch:
        """Return the training samples *indices*."""
        raise NotImplementedError

    def loss(self, model: Model, batch: Batch) -> tf.Tensor:
        """Return the mean loss of the samples in *batch*; computed in the run's precision, inside a graph."""
        raise NotImplementedError

    def evaluate(self, model: Model) -> Mapping[str, float]:
        """Return the validation metrics of *model*, which computes in FP32 (fp64: FP64)."""
        raise NotImplementedError

    def optimizer(self, *, learning_rate: float, eps: float) -> Any:  # noqa: ANN401 - Keras has no types
        """Return the optimiser; *eps* is one that the parameters' format can hold."""
        return tf.keras.optimizers.Adam(learning_rate, epsilon=eps)

    def facts(self) -> Mapping[str, object]:
        """Return what the event ``training`` says besides the settings and the number of parameters."""
        return {"training_samples": self.samples}
