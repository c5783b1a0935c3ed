"""Sequences of symbols, and what a network writes that is to say them backwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch
from models import Shape, Translator
from torch import nn

from hpcml_train.errors import RecipeError
from hpcml_train.task import Task
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.bases import NextToken
from hpcml_train.torch.training import train as train_recipe

if TYPE_CHECKING:
    Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # what is read, what was written before, what to write

_EVALUATION_BATCH = 256  # bounds the memory only


class Reversal(NextToken):
    """Random sequences, said backwards: each symbol that is written stands at another place of what was read."""

    def __init__(self, task: Task, arithmetic: Arithmetic) -> None:
        task.choose("data", ("reversals",))
        shape = Shape(**task.options)
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
        self.samples, self.held_out = len(self._training), len(self._validation)
        self.tokens_per_sample = 2 * shape.length
        self.model = Translator(shape)

    def batch(self, indices: torch.Tensor) -> Batch:
        return self._asked(self._training[indices])

    def validation(self) -> Iterator[Batch]:
        return map(self._asked, self._validation.split(_EVALUATION_BATCH))

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        whole = sum(
            int((model(given, before).argmax(dim=-1) == wanted).all(dim=1).sum())
            for given, before, wanted in self.validation()
        )
        return {**super().evaluate(model), "whole_sequences": whole / self.held_out}

    def _asked(self, given: torch.Tensor) -> Batch:
        wanted = given.flip(1)
        beginning = torch.full_like(wanted[:, :1], self._beginning)
        return given, torch.cat([beginning, wanted[:, :-1]], dim=1), wanted


train = partial(train_recipe, make=Reversal)
