"""Pixels, classified by a U-Net: what a step of this recipe computes, and how its model is examined."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from models import UNet
from overlap import Overlap
from pixels import EVALUATION_BATCH, Options, open_masked
from torch import nn

from hpcml_train.data.masks import IGNORED, Masked
from hpcml_train.task import Task
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.bases import cross_entropy
from hpcml_train.torch.recipe import Recipe
from hpcml_train.torch.training import train as train_recipe

Pair = tuple[torch.Tensor, torch.Tensor]  # pictures, masks


class Segmentation(Recipe):
    """Shapes, found pixel by pixel."""

    def __init__(self, task: Task, arithmetic: Arithmetic) -> None:
        options = Options(**task.options)
        task.choose("model", ("unet",))
        is_nhwc = task.choose("layout", ("nchw", "nhwc")) == "nhwc"
        self._format = torch.channels_last if is_nhwc else torch.contiguous_format
        self._cast = arithmetic.cast
        training, validation = open_masked(task, options)
        self._training, self._validation = (self._place(masked, arithmetic.device) for masked in (training, validation))
        self._classes = options.classes
        self.samples = len(training)
        self.model = UNet(training.images.shape[-1], options.classes, options.width)

    def batch(self, indices: torch.Tensor) -> Pair:
        images, masks = self._training
        return self._cast(images[indices]).contiguous(memory_format=self._format), masks[indices]

    def loss(self, model: nn.Module, batch: Pair) -> torch.Tensor:
        images, masks = batch
        return _loss_of_pixels(model(images), masks)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        images, masks = self._validation
        dtype = next(model.parameters()).dtype
        overlap, loss, known = Overlap(self._classes), 0.0, 0
        for begin in range(0, len(masks), EVALUATION_BATCH):
            part = slice(begin, begin + EVALUATION_BATCH)
            logits = model(images[part].to(dtype))
            overlap.add(logits.argmax(dim=1), masks[part])
            count = int((masks[part] != IGNORED).sum())
            loss += float(_loss_of_pixels(logits, masks[part])) * count if count else 0.0
            known += count
        return {"val_mean_iou": overlap.mean(), "val_loss": loss / known}

    def facts(self) -> Mapping[str, object]:
        return {"training_samples": self.samples, "validation_samples": len(self._validation[1])}

    def _place(self, masked: Masked, device: torch.device) -> Pair:
        found = torch.from_numpy(masked.images).permute(0, 3, 1, 2)
        # copied: of one channel `contiguous` keeps NHWC's strides, and gradients in that order are slow with DDP
        images = torch.empty(found.shape, memory_format=self._format).copy_(found)
        return images.to(device), torch.from_numpy(masked.masks).to(device).long()


train = partial(train_recipe, make=Segmentation)


def _loss_of_pixels(logits: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """Return the mean over the pixels, one after the other: the kernel for pictures is not deterministic on a GPU."""
    return cross_entropy(logits.permute(0, 2, 3, 1), masks, ignored=IGNORED)
