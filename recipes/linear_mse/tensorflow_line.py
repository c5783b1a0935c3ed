"""One dense layer in TensorFlow, fitted to a line by gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from line import Points, training_points, validation_points

from hpcml_train.task import Task
from hpcml_train.tensorflow.arithmetic import Arithmetic
from hpcml_train.tensorflow.recipe import Batch, Recipe
from hpcml_train.tensorflow.training import train as train_recipe

Array = np.ndarray[Any, np.dtype[Any]]


class Line(Recipe):
    """A line, found by a layer with one weight and one bias."""

    def __init__(self, task: Task, _: Arithmetic) -> None:
        self._x, self._y = _columns(training_points(task))
        self._validation = _columns(validation_points(task))
        self._compute_dtype = tf.keras.mixed_precision.dtype_policy().compute_dtype
        self.samples = len(self._x)

    def build(self) -> tf.keras.Model:
        # evenly between -1 and 1, as torch's layer of one input begins
        drawn = tf.keras.initializers.RandomUniform(-1.0, 1.0)
        layer = tf.keras.layers.Dense(1, kernel_initializer=drawn, bias_initializer=drawn)
        return tf.keras.Sequential([tf.keras.layers.Input((1,)), layer])

    def batch(self, indices: Array) -> Batch:
        return tuple(tf.constant(column[indices], self._compute_dtype) for column in (self._x, self._y))

    def loss(self, model: tf.keras.Model, batch: Batch) -> tf.Tensor:
        return _mse(model(batch[0], training=True), batch[1])

    def optimizer(self, *, learning_rate: float, eps: float) -> tf.keras.optimizers.SGD:  # noqa: ARG002 - Adam's
        return tf.keras.optimizers.SGD(learning_rate)

    def evaluate(self, model: tf.keras.Model) -> Mapping[str, float]:
        x, y = (tf.constant(column, model.dtype) for column in self._validation)
        weight, bias = (float(array.item()) for array in model.get_weights())
        return {"val_loss": float(_mse(model(x, training=False), y)), "slope": weight, "intercept": bias}


train = partial(train_recipe, make=Line)


def _columns(points: Points) -> tuple[Array, Array]:
    return np.array(points.x)[:, None], np.array(points.y)[:, None]


def _mse(found: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    # squares of small errors vanish in 16 bits
    wide = tf.float64 if found.dtype == tf.float64 else tf.float32
    return tf.reduce_mean((tf.cast(found, wide) - tf.cast(wanted, wide)) ** 2)
