"""Pictures, classified by a ResNet in Keras: the same network, pictures, optimiser and measures as the torch half's."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from sources import Array, Options, open_sources
from tensorflow_models import MODELS

from hpcml_client import Checkpoints, Client
from hpcml_train.errors import RecipeError
from hpcml_train.loop import counted_in
from hpcml_train.task import Task
from hpcml_train.tensorflow.arithmetic import Arithmetic
from hpcml_train.tensorflow.as_torch import Layout, cross_entropies, resize
from hpcml_train.tensorflow.recipe import Batch, Recipe
from hpcml_train.tensorflow.training import train as train_recipe

_EVALUATION_BATCH = 100  # bounds the memory only
_HALVINGS = 32  # the last stage sees a picture so many times smaller
_MOMENTUM, _DECAY = 0.9, 1e-4  # as published


class Sgd(tf.keras.optimizers.SGD):
    """Momentum and weight decay as published, and as in torch: the decay is part of the gradient.

    Keras' own `weight_decay` takes it off the weight beside the momentum, which is another optimiser.
    """

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        weight = tf.cast(tf.convert_to_tensor(variable), gradient.dtype)
        super().update_step(gradient + _DECAY * weight, variable, learning_rate)


class Pictures(Recipe):
    """Pictures, told apart."""

    def __init__(self, task: Task, _: Arithmetic) -> None:
        self._options = options = Options(**task.options)
        self._build = MODELS[task.choose("model", MODELS)]
        self._layout = Layout.of(task)
        self._compute_dtype = tf.keras.mixed_precision.dtype_policy().compute_dtype
        self._training, self._validation = open_sources(task, options, resize)
        options.check_classes(self._training.classes, task.data)
        self.samples = self._training.count

    def build(self) -> tf.keras.Model:
        options = self._options
        return self._build(classes=options.classes, side=options.image_size, data_format=self._layout.data_format)

    def batch(self, indices: Array) -> Batch:
        images, labels = self._training.fetch(indices)
        if len(images) == 1 and images.shape[1] <= _HALVINGS:
            raise RecipeError(
                f"one picture of {images.shape[1]} pixels at once leaves BatchNorm a single number: "
                "raise training.batch_size or model.options.image_size, or take the batch in fewer parts"
            )
        return tf.constant(self._layout.placed(images), self._compute_dtype), tf.constant(labels)

    def loss(self, model: tf.keras.Model, batch: Batch) -> tf.Tensor:
        images, labels = batch
        return tf.reduce_mean(cross_entropies(model(images, training=True), labels))

    def optimizer(self, *, learning_rate: float, eps: float) -> tf.keras.optimizers.Optimizer:
        del eps  # without Adam's, FP16 parameters have the same optimiser as all others
        return Sgd(learning_rate, momentum=_MOMENTUM)

    def evaluate(self, model: tf.keras.Model) -> Mapping[str, float]:
        count = self._validation.count
        if not count:
            return {}
        correct, loss = 0, 0.0
        for begin in range(0, count, _EVALUATION_BATCH):
            images, labels = self._validation.fetch(np.arange(begin, min(count, begin + _EVALUATION_BATCH)))
            logits = model(tf.constant(self._layout.placed(images), model.compute_dtype), training=False)
            correct += int((logits.numpy().argmax(axis=1) == labels).sum())
            loss += float(tf.reduce_sum(cross_entropies(logits, labels)))
        return {"val_accuracy": correct / count, "val_loss": loss / count}

    def facts(self) -> Mapping[str, object]:
        return {"training_samples": self.samples, **counted_in("val_accuracy", self._validation.count)}


def train(run: Client, task: Task, checkpoints: Checkpoints) -> bool:
    """Train as *task* says; return False where it left at a checkpoint."""
    return train_recipe(run, task, checkpoints, Pictures)
