"""Sequences of symbols, and what a network writes that is to say them backwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from models import Shape, Translator
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own custom

from hpcml_client import Checkpoints, Client
from hpcml_train.errors import RecipeError
from hpcml_train.loop import counted_in, perplexity
from hpcml_train.task import Task
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.recipe import Recipe
from hpcml_train.torch.training import train as train_recipe

if TYPE_CHECKING:
    Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # what is read, what was written before, what to write

_EVALUATION_BATCH = 256  # bounds the memory only


class Reversal(Recipe):
    """Random sequences, said backwards: each symbol that is written stands at another place of what was read."""

    def __init__(self, task: Task, arithmetic: Arithmetic) -> None:
        task.choose("data", ("reversals",))
        shape = Shape.of(task.options)
        count = shape.sequences + shape.validation_sequences
        if shape.symbols**shape.length < 2 * count:
            raise RecipeError(
                f"there are {shape.symbols**shape.length} sequences of {shape.length} out of {shape.symbols} symbols, "
                f"too few for {count} that differ: raise model.options.length or symbols"
            )
        self._beginning = shape.symbols
        # the same for every seed, and none of those held out is trained on
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randint(shape.symbols, (4 * count, shape.length), generator=generator)
        distinct = torch.unique(drawn, dim=0)
        order = torch.randperm(len(distinct), generator=generator)[:count]
        sequences = distinct[order].to(arithmetic.device)
        self._training, self._validation = (
            sequences[shape.validation_sequences :],
            sequences[: shape.validation_sequences],
        )
        self.samples, self.tokens_per_sample = len(self._training), 2 * shape.length
        self.model = Translator(shape)

    def batch(self, indices: torch.Tensor) -> Batch:
        return self._asked(self._training[indices])

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        given, before, wanted = batch
        return _cross_entropy(model(given, before), wanted)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        loss, symbols, whole = 0.0, 0, 0
        for part in torch.split(self._validation, _EVALUATION_BATCH):
            given, before, wanted = self._asked(part)
            logits = model(given, before)
            loss += float(_cross_entropy(logits, wanted)) * len(part)
            right = logits.argmax(dim=-1) == wanted
            symbols += int(right.sum())
            whole += int(right.all(dim=1).sum())
        count, length = self._validation.shape
        mean = loss / count
        return {
            "val_loss": mean,
            "perplexity": perplexity(mean),
            "val_accuracy": symbols / (count * length),
            "whole_sequences": whole / count,
        }

    def facts(self) -> Mapping[str, object]:
        count, length = self._validation.shape
        return {"training_samples": self.samples, **counted_in("val_accuracy", count, each=length)}

    def _asked(self, given: torch.Tensor) -> Batch:
        wanted = given.flip(1)
        beginning = torch.full_like(wanted[:, :1], self._beginning)
        return given, torch.cat([beginning, wanted[:, :-1]], dim=1), wanted


def train(run: Client, task: Task, checkpoints: Checkpoints) -> bool:
    """Train as *task* says; return False where it left at a checkpoint."""
    return train_recipe(run, task, checkpoints, Reversal)


def _cross_entropy(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    # sums of exponentials overflow in 16 bits; autocast computes them in FP32 too
    exact = logits if logits.dtype is torch.float64 else logits.float()
    return F.cross_entropy(exact.flatten(0, 1), wanted.flatten())
