"""The same small U-Net in Keras, layer by layer as in models.py."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from pixels import GROUPS, HALVINGS

from hpcml_train.tensorflow.as_torch import evenly, normally

_NORM_EPS = 1e-5  # torch's

Tensor = Any  # of Keras, which has no types


def unet(
    shape: tuple[int, ...], classes: int, width: int, data_format: str, halvings: int = HALVINGS
) -> tf.keras.Model:
    """Return the network for pictures of *shape*, whose sides are multiples of 2 ** halvings."""
    layers, axis = tf.keras.layers, 1 if data_format == "channels_first" else -1
    widths = [width * 2**level for level in range(halvings + 1)]
    given = x = layers.Input(shape)
    seen = []
    for level, outputs in enumerate(widths[:-1]):
        x = _convolve_twice(x, outputs, axis, data_format, f"down{level}")
        seen.append(x)
        x = layers.MaxPooling2D(2, data_format=data_format)(x)
    x = _convolve_twice(x, widths[-1], axis, data_format, "bottom")
    for level, outputs in enumerate(reversed(widths[:-1])):
        # torch takes the outputs of a transposed convolution for its inputs
        enlarge = layers.Conv2DTranspose(
            outputs,
            2,
            2,
            data_format=data_format,
            kernel_initializer=_as_published(outputs * 4),
            bias_initializer=evenly(outputs * 4),
            name=f"enlarge{level}",
        )
        x = layers.Concatenate(axis)([seen.pop(), enlarge(x)])
        x = _convolve_twice(x, outputs, axis, data_format, f"up{level}")
    classify = layers.Conv2D(
        classes,
        1,
        data_format=data_format,
        kernel_initializer=_as_published(width),
        bias_initializer=evenly(width),
        name="classify",
    )
    return tf.keras.Model(given, classify(x))


def _convolve_twice(x: Tensor, outputs: int, axis: int, data_format: str, name: str) -> Tensor:
    layers = tf.keras.layers
    for part in "ab":
        x = layers.Conv2D(
            outputs,
            3,
            padding="same",
            use_bias=False,
            data_format=data_format,
            kernel_initializer=_as_published(x.shape[axis] * 9),
            name=f"{name}{part}",
        )(x)
        x = layers.GroupNormalization(GROUPS, axis, epsilon=_NORM_EPS, name=f"{name}{part}norm")(x)
        x = layers.ReLU()(x)
    return x


def _as_published(inputs: int) -> Any:  # noqa: ANN401 - an initialiser of Keras
    return normally((2 / inputs) ** 0.5)
