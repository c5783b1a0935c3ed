"""Pictures, classified by a ResNet: what a step of this recipe computes, and how its model is examined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from models import MODELS
from pictures import Options, Pair, open_sources
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own custom

from hpcml_client import Checkpoints, Client
from hpcml_train.errors import RecipeError
from hpcml_train.loop import counted_in
from hpcml_train.task import Task
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.recipe import Recipe
from hpcml_train.torch.training import train as train_recipe

_EVALUATION_BATCH = 100  # bounds the memory only
_HALVINGS = 32  # the last stage sees a picture so many times smaller


class Pictures(Recipe):
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
        self.samples = self._training.count
        self.model = MODELS[name](options.classes)

    def batch(self, indices: torch.Tensor) -> Pair:
        images, labels = self._training.fetch(indices)
        if len(images) == 1 and images.shape[-1] <= _HALVINGS:
            raise RecipeError(
                f"one picture of {images.shape[-1]} pixels at once leaves BatchNorm a single number: "
                "raise training.batch_size or model.options.image_size, or take the batch in fewer parts"
            )
        return self._cast(images).contiguous(memory_format=self._memory_format), labels

    def loss(self, model: nn.Module, batch: Pair) -> torch.Tensor:
        images, labels = batch
        return _cross_entropy(model(images), labels)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        if not self._validation.count:
            return {}
        dtype = next(model.parameters()).dtype
        correct, loss = 0, 0.0
        for numbers in torch.arange(self._validation.count, device=self._device).split(_EVALUATION_BATCH):
            images, labels = self._validation.fetch(numbers)
            logits = model(images.to(dtype).contiguous(memory_format=self._memory_format))
            correct += int((logits.argmax(dim=1) == labels).sum())
            loss += float(_cross_entropy(logits, labels)) * len(labels)
        return {"val_accuracy": correct / self._validation.count, "val_loss": loss / self._validation.count}

    def optimizer(
        self, parameters: Iterable[nn.Parameter], *, learning_rate: float, eps: float
    ) -> torch.optim.Optimizer:
        # as published; without Adam's eps, FP16 parameters have the same optimiser as all others
        del eps
        return torch.optim.SGD(parameters, lr=learning_rate, momentum=0.9, weight_decay=1e-4)

    def facts(self) -> Mapping[str, object]:
        return {"training_samples": self.samples, **counted_in("val_accuracy", self._validation.count)}


def train(run: Client, task: Task, checkpoints: Checkpoints) -> bool:
    """Train as *task* says; return False where it left at a checkpoint."""
    return train_recipe(run, task, checkpoints, Pictures)


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    # sums of exponentials overflow in 16 bits; autocast computes them in FP32 too
    return F.cross_entropy(logits if logits.dtype is torch.float64 else logits.float(), labels)
