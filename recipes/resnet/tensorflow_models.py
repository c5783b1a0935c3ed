"""ResNet-18 and ResNet-50 in Keras, layer by layer as in models.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hpcml_train.tensorflow.as_torch import begins_as_torch, normally

_WIDTHS = (64, 128, 256, 512)  # of the four stages; each halves the picture but the first
_MOMENTUM, _NORM_EPS = 0.9, 1e-5  # of BatchNorm, torch's (which calls the first 0.1)

Tensor = Any  # of Keras, which has no types


@dataclass(frozen=True, slots=True, kw_only=True)
class _Convolution:
    """A convolution with its norm; padded on both sides alike, where Keras' "same" pads an odd sum behind."""

    data_format: str

    def __call__(self, x: Tensor, outputs: int, kernel: int, stride: int, name: str) -> Tensor:
        layers, pad = tf.keras.layers, kernel // 2
        if stride > 1 and pad:
            x = layers.ZeroPadding2D(pad, data_format=self.data_format, name=f"{name}pad")(x)
        x = layers.Conv2D(
            outputs,
            kernel,
            stride,
            padding="valid" if stride > 1 else "same",
            use_bias=False,
            data_format=self.data_format,
            kernel_initializer=normally((2 / (outputs * kernel**2)) ** 0.5),  # arXiv 1502.01852, by the outputs
            name=name,
        )(x)
        axis = 1 if self.data_format == "channels_first" else -1
        return layers.BatchNormalization(axis, momentum=_MOMENTUM, epsilon=_NORM_EPS, name=f"{name}norm")(x)


def _basic(convolve: _Convolution, x: Tensor, width: int, stride: int, name: str) -> Tensor:
    """Two 3x3 convolutions."""
    x = tf.keras.layers.ReLU()(convolve(x, width, 3, stride, f"{name}a"))
    return convolve(x, width, 3, 1, f"{name}b")


def _bottleneck(convolve: _Convolution, x: Tensor, width: int, stride: int, name: str) -> Tensor:
    """1x1, 3x3 and 1x1 convolutions; the 3x3 one strides, as in all of today's code ("v1.5")."""
    x = tf.keras.layers.ReLU()(convolve(x, width, 1, 1, f"{name}a"))
    x = tf.keras.layers.ReLU()(convolve(x, width, 3, stride, f"{name}b"))
    return convolve(x, width * 4, 1, 1, f"{name}c")


def resnet(
    body: Callable[..., Tensor], expansion: int, depths: Sequence[int], *, classes: int, side: int, data_format: str
) -> tf.keras.Model:
    """Return the stem, four stages of so many blocks, and the classifier."""
    layers, convolve = tf.keras.layers, _Convolution(data_format=data_format)
    shape = (3, side, side) if data_format == "channels_first" else (side, side, 3)
    given = layers.Input(shape)
    x = layers.ReLU()(convolve(given, _WIDTHS[0], 7, 2, "stem"))
    # zeros beside what ReLU leaves are never the largest
    x = layers.ZeroPadding2D(1, data_format=data_format)(x)
    x = layers.MaxPooling2D(3, 2, data_format=data_format)(x)
    inputs = _WIDTHS[0]
    for stage, (width, depth) in enumerate(zip(_WIDTHS, depths, strict=True)):
        for number in range(depth):
            stride, name = 2 if stage > 0 and number == 0 else 1, f"stage{stage}block{number}"
            outputs = width * expansion
            changes = inputs != outputs or stride > 1
            shortcut = convolve(x, outputs, 1, stride, f"{name}shortcut") if changes else x
            x = layers.ReLU()(layers.Add()([body(convolve, x, width, stride, name), shortcut]))
            inputs = outputs
    x = layers.GlobalAveragePooling2D(data_format=data_format)(x)
    return tf.keras.Model(given, layers.Dense(classes, name="classify", **begins_as_torch(inputs))(x))


def resnet18(**how: Any) -> tf.keras.Model:  # noqa: ANN401 - as `resnet` says
    """Return ResNet-18: 11,689,512 parameters for 1000 classes."""
    return resnet(_basic, 1, (2, 2, 2, 2), **how)


def resnet50(**how: Any) -> tf.keras.Model:  # noqa: ANN401
    """Return ResNet-50: 25,557,032 parameters for 1000 classes."""
    return resnet(_bottleneck, 4, (3, 4, 6, 3), **how)


MODELS: dict[str, Callable[..., tf.keras.Model]] = {"resnet18": resnet18, "resnet50": resnet50}
