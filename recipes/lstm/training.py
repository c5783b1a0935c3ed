"""Sequences, and what a recurrent network says comes next in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from models import Recurrent
from sequences import choose_sequences
from shape import Shape
from torch import nn

from hpcml_train.continuing import check_prompt
from hpcml_train.data.texts import BYTES
from hpcml_train.task import Task
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.bases import NextToken
from hpcml_train.torch.continuing import continue_with
from hpcml_train.torch.training import train as train_recipe

if TYPE_CHECKING:
    Batch = tuple[torch.Tensor, torch.Tensor]  # tokens, and those that follow each

_EVALUATION_BATCH = 256  # bounds the memory only


class Continuation(NextToken):
    """Sequences, continued by one token."""

    def __init__(self, task: Task, arithmetic: Arithmetic) -> None:
        shape = Shape(**task.options)
        self._shape, self._seed = shape, task.seed
        self._sequences = choose_sequences(task, shape, partial(torch.tensor, device=arithmetic.device))
        check_prompt(shape.prompt, shape.generate, reads_text=task.data != "fibonacci")
        self.samples, self.held_out = len(self._sequences), len(self._sequences.validation())
        self.tokens_per_sample = shape.context
        self.model = Recurrent(shape, self._sequences.vocabulary)

    def batch(self, indices: torch.Tensor) -> Batch:
        return self._shifted(self._sequences.training(indices))

    def validation(self) -> Iterator[Batch]:
        return map(self._shifted, self._sequences.validation().split(_EVALUATION_BATCH))

    def layers(self, model: nn.Module) -> Sequence[nn.Module]:
        """Return embedding, recurrent layers and output; those are one, since a GPU works on all of them at once."""
        return list(model.children())

    def facts(self) -> Mapping[str, object]:
        return {**super().facts(), **self._sequences.facts()}

    def results(self, weights: Mapping[str, torch.Tensor]) -> Mapping[str, Mapping[str, object]]:
        return continue_with(lambda: Recurrent(self._shape, BYTES), weights, self._shape, seed=self._seed)

    def _shifted(self, sequences: torch.Tensor) -> Batch:
        return sequences[:, :-1], sequences[:, self._sequences.first_guess :]


train = partial(train_recipe, make=Continuation)
