"""Windows of a text, and what a transformer in Keras says about them: the same batches as the torch half's."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf
from batches import Array, Batches
from shape import UNASKED, Shape
from tensorflow_models import Transformer

from hpcml_client import Checkpoints, Client
from hpcml_train.loop import perplexity
from hpcml_train.task import Task
from hpcml_train.tensorflow.arithmetic import Arithmetic
from hpcml_train.tensorflow.as_torch import cross_entropies
from hpcml_train.tensorflow.continuing import continue_with
from hpcml_train.tensorflow.recipe import Batch, Recipe
from hpcml_train.tensorflow.training import train as train_recipe


class LanguageModelling(Recipe):
    """Bytes of a text, guessed from those before them or around them."""

    def __init__(self, task: Task, _: Arithmetic) -> None:
        self._shape, self._seed = Shape.of(task.options), task.seed
        self._batches = Batches(task, self._shape)
        self.samples = len(self._batches)
        self.tokens_per_sample = self._shape.context

    def build(self) -> tf.keras.Model:
        return Transformer(self._shape)

    def batch(self, indices: Array) -> Batch:
        return _tensors(self._batches.training(indices))

    def loss(self, model: tf.keras.Model, batch: Batch) -> tf.Tensor:
        *inputs, labels = batch
        return _sum_of_losses(model(tuple(inputs), training=True), labels) / _asked(labels)

    def evaluate(self, model: tf.keras.Model) -> Mapping[str, float]:
        loss, correct, guessed = 0.0, 0, 0
        for batch in self._batches.validation():
            *inputs, labels = _tensors(batch)
            logits = model(tuple(inputs), training=False)
            loss += float(_sum_of_losses(logits, labels))
            correct += int((logits.numpy().argmax(axis=-1) == batch[-1]).sum())
            guessed += int((batch[-1] != UNASKED).sum())
        mean = loss / guessed
        return {"val_loss": mean, "perplexity": perplexity(mean), "val_accuracy": correct / guessed}

    def facts(self) -> Mapping[str, object]:
        return self._batches.facts()

    def results(self, model: tf.keras.Model) -> Mapping[str, Mapping[str, object]]:
        """Return the event ``generated``, where text was asked for."""
        shape = self._shape
        if not shape.generate:
            return {}
        return continue_with(lambda tokens, training: model((tokens,), training=training), shape, seed=self._seed)


def train(run: Client, task: Task, checkpoints: Checkpoints) -> bool:
    """Train as *task* says; return False where it left at a checkpoint."""
    return train_recipe(run, task, checkpoints, LanguageModelling)


def _tensors(batch: tuple[Array, ...]) -> tuple[tf.Tensor, ...]:
    return tuple(tf.constant(part, tf.int32) for part in batch)


def _asked(labels: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(labels != UNASKED, tf.keras.backend.floatx()))


def _sum_of_losses(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    losses = cross_entropies(logits, tf.maximum(labels, 0))
    return tf.reduce_sum(tf.where(labels == UNASKED, tf.zeros_like(losses), losses))
