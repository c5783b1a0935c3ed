"""Windows of a text, and what a transformer says about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from batches import LOTS, LOTS_STRIDE, Batch, TextBatches, counts
from models import Block, Embedding, Head, Transformer
from shape import MASK, UNASKED, Shape
from torch import nn

from hpcml_train.data.texts import BYTES
from hpcml_train.errors import RecipeError
from hpcml_train.task import Task
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.bases import NextToken
from hpcml_train.torch.continuing import continue_with
from hpcml_train.torch.training import train as train_recipe


class Batches(TextBatches):
    """Windows of the text on the device."""

    def __init__(self, task: Task, shape: Shape, device: torch.device) -> None:
        super().__init__(task, shape, partial(torch.tensor, device=device))
        lots = torch.Generator().manual_seed(0)  # the same for every seed: validation must be
        self._lots = torch.rand(LOTS, generator=lots).to(device)
        self._others = torch.randint(BYTES, (LOTS,), generator=lots).to(device)
        self._offsets = torch.arange(shape.context, device=device)

    def hide(self, starts: torch.Tensor, tokens: torch.Tensor) -> Batch:
        places = (starts[:, None] * LOTS_STRIDE + self._offsets) % LOTS
        rank = self._lots[places].argsort(dim=1, stable=True).argsort(dim=1)
        guessed, hidden, changed = counts(tokens.shape[1])
        given = torch.where(rank < hidden, torch.full_like(tokens, MASK), tokens)
        given = torch.where((rank >= hidden) & (rank < hidden + changed), self._others[places], given)
        return given, torch.where(rank < guessed, tokens, torch.full_like(tokens, UNASKED))


class LanguageModelling(NextToken):
    """Bytes of a text, guessed from those before them or around them."""

    unasked = UNASKED

    def __init__(self, task: Task, arithmetic: Arithmetic) -> None:
        self._shape = shape = Shape(**task.options)
        self._seed = task.seed
        if shape.kind == "encoder_decoder" and task.strategy in ("pipeline", "model_parallel"):
            raise RecipeError(
                f"strategy={task.strategy}: all decoders of model.options.kind=encoder_decoder look at the last "
                "encoder's output, and stages hand on one tensor: choose decoder or encoder"
            )
        self._batches = Batches(task, shape, arithmetic.device)
        self.samples = len(self._batches)
        self.tokens_per_sample = shape.context
        self.model = Transformer(shape)

    def batch(self, indices: torch.Tensor) -> Batch:
        return self._batches.training(indices)

    def validation(self) -> Iterator[Batch]:
        return self._batches.validation()

    def layers(self, model: nn.Module) -> Sequence[nn.Module]:
        """Return embedding, blocks and head; those of encoder_decoder do not just follow each other: for fsdp only."""
        return [part for part in model.modules() if isinstance(part, (Embedding, Block, Head))]

    def facts(self) -> Mapping[str, object]:
        return self._batches.facts()

    def results(self, weights: Mapping[str, torch.Tensor]) -> Mapping[str, Mapping[str, object]]:
        known = {"head.weight": weights["embedding.tokens.weight"], **weights}
        return continue_with(lambda: Transformer(self._shape), known, self._shape, seed=self._seed)


train = partial(train_recipe, make=LanguageModelling)
