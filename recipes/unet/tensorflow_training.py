"""Pixels, classified by a U-Net in Keras: the same network, pictures and measures as the torch half's."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf
from overlap import Overlap
from pixels import EVALUATION_BATCH, Options, open_masked
from tensorflow_models import unet

from hpcml_client import Checkpoints, Client
from hpcml_train.data.masks import IGNORED, Array
from hpcml_train.task import Task
from hpcml_train.tensorflow.arithmetic import Arithmetic
from hpcml_train.tensorflow.as_torch import Layout, cross_entropies
from hpcml_train.tensorflow.recipe import Batch, Recipe
from hpcml_train.tensorflow.training import train as train_recipe


class Segmentation(Recipe):
    """Shapes, found pixel by pixel."""

    def __init__(self, task: Task, _: Arithmetic) -> None:
        self._options = options = Options(**task.options)
        task.choose("model", ("unet",))
        self._layout = Layout.of(task)
        self._compute_dtype = tf.keras.mixed_precision.dtype_policy().compute_dtype
        training, validation = open_masked(task, options)
        self._images, self._masks = self._layout.placed(training.images), training.masks
        self._held_out, self._truth = self._layout.placed(validation.images), validation.masks
        self.samples = len(training)

    def build(self) -> tf.keras.Model:
        options = self._options
        return unet(self._images.shape[1:], options.classes, options.width, self._layout.data_format)

    def batch(self, indices: Array) -> Batch:
        return tf.constant(self._images[indices], self._compute_dtype), tf.constant(self._masks[indices], tf.int32)

    def loss(self, model: tf.keras.Model, batch: Batch) -> tf.Tensor:
        images, masks = batch
        losses, known = self._losses(model(images, training=True), masks)
        return losses / tf.cast(known, losses.dtype)

    def evaluate(self, model: tf.keras.Model) -> Mapping[str, float]:
        overlap, loss, count = Overlap(self._options.classes), 0.0, 0
        for begin in range(0, len(self._truth), EVALUATION_BATCH):
            part = slice(begin, begin + EVALUATION_BATCH)
            logits = model(tf.constant(self._held_out[part], model.compute_dtype), training=False)
            overlap.add(self._layout.channels_last(logits).numpy().argmax(axis=-1), self._truth[part])
            losses, known = self._losses(logits, tf.constant(self._truth[part], tf.int32))
            loss, count = loss + float(losses), count + int(known)
        return {"val_mean_iou": overlap.mean(), "val_loss": loss / count}

    def facts(self) -> Mapping[str, object]:
        return {"training_samples": self.samples, "validation_samples": len(self._truth)}

    def _losses(self, logits: tf.Tensor, masks: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the sum of the cross entropies of the pixels whose class is known, and how many these are."""
        known = masks != IGNORED
        losses = cross_entropies(self._layout.channels_last(logits), tf.where(known, masks, 0))
        zeros = tf.zeros_like(losses)
        return tf.reduce_sum(tf.where(known, losses, zeros)), tf.math.count_nonzero(known)


def train(run: Client, task: Task, checkpoints: Checkpoints) -> bool:
    """Train as *task* says; return False where it left at a checkpoint."""
    return train_recipe(run, task, checkpoints, Segmentation)
