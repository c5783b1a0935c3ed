"""Images on the device, classified with TensorFlow: the same networks, images and measures as the torch half's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from hpcml_train.data import digits
from hpcml_train.data.pictures import Pictures
from hpcml_train.errors import RecipeError
from hpcml_train.task import Task
from hpcml_train.tensorflow.arithmetic import Arithmetic
from hpcml_train.tensorflow.as_torch import Layout, begins_as_torch, cross_entropies, resize
from hpcml_train.tensorflow.recipe import Batch, Recipe
from hpcml_train.tensorflow.training import train as train_recipe

PIXELS = 28  # the height and width that the networks expect
CLASSES = 10
_EVALUATION_BATCH = 1000  # bounds the memory only
_DIGITS_SIDE = 20  # 8x8 digits are enlarged to this, then padded: MNIST's own digits lie in their frame like that

Array = np.ndarray[Any, np.dtype[Any]]


class Classification(Recipe):
    """Digits, told apart."""

    def __init__(self, task: Task, _: Arithmetic) -> None:
        self._build = MODELS[task.choose("model", MODELS)]
        self._layout = Layout.of(task)
        self._compute_dtype = tf.keras.mixed_precision.dtype_policy().compute_dtype
        training, validation = digits.read(task)
        self._training, self._labels = self._layout.placed(_pixels(training, task)), _labels(training)
        self._validation, self._answers = self._layout.placed(_pixels(validation, task)), _labels(validation)
        self.samples = len(self._labels)

    def build(self) -> tf.keras.Model:
        shape = (PIXELS, PIXELS, 1) if self._layout.data_format == "channels_last" else (1, PIXELS, PIXELS)
        return self._build(shape, self._layout.data_format)

    def batch(self, indices: Array) -> Batch:
        images = tf.constant(self._training[indices], self._compute_dtype)
        return images, tf.constant(self._labels[indices])

    def loss(self, model: tf.keras.Model, batch: Batch) -> tf.Tensor:
        images, labels = batch
        return tf.reduce_mean(cross_entropies(model(images, training=True), labels))

    def evaluate(self, model: tf.keras.Model) -> Mapping[str, float]:
        correct, loss = 0, 0.0
        for begin in range(0, len(self._answers), _EVALUATION_BATCH):
            part = slice(begin, begin + _EVALUATION_BATCH)
            labels = self._answers[part]
            logits = model(tf.constant(self._validation[part]), training=False)
            correct += int((logits.numpy().argmax(axis=1) == labels).sum())
            loss += float(tf.reduce_sum(cross_entropies(logits, labels)))
        return {"val_accuracy": correct / len(self._answers), "val_loss": loss / len(self._answers)}

    def facts(self) -> Mapping[str, object]:
        return {"training_samples": self.samples, "validation_samples": len(self._answers)}


train = partial(train_recipe, make=Classification)


def mnist_cnn(shape: tuple[int, ...], data_format: str) -> tf.keras.Model:
    """Return three convolutions and two dense layers: 354,002 parameters."""
    layers = tf.keras.layers
    sizes = [(12, 3, 1), (24, 6, 2), (32, 6, 2)]  # filters, kernel, stride
    fans = [filters * kernel**2 for filters, (_, kernel, _) in zip((1, 12, 24), sizes, strict=True)]
    convolutions = [
        layers.Conv2D(
            filters, kernel, stride, padding="same", activation="relu", data_format=data_format, **begins_as_torch(fan)
        )
        for (filters, kernel, stride), fan in zip(sizes, fans, strict=True)
    ]
    return tf.keras.Sequential(
        [
            layers.Input(shape),
            *convolutions,
            layers.Flatten(),
            layers.Dense(200, activation="relu", **begins_as_torch(7 * 7 * 32)),
            layers.Dense(CLASSES, **begins_as_torch(200)),
        ]
    )


def mnist_mlp(shape: tuple[int, ...], _: str) -> tf.keras.Model:
    """Return 784-16-10: 12,730 parameters."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input(shape),
            layers.Flatten(),
            layers.Dense(16, activation="relu", **begins_as_torch(PIXELS * PIXELS)),
            layers.Dense(CLASSES, **begins_as_torch(16)),
        ]
    )


MODELS = {"mnist_cnn": mnist_cnn, "mnist_mlp": mnist_mlp}


def _labels(pictures: Pictures) -> Array:
    return pictures.labels.astype(np.int32)


def _pixels(pictures: Pictures, task: Task) -> Array:
    """Return 28x28 pixels between 0 and 1 of each image, the channel last."""
    pixels = pictures.images.astype(np.float32) / np.float32(pictures.largest)
    if task.data != "mnist":
        pixels = resize(pixels, _DIGITS_SIDE)
        pixels = np.pad(pixels, [(0, 0), *[((PIXELS - _DIGITS_SIDE) // 2,) * 2] * 2, (0, 0)])
    height, width = pictures.images.shape[1:3]
    if pixels.shape[1:3] != (PIXELS, PIXELS) or int(_labels(pictures).max()) >= CLASSES:
        raise RecipeError(
            f"data={task.data} has images of {height}x{width} pixels and labels up to "
            f"{int(_labels(pictures).max())}: the models expect {PIXELS}x{PIXELS} and {CLASSES - 1}"
        )
    return pixels
