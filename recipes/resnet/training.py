"""Pictures, classified by a ResNet: what a step of this recipe computes, and how its model is examined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import torch
from models import MODELS
from pictures import Options, Pair, open_sources
from torch import nn

from hpcml_train.errors import RecipeError
from hpcml_train.task import Task
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.bases import Classification
from hpcml_train.torch.training import train as train_recipe

_EVALUATION_BATCH = 100  # bounds the memory only
_HALVINGS = 32  # the last stage sees a picture so many times smaller


class Pictures(Classification):
    """Pictures, told apart."""

    def __init__(self, task: Task, arithmetic: Arithmetic) -> None:
        options = Options(**task.options)
        name = task.choose("model", MODELS)
        self._cast = arithmetic.cast
        self._device = arithmetic.device
        self._memory_format = (
            torch.channels_last if task.choose("layout", ("nchw", "nhwc")) == "nhwc" else torch.contiguous_format
        )
        self._training, self._validation = open_sources(
            task, options.image_size, arithmetic.device, readers=options.readers, classes=options.classes
        )
        options.check_classes(self._training.classes, task.data)
        self.samples, self.held_out = self._training.count, self._validation.count
        self.model = MODELS[name](options.classes)

    def batch(self, indices: torch.Tensor) -> Pair:
        images, labels = self._training.fetch(indices)
        if len(images) == 1 and images.shape[-1] <= _HALVINGS:
            raise RecipeError(
                f"one picture of {images.shape[-1]} pixels at once leaves BatchNorm a single number: "
                "raise training.batch_size or model.options.image_size, or take the batch in fewer parts"
            )
        return self._cast(images).contiguous(memory_format=self._memory_format), labels

    def validation(self) -> Iterator[Pair]:
        for numbers in torch.arange(self.held_out, device=self._device).split(_EVALUATION_BATCH):
            images, labels = self._validation.fetch(numbers)
            yield images.contiguous(memory_format=self._memory_format), labels

    def optimizer(
        self, parameters: Iterable[nn.Parameter], *, learning_rate: float, eps: float
    ) -> torch.optim.Optimizer:
        # as published; without Adam's eps, FP16 parameters have the same optimiser as all others
        del eps
        return torch.optim.SGD(parameters, lr=learning_rate, momentum=0.9, weight_decay=1e-4)


train = partial(train_recipe, make=Pictures)
