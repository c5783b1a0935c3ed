"""Images on the device, classified: what a step of this recipe computes, and how its model is examined."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from models import CLASSES, MODELS, PIXELS
from torch.nn import functional as F  # noqa: N812 - torch's own custom

from hpcml_train.data import digits
from hpcml_train.data.pictures import Pictures
from hpcml_train.errors import RecipeError
from hpcml_train.task import Task
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.bases import Classification
from hpcml_train.torch.training import train as train_recipe

_EVALUATION_BATCH = 1000  # bounds the memory only
_DIGITS_SIDE = 20  # 8x8 digits are enlarged to this, then padded: MNIST's own digits lie in their frame like that

Pair = tuple[torch.Tensor, torch.Tensor]  # images, labels


class Digits(Classification):
    """Digits, told apart."""

    def __init__(self, task: Task, arithmetic: Arithmetic) -> None:
        name = task.choose("model", MODELS)
        task.choose("layout", ("nchw", "nhwc"))
        self._cast = arithmetic.cast
        training, validation = digits.read(task)
        self._training, self._validation = (_place(pictures, arithmetic, task) for pictures in (training, validation))
        self.samples, self.held_out = len(training), len(validation)
        self.model = MODELS[name](**task.options)

    def batch(self, indices: torch.Tensor) -> Pair:
        images, labels = self._training
        return self._cast(images[indices]), labels[indices]

    def validation(self) -> Iterator[Pair]:
        yield from zip(*(part.split(_EVALUATION_BATCH) for part in self._validation), strict=True)


train = partial(train_recipe, make=Digits)


def _place(pictures: Pictures, arithmetic: Arithmetic, task: Task) -> Pair:
    """Put all *pictures* on the device: 28x28 pixels between 0 and 1."""
    labels = torch.from_numpy(pictures.labels)
    # not permuted: of one channel `contiguous` keeps NHWC's strides, by which torch chooses its kernels
    pixels = torch.from_numpy(pictures.images).squeeze(3).unsqueeze(1).float() / pictures.largest
    if task.data != "mnist":
        pixels = F.interpolate(pixels, size=(_DIGITS_SIDE, _DIGITS_SIDE), mode="bilinear", align_corners=False)
        pixels = F.pad(pixels, [(PIXELS - _DIGITS_SIDE) // 2] * 4)
    height, width = pictures.images.shape[1:3]
    if pixels.shape[-2:] != (PIXELS, PIXELS) or int(labels.max()) >= CLASSES:
        raise RecipeError(
            f"data={task.data} has images of {height}x{width} pixels and labels up to {int(labels.max())}"
            f": the models expect {PIXELS}x{PIXELS} and {CLASSES - 1}"
        )
    if task.layout == "nhwc":
        pixels = pixels.contiguous(memory_format=torch.channels_last)
    return pixels.to(arithmetic.device), labels.to(arithmetic.device)
