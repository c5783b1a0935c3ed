"""Images on the device, classified: what a step of this recipe computes, and how its model is examined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from models import CLASSES, MODELS, PIXELS
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own custom

from hpcml_client import Checkpoints, Client
from hpcml_train.data import digits
from hpcml_train.errors import RecipeError
from hpcml_train.loop import counted_in
from hpcml_train.task import Task
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.recipe import Recipe
from hpcml_train.torch.training import train as train_recipe

_EVALUATION_BATCH = 1000  # bounds the memory only
_DIGITS_SIDE = 20  # 8x8 digits are enlarged to this, then padded: MNIST's own digits lie in their frame like that

Pair = tuple[torch.Tensor, torch.Tensor]  # images, labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Images and labels on the device."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)


class Classification(Recipe):
    """Digits, told apart."""

    def __init__(self, task: Task, arithmetic: Arithmetic) -> None:
        name = task.choose("model", MODELS)
        task.choose("layout", ("nchw", "nhwc"))
        self._cast = arithmetic.cast
        self._training, self._validation = (_place(images, arithmetic, task) for images in _read(task))
        self.samples = len(self._training)
        self.model = MODELS[name]()

    def batch(self, indices: torch.Tensor) -> Pair:
        return self._cast(self._training.images[indices]), self._training.labels[indices]

    def loss(self, model: nn.Module, batch: Pair) -> torch.Tensor:
        images, labels = batch
        return _cross_entropy(model(images), labels)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        samples, dtype = self._validation, next(model.parameters()).dtype
        correct, loss = 0, 0.0
        for begin in range(0, len(samples), _EVALUATION_BATCH):
            part = slice(begin, begin + _EVALUATION_BATCH)
            labels = samples.labels[part]
            logits = model(samples.images[part].to(dtype))
            correct += int((logits.argmax(dim=1) == labels).sum())
            loss += float(_cross_entropy(logits, labels)) * len(labels)
        return {"val_accuracy": correct / len(samples), "val_loss": loss / len(samples)}

    def facts(self) -> Mapping[str, object]:
        return {"training_samples": self.samples, **counted_in("val_accuracy", len(self._validation))}


def train(run: Client, task: Task, checkpoints: Checkpoints) -> bool:
    """Train as *task* says; return False where it left at a checkpoint."""
    return train_recipe(run, task, checkpoints, Classification)


def _read(task: Task) -> tuple[digits.Images, digits.Images]:
    if task.choose("data", ("digits", "mnist")) == "digits":
        return digits.split(digits.read_digits(), task.holdout)
    if task.data_path is None:
        raise RecipeError("data=mnist needs data.path: a folder with its IDX files, or mnist.npz")
    return digits.read_mnist(task.data_path)


def _place(images: digits.Images, arithmetic: Arithmetic, task: Task) -> Samples:
    """Put all *images* on the device: 28x28 pixels between 0 and 1."""
    raw = torch.frombuffer(bytearray(images.pixels), dtype=torch.uint8)
    pixels = raw.view(len(images), 1, images.height, images.width).float() / images.largest
    if task.data != "mnist":
        pixels = F.interpolate(pixels, size=(_DIGITS_SIDE, _DIGITS_SIDE), mode="bilinear", align_corners=False)
        pixels = F.pad(pixels, [(PIXELS - _DIGITS_SIDE) // 2] * 4)
    labels = torch.frombuffer(bytearray(images.labels), dtype=torch.uint8).long()
    if pixels.shape[-2:] != (PIXELS, PIXELS) or int(labels.max()) >= CLASSES:
        raise RecipeError(
            f"data={task.data} has images of {images.height}x{images.width} pixels and labels up to {int(labels.max())}"
            f": the models expect {PIXELS}x{PIXELS} and {CLASSES - 1}"
        )
    if task.layout == "nhwc":
        pixels = pixels.contiguous(memory_format=torch.channels_last)
    return Samples(images=pixels.to(arithmetic.device), labels=labels.to(arithmetic.device))


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    # sums of exponentials overflow in 16 bits; autocast computes them in FP32 too
    return F.cross_entropy(logits if logits.dtype is torch.float64 else logits.float(), labels)
