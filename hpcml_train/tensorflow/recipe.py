"""The interface of a TensorFlow recipe: its model, samples, loss and evaluation."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

Batch = Any  # what `batch` returns and `loss` takes: tensors, alone or in tuples
Model = Any  # Keras has no types


class Recipe(abc.ABC):
    """The base of recipes: set `samples` in ``__init__(task, arithmetic)``, and pass the class to `train`."""

    samples: int  # in the training set
    tokens_per_sample: int | None = None  # of texts

    @abc.abstractmethod
    def build(self) -> Model:
        """Return the network in Keras' current dtype policy; called more than once.

        Its first weights are drawn from the random numbers that the seed has just set, in FP32 for every precision.
        """

    def build_counted(self) -> Model | None:
        """Return a network of the same layers to count the operations of, where that of `build` hides them in loops."""
        return None

    @abc.abstractmethod
    def batch(self, indices: np.ndarray[Any, np.dtype[np.int64]]) -> Batch:
        """Return the training samples *indices*."""

    @abc.abstractmethod
    def loss(self, model: Model, batch: Batch) -> tf.Tensor:
        """Return the mean loss of the samples in *batch*; computed in the run's precision, inside a graph."""

    @abc.abstractmethod
    def evaluate(self, model: Model) -> Mapping[str, float]:
        """Return the validation metrics of *model*, which computes in FP32 (fp64: FP64)."""

    def optimizer(self, *, learning_rate: float, eps: float) -> Any:  # noqa: ANN401 - Keras has no types
        """Return the optimiser; *eps* is one that the parameters' format can represent."""
        return tf.keras.optimizers.Adam(learning_rate, epsilon=eps)

    def facts(self) -> Mapping[str, object]:
        """Return further details of the event ``training``."""
        return {"training_samples": self.samples}

    def results(self, model: Model) -> Mapping[str, Mapping[str, object]]:
        """Return events about what was learned, by name, with their details; *model* is as in `evaluate`."""
        del model
        return {}
