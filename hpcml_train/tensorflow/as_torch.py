"""What makes a Keras network the twin of a torch one: first weights by the same laws, losses, layouts of pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hpcml_train.task import Task

Draw = Callable[..., Any]  # takes a shape and a dtype, as Keras' initialisers do


def evenly(inputs: int) -> Draw:
    """Return what draws weights as torch's dense, convolutional and recurrent layers do: evenly up to 1/sqrt(inputs).

    *inputs* are the numbers that one output is made of; of recurrent layers, the width of the state. Take a new one for
    each weight: Keras draws the same numbers again from the same one.
    """
    drawn: Draw = tf.keras.initializers.RandomUniform(-(inputs**-0.5), inputs**-0.5)
    return drawn


def normally(deviation: float) -> Draw:
    """Return what draws from a normal distribution around 0."""
    drawn: Draw = tf.keras.initializers.RandomNormal(stddev=deviation)
    return drawn


def begins_as_torch(inputs: int) -> dict[str, Draw]:
    """Return the arguments of a dense or convolutional layer whose weights and biases begin `evenly`."""
    return {"kernel_initializer": evenly(inputs), "bias_initializer": evenly(inputs)}


def cross_entropies(logits: Any, labels: Any) -> Any:  # noqa: ANN401 - tensors
    """Return the cross entropy of each row of *logits* with its label, in FP32 (FP64: in that).

    Sums of exponentials overflow in 16 bits.
    """
    wide = logits if logits.dtype == tf.float64 else tf.cast(logits, tf.float32)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=wide)


class Layout:
    """Where the channels of pictures lie: Keras' name for the layout of a task, and arrays in that order."""

    def __init__(self, data_format: str) -> None:
        self.data_format = data_format  # channels_first or channels_last

    @classmethod
    def of(cls, task: Task) -> Layout:
        """Return that of *task*; raises `RecipeError` for one that there is not."""
        formats = {"nchw": "channels_first", "nhwc": "channels_last"}
        return cls(formats[task.choose("layout", formats)])

    def placed(self, images: Any) -> Any:  # noqa: ANN401 - NumPy's array, which old NumPys cannot say
        """Return *images* (count, height, width, channels) in this layout."""
        return images if self.data_format == "channels_last" else images.transpose(0, 3, 1, 2)


def resize(images: Any, side: int) -> Any:  # noqa: ANN401 - as above
    """Return *images* (count, height, width, channels) with *side* x *side* pixels, bilinear as in torch."""
    return tf.image.resize(images, (side, side)).numpy()
